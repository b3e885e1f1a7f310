"""List the tests and doctests of the core: what runs without torch and jax.

A file counts if none of its imports, those of ``tests/support`` included, leads to an
extra. ``make test-core`` hands the list to pytest.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = {
    *("torch", "jax", "sklearn", "matplotlib", "click", "rich"),
    *("softsolve.torch", "softsolve.jax", "softsolve.sklearn"),
    *("softsolve.experiments", "softsolve.cli"),
}
# These run or read what is not the core, in other processes or as text.
OTHERS = {
    "tests/packaging",
    "tests/test_benchmarks.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_executor_checks.py",
    "tests/test_fused_checks.py",
    "tests/test_solver_checks.py",
}


def imports(path: Path) -> Iterator[str]:
    """Yield the names of modules, and of what may be modules, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def needs_extras(path: Path) -> bool:
    """Tell whether the imports of a file lead to an extra."""
    for name in imports(path):
        parts = name.split(".")
        if {".".join(parts[: n + 1]) for n in range(len(parts))} & EXTRAS:
            return True
        support = (ROOT / "tests").joinpath(*parts).with_suffix(".py")
        if parts[0] == "support" and support.is_file() and needs_extras(support):
            return True
    return False


def core() -> list[str]:
    """Return the paths of the core's tests and doctests, relative to the root."""
    apart = {f"src/{name.replace('.', '/')}" for name in EXTRAS} | OTHERS
    found = []
    for path in sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("src/**/*.py")]):
        name = path.relative_to(ROOT)
        places = {name.as_posix(), name.as_posix().removesuffix(".py")}
        places |= {place.as_posix() for place in name.parents}
        if not places & apart and not needs_extras(path):
            found.append(name.as_posix())
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(core()))
