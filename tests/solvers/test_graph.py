"""Graph paths against SciPy and enumeration; one kernel against the other."""

import numpy as np
import pytest

from softsolve.errors import SolverError
from softsolve.solvers.graph import GraphPath, grid_graph
from support import optima
from support.vertices import graph_paths

DTYPES = [np.float32, np.float64]


def random_edges(rng, num_vertices, num_edges, *, acyclic=False):
    """Return random edges, with loops and parallel edges among them."""
    edges = rng.integers(num_vertices, size=(num_edges, 2))
    return np.sort(edges, axis=1) if acyclic else edges


def assert_best(solver, theta, y, values, *context):
    assert y.shape == theta.shape
    assert y.dtype == theta.dtype
    assert np.all(solver.feasible(y, *context))
    got = (theta.astype(float) * y).sum(axis=1)
    scale = 1 + np.abs(theta).sum(axis=1)
    assert np.all(np.abs(got - values) <= 10 * np.finfo(theta.dtype).eps * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize("acyclic", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_random_graphs_with_endpoints_per_row(directed, acyclic, kind, dtype):
    rng = np.random.default_rng(0)
    solved = disconnected = 0
    for _ in range(60):
        num_vertices = int(rng.integers(1, 9))
        edges = random_edges(
            rng, num_vertices, int(rng.integers(0, 16)), acyclic=acyclic
        )
        solver = GraphPath(num_vertices, edges, directed=directed)
        if acyclic and directed:
            assert solver.acyclic
            assert not solver.clips_scores
        shape = (1, len(edges))
        theta = (
            rng.normal(size=shape) if kind == "normal" else rng.integers(-2, 2, shape)
        )
        if not solver.acyclic:
            theta = -np.abs(theta)
        theta = np.asarray(theta, dtype=dtype)
        ends = rng.integers(num_vertices, size=(1, 2))
        value = optima.graph_path(
            num_vertices, edges, theta[0].astype(float), *ends[0], directed=directed
        )
        if value is None:
            disconnected += 1
            with pytest.raises(SolverError, match="first row 0: no path joins"):
                solver(theta, ends)
        else:
            solved += 1
            assert_best(solver, theta, solver(theta, ends), [value], ends)
    assert min(solved, disconnected) > 5


@pytest.mark.parametrize("directed", [False, True])
def test_enumeration_of_unique_optima(directed):
    rng = np.random.default_rng(1)
    for _ in range(20):
        edges = random_edges(rng, 6, 14)
        edges[13] = 0, 5
        paths = graph_paths(6, edges, 0, 5, directed=directed)
        theta = -rng.uniform(size=(10, 14))
        solver = GraphPath(6, edges, source=0, target=5, directed=directed)
        np.testing.assert_array_equal(solver(theta), paths[(theta @ paths.T).argmax(1)])


def test_larger_graphs():
    rng = np.random.default_rng(2)
    for directed in (True, False):
        edges = random_edges(rng, 300, 1500)
        theta = -rng.uniform(size=(4, 1500)).astype(np.float32)
        solver = GraphPath(300, edges, directed=directed)
        ends = rng.integers(300, size=(4, 2))
        values = [
            optima.graph_path(300, edges, row, *pair, directed=directed)
            for row, pair in zip(theta, ends, strict=True)
        ]
        assert None not in values
        assert_best(solver, theta, solver(theta, ends), values, ends)


def solve_block(solver, theta, *context):
    lanes = len(theta)
    packed = solver.pack_context(lanes, theta.shape[1:], *context)
    ints, reals = solver.structure(theta.shape[1:])
    columns = np.ascontiguousarray(theta.T)
    y = np.full(columns.shape, 7, dtype=np.uint8)
    status = np.full(lanes, -1)
    solver.block.compiled(theta.dtype)(columns, ints, reals, packed, y, status)
    return y.T, status


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_and_instance_kernels_agree_bit_by_bit(dtype):
    rng = np.random.default_rng(3)
    for trial in range(20):
        edges = random_edges(rng, 7, 20, acyclic=True)
        solver = GraphPath(7, edges)
        lanes = solver.block.lanes
        theta = rng.normal(size=(lanes, 20)) if trial % 2 else np.zeros((lanes, 20))
        theta = theta.astype(dtype)
        ends = rng.integers(7, size=(lanes, 2))
        y, status = solve_block(solver, theta, ends)
        for lane in range(lanes):
            row = slice(lane, lane + 1)
            if status[lane]:
                with pytest.raises(SolverError, match="no path joins"):
                    solver(theta[row], ends[row])
                assert not y[lane].any()
            else:
                np.testing.assert_array_equal(y[row], solver(theta[row], ends[row]))


def test_grid_graph_in_the_order_of_pyepo():
    num_vertices, edges = grid_graph(2, 3)
    assert num_vertices == 6
    wanted = [[0, 1], [1, 2], [0, 3], [1, 4], [2, 5], [3, 4], [4, 5]]
    assert edges.tolist() == wanted
    num_vertices, edges = grid_graph(12, 12)
    assert edges.shape == (264, 2)
    rng = np.random.default_rng(4)
    solver = GraphPath(num_vertices, edges, source=0, target=143)
    theta = rng.normal(size=(32, 264)).astype(np.float32)
    y = solver(theta)
    values = [
        optima.graph_path(num_vertices, edges, row.astype(float), 0, 143)
        for row in theta
    ]
    assert_best(solver, theta, y, values)
    block, status = solve_block(solver, theta)
    assert not status.any()
    np.testing.assert_array_equal(block, y)


def test_ties_go_to_the_first_edge():
    edges = [[0, 1], [0, 1], [1, 2], [1, 2]]
    for directed in (True, False):
        solver = GraphPath(3, edges, source=0, target=2, directed=directed)
        np.testing.assert_array_equal(solver(np.zeros((1, 4))), [[1, 0, 1, 0]])
    reverse = GraphPath(3, edges[::-1], source=0, target=2, directed=False)
    np.testing.assert_array_equal(reverse(np.zeros((1, 4))), [[1, 0, 1, 0]])


def test_loops_are_never_used():
    solver = GraphPath(2, [[0, 0], [0, 1], [1, 1]], source=0, target=1)
    assert solver.acyclic
    np.testing.assert_array_equal(solver(np.array([[5.0, -1, 5]])), [[0, 1, 0]])


def test_source_is_target():
    for edges in ([[0, 1], [1, 2]], [[0, 1], [1, 0]]):
        solver = GraphPath(3, edges, source=0, target=0)
        np.testing.assert_array_equal(solver(-np.ones((1, 2))), [[0, 0]])
    alone = GraphPath(1, np.zeros((0, 2), int), source=0, target=0)
    assert alone(np.zeros((3, 0))).shape == (3, 0)


def test_negative_costs():
    edges = [[0, 1], [1, 2], [2, 1], [0, 2]]
    theta = np.array([[-2.0, 1.0, 1.0, -3.0], [-2.0, -2.0, -1.0, -3.0]])
    solver = GraphPath(3, edges, source=0, target=2)
    assert solver.clips_scores
    np.testing.assert_array_equal(solver(theta), solver(np.minimum(theta, 0)))
    strict = GraphPath(3, edges, source=0, target=2, negative="raise")
    np.testing.assert_array_equal(strict(theta[1:]), [[0, 0, 0, 1]])
    with pytest.raises(SolverError, match="first row 0: a cost is negative"):
        strict(theta)


@pytest.mark.parametrize("seed", range(6))
def test_projector_of_acyclic_graphs_against_enumerated_paths(seed):
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, 6, 14, acyclic=True)
    edges[13] = 0, 5
    paths = graph_paths(6, edges, 0, 5)
    differences = paths - paths[0]
    wanted = np.linalg.pinv(differences) @ differences
    solver = GraphPath(6, edges, source=0, target=5)
    np.testing.assert_allclose(solver.project(np.eye(14)), wanted, atol=1e-9)
    assert solver.project(np.ones((2, 14), np.float32)).dtype == np.float32


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_projector_keeps_differences_of_paths(directed, fixed):
    rng = np.random.default_rng(7)
    edges = random_edges(rng, 6, 16)
    ends = {"source": 0, "target": 5} if fixed else {}
    solver = GraphPath(6, edges, directed=directed, **ends)
    paths = graph_paths(6, edges, 0, 5, directed=directed)
    assert len(paths) > 1
    differences = paths - paths[0]
    np.testing.assert_allclose(solver.project(differences), differences, atol=1e-9)
    twice = solver.project(solver.project(np.eye(16)))
    np.testing.assert_allclose(twice, solver.project(np.eye(16)), atol=1e-9)
    assert np.linalg.matrix_rank(twice) < 16


def test_feasible_rejects_what_is_no_path():
    edges = [[0, 1], [1, 2], [2, 3], [3, 1], [0, 3]]
    for directed in (True, False):
        solver = GraphPath(4, edges, source=0, target=3, directed=directed)
        accepted = graph_paths(4, np.array(edges), 0, 3, directed=directed)
        every = np.stack(np.meshgrid(*[[0, 1]] * 5), axis=-1).reshape(-1, 5)
        got = {tuple(y) for y in every[solver.feasible(every)].tolist()}
        assert got == {tuple(y) for y in accepted.astype(int).tolist()}
        assert not solver.feasible(0.5 * accepted).any()


def test_the_comparison_can_fail():
    solver = GraphPath(3, [[0, 1], [1, 2], [0, 2]], source=0, target=2)
    theta = np.array([[-1.0, -1.0, -1.0]])
    with pytest.raises(AssertionError):
        assert_best(solver, theta, np.array([[1.0, 1.0, 0.0]]), [-1.0])


def test_arguments_are_checked():
    edges = [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match=r"num_vertices=.* at least 1; got 0"):
        GraphPath(0, edges)
    with pytest.raises(ValueError, match=r"shape \(E, 2\); got shape \(2, 3\)"):
        GraphPath(3, np.zeros((2, 3), int))
    with pytest.raises(TypeError, match=r"must be integers.*dtype float64"):
        GraphPath(3, np.zeros((2, 2)))
    with pytest.raises(
        ValueError, match=r"join vertices 0 to 1; got \[1, 2\] for edge 1"
    ):
        GraphPath(2, edges)
    with pytest.raises(
        ValueError, match=r"target=\.\.\.\) must be a vertex, 0 to 2; got 3"
    ):
        GraphPath(3, edges, source=0, target=3)
    with pytest.raises(ValueError, match=r"target=\.\.\.\) must be a vertex.*got None"):
        GraphPath(3, edges, source=0)
    with pytest.raises(ValueError, match="target 0 must be reachable from source 2"):
        GraphPath(3, edges, source=2, target=0)
    with pytest.raises(ValueError, match='must be "clip" or "raise"; got 0'):
        GraphPath(3, edges, negative=0)
    fixed = GraphPath(3, edges, source=0, target=2)
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        fixed(np.zeros((1, 3)))
    with pytest.raises(TypeError, match=r"called as solver\(theta\); got 1"):
        fixed(np.zeros((1, 2)), np.zeros((1, 2), int))
    free = GraphPath(3, edges)
    with pytest.raises(TypeError, match=r"solver\(theta, endpoints\); got 0"):
        free(np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"target between 0 and 2; got 3 in row 1"):
        free(np.zeros((2, 2)), np.array([[0, 2], [0, 3]]))


def test_empty_batch():
    solver = GraphPath(3, [[0, 1], [1, 2]], source=0, target=2)
    assert solver(np.zeros((0, 2), np.float32)).shape == (0, 2)
