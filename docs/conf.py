"""How Sphinx builds these pages: ``make docs``."""

import importlib.metadata
import re
from typing import Any

project = "softsolve"
author = "The softsolve developers"
release = importlib.metadata.version("softsolve")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# Links to files that are no pages; check.py sees to it that the files are there.
suppress_warnings = ["myst.xref_missing"]
html_theme = "alabaster"
html_theme_options = {"page_width": "70em", "sidebar_width": "14em"}

autodoc_default_options = {
    "members": True,
    "special-members": "__call__",
    "exclude-members": "extra_repr, rows, smoothed_maximum, tree_flatten, "
    "tree_unflatten",
}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False


def adapt(
    app: object, what: str, name: str, item: object, options: Any, lines: list[str]
) -> None:
    """Make docstrings that read well in a terminal fit on one page together."""
    label = re.sub(r"\W", "-", name)
    for index, line in enumerate(lines):
        # References are numbered from 1 in each docstring.
        adapted = re.sub(r"\[(\d+)\](_|(?= ))", rf"[#{label}-\1]\2", line)
        # Shapes such as (*batch, *event), and absolute values.
        adapted = re.sub(
            r"(?<![\\\w*`])\*(?=(batch|event|out|context)\b)", r"\*", adapted
        )
        lines[index] = re.sub(r"(?<![\w`])\|(\w)\|", r"\|\1\|", adapted)


def setup(app: Any) -> None:
    """Let Sphinx adapt docstrings."""
    app.connect("autodoc-process-docstring", adapt)
