"""Checks of the documentation: links lead somewhere, public names are documented.

    python docs/check.py

prints what is wrong and exits with 1 if there is anything.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = ("", ".noise", ".solvers", ".testing", ".numpy", ".torch", ".jax", ".sklearn")


def pages(root: Path) -> list[Path]:
    """Return the Markdown pages of the project."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


def broken_links(root: Path) -> Iterator[str]:
    """Yield the links to files and headings that are not there."""
    for page in pages(root):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                yield f"{page.relative_to(root)}: no file {link}"
            elif anchor and anchor not in anchors(target):
                yield f"{page.relative_to(root)}: no heading {link}"


def undocumented() -> Iterator[str]:
    """Yield names without a docstring, and solvers that solvers.md leaves out."""
    table = (ROOT / "docs" / "solvers.md").read_text()
    for suffix in MODULES:
        module = importlib.import_module("softsolve" + suffix)
        names = getattr(module, "__all__", None) or [
            name
            for name, item in vars(module).items()
            if getattr(item, "__module__", None) == module.__name__ and name[0] != "_"
        ]
        for name in names:
            item = getattr(module, name)
            # Noise and other aliases of types have the docstring of their type.
            if (inspect.isclass(item) or inspect.isroutine(item)) and not item.__doc__:
                yield f"{module.__name__}.{name} has no docstring"
            solver = inspect.isclass(item) and not name.endswith("Solver")
            if suffix == ".solvers" and solver and f"`{name}(" not in table:
                yield f"docs/solvers.md does not mention {name}"


def main() -> int:
    """Print what is wrong; return the exit status."""
    found = [*broken_links(ROOT), *undocumented()]
    for text in found:
        print(text, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
