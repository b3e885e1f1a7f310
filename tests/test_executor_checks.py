"""The check of executors runs, and notices those that do something else than a loop."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import executor_checks

    return executor_checks


def test_it_writes_its_page(tmp_path):
    page = tmp_path / "executors.md"
    names = ["concurrent.futures.ThreadPoolExecutor", "joblib.Parallel"]
    script = str(BENCHMARKS / "executor_checks.py")
    result = subprocess.run(
        [sys.executable, script, "--output", str(page), "--only", *names],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    text = page.read_text()
    assert "| `joblib.Parallel` |" in text
    assert "| 12 | 0 |" in text


class Wrong:
    """An executor that loses digits, and tells exceptions as its own."""

    def map(self, function, tasks):
        try:
            results = [function(task) for task in tasks]
        except Exception as error:
            raise RuntimeError from error
        for index, piece in results:
            if not isinstance(piece, list):
                yield index, piece
                continue
            yield index, [-y if isinstance(y, np.ndarray) else y for y in piece]


def test_it_notices_what_differs(checks):
    theta = np.random.default_rng(0).normal(size=(checks.ROWS, checks.SIZE))
    assert checks.differing(None, theta) == []
    assert checks.differing(Wrong(), theta) == ["instances", "dropped", "smoothed"]
