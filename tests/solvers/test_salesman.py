"""Tours, against brute force, OR-Tools, and a check that no move improves them."""

import itertools

import numpy as np
import pytest

from softsolve.compiled.kernel import OK
from softsolve.compiled.rows import solve_rows
from softsolve.solvers.held_karp import MOST_CITIES
from softsolve.solvers.salesman import Salesman, SalesmanExact
from support import optima
from support.vertices import tour_matrix, tours

DTYPES = [np.float32, np.float64]


def tour_of(y):
    tour, previous = [0], None
    while len(tour) < len(y):
        neighbours = [c for c in np.flatnonzero(y[tour[-1]]) if c != previous]
        previous = tour[-1]
        tour.append(int(neighbours[0]))
    return tour


def distances(rng, *shape):
    points = rng.uniform(size=(*shape, 2))
    return np.linalg.norm(points[..., :, None, :] - points[..., None, :, :], axis=-1)


def values(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=(1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_brute_force_with_ties(n, dtype):
    rng = np.random.default_rng(n)
    # Neither symmetric nor metric; small whole scores are exact and tie often.
    theta = rng.integers(-3, 4, (30, n, n)).astype(dtype)
    best = np.einsum("bij,tij->bt", theta, tours(n)).max(axis=1)
    y = SalesmanExact()(theta)
    assert y.dtype == dtype
    assert SalesmanExact().feasible(y).all()
    np.testing.assert_array_equal(values(theta, y), best)
    found = Salesman()(theta)
    assert found.dtype == dtype
    assert Salesman().feasible(found).all()
    assert np.all(values(theta, found) <= best)
    if n <= 4:
        np.testing.assert_array_equal(values(theta, found), best)


@pytest.mark.parametrize("n", [8, 11, 13])
def test_exact_against_cp_sat(n):
    rng = np.random.default_rng(n)
    cost = rng.integers(1, 100, (3, n, n))
    cost = cost + np.swapaxes(cost, 1, 2)
    y = SalesmanExact()(-cost.astype(np.float64))
    assert SalesmanExact().feasible(y).all()
    for matrix, solution in zip(cost, y, strict=True):
        assert np.sum(-matrix * solution) == optima.tour(-matrix)


def test_exact_at_its_largest():
    # Cities in convex position: the best tour goes around.
    rng = np.random.default_rng(0)
    tour = rng.permutation(MOST_CITIES)
    points = np.empty((MOST_CITIES, 2))
    angle = np.linspace(0, 2 * np.pi, MOST_CITIES, endpoint=False)
    points[tour] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    theta = -np.linalg.norm(points[:, None] - points, axis=-1)[None]
    np.testing.assert_array_equal(SalesmanExact()(theta)[0], tour_matrix(tour))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", [SalesmanExact(), Salesman()])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_all_scores_equal(solver, n, dtype):
    for score in (0, -2):
        y = solver(np.full((2, n, n), score, dtype))
        assert solver.feasible(y).all()
        np.testing.assert_array_equal(y[0], y[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [5, 20, 60])
def test_search_solves_convex_position(n, dtype):
    # There a tour without 2-opt moves has no crossing, and only one tour has none.
    rng = np.random.default_rng(n)
    for _ in range(5):
        tour = rng.permutation(n)
        points = np.empty((n, 2))
        angle = np.sort(rng.uniform(0, 2 * np.pi, n))
        points[tour] = np.stack([3 * np.cos(angle), np.sin(angle)], axis=1)
        theta = -np.linalg.norm(points[:, None] - points, axis=-1)[None].astype(dtype)
        np.testing.assert_array_equal(Salesman()(theta)[0], tour_matrix(tour))


def best_move(cost, tour):
    """Return the shortest length that one 2-opt or Or-opt move from the tour gives."""
    n = len(tour)

    def length(candidate):
        return sum(
            cost[a, b] for a, b in zip(candidate, np.roll(candidate, -1), strict=True)
        )

    reached = []
    for i, j in itertools.combinations(range(n + 1), 2):
        reached.append(length(tour[:i] + tour[i:j][::-1] + tour[j:]))
    for start in range(n):
        turned = tour[start:] + tour[:start]
        for k in (1, 2, 3):
            segment, rest = turned[:k], turned[k:]
            for at in range(len(rest)):
                reached += [
                    length(rest[:at] + piece + rest[at:])
                    for piece in (segment, segment[::-1])
                ]
    return length(tour), min(reached)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_move_improves_what_the_search_finds(dtype):
    rng = np.random.default_rng(3)
    for n in (5, 8, 17):
        theta = rng.normal(size=(4, n, n)).astype(dtype)
        theta[:2] = -distances(rng, 2, n)
        for scores, y in zip(theta, Salesman()(theta), strict=True):
            cost = -(scores + scores.T).astype(np.float64)
            length, best = best_move(cost, tour_of(y))
            assert best >= length - 40 * np.finfo(dtype).eps * np.abs(scores).max()


def test_improving_moves_are_found_where_there_are_some():
    cost = distances(np.random.default_rng(7), 17)
    length, best = best_move(cost, list(range(17)))
    assert best < length


def test_search_is_close_to_the_best():
    rng = np.random.default_rng(4)
    theta = -distances(rng, 40, 12)
    best, found = (
        values(theta, SalesmanExact()(theta)),
        values(theta, Salesman()(theta)),
    )
    excess = found / best - 1
    assert excess.min() > -1e-12
    assert excess.max() < 0.1
    assert np.mean(excess) < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
def test_warm_start(dtype):
    rng = np.random.default_rng(5)
    n = 30
    theta = -distances(rng, 6, n).astype(dtype).reshape(6, -1)
    noise = rng.normal(size=theta.shape).astype(dtype)
    ints, reals = Salesman().structure((n, n))
    context, states = np.zeros((6, 0)), np.zeros((6, Salesman().state_size((n, n))))
    arguments = (ints, reals, context, states)
    y, _ = solve_rows(Salesman.kernel, theta, *arguments)
    np.testing.assert_array_equal(states[:, 0], 1)
    primed = states.copy()
    # From a local optimum, the search stays there; elsewhere it goes on to another.
    again, _ = solve_rows(Salesman.kernel, theta, *arguments)
    np.testing.assert_array_equal(again, y)
    moved, status = solve_rows(Salesman.kernel, theta + noise, *arguments)
    np.testing.assert_array_equal(states, primed)
    np.testing.assert_array_equal(status, OK)
    assert Salesman().feasible(moved.reshape(6, n, n)).all()
    start = values((theta + noise).reshape(6, n, n), y.reshape(6, n, n))
    assert np.all(
        values((theta + noise).reshape(6, n, n), moved.reshape(6, n, n)) > start
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_search_does_not_depend_on_the_unit(dtype):
    theta = -distances(np.random.default_rng(6), 3, 25).astype(dtype)
    y = Salesman()(theta)
    for exponent in (-100, 20, 126):
        np.testing.assert_array_equal(Salesman()(theta * dtype(2.0) ** exponent), y)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_projection_is_on_the_span_of_differences(n):
    flat = tours(n).reshape(-1, n * n)
    directions = flat - flat[0]
    projector = np.linalg.pinv(directions) @ directions
    assert np.linalg.matrix_rank(directions) == (n * (n - 3) // 2 if n > 2 else 0)
    x = np.random.default_rng(0).normal(size=(2, 3, n, n))
    expected = (x.reshape(6, -1) @ projector).reshape(x.shape)
    np.testing.assert_allclose(SalesmanExact().project(x), expected, atol=1e-12)


def test_feasible_rejects():
    whole = tour_matrix([0, 1, 2, 3, 4, 5])
    two_circles = np.kron(np.eye(2), tour_matrix([0, 1, 2]))
    one_way = np.roll(np.eye(6), 1, axis=1)
    loops = whole + np.eye(6)
    candidates = np.stack([whole, two_circles, one_way, loops, 0.5 * whole])
    expected = [True, False, False, False, False]
    np.testing.assert_array_equal(Salesman().feasible(candidates), expected)
    assert Salesman().feasible(np.zeros((0, 3, 3))).shape == (0,)


def test_empty_batch():
    for solver in (SalesmanExact(), Salesman()):
        assert solver(np.zeros((0, 5, 5))).shape == (0, 5, 5)


def test_errors():
    for solver in (SalesmanExact(), Salesman()):
        with pytest.raises(ValueError, match=r"square matrix.*got.*\(3, 4\)"):
            solver(np.zeros((2, 3, 4)))
        with pytest.raises(TypeError, match=r"takes no context"):
            solver(np.zeros((2, 3, 3)), np.ones(2))
    with pytest.raises(ValueError, match=r"at most 17 cities.*got 18.*Salesman\(\)"):
        SalesmanExact()(np.zeros((1, 18, 18)))
