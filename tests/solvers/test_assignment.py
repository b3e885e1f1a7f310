"""Assignments, against SciPy, brute force and an integer program."""

import itertools

import numpy as np
import pytest

from softsolve.compiled.kernel import OK
from softsolve.compiled.rows import solve_rows
from softsolve.errors import SolverError
from softsolve.solvers.assignment import NOT_FINITE, Assignment
from support import optima
from support.solvers import kernel_status

DTYPES = [np.float32, np.float64]
SHAPES = [
    *[(1, 1), (1, 4), (5, 1), (2, 2), (3, 3), (5, 8), (8, 5)],
    *[(15, 17), (16, 16), (17, 16), (31, 33), (33, 31), (40, 40)],
]


def total(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=(1, 2))


def best_totals(theta, *, partial=False):
    return np.array([optima.assignment(scores, partial=partial) for scores in theta])


def brute_force_total(scores, partial):
    n, m = scores.shape
    if n > m:
        return brute_force_total(scores.T, partial)
    choices = itertools.permutations(range(m), n)
    totals = [scores[range(n), list(choice)] for choice in choices]
    if partial:
        totals = [np.maximum(cells, 0) for cells in totals]
    return max(cells.sum() for cells in totals)


def states_for(solver, theta):
    """Return the states that the kernel writes for ``theta``, as it is first called."""
    count, *shape = theta.shape
    ints, reals = solver.structure(tuple(shape))
    states = np.zeros((count, solver.state_size(tuple(shape))))
    flat = theta.reshape(count, -1)
    solve_rows(solver.kernel, flat, ints, reals, np.zeros((count, 0)), states)
    return states


def solve_from(solver, theta, states):
    count, *shape = theta.shape
    ints, reals = solver.structure(tuple(shape))
    before = states.copy()
    flat = theta.reshape(count, -1)
    y, status = solve_rows(
        solver.kernel, flat, ints, reals, np.zeros((count, 0)), states
    )
    assert not status.any()
    np.testing.assert_array_equal(states, before)
    return y.reshape(theta.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_instances_against_scipy(shape, dtype):
    theta = np.random.default_rng(0).normal(size=(40, *shape)).astype(dtype)
    solver = Assignment()
    y = solver(theta)
    assert y.dtype == dtype
    assert y.shape == theta.shape
    assert solver.feasible(y).all()
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(total(theta, y), best_totals(theta), atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1, 2, 3, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_ties_against_scipy(shape, levels, dtype):
    theta = np.random.default_rng(levels).integers(-1, levels - 1, (20, *shape))
    theta = theta.astype(dtype)
    solver = Assignment()
    y = solver(theta)
    assert solver.feasible(y).all()
    # Sums of whole numbers are exact, so the maximum must be met exactly.
    np.testing.assert_array_equal(total(theta, y), best_totals(theta))
    np.testing.assert_array_equal(y, solver(theta))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_partial_against_scipy(shape, dtype):
    rng = np.random.default_rng(1)
    real = rng.normal(size=(20, *shape)) - rng.uniform(0, 2, (20, 1, 1))
    whole = rng.integers(-3, 3, (20, *shape))
    solver = Assignment(partial=True)
    for theta, tolerance in ((real, 1e-4), (whole, 0)):
        scores = theta.astype(dtype)
        y = solver(scores)
        assert solver.feasible(y).all()
        assert (scores[y == 1] > 0).all()
        np.testing.assert_allclose(
            total(scores, y), best_totals(scores, partial=True), atol=tolerance
        )


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (4, 4), (5, 5), (6, 3)])
def test_brute_force(shape, partial):
    theta = np.random.default_rng(2).normal(size=(20, *shape))
    expected = [brute_force_total(scores, partial) for scores in theta]
    y = Assignment(partial=partial)(theta)
    np.testing.assert_allclose(total(theta, y), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_structured_costs(dtype):
    """Products make every augmenting path long; blocks make the duals degenerate."""
    n = 60
    index = np.arange(n)
    product = -np.outer(index + 1, index + 1)
    distance = -np.abs(index[:, None] - index[::-1])
    blocks = (index[:, None] // 10 == index // 10) * 1
    theta = np.stack([product, distance, blocks, product.T * 0]).astype(dtype)
    y = Assignment()(theta)
    assert Assignment().feasible(y).all()
    np.testing.assert_array_equal(total(theta, y), best_totals(theta))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.03, 0.3, 3.0, 100.0])
def test_warm_start_is_optimal(temperature, partial, dtype):
    rng = np.random.default_rng(3)
    solver = Assignment(partial=partial)
    for n in (1, 2, 7, 16, 30):
        theta = rng.normal(size=(10, n, n)).astype(dtype)
        noise = temperature * rng.normal(size=theta.shape)
        perturbed = (theta + noise).astype(dtype)
        y = solve_from(solver, perturbed, states_for(solver, theta))
        assert solver.feasible(y).all()
        np.testing.assert_allclose(
            total(perturbed, y),
            total(perturbed, solver(perturbed)),
            atol=1e-5 * (1 + temperature) * n,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1, 2, 5, 50])
