"""The documentation: its links, its examples, and that nothing public is left out."""

import doctest
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from softsolve.solvers import Solver, TopK
from softsolve.testing import check_solver

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check", ROOT / "docs" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_somewhere(check):
    assert list(check.broken_links(ROOT)) == []


def test_public_names_are_documented(check):
    assert list(check.undocumented()) == []


def test_broken_links_are_found(check, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# One heading: with `code`\n[a](docs/page.md) [b](none.md) [c](#two)\n"
        "[d](#one-heading-with-code) [e](https://example.org/none.md)\n"
        "```\n[f](in-code.md)\n```\n"
    )
    (tmp_path / "docs" / "page.md").write_text("[g](../README.md#nowhere)\n")
    assert list(check.broken_links(tmp_path)) == [
        "README.md: no file none.md",
        "README.md: no heading #two",
        "docs/page.md: no heading ../README.md#nowhere",
    ]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name
)
def test_examples_of_the_pages(page):
    outcome = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert outcome.failed == 0


def test_first_example_of_the_readme_ends_by_line_40():
    lines = (ROOT / "README.md").read_text().splitlines()
    start = lines.index("```python")
    end = lines.index("```", start)
    assert any("import softsolve" in line for line in lines[start:end])
    assert any(".backward()" in line for line in lines[start:end])
    assert end < 40


def test_the_solver_of_the_contributing_guide():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"^   ```python\n(.*?)^   ```", text, flags=re.M | re.S)
    names = {"Solver": Solver, "TopK": TopK, "Array": object}
    exec(re.sub(r"^   ", "", code, flags=re.M), names)
    theta = np.random.default_rng(0).normal(size=(8, 5))
    report = check_solver(names["Lightest"](2), theta)
    assert report.skipped == ()
