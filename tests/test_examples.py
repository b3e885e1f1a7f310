"""The examples run, and what they train learns."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    called = f"example_{name.removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(called, EXAMPLES / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module  # or its compiled code could not be kept on disk
    spec.loader.exec_module(module)
    return module


def test_every_example_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "compiled_solver.py",
        "demo.py",
        "own_solver.py",
        "perturbed_squared_loss.py",
        "ranking.py",
        "shortest_path.py",
    }


def test_ranking():
    before, after = load("ranking.py").train(60)
    assert abs(before) < 0.2
    assert after > 0.8


@pytest.mark.parametrize("backward", ["shared", "independent"])
def test_perturbed_squared_loss(backward):
    before, after = load("perturbed_squared_loss.py").train(60, backward)
    assert before < 0.1
    assert after > 0.5


def test_own_solver():
    example = load("own_solver.py")
    before, after = example.train(40)
    assert after < 0.6 * before
    scores = np.random.default_rng(0).normal(size=(20, 8))
    y = example.no_neighbours(scores)
    assert example.feasible(y).all()
    for row, solution in zip(scores, y, strict=True):
        np.testing.assert_allclose(solution @ row, example.by_trying_all(row))


def test_compiled_solver():
    example = load("compiled_solver.py")
    before, after = example.train(40)
    assert before < 0.85
    assert after > 0.95
    rng = np.random.default_rng(0)
    scores, jobs = rng.normal(size=(20, example.JOBS)), example.some_jobs(20, rng)
    scores[::2] = np.rint(scores[::2])  # ties
    y = example.schedule(scores, jobs)
    assert example.feasible(y, jobs).all()
    for row, job, solution in zip(scores, jobs, y, strict=True):
        np.testing.assert_allclose(solution @ row, example.by_trying_all(row, job))
    assert example.gain() > 1


def test_shortest_path():
    before, after = load("shortest_path.py").train(40)
    assert before > 1.3
    assert 1.0 - 1e-6 <= after < 1.1


def test_demo(tmp_path, monkeypatch, capsys):
    out = tmp_path / "made" / "demo.png"
    monkeypatch.setattr(sys, "argv", ["demo.py", "--steps", "10", "--out", str(out)])
    load("demo.py").main()
    assert str(out.resolve()) in capsys.readouterr().out.replace("\n", "")
    with Image.open(out) as picture:
        assert picture.size == (1440, 960)
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50
