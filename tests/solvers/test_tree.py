"""Spanning trees and forests against NetworkX and enumeration."""

import itertools

import numpy as np
import pytest

from softsolve.solvers._sort import descending
from softsolve.solvers.tree import SpanningForest, SpanningTree
from softsolve.solvers.tree_kernels import kruskal, prim
from support import optima
from support.vertices import complete_graph, components, forests

DTYPES = [np.float32, np.float64]


def random_edges(rng, num_vertices, num_edges):
    """Return random edges, with loops and parallel edges among them."""
    return rng.integers(num_vertices, size=(num_edges, 2))


def assert_best(solver, theta, y, values):
    assert y.shape == theta.shape
    assert y.dtype == theta.dtype
    assert np.all(solver.feasible(y))
    got = (theta.astype(float) * y).sum(axis=1)
    scale = 1 + np.abs(theta).sum(axis=1)
    assert np.all(np.abs(got - values) <= 10 * np.finfo(theta.dtype).eps * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_forests_against_enumeration(dtype):
    rng = np.random.default_rng(0)
    for _ in range(40):
        num_vertices = int(rng.integers(1, 6))
        edges = random_edges(rng, num_vertices, int(rng.integers(0, 10)))
        for k in range(components(num_vertices, edges), num_vertices + 1):
            solver = SpanningForest(num_vertices, edges, num_components=k)
            every = forests(num_vertices, edges, k)
            shape = (3, len(edges))
            for theta in (rng.normal(size=shape), rng.integers(-2, 3, size=shape)):
                theta_in = theta.astype(dtype)
                values = (theta_in.astype(float) @ every.T).max(axis=1)
                assert_best(solver, theta_in, solver(theta_in), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_edges", [60, 400])
def test_trees_against_networkx(num_edges, dtype):
    rng = np.random.default_rng(1)
    for _ in range(10):
        edges = random_edges(rng, 30, num_edges)
        edges[:29] = np.stack([np.arange(29), np.arange(1, 30)], axis=1)
        theta = rng.normal(size=(1, num_edges)).astype(dtype)
        value = optima.spanning_tree(edges, theta[0])
        solver = SpanningTree(30, edges)
        assert_best(solver, theta, solver(theta), [value])


def test_dense_and_sparse_kernels_agree_also_on_ties():
    rng = np.random.default_rng(2)
    for num_vertices in (2, 3, 8, 25):
        for k in {1, min(3, num_vertices), num_vertices}:
            edges = complete_graph(num_vertices)
            dense = SpanningForest(num_vertices, edges, num_components=k)
            assert dense.kernel is prim
            # A parallel edge makes it use the other kernel.
            more = np.concatenate([edges, [[0, 1]]])
            sparse = SpanningForest(num_vertices, more, num_components=k)
            assert sparse.kernel is kruskal
            for theta in (
                rng.normal(size=(5, len(edges))),
                rng.integers(3, size=(5, len(edges))).astype(float),
            ):
                wider = np.concatenate([theta, np.full((5, 1), -9.0)], axis=1)
                np.testing.assert_array_equal(dense(theta), sparse(wider)[:, :-1])


def test_dense_kernel_on_a_graph_that_falls_apart():
    edges = np.concatenate([complete_graph(4), 4 + complete_graph(3)])
    rng = np.random.default_rng(3)
    for k in (2, 3, 6):
        solver = SpanningForest(7, edges, num_components=k)
        assert solver.kernel is prim
        every = forests(7, edges, k)
        theta = rng.normal(size=(20, 9))
        np.testing.assert_array_equal(
            solver(theta), every[(theta @ every.T).argmax(axis=1)]
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_is_numpys_stable_one(dtype):
    rng = np.random.default_rng(4)
    for scores in (
        np.zeros(0),
        rng.normal(size=1000) * 10.0 ** rng.integers(-30, 30, 1000),
        rng.integers(-3, 3, size=500),
        np.array([-0.0, 0.0, -0.0, 1e-40, -1e-40]),
        np.ones(7),
    ):
        array = scores.astype(dtype)
        np.testing.assert_array_equal(
            descending(array), np.argsort(-array, kind="stable")
        )


def test_clusters_of_single_linkage():
    points = np.array([0.0, 0.1, 0.25, 5.0, 5.2, 9.0])
    edges = complete_graph(6)
    theta = -np.abs(points[edges[:, 0]] - points[edges[:, 1]])[None]
    y = SpanningForest(6, edges, num_components=3)(theta)[0]
    assert edges[y == 1].tolist() == [[0, 1], [1, 2], [3, 4]]


def test_ties_go_to_the_first_edges():
    edges = [[0, 1], [1, 2], [2, 0], [0, 1]]
    np.testing.assert_array_equal(
        SpanningTree(3, edges)(np.zeros((1, 4))), [[1, 1, 0, 0]]
    )
    dense = SpanningTree(4, complete_graph(4))
    np.testing.assert_array_equal(dense(np.ones((1, 6))), [[1, 1, 1, 0, 0, 0]])


def test_degenerate_sizes():
    alone = SpanningTree(1, [])
    assert alone(np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert SpanningTree(2, [[0, 1]])(np.zeros((0, 1))).shape == (0, 1)
    np.testing.assert_array_equal(SpanningTree(2, [[1, 0]])(np.array([[-7.0]])), [[1]])
    loops = SpanningForest(2, [[0, 0], [0, 1], [1, 1]], num_components=1)
    np.testing.assert_array_equal(loops(np.array([[9.0, -1, 9]])), [[0, 1, 0]])
    isolated = SpanningForest(3, [[0, 1]], num_components=3)
    np.testing.assert_array_equal(isolated(np.array([[9.0]])), [[0]])


@pytest.mark.parametrize("seed", range(8))
def test_projector_against_enumerated_forests(seed):
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, 5, 8)
    if seed == 0:  # two triangles that share a vertex, a bridge and a loop
        edges = np.array(
            [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 2], [4, 5], [5, 5]]
        )
    num_vertices = int(edges.max()) + 1
    for k in range(components(num_vertices, edges), num_vertices + 1):
        every = forests(num_vertices, edges, k)
        differences = every - every[0]
        wanted = np.linalg.pinv(differences) @ differences
        solver = SpanningForest(num_vertices, edges, num_components=k)
        np.testing.assert_allclose(solver.project(np.eye(8)), wanted, atol=1e-9)
        assert solver.project(np.ones((2, 8), np.float32)).dtype == np.float32


def test_feasible_accepts_just_the_forests():
    edges = np.array([[0, 1], [1, 2], [2, 0], [2, 3], [3, 3], [3, 2]])
    every = np.array(list(itertools.product((0, 1), repeat=6)))
    for k in (1, 2, 4):
        solver = SpanningForest(4, edges, num_components=k)
        got = every[solver.feasible(every)].tolist()
        assert sorted(got) == sorted(forests(4, edges, k).tolist())
    assert not SpanningTree(2, [[0, 1]]).feasible(np.array([[0.5]])).any()


def test_the_comparison_can_fail():
    solver = SpanningTree(3, complete_graph(3))
    with pytest.raises(AssertionError):
        assert_best(solver, np.array([[1.0, 2, 3]]), np.array([[1.0, 1, 0]]), [5.0])


def test_arguments_are_checked():
    with pytest.raises(
        ValueError, match=r"SpanningTree: edges must join .* into 2$|1 c"
    ):
        SpanningTree(4, [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="the graph falls apart into 2"):
        SpanningForest(4, [[0, 1], [2, 3]], num_components=1)
    with pytest.raises(
        ValueError, match="between 1 and the number of vertices, 2; got 3"
    ):
        SpanningForest(2, [[0, 1]], num_components=3)
    with pytest.raises(
        ValueError, match="between 1 and the number of vertices, 2; got 0"
    ):
        SpanningForest(2, [[0, 1]], num_components=0)
    with pytest.raises(ValueError, match=r"SpanningTree\(edges=.* shape \(2,\)"):
        SpanningTree(2, [0, 1])
    with pytest.raises(ValueError, match=r"one score per edge.*\(1,\); got \(2,\)"):
        SpanningTree(2, [[0, 1]])(np.zeros((1, 2)))
    with pytest.raises(TypeError, match="takes no context"):
        SpanningTree(2, [[0, 1]])(np.zeros((1, 1)), np.zeros(1))
