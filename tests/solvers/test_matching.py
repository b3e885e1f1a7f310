"""Bipartite matchings, against NetworkX, linear programming and brute force."""

import itertools

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from softsolve.compiled.kernel import OK
from softsolve.solvers.matching import NOT_FINITE, BipartiteMatching
from support import optima
from support.solvers import kernel_status
from support.vertices import zeros_and_ones

DTYPES = [np.float32, np.float64]
GRAPHS = [
    (1, 1, 1),
    (1, 5, 4),
    (6, 1, 9),
    (4, 3, 6),
    (5, 5, 20),
    (10, 8, 40),
    (30, 35, 90),
]


def random_matching(rng, num_left, num_right, count):
    edges = np.column_stack(
        [rng.integers(0, num_left, count), rng.integers(0, num_right, count)]
    )
    return BipartiteMatching(num_left, num_right, edges)


def best_total(solver, scores):
    sides = (solver.num_left, solver.num_right)
    return optima.bipartite_matching(*sides, solver.edges, scores)


def total(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", GRAPHS)
def test_random_and_tied_scores_against_linear_programming(size, dtype):
    rng = np.random.default_rng(0)
    for _ in range(4):
        solver = random_matching(rng, *size)
        count = len(solver.edges)
        theta = rng.normal(size=(6, count)).astype(dtype)
        theta[3:] = rng.integers(-1, 3, (3, count))
        y = solver(theta)
        assert y.dtype == dtype
        assert solver.feasible(y).all()
        assert (theta[y == 1] > 0).all()
        expected = [best_total(solver, row) for row in theta]
        np.testing.assert_allclose(total(theta, y), expected, atol=1e-6)


def test_integer_scores_against_networkx():
    rng = np.random.default_rng(1)
    for _ in range(30):
        solver = random_matching(rng, 7, 9, 25)
        theta = rng.integers(-3, 6, (1, 25))
        graph = nx.Graph()
        for (left, right), score in zip(solver.edges, theta[0], strict=True):
            best = graph.get_edge_data(
                ("left", left), ("right", right), {"weight": score}
            )
            graph.add_edge(
                ("left", left), ("right", right), weight=max(score, best["weight"])
            )
        chosen = nx.max_weight_matching(graph)
        expected = sum(graph.edges[edge]["weight"] for edge in chosen)
        assert total(theta, solver(theta.astype(np.float64)))[0] == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_brute_force(dtype):
    rng = np.random.default_rng(2)
    for _ in range(40):
        solver = random_matching(rng, 3, 4, 8)
        candidates = zeros_and_ones(8)
        candidates = candidates[solver.feasible(candidates)]
        theta = rng.integers(-2, 4, (1, 8)).astype(dtype)
        assert total(theta, solver(theta))[0] == (candidates @ theta[0]).max()


def test_large_sparse_graph_against_assignment():
    rng = np.random.default_rng(3)
    size, count = 300, 1500
    solver = random_matching(rng, size, size, count)
    theta = rng.normal(size=(2, count))
    y = solver(theta)
    assert solver.feasible(y).all()
    for scores, found in zip(theta, total(theta, y), strict=True):
        dense = np.zeros((size, size))
        np.maximum.at(dense, tuple(solver.edges.T), scores)
        expected = dense[linear_sum_assignment(dense, maximize=True)].sum()
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_all_scores_tie():
    complete = list(itertools.product(range(4), range(4)))
    y = BipartiteMatching(4, 4, complete)(np.ones((1, 16)))
    np.testing.assert_array_equal(y.reshape(4, 4).sum(axis=0), np.ones(4))
    parallel = BipartiteMatching(1, 1, [(0, 0), (0, 0), (0, 0)])
    np.testing.assert_array_equal(parallel(np.array([[1.0, 2.0, 2.0]])), [[0, 1, 0]])


def test_nothing_worth_matching_and_isolated_vertices():
    solver = BipartiteMatching(5, 6, [(1, 2), (4, 4)])
    theta = np.array([[0.0, -1.0], [1.0, -1.0], [1e-300, 1e300]])
    np.testing.assert_array_equal(solver(theta), [[0, 0], [1, 0], [1, 1]])


def test_long_alternating_path():
    """Each vertex but the first prefers what the one before it must have."""
    size = 200
    edges = [(0, 0)]
    edges += [pair for i in range(1, size) for pair in ((i, i - 1), (i, i))]
    solver = BipartiteMatching(size, size, edges)
    theta = np.array([[10.0 if left == right + 1 else 9.0 for left, right in edges]])
    assert total(theta, solver(theta))[0] == best_total(solver, theta[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(bad):
    solver = BipartiteMatching(2, 2, [(0, 0), (1, 1)])
    theta = np.array([[0.0, 0.0], [1.0, bad]])
    assert kernel_status(solver, theta) == [OK, NOT_FINITE]


def test_errors():
    with pytest.raises(ValueError, match=r"shape \(E, 2\).*got shape \(3,\)"):
        BipartiteMatching(2, 2, [0, 1, 1])
    with pytest.raises(TypeError, match="whole numbers; got dtype float64"):
        BipartiteMatching(2, 2, [(0.0, 1.0)])
    with pytest.raises(ValueError, match=r"got \(0, 2\) for edge 1"):
        BipartiteMatching(3, 2, [(2, 1), (0, 2)])
    solver = BipartiteMatching(2, 2, [(0, 0), (1, 1)])
    with pytest.raises(ValueError, match=r"one score per edge.*got \(3,\)"):
        solver(np.zeros((1, 3)))
    with pytest.raises(TypeError, match="takes no context"):
        solver(np.zeros((1, 2)), np.zeros(1))


def test_feasible_rejects():
    solver = BipartiteMatching(2, 2, [(0, 0), (0, 1), (1, 1)])
    y = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [0.5, 0, 0]], dtype=float)
    assert solver.feasible(y).tolist() == [True, False, False, False]


def test_directions_are_all_of_space():
    """Every edge alone and the empty set are matchings, so all directions stay."""
    solver = BipartiteMatching(2, 2, [(0, 0), (0, 1), (1, 1)])
    assert solver.feasible(np.vstack([np.zeros(3), np.eye(3)])).all()
    x = np.arange(3.0)
    np.testing.assert_array_equal(solver.project(x), x)
