"""Grid paths against SciPy's Dijkstra and brute force; one kernel against the other."""

import numpy as np
import pytest

from softsolve.errors import SolverError
from softsolve.solvers.grid import GridPath
from support import optima, vertices


def assert_optimal(solver, theta, y, ends=None, blocked=None):
    """Assert that each row of ``y`` is a path as cheap as SciPy's."""
    rows, height, width = theta.shape
    context = [array for array in (ends, blocked) if array is not None]
    assert y.shape == theta.shape
    assert y.dtype == theta.dtype
    assert np.all(solver.feasible(y, *context))
    for row in range(rows):
        clipped = np.minimum(theta[row].astype(float), 0)
        corner = (0, 0, height - 1, width - 1)
        four = [int(entry) for entry in (corner if ends is None else ends[row])]
        wanted = optima.grid_path(
            clipped,
            solver.neighbours,
            (four[0], four[1]),
            (four[2], four[3]),
            None if blocked is None else blocked[row],
        )
        tolerance = 8 * np.finfo(theta.dtype).eps * (1 - wanted) * (height + width)
        assert abs((clipped * y[row]).sum() - wanted) <= tolerance


def scores(kind, rng, shape, dtype):
    if kind == "noisy":
        theta = rng.normal(size=shape) - 1.5
    elif kind == "ties":
        theta = -rng.integers(0, 3, size=shape)
    elif kind == "zero":
        theta = np.zeros(shape)
    else:  # costs of many scales, so that the small ones vanish in sums
        theta = -100 * rng.uniform(size=shape) ** 20
    return theta.astype(dtype)


