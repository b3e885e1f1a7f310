"""Flows, against linear programming, OR-Tools and NetworkX."""

import networkx as nx
import numpy as np
import pytest

from softsolve.compiled.kernel import OK
from softsolve.solvers.flow import NOT_FINITE, Flow
from support import optima
from support.solvers import kernel_status

DTYPES = [np.float32, np.float64]
GRAPHS = [(2, 1), (2, 4), (3, 5), (5, 12), (8, 30), (15, 60), (30, 150)]


def random_flow(rng, vertices, count, largest=4, *, acyclic=False):
    edges = rng.integers(0, vertices, (count, 2))
    if acyclic:
        edges.sort(axis=1)
        edges = edges[edges[:, 0] < edges[:, 1]]
    capacities = rng.integers(0, largest + 1, len(edges))
    return Flow(vertices, edges, 0, vertices - 1, capacities)


def best_total(solver, scores, capacities):
    ends = (solver.source, solver.target)
    return optima.flow(solver.num_vertices, solver.edges, scores, capacities, *ends)


def total(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", GRAPHS)
def test_random_graphs_against_linear_programming(size, dtype):
    """With cycles, loops, parallel edges, edges without capacity, and parts apart."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        solver = random_flow(rng, *size)
        count = len(solver.edges)
        theta = (rng.normal(size=(6, count)) - 0.3).astype(dtype)
        theta[3:] = rng.integers(-2, 3, (3, count))
        y = solver(theta)
        assert y.dtype == dtype
        assert solver.feasible(y).all()
        expected = [best_total(solver, t, solver.capacities) for t in theta]
        np.testing.assert_allclose(total(theta, y), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_capacities_of_each_row(dtype):
    rng = np.random.default_rng(1)
    edges = rng.integers(0, 8, (30, 2))
    theta = rng.normal(size=(20, 30)).astype(dtype)
    capacities = rng.integers(0, 5, (20, 30))
    solver = Flow(8, edges, 2, 5)
    y = solver(theta, capacities)
    assert solver.feasible(y, capacities).all()
    for row, (scores, limits) in enumerate(zip(theta, capacities, strict=True)):
        expected = best_total(solver, scores, limits)
        np.testing.assert_allclose(total(theta, y)[row], expected, atol=1e-6)
        shared = Flow(8, edges, 2, 5, limits)
        np.testing.assert_array_equal(shared(theta[row : row + 1])[0], y[row])


def test_whole_scores_against_minimum_cost_flow():
    rng = np.random.default_rng(2)
    for _ in range(20):
        solver = random_flow(rng, 12, 50, largest=9)
        theta = rng.integers(-9, 8, (1, 50))
        best = optima.whole_flow(12, solver.edges, theta[0], solver.capacities, 0, 11)
        assert total(theta, solver(theta.astype(np.float64)))[0] == best


def test_paths_against_networkx():
    """With one unit out of the source, the best flow is the best path, if it pays."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        dag = random_flow(rng, 10, 40, acyclic=True)
        edges = np.vstack([[[0, 1]], dag.edges + 1])
        solver = Flow(11, edges, 0, 10, np.ones(len(edges), dtype=int))
        assert solver.solution == "binary"
        theta = rng.integers(-5, 4, (1, len(edges)))
        graph = nx.MultiDiGraph()
        graph.add_nodes_from(range(11))
        for (tail, head), score in zip(edges.tolist(), theta[0], strict=True):
            graph.add_edge(tail, head, weight=-score)
        try:
            longest = -nx.bellman_ford_path_length(graph, 0, 10)
        except nx.NetworkXNoPath:
            longest = 0
        assert total(theta, solver(theta.astype(np.float64)))[0] == max(longest, 0)


def test_unit_scores_out_of_the_source_give_the_maximum_flow():
    rng = np.random.default_rng(4)
    for _ in range(20):
        edges = rng.integers(1, 12, (40, 2))
        edges[:4, 0] = 0
        capacities = rng.integers(1, 6, 40)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(12))
        for (tail, head), limit in zip(
            edges.tolist(), capacities.tolist(), strict=True
        ):
            known = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
            graph.add_edge(tail, head, capacity=known + limit)
        theta = (edges[:, 0] == 0).astype(np.float64)[None]
        y = Flow(12, edges, 0, 11, capacities)(theta)
        assert total(theta, y)[0] == nx.maximum_flow_value(graph, 0, 11)


def test_flow_that_does_not_pay_stays_away():
    line = Flow(3, [(0, 1), (1, 2)], 0, 2, [3, 2])
    theta = np.array([[1.0, -2.0], [1.0, -0.5], [-1.0, 1.5]])
    np.testing.assert_array_equal(line(theta), [[0, 0], [2, 2], [2, 2]])