def test_long_runs_of_ties(levels, dtype):
    theta = np.random.default_rng(9).integers(0, levels, (3, 120, 120)).astype(dtype)
    y = Assignment()(theta)
    assert Assignment().feasible(y).all()
    np.testing.assert_array_equal(total(theta, y), best_totals(theta))


def test_warm_start_with_ties_is_optimal():
    rng = np.random.default_rng(4)
    solver = Assignment()
    theta = rng.integers(0, 4, (40, 12, 12)).astype(np.float64)
    perturbed = theta + rng.integers(-1, 2, theta.shape) * (
        rng.random((40, 1, 1)) < 0.7
    )
    y = solve_from(solver, perturbed, states_for(solver, theta))
    np.testing.assert_array_equal(total(perturbed, y), best_totals(perturbed))


def test_only_square_assignments_start_warm():
    assert Assignment().state_size((4, 4)) > 0
    assert Assignment().state_size((4, 5)) == 0
    assert Assignment().state_size((5, 4)) == 0


def test_ties_do_not_depend_on_the_batch():
    theta = np.random.default_rng(8).integers(0, 3, (30, 9, 9)).astype(np.float64)
    y = Assignment()(theta)
    for row in range(len(theta)):
        np.testing.assert_array_equal(Assignment()(theta[row : row + 1])[0], y[row])
    np.testing.assert_array_equal(Assignment()(theta[::-1])[::-1], y)


def test_cells_of_score_zero_stay_unmatched_where_that_is_allowed():
    assert not Assignment(partial=True)(np.zeros((1, 3, 3))).any()


def test_scale_of_the_scores_does_not_matter():
    theta = np.random.default_rng(5).normal(size=(5, 9, 9))
    y = Assignment()(theta)
    for scale in (2.0**-500, 2.0**-20, 2.0**500):
        np.testing.assert_array_equal(Assignment()(theta * scale), y)


def test_empty_batch_and_strided_input():
    assert Assignment()(np.zeros((0, 3, 4))).shape == (0, 3, 4)
    theta = np.random.default_rng(6).normal(size=(6, 5, 4))
    expected = Assignment()(np.ascontiguousarray(theta.transpose(0, 2, 1)))
    np.testing.assert_array_equal(Assignment()(theta.transpose(0, 2, 1)), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_scores_that_cannot_be_added_up(bad):
    theta = np.zeros((3, 20, 20), dtype=np.float32)
    theta[1, 19, 18] = bad
    assert kernel_status(Assignment(), theta) == [OK, NOT_FINITE, OK]


def test_scores_that_are_too_large():
    theta = np.zeros((3, 20, 20), dtype=np.float32)
    theta[1, 19, 18] = 3e38
    with pytest.raises(SolverError, match=r"first row 1: a score.* too large"):
        Assignment()(theta)


def test_shape_and_context_errors():
    with pytest.raises(ValueError, match=r"shape \(rows, n, m\).*\(3, 4, 5\)"):
        Assignment()(np.zeros((2, 3, 4, 5)))
    with pytest.raises(
        ValueError, match=r"scores of shape \(rows, n, m\).*shape \(0, 3\)"
    ):
        Assignment()(np.zeros((2, 0, 3)))
    with pytest.raises(TypeError, match="takes no context"):
        Assignment()(np.zeros((2, 3, 3)), np.zeros(2))


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (3, 3), (3, 4), (4, 3)])
@pytest.mark.parametrize("partial", [False, True])
def test_project_spans_the_differences(shape, partial):
    rng = np.random.default_rng(7)
    solver = Assignment(partial=partial)
    y = solver(rng.normal(size=(300, *shape)) + 0.5).reshape(300, -1)
    differences = y - y[0]
    rank = np.linalg.matrix_rank(differences)
    cells = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
    projector = solver.project(cells).reshape(len(cells), -1)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(differences @ projector, differences, atol=1e-12)
    assert np.linalg.matrix_rank(projector) == rank


def test_feasible_rejects():
    solver, partial = Assignment(), Assignment(partial=True)
    two_in_a_row = np.array([[1.0, 1.0], [0.0, 0.0]])
    missing = np.array([[1.0, 0.0], [0.0, 0.0]])
    half = np.full((2, 2), 0.5)
    y = np.stack([np.eye(2), two_in_a_row, two_in_a_row.T, missing, half])
    assert solver.feasible(y).tolist() == [True, False, False, False, False]
    assert partial.feasible(y).tolist() == [True, False, False, True, False]
