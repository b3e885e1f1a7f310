"""Optimal transport, against linear programming and OR-Tools' minimum-cost flow."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from softsolve.compiled.kernel import OK
from softsolve.solvers.transport import NOT_FINITE, OptimalTransport
from support import optima
from support.solvers import kernel_status

DTYPES = [np.float32, np.float64]
SHAPES = [(1, 1), (1, 6), (7, 1), (2, 2), (4, 5), (9, 6), (16, 17), (25, 20)]


def total(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=(1, 2))


def has_no_cycle(plan):
    """The columns of the marginals' matrix that a vertex uses are independent."""
    used = optima.marginal_matrix(*plan.shape).toarray()[:, plan.ravel() > 0]
    return np.linalg.matrix_rank(used) == used.shape[1]


def random_marginals(rng, count, n, m, *, some_zero=True):
    a, b = rng.random((count, n)), rng.random((count, m))
    if some_zero:
        a *= rng.random(a.shape) < 0.7
        b *= rng.random(b.shape) < 0.7
    a[:, 0] += 0.1
    b[:, -1] += 0.1
    return a, b * (a.sum(axis=1) / b.sum(axis=1))[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_instances_against_linear_programming(shape, dtype):
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(12, *shape)).astype(dtype)
    theta[8:] = rng.integers(0, 3, theta[8:].shape)
    a, b = random_marginals(rng, 12, *shape)
    solver = OptimalTransport()
    y = solver(theta, a, b)
    assert y.dtype == dtype
    assert solver.feasible(y, a, b).all()
    assert all(has_no_cycle(plan) for plan in y)
    expected = [optima.transport(*row) for row in zip(theta, a, b, strict=True)]
    np.testing.assert_allclose(total(theta, y), expected, rtol=1e-5, atol=1e-5)
    if dtype == np.float64:
        np.testing.assert_allclose(total(theta, y), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 4), (8, 8), (20, 12)])
def test_whole_numbers_against_minimum_cost_flow(shape):
    rng = np.random.default_rng(1)
    n, m = shape
    for _ in range(10):
        cost = rng.integers(-20, 20, (1, n, m))
        a = rng.multinomial(60, np.ones(n) / n)
        b = rng.multinomial(60, np.ones(m) / m)
        y = OptimalTransport(a, b)(-cost.astype(np.float64))
        assert total(-cost, y)[0] == optima.whole_transport(-cost[0], a, b)
        np.testing.assert_array_equal(y, np.round(y))
        np.testing.assert_array_equal(y.sum(axis=2)[0], a)
        np.testing.assert_array_equal(y.sum(axis=1)[0], b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_marginals_are_an_assignment(dtype):
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(20, 12, 12)).astype(dtype)
    y = OptimalTransport(np.ones(12), np.ones(12))(theta)
    assert set(np.unique(y)) == {0, 1}
    for scores, found in zip(theta, total(theta, y), strict=True):
        best = scores[linear_sum_assignment(scores, maximize=True)].astype(np.float64)
        np.testing.assert_allclose(found, best.sum(), rtol=1e-6)


@pytest.mark.parametrize("levels", [1, 2])
def test_ties_give_vertices_that_do_not_depend_on_the_batch(levels):
    rng = np.random.default_rng(3)
    theta = rng.integers(0, levels, (10, 8, 8)).astype(np.float64)
    solver = OptimalTransport(np.full(8, 0.125), np.full(8, 0.125))
    y = solver(theta)
    assert solver.feasible(y).all()
    assert all(has_no_cycle(plan) for plan in y)
    np.testing.assert_array_equal(solver(theta[::-1])[::-1], y)


def test_one_dimension_is_the_monotone_plan():
    """For points on a line and a convex cost, mass keeps its order."""
    rng = np.random.default_rng(4)
    source, target = np.sort(rng.normal(size=30)), np.sort(rng.normal(size=40))
    a, b = (marginal[0] for marginal in random_marginals(rng, 1, 30, 40))
    cost = (source[:, None] - target) ** 2
    y = OptimalTransport(a, b)(-cost[None])
    cumulative = np.minimum(np.cumsum(a)[:, None], np.cumsum(b))
    plan = np.diff(np.diff(cumulative, axis=0, prepend=0), axis=1, prepend=0)
    np.testing.assert_allclose(y[0], plan, atol=1e-12)