SHAPES = [(1, 1), (1, 6), (7, 1), (2, 2), (3, 5), (6, 4), (9, 9)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("kind", ["noisy", "ties", "zero", "scales"])
def test_paths_are_as_cheap_as_scipys(kind, neighbours, dtype):
    rng = np.random.default_rng(0)
    solver = GridPath(neighbours=neighbours)
    for shape in SHAPES:
        theta = scores(kind, rng, (6, *shape), dtype)
        assert_optimal(solver, theta, solver(theta))


@pytest.mark.parametrize("neighbours", [4, 8])
def test_any_endpoints(neighbours):
    rng = np.random.default_rng(1)
    solver = GridPath(neighbours=neighbours, endpoints=True)
    for height, width in SHAPES:
        theta = scores("noisy", rng, (8, height, width), np.float64)
        sides = (height, width, height, width)
        ends = np.stack([rng.integers(side, size=8) for side in sides], axis=1)
        ends[0, 2:] = ends[0, :2]
        assert_optimal(solver, theta, solver(theta, ends), ends)


@pytest.mark.parametrize("neighbours", [4, 8])
def test_obstacles(neighbours):
    rng = np.random.default_rng(2)
    solver = GridPath(neighbours=neighbours, endpoints=True, obstacles=True)
    solved = walled = 0
    for _ in range(150):
        theta = scores("ties", rng, (1, 6, 7), np.float64)
        ends = rng.integers(6, size=(1, 4))
        blocked = rng.random((1, 6, 7)) < 0.35
        four = [int(entry) for entry in ends[0]]
        wanted = optima.grid_path(
            theta[0], neighbours, (four[0], four[1]), (four[2], four[3]), blocked[0]
        )
        if wanted is None:
            walled += 1
            with pytest.raises(SolverError, match=r"first row 0: no path joins"):
                solver(theta, ends, blocked)
        else:
            solved += 1
            assert_optimal(solver, theta, solver(theta, ends, blocked), ends, blocked)
    assert min(solved, walled) > 30


def test_larger_grids():
    rng = np.random.default_rng(3)
    solver = GridPath()
    for shape in ((40, 60), (3, 250), (100, 2)):
        theta = scores("noisy", rng, (2, *shape), np.float32)
        assert_optimal(solver, theta, solver(theta))


def test_paths_may_turn_back():
    theta = np.full((7, 7), -100.0)
    snake = [(0, j) for j in range(7)] + [(1, 6), (2, 6)]
    snake += [(2, j) for j in range(5, -1, -1)] + [(3, 0), (4, 0)]
    snake += [(4, j) for j in range(1, 7)] + [(5, 6), (6, 6)]
    for cell in snake:
        theta[cell] = -0.5
    y = GridPath(neighbours=4)(theta[None])[0]
    assert set(zip(*np.nonzero(y), strict=True)) == set(snake)
    block, status = solve_block(GridPath(neighbours=4), np.repeat(theta[None], 32, 0))
    assert not status.any()
    np.testing.assert_array_equal(block, np.repeat(y[None], 32, 0))


def solve_block(solver, theta, *context):
    """Solve as many instances as the block kernel has lanes, with that kernel."""
    lanes, shape = len(theta), theta.shape[1:]
    packed = solver.pack_context(lanes, shape, *context)
    ints, reals = solver.structure(shape)
    columns = np.ascontiguousarray(theta.reshape(lanes, -1).T)
    y = np.full(columns.shape, 7, dtype=np.uint8)
    status = np.full(lanes, -1)
    solver.block.compiled(theta.dtype)(columns, ints, reals, packed, y, status)
    return y.T.reshape(theta.shape), status


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("kind", ["noisy", "ties", "zero", "scales"])
def test_block_and_instance_kernels_agree_bit_by_bit(kind, neighbours, dtype):
    rng = np.random.default_rng(4)
    solver = GridPath(neighbours=neighbours, endpoints=True, obstacles=True)
    lanes = solver.block.lanes
    for height, width in [*SHAPES, (12, 12)]:
        theta = scores(kind, rng, (lanes, height, width), dtype)
        sides = (height, width, height, width)
        ends = np.stack([rng.integers(side, size=lanes) for side in sides], axis=1)
        blocked = rng.random(theta.shape) < 0.25
        y, status = solve_block(solver, theta, ends, blocked)
        for lane in range(lanes):
            row = slice(lane, lane + 1)
            if status[lane]:
                with pytest.raises(SolverError, match="no path joins"):
                    solver(theta[row], ends[row], blocked[row])
                assert not y[lane].any()
            else:
                alone = solver(theta[row], ends[row], blocked[row])[0]
                np.testing.assert_array_equal(y[lane], alone)


def test_block_kernel_beyond_its_largest_side():
    rng = np.random.default_rng(5)
    solver = GridPath()
    theta = scores("noisy", rng, (32, 2, 205), np.float32)
    y, status = solve_block(solver, theta)
    assert not status.any()
    np.testing.assert_array_equal(y, solver(theta))


def test_ties_go_to_the_lowest_index():
    # All cells equal: back from the end, the lowest of the nearest cells comes first.
    y = GridPath(neighbours=4)(-np.ones((1, 3, 3)))[0]
    np.testing.assert_array_equal(y, [[1, 1, 1], [0, 0, 1], [0, 0, 1]])
    # All cells free: the fewest steps.
    y = GridPath()(np.zeros((1, 4, 4)))[0]
    np.testing.assert_array_equal(y, np.eye(4))


def test_negative_costs():
    theta = np.array([[[-1.0, 2.0], [-1.0, -1.0]], [[-1.0, -1.0], [-1.0, -1.0]]])
    clipped = np.minimum(theta, 0)
    np.testing.assert_array_equal(GridPath()(theta), GridPath()(clipped))
    strict = GridPath(negative="raise")
    np.testing.assert_array_equal(strict(theta[1:]), GridPath()(theta[1:]))
    with pytest.raises(
        SolverError, match=r"1 of the 2 rows .*first row 0: a cost is negative"
    ):
        strict(theta)
    _, status = solve_block(strict, np.repeat(theta, 16, axis=0))
    np.testing.assert_array_equal(status != 0, np.repeat([True, False], 16))


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (2, 4), (3, 3), (4, 3)])
def test_projector_against_enumerated_paths(shape, neighbours):
    paths = vertices.grid_paths(*shape, neighbours)
    size = shape[0] * shape[1]
    differences = (paths - paths[0]).reshape(-1, size)
    wanted = np.linalg.pinv(differences) @ differences
    got = GridPath(neighbours=neighbours).project(np.eye(size).reshape(size, *shape))
    np.testing.assert_allclose(got.reshape(size, size), wanted, atol=1e-9)


