"""The benchmarks run, check what they time, and write their page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "run.py"), *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def modules(monkeypatch):
    """Let the test import the benchmarks' own modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_a_quick_run_writes_its_page(tmp_path):
    page = tmp_path / "speed.md"
    result = run("--quick", "--only", "overhead", "--output", str(page))
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "## Small calls" in text
    assert "Ranking(), d=10, B=8" in text
    assert "Made by `python benchmarks/run.py --quick --only overhead" in text


def test_an_unknown_name_is_told_what_there_is():
    result = run("--only", "argmin")
    assert result.returncode == 2
    assert "argmax" in result.stderr


def test_turns_are_timed_and_a_slow_call_sits_out(modules):
    import time

    from timing import interleaved

    times = interleaved(
        {"quick": lambda: time.sleep(0.003), "slow": lambda: time.sleep(0.03)},
        rounds=8,
        budget=0.05,
        shortest=0.002,
    )
    assert len(times["quick"].seconds) == 8
    assert len(times["slow"].seconds) == 3
    assert times["slow"].median > 3 * times["quick"].median


def estimates(rng, calls=6, shift=0.0, factor=1.0):
    from checks import Estimates

    noise = rng.normal(size=(3, calls, 400))
    return Estimates(
        factor * (1 + shift) + 0.1 * noise[0],
        factor * 50 + noise[1, :, :1],
        factor + 0.1 * noise[2],
    )


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, None),
        ({"shift": 0.2}, "its mean is not that of the others"),
        ({"factor": 0.3}, "about 0.3"),
        ({"factor": -1.0}, "about -1.00 times"),
    ],
)
def test_estimates_that_differ_are_noticed(modules, changed, found):
    from checks import disagreement

    rng = np.random.default_rng(0)
    reason = disagreement(estimates(rng), estimates(rng, **changed))
    assert (reason is None) == (found is None)
    assert found is None or found in reason


def test_solutions_that_are_not_optimal_are_noticed(modules):
    from checks import check_solver
    from workloads import WORKLOADS, Ours

    workload = WORKLOADS["assignment20"]()
    x, y = Ours(workload).draws(20)
    check_solver(workload, "ours", x, y)
    y[7] = np.eye(20).reshape(-1)
    with pytest.raises(AssertionError, match=r"1 of 20 solutions .* the first, 7, is"):
        check_solver(workload, "ours", x, y)