def test_flow_is_never_negative():
    """An edge from target to source cannot be used without flow the other way."""
    back = Flow(2, [(1, 0), (0, 1)], 0, 1, [5, 2])
    theta = np.array([[1.0, -0.5], [1.0, -2.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(back(theta), [[2, 2], [0, 0], [0, 2]])


def test_cycles_that_pay_and_parts_apart():
    edges = [(0, 1), (2, 3), (3, 2), (4, 4)]
    solver = Flow(5, edges, 0, 1, [1, 2, 3, 7])
    theta = np.array([[1.0, 2.0, -1.0, 1.0], [-1.0, 1.0, -2.0, -1.0]])
    np.testing.assert_array_equal(solver(theta), [[1, 2, 2, 7], [0, 0, 0, 0]])


def test_target_out_of_reach():
    solver = Flow(4, [(0, 1), (2, 3)], 0, 3, [1, 1])
    np.testing.assert_array_equal(solver(np.ones((1, 2))), [[0, 0]])


@pytest.mark.parametrize("levels", [1, 2])
def test_ties_do_not_depend_on_the_batch(levels):
    rng = np.random.default_rng(5)
    solver = random_flow(rng, 8, 40)
    theta = rng.integers(0, levels + 1, (20, 40)) - 1.0
    y = solver(theta)
    np.testing.assert_array_equal(solver(theta[::-1])[::-1], y)
    assert solver(theta[:0]).shape == (0, 40)


def test_scale_of_the_scores_does_not_matter():
    rng = np.random.default_rng(6)
    solver = random_flow(rng, 10, 50)
    theta = rng.normal(size=(5, 50))
    for scale in (2.0**-500, 2.0**500):
        np.testing.assert_array_equal(solver(theta * scale), solver(theta))


@pytest.mark.parametrize("seed", range(8))
def test_project_spans_the_differences(seed):
    rng = np.random.default_rng(seed)
    solver = random_flow(rng, 5, 9, largest=2)
    y = solver(rng.normal(size=(500, 9)) + 0.5 * rng.normal(size=(500, 1)))
    differences = y - y[0]
    projector = solver.project(np.eye(9))
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(differences @ projector, differences, atol=1e-12)
    rank = np.linalg.matrix_rank(differences, tol=1e-9)
    assert np.linalg.matrix_rank(projector, tol=1e-9) == rank


def test_feasible_rejects():
    solver = Flow(3, [(0, 1), (1, 2), (2, 0)], 0, 2, [2, 2, 2])
    y = [[0, 0, 0], [2, 2, 2], [1, 2, 0], [3, 3, 0], [0.5, 0.5, 0], [0, 0, 1]]
    feasible = solver.feasible(np.array(y, dtype=float))
    assert feasible.tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_scores_that_are_not_finite(bad):
    solver = Flow(2, [(0, 1), (1, 0)], 0, 1, [1, 1])
    theta = np.array([[0.0, 0.0], [1.0, bad]])
    assert kernel_status(solver, theta) == [OK, NOT_FINITE]


def test_errors():
    edges = [(0, 1), (1, 2)]
    with pytest.raises(ValueError, match=r"shape \(E, 2\).*got shape \(2,\)"):
        Flow(3, [0, 1], 0, 2)
    with pytest.raises(TypeError, match="whole numbers; got dtype float64"):
        Flow(3, [(0.0, 1.0)], 0, 2)
    with pytest.raises(ValueError, match=r"from 0 to 1; got \(1, 2\) for edge 1"):
        Flow(2, edges, 0, 1)
    with pytest.raises(ValueError, match="two vertices from 0 to 2; got 1 and 1"):
        Flow(3, edges, 1, 1)
    with pytest.raises(ValueError, match="two vertices from 0 to 2; got 0 and 3"):
        Flow(3, edges, 0, 3)
    with pytest.raises(
        ValueError, match=r"one number per edge, shape \(2,\); got \(3,\)"
    ):
        Flow(3, edges, 0, 2, [1, 1, 1])
    for bad in (0.5, -1, 40_000, np.nan):
        with pytest.raises(ValueError, match=r"whole numbers from 0 to 32767.*edge 1"):
            Flow(3, edges, 0, 2, [1, bad])
    solver = Flow(3, edges, 0, 2)
    theta = np.zeros((2, 2))
    with pytest.raises(TypeError, match="as the only context"):
        solver(theta)
    with pytest.raises(ValueError, match=r"shape \(2, 2\); got \(2,\)"):
        solver(theta, [1, 1])
    with pytest.raises(ValueError, match="edge 0 of row 1"):
        solver(theta, [[1, 1], [-1, 1]])
    with pytest.raises(ValueError, match=r"one score per edge.*got \(3,\)"):
        solver(np.zeros((2, 3)), np.zeros((2, 3)))
