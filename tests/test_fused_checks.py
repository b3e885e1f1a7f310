"""The checks of the fused route run, and notice a route that is wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softsolve import parallel, solvers
from softsolve.compiled.plan import FAMILIES

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def checks(monkeypatch):
    """Return the module of the checks; the number of threads is put back."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fused_checks

    before = parallel.get_num_threads()
    yield fused_checks
    parallel.set_num_threads(before)


def test_every_fused_solver_is_on_the_page(tmp_path):
    page = tmp_path / "fused.md"
    script = str(BENCHMARKS / "fused_checks.py")
    result = subprocess.run(
        [sys.executable, script, "--rows", "2", "--output", str(page)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    text = page.read_text()
    for item in vars(solvers).values():
        if isinstance(item, type) and (
            getattr(item, "kernel", None) or getattr(item, "family", "") in FAMILIES
        ):
            assert item.__name__ in text, item
    assert "| forked processes, one after another | 4 | 0 |" in text


def test_draws_that_are_too_wide_are_noticed(checks, monkeypatch):
    right = checks.export_draws
    monkeypatch.setattr(
        checks, "export_draws", lambda *given: right(*given) * np.float32(1.02)
    )
    with pytest.raises(checks.WrongError, match="normal in float32 fail the battery"):
        list(checks.generator(2, 0))


def test_solutions_that_differ_are_noticed(checks, monkeypatch):
    right = checks.solved

    def swapped(solver, x, shape):
        y = right(solver, x, shape)
        y[0, 0] = y[0, 0][::-1]
        return y

    monkeypatch.setattr(checks, "solved", swapped)
    with pytest.raises(checks.WrongError, match="Ranking, 50: a mean is off"):
        checks.compared("Ranking, 50", 2, 0)
    monkeypatch.setattr(checks, "solved", right)
    y = np.zeros((2, 64, 10), np.float32)
    y[..., 0] = 1
    monkeypatch.setattr(checks.FusedPass, "solutions", lambda work, kept: y)
    with pytest.raises(checks.WrongError, match=r"differ on the .* are worse than by"):
        checks.compared("OneHot", 2, 0)


def test_numbers_that_depend_on_the_threads_are_noticed(checks, monkeypatch):
    right = checks.results

    def by_threads(*given):
        return [parallel.get_num_threads() * each for each in right(*given)]

    monkeypatch.setattr(checks, "results", by_threads)
    with pytest.raises(checks.WrongError, match=r"OneHot: .* numbers depend on"):
        checks.compared("OneHot", 2, 0)


def test_calls_that_disturb_each_other_are_noticed(checks, monkeypatch):
    monkeypatch.setattr(checks, "FORKS", 0)
    rng = np.random.default_rng(0)

    class Disturbed(checks.ssn.Perturbed):
        def __call__(self, theta, **options):
            return super().__call__(theta, **options) + rng.normal()

    monkeypatch.setattr(checks.ssn, "Perturbed", Disturbed)
    with pytest.raises(checks.WrongError, match="20 of 20 calls of a Python thread"):
        list(checks.together(2, 0))
