"""Solvers that are called by themselves, without a layer: bad input, and threads."""

import threading

import numpy as np
import pytest

import softsolve as ss
from softsolve import parallel, solvers
from softsolve.compiled.rows import solve_rows
from test_contracts import CASES

COMPILED = [
    name for name, case in CASES.items() if isinstance(case[0], solvers.KernelSolver)
]


@pytest.fixture(params=CASES)
def case(request):
    solver, event, *context = CASES[request.param]
    return solver, np.random.default_rng(0).normal(size=(4, *event)), context


def test_what_is_no_array(case):
    solver, theta, context = case
    with pytest.raises(TypeError, match=r"takes an array of scores.* a list\. Make"):
        solver(theta.tolist(), *context)


def test_a_single_instance(case):
    solver, theta, context = case
    got = rf"row for each instance; got shape \({theta.shape[1]},.*one: theta\[None\]"
    with pytest.raises(ValueError, match=got):
        solver(theta[0], *[array[0] for array in context])
    y = solver(theta[:1], *[array[:1] for array in context])
    np.testing.assert_array_equal(y, solver(theta, *context)[:1])


def test_two_batch_axes(case):
    solver, theta, context = case
    instance = ", ".join(map(str, theta.shape))
    with pytest.raises(ValueError, match=rf"got .*\({instance}\)"):
        solver(theta[None], *context)


@pytest.mark.parametrize(
    ("solver", "size", "match"),
    [
        (solvers.OneHot(), 0, "at least one score"),
        (solvers.TopK(3), 2, "needs at least 3 scores in each row; got 2"),
        (solvers.Ranking([1, 2]), 3, "needs 2 scores in each row; got 3"),
        (solvers.ScoredSet("ab"), 3, "needs one score for each of its 2 items"),
        (solvers.FiniteSet([[1, 2]]), 3, "needs 2 scores in each row"),
        (solvers.L1Ball(), 0, "at least one score"),
        (solvers.GroupBall([0, 1]), 3, r"one score per label.* got \(3,\)"),
        (solvers.KSupportBall(3), 2, "at least 3 scores in each row; got 2"),
    ],
)
def test_instances_of_another_size(solver, size, match):
    with pytest.raises(ValueError, match=match):
        solver(np.zeros((2, size)))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, bool])
def test_whole_numbers_as_scores(case, dtype):
    solver, theta, context = case
    with pytest.raises(TypeError, match=r"of a floating type; got .*theta\.astype"):
        solver(theta.astype(dtype), *context)


@pytest.mark.parametrize("name", COMPILED)
def test_types_that_kernels_do_not_take(name):
    solver, event, *context = CASES[name]
    with pytest.raises(TypeError, match=r"float32 or float64; got float16.*astype"):
        solver(np.ones((4, *event), np.float16), *context)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(name, bad):
    solver, event, *context = CASES[name]
    theta = np.zeros((4, *event))
    theta[2:] = bad
    with pytest.raises(ValueError, match=rf"must be finite; row 2 has {bad}\. To forb"):
        solver(theta, *context)


@pytest.fixture
def three_threads():
    before = parallel.get_num_threads()
    parallel.set_num_threads(3)
    yield
    parallel.set_num_threads(before)


class Together:
    """Solving rows, for which each of two threads waits until the other begins."""

    def __init__(self):
        self.both = threading.Barrier(2)
        self.here = set()

    def __call__(self, *arguments):
        if threading.get_ident() not in self.here:
            self.here.add(threading.get_ident())
            self.both.wait(timeout=30)
        return solve_rows(*arguments)


def test_large_batches_are_solved_on_several_threads(monkeypatch, three_threads):
    solver = solvers.GridPath(endpoints=True)
    rng = np.random.default_rng(0)
    theta = -rng.random((400, 8, 8))
    ends = rng.integers(0, 8, (400, 4))
    expected = np.concatenate(
        [solver(theta[row : row + 1], ends[row : row + 1]) for row in range(400)]
    )
    parallel.set_num_threads(2)
    monkeypatch.setattr("softsolve.solvers.base.solve_rows", Together())
    np.testing.assert_array_equal(solver(theta, ends), expected)


def test_small_batches_are_not(monkeypatch, three_threads):
    threads = []

    def solve(*arguments):
        threads.append(threading.get_ident())
        return solve_rows(*arguments)

    monkeypatch.setattr("softsolve.solvers.base.solve_rows", solve)
    solvers.DagGrid()(np.zeros((20, 10, 10)))
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("name", COMPILED)
def test_threads_solve_what_one_does(name, three_threads):
    solver, event, *context = CASES[name]
    rng = np.random.default_rng(0)
    theta = np.round(rng.normal(size=(700, *event)), 1)
    pick = np.arange(700) % 4
    given = [array[pick] for array in context]
    y = solver(theta, *given)
    parallel.set_num_threads(1)
    np.testing.assert_array_equal(y, solver(theta, *given))


def test_the_first_failure_of_all_threads_is_named(three_threads):
    solver = solvers.GridPath(obstacles=True)
    blocked = np.zeros((600, 6, 6), bool)
    blocked[[77, 300, 599], 5, 5] = True
    with pytest.raises(ss.SolverError, match=r"3 of the 600 .*first row 77"):
        solver(np.zeros((600, 6, 6)), blocked)
