"""The count of checked solvers runs, and notices solvers that are wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """Let the test import the benchmarks' own modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_solver_is_counted(tmp_path):
    from softsolve import solvers

    page = tmp_path / "solvers.md"
    script = str(BENCHMARKS / "solver_checks.py")
    result = subprocess.run(
        [sys.executable, script, "--instances", "8", "--output", str(page)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    text = page.read_text()
    names = {item.__name__ for item in vars(solvers).values() if isinstance(item, type)}
    for name in names - {"Solver", "KernelSolver", "FunctionSolver"}:
        assert name in text, name
    assert "0 wrong" in text


class Second:
    """The best but one of the scores."""

    def __call__(self, theta):
        y = np.zeros_like(theta)
        y[0, np.argsort(theta[0])[-2]] = 1
        return y

    def feasible(self, y, *context):
        return y.sum(axis=1) == 1


class Twice(Second):
    """Twice the best of the scores: more than there is."""

    def __call__(self, theta):
        return 2.0 * (theta == theta.max())


class Refuses(Second):
    """A solver that finds no solution."""

    def __call__(self, theta):
        from softsolve.errors import SolverError

        raise SolverError("no solution")  # noqa: EM101


@pytest.mark.parametrize(
    ("solver", "best", "reason"),
    [
        (Second(), np.max, "worth 2, and 3 at best"),
        (Twice(), np.max, "not feasible"),
        (Refuses(), np.max, "no solution"),
        (Second(), lambda _: None, "a solution, where there is none"),
        (Refuses(), lambda _: None, None),
    ],
)
def test_what_is_wrong_is_noticed(solver, best, reason, modules):
    from solver_checks import Count, judge
    from solver_instances import Family, Instance

    count = Count(Family("", "", lambda rng: iter(())))
    theta = np.array([1.0, 3.0, 2.0])
    judge(count, Instance("random", solver, theta, best), np.float32)
    assert count.checked.total() == 1
    assert len(count.wrong) == (reason is not None)
    assert reason is None or reason in count.wrong[0]