@pytest.mark.parametrize("neighbours", [4, 8])
def test_brute_force(neighbours):
    rng = np.random.default_rng(6)
    paths = vertices.grid_paths(3, 4, neighbours).reshape(-1, 12)
    theta = -rng.uniform(size=(50, 3, 4))
    y = GridPath(neighbours=neighbours)(theta).reshape(50, 12)
    np.testing.assert_array_equal(y, paths[(theta.reshape(50, 12) @ paths.T).argmax(1)])


def test_feasible_rejects_what_is_no_path():
    solver = GridPath(neighbours=4, obstacles=True)
    open_grid = np.zeros((1, 3, 3), bool)
    path = np.array([[[1, 1, 1], [0, 0, 1], [0, 0, 1]]])
    assert solver.feasible(path, open_grid)[0]
    for cell in [(0, 0), (0, 1), (2, 2)]:
        broken = path.copy()
        broken[0][cell] = 0
        assert not solver.feasible(broken, open_grid)[0]
    stub = path.copy()
    stub[0, 1, 0] = 1
    assert not solver.feasible(stub, open_grid)[0]
    assert not solver.feasible(0.5 * path, open_grid)[0]
    walled = open_grid.copy()
    walled[0, 0, 1] = True
    assert not solver.feasible(path, walled)[0]


def test_the_comparison_can_fail():
    theta = -np.arange(1.0, 10.0).reshape(1, 3, 3)
    detour = np.array([[[1.0, 0, 0], [1, 0, 0], [1, 1, 1]]])
    assert GridPath().feasible(detour)[0]
    with pytest.raises(AssertionError):
        assert_optimal(GridPath(), theta, detour)


def test_empty_batch():
    assert GridPath()(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 4)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"neighbours=\.\.\.\) must be 4 or 8; got 6"):
        GridPath(neighbours=6)
    with pytest.raises(ValueError, match=r'must be "clip" or "raise"; got \'keep\''):
        GridPath(negative="keep")
    theta = np.zeros((2, 3, 4))
    with pytest.raises(
        ValueError, match=r"event of shape \(height, width\).* got \(3, 4, 1\)"
    ):
        GridPath()(theta[..., None])
    with pytest.raises(ValueError, match=r"with cells in it; got \(0, 4\)"):
        GridPath()(np.zeros((2, 0, 4)))
    with pytest.raises(TypeError, match=r"called as solver\(theta\); got 1"):
        GridPath()(theta, np.zeros((2, 4), int))
    with pytest.raises(
        TypeError, match=r"solver\(theta, endpoints, obstacles\); got 1"
    ):
        GridPath(endpoints=True, obstacles=True)(theta, np.zeros((2, 4), int))
    with_ends = GridPath(endpoints=True)
    with pytest.raises(
        ValueError, match=r"must have shape \(2, 4\).*got shape \(2, 2\)"
    ):
        with_ends(theta, np.zeros((2, 2), int))
    with pytest.raises(TypeError, match="must be integers; got dtype float64"):
        with_ends(theta, np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"end column between 0 and 3; got 4 in row 1"):
        with_ends(theta, np.array([[0, 0, 2, 3], [0, 0, 2, 4]]))
    with pytest.raises(ValueError, match=r"booleans of shape \(2, 3, 4\).*got float64"):
        GridPath(obstacles=True)(theta, np.zeros((2, 3, 4)))
