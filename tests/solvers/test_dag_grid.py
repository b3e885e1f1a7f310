"""Monotone grid paths, against enumeration and SciPy."""

import itertools

import numpy as np
import pytest

from softsolve.solvers.dag_grid import DagGrid
from support import optima
from support.vertices import monotone_paths

DTYPES = [np.float32, np.float64]
SHAPES = [(1, 1), (1, 5), (6, 1), (2, 2), (3, 4), (5, 3)]


def solve_block(solver, theta):
    lanes = len(theta)
    columns = np.ascontiguousarray(theta.reshape(lanes, -1).T)
    y = np.full(columns.shape, 7, dtype=np.uint8)
    status = np.full(lanes, -1)
    ints, reals = solver.structure(theta.shape[1:])
    compiled = solver.block.compiled(theta.dtype)
    compiled(columns, ints, reals, np.zeros((lanes, 0)), y, status)
    assert not status.any()
    return y.T.reshape(theta.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_enumeration(shape, diagonal, dtype):
    rng = np.random.default_rng(0)
    solver = DagGrid(diagonal=diagonal)
    paths = monotone_paths(*shape, diagonal)
    for theta in (
        rng.normal(size=(40, *shape)).astype(dtype),
        rng.integers(-2, 3, size=(40, *shape)).astype(dtype),
    ):
        y = solver(theta)
        assert y.dtype == dtype
        assert np.all(solver.feasible(y))
        values = theta.reshape(40, -1).astype(float) @ paths.reshape(len(paths), -1).T
        got = (theta.astype(float) * y).sum(axis=(1, 2))
        tolerance = 50 * np.finfo(dtype).eps
        np.testing.assert_allclose(got, values.max(axis=1), rtol=0, atol=tolerance)


@pytest.mark.parametrize("diagonal", [False, True])
def test_larger_grids_against_scipy(diagonal):
    rng = np.random.default_rng(1)
    height, width = 15, 20
    theta = rng.normal(size=(5, height, width))
    for row in theta:
        wanted = optima.monotone_path(row, diagonal)
        y = DagGrid(diagonal=diagonal)(row[None])[0]
        assert DagGrid(diagonal=diagonal).feasible(y[None])[0]
        np.testing.assert_allclose((row * y).sum(), wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("diagonal", [False, True])
def test_block_and_instance_kernels_agree_bit_by_bit(diagonal, dtype):
    rng = np.random.default_rng(2)
    solver = DagGrid(diagonal=diagonal)
    for shape in [*SHAPES, (12, 12)]:
        size = (solver.block.lanes, *shape)
        for scores in (
            rng.normal(size=size),
            rng.integers(-1, 2, size=size),
            np.zeros(size),
        ):
            theta = scores.astype(dtype)
            np.testing.assert_array_equal(solve_block(solver, theta), solver(theta))


def test_ties_go_to_the_predecessor_of_lowest_index():
    y = DagGrid()(np.zeros((1, 3, 3)))[0]
    np.testing.assert_array_equal(y, [[1, 1, 1], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(
        DagGrid(diagonal=True)(np.zeros((1, 3, 3)))[0], np.eye(3)
    )


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (4, 4)])
def test_projector_against_enumerated_paths(shape, diagonal):
    paths = monotone_paths(*shape, diagonal)
    size = shape[0] * shape[1]
    differences = (paths - paths[0]).reshape(-1, size)
    wanted = np.linalg.pinv(differences) @ differences
    solver = DagGrid(diagonal=diagonal)
    got = solver.project(np.eye(size).reshape(size, *shape)).reshape(size, size)
    np.testing.assert_allclose(got, wanted, atol=1e-9)
    single = solver.project(np.ones(shape, dtype=np.float32))
    assert single.dtype == np.float32


def test_feasible_rejects_what_is_no_such_path():
    path = np.array([[[1, 1, 0], [0, 1, 0], [0, 1, 1]]])
    assert DagGrid().feasible(path)[0]
    for cell in itertools.product(range(3), repeat=2):
        broken = path.copy()
        broken[0][cell] = 1 - broken[0][cell]
        assert not DagGrid().feasible(broken)[0]
    assert not DagGrid().feasible(np.eye(3)[None])[0]
    assert DagGrid(diagonal=True).feasible(np.eye(3)[None])[0]
    assert not DagGrid().feasible(0.5 * path)[0]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"\(height, width\).* got \(3, 4, 5\)"):
        DagGrid()(np.zeros((2, 3, 4, 5)))
    with pytest.raises(TypeError, match="takes no context"):
        DagGrid()(np.zeros((2, 3, 3)), np.zeros(2))


def test_empty_batch():
    assert DagGrid()(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 4)
