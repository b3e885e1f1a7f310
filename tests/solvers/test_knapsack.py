"""Knapsacks, against brute force, OR-Tools and linear programming."""

import numpy as np
import pytest

from softsolve.solvers.knapsack import FractionalKnapsack, Knapsack
from support import optima
from support.vertices import zeros_and_ones

DTYPES = [np.float32, np.float64]


def brute_force(theta, weights, capacity):
    """Return the best set; of several, the smallest when read from its last item."""
    sets = zeros_and_ones(len(theta))
    sets = sets[sets @ weights <= capacity]
    values = sets @ theta
    best = sets[values == values.max()]
    return min(best.tolist(), key=lambda y: y[::-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_brute_force_with_ties(dtype, n):
    rng = np.random.default_rng(n)
    for _ in range(25):
        weights = rng.integers(0, 6, n) * rng.integers(1, 4)
        capacity = int(rng.integers(0, weights.sum() + 2))
        # Small whole scores are exact in both types, and tie often.
        theta = rng.integers(-2, 5, (4, n)).astype(dtype)
        y = Knapsack(weights, capacity)(theta)
        assert y.dtype == dtype
        expected = [brute_force(row, weights, capacity) for row in theta]
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_capacity_of_each_row(dtype):
    rng = np.random.default_rng(0)
    weights = np.array([4, 6, 2, 8, 4])
    capacity = rng.integers(0, 30, 60)
    theta = rng.integers(-2, 5, (60, 5)).astype(dtype)
    solver = Knapsack(weights)
    y = solver(theta, capacity)
    expected = [
        brute_force(t, weights, c) for t, c in zip(theta, capacity, strict=True)
    ]
    np.testing.assert_array_equal(y, expected)
    assert solver.feasible(y, capacity).all()
    # The capacity need not be whole: what is left over is smaller than any weight.
    np.testing.assert_array_equal(solver(theta, capacity + 0.7), y)


def test_large_instances_against_cp_sat():
    rng = np.random.default_rng(1)
    for n, limit in [(30, 40), (60, 100), (60, 1000)]:
        weights = rng.integers(1, limit, n)
        capacity = int(weights.sum() // 3)
        scores = rng.integers(-20, 1000, (4, n))
        solver = Knapsack(weights, capacity)
        y = solver(scores.astype(np.float64))
        assert solver.feasible(y).all()
        for row, solution in zip(scores, y, strict=True):
            assert solution @ row == optima.knapsack(row, weights, capacity)


@pytest.mark.parametrize("dtype", DTYPES)
def test_degenerate_knapsacks(dtype):
    theta = np.array([[1, 1, 1], [-1, 0, -2], [3, -1, 2]], dtype=dtype)
    for kind in (Knapsack, FractionalKnapsack):
        nothing_fits = kind([2, 3, 4], capacity=0)
        np.testing.assert_array_equal(nothing_fits(theta), np.zeros((3, 3)))
        all_fit = kind([2, 3, 4], capacity=9)
        np.testing.assert_array_equal(all_fit(theta), theta > 0)
        weightless = kind([0, 0, 0], capacity=0)
        np.testing.assert_array_equal(weightless(theta), theta > 0)
        ties = kind([2, 2, 2], capacity=4)
        np.testing.assert_array_equal(ties(theta)[0], [1, 1, 0])
        single = kind([2], capacity=2)
        np.testing.assert_array_equal(single(theta[:, :1]), [[1], [0], [1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 6, 25])
def test_fractional_against_linear_programming(dtype, n):
    rng = np.random.default_rng(n)
    for trial in range(25):
        weights = rng.integers(0, 5, n) if trial % 2 else rng.uniform(0.1, 2, n)
        capacity = float(rng.uniform(0, weights.sum() + 0.5))
        theta = rng.normal(size=n).astype(dtype)
        solver = FractionalKnapsack(weights, capacity)
        y = solver(theta[None])
        assert y.dtype == dtype
        assert solver.feasible(y).all()
        best = optima.fractional_knapsack(theta, weights, capacity)
        assert y[0] @ theta == pytest.approx(best, rel=1e-5, abs=1e-6)
        assert np.count_nonzero((y != 0) & (y != 1)) <= 1


def test_fractional_capacity_of_each_row():
    solver = FractionalKnapsack([1.0, 2.0])
    y = solver(np.array([[2.0, 2.0]] * 3), np.array([0.0, 0.5, 2.0]))
    np.testing.assert_array_equal(y, [[0, 0], [0.5, 0], [1, 0.5]])


def test_feasible_rejects():
    whole = Knapsack([2, 3], capacity=4)
    y = np.array([[1.0, 0.0], [1.0, 1.0], [0.5, 0.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(whole.feasible(y), [True, False, False, False])
    fractional = FractionalKnapsack([2, 3], capacity=4)
    np.testing.assert_array_equal(fractional.feasible(y), [True, False, True, False])


@pytest.mark.parametrize(
    ("solver", "vertices"),
    [
        (
            Knapsack([2, 9, 3, 3], capacity=5),
            zeros_and_ones(4)[zeros_and_ones(4) @ [2, 9, 3, 3] <= 5],
        ),
        (FractionalKnapsack([2, 0, 3], capacity=0), np.array([[0, 0, 0], [0, 1, 0]])),
        (Knapsack([2, 9]), zeros_and_ones(2)),
    ],
)
def test_projection_is_on_the_span_of_differences(solver, vertices):
    directions = (vertices[1:] - vertices[0]).astype(np.float64)
    projector = np.linalg.pinv(directions) @ directions
    x = np.random.default_rng(0).normal(size=(5, vertices.shape[1]))
    np.testing.assert_allclose(solver.project(x), x @ projector, atol=1e-12)


def test_errors():
    with pytest.raises(TypeError, match=r"must be integers; got dtype float64"):
        Knapsack([1.5, 2.0], capacity=3)
    with pytest.raises(ValueError, match=r"not negative; got -2 for item 1"):
        Knapsack([1, -2], capacity=3)
    with pytest.raises(ValueError, match=r"one weight per item; got shape \(0,\)"):
        FractionalKnapsack([], capacity=3)
    with pytest.raises(ValueError, match=r"capacity=\.\.\.\) must be finite .* got -1"):
        Knapsack([1, 2], capacity=-1)
    theta = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"an event of shape \(2,\); got \(3,\)"):
        Knapsack([1, 2], capacity=3)(theta)
    with pytest.raises(TypeError, match=r"got 1 context argument"):
        Knapsack([1, 2, 3], capacity=3)(theta, np.ones(2))
    with pytest.raises(TypeError, match=r"got 0 context argument"):
        Knapsack([1, 2, 3])(theta)
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        Knapsack([1, 2, 3])(theta, np.ones(3))
    with pytest.raises(ValueError, match=r"got -1.0 in row 1"):
        FractionalKnapsack([1, 2, 3])(theta, np.array([1, -1]))