def test_scale_of_the_scores_does_not_matter():
    rng = np.random.default_rng(5)
    theta = rng.normal(size=(5, 9, 7))
    a, b = random_marginals(rng, 5, 9, 7)
    y = OptimalTransport()(theta, a, b)
    for scale in (2.0**-500, 2.0**500):
        np.testing.assert_array_equal(OptimalTransport()(theta * scale, a, b), y)


def test_shared_marginals_are_those_of_each_row():
    rng = np.random.default_rng(6)
    theta = rng.normal(size=(5, 4, 6))
    a, b = (np.repeat(m, 5, axis=0) for m in random_marginals(rng, 1, 4, 6))
    shared = OptimalTransport(a[0], b[0])
    np.testing.assert_array_equal(shared(theta), OptimalTransport()(theta, a, b))
    assert shared(theta[:0]).shape == (0, 4, 6)


def test_no_mass_gives_no_plan():
    y = OptimalTransport(np.zeros(2), np.zeros(3))(np.ones((1, 2, 3)))
    np.testing.assert_array_equal(y, np.zeros((1, 2, 3)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 1), (3, 4), (4, 4)])
@pytest.mark.parametrize("some_zero", [False, True])
def test_project_spans_the_differences(shape, some_zero):
    rng = np.random.default_rng(7)
    a, b = (m[0] for m in random_marginals(rng, 1, *shape, some_zero=some_zero))
    solver = OptimalTransport(a, b)
    y = solver(rng.normal(size=(300, *shape))).reshape(300, -1)
    differences = y - y[0]
    cells = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
    projector = solver.project(cells).reshape(len(cells), -1)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(differences @ projector, differences, atol=1e-12)
    rank = np.linalg.matrix_rank(differences, tol=1e-9)
    assert np.linalg.matrix_rank(projector, tol=1e-9) == rank


def test_project_with_marginals_of_each_row():
    x = np.random.default_rng(8).normal(size=(2, 3, 4))
    projected = OptimalTransport().project(x)
    np.testing.assert_allclose(projected.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(projected.sum(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose(OptimalTransport().project(projected), projected)


def test_feasible_rejects():
    solver = OptimalTransport([1.0, 1.0], [1.0, 1.0])
    negative = np.array([[1.5, -0.5], [-0.5, 1.5]])
    y = np.stack([np.eye(2), np.full((2, 2), 0.5), negative, np.eye(2) * 1.01])
    assert solver.feasible(y).tolist() == [True, True, False, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite(bad):
    theta = np.zeros((3, 2, 2))
    theta[2, 1, 1] = bad
    solver = OptimalTransport([0.5, 0.5], [0.5, 0.5])
    assert kernel_status(solver, theta) == [OK, OK, NOT_FINITE]


def test_errors():
    with pytest.raises(TypeError, match="both marginals"):
        OptimalTransport([1.0])
    with pytest.raises(ValueError, match=r"two vectors.*\(1, 2\) and \(2,\)"):
        OptimalTransport([[1.0, 1.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"row marginals.*got -1\.0 at index 1"):
        OptimalTransport([2.0, -1.0], [1.0])
    with pytest.raises(ValueError, match=r"same sum; got 1\.0 .* and 2\.0"):
        OptimalTransport([1.0], [1.0, 1.0])
    theta = np.zeros((2, 1, 2))
    with pytest.raises(TypeError, match="marginals of each row as context"):
        OptimalTransport()(theta)
    with pytest.raises(ValueError, match=r"got \(2, 1\) and \(2, 3\)"):
        OptimalTransport()(theta, np.ones((2, 1)), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"column marginals.*index 0 of row 1"):
        OptimalTransport()(theta, np.ones((2, 1)), [[0.5, 0.5], [np.nan, 1.0]])
    with pytest.raises(ValueError, match=r"in row 1\. Scale"):
        OptimalTransport()(theta, np.ones((2, 1)), [[0.5, 0.5], [0.5, 1.0]])
    with pytest.raises(ValueError, match=r"shape \(1, 2\); got \(2, 1\)"):
        OptimalTransport([1.0], [0.5, 0.5])(np.zeros((2, 2, 1)))
    with pytest.raises(ValueError, match=r"n, m >= 1; got \(3, 4, 5\)"):
        OptimalTransport()(np.zeros((2, 3, 4, 5)), np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="takes no context"):
        OptimalTransport([1.0], [0.5, 0.5])(theta, np.ones((2, 1)))
