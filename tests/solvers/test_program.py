"""Linear and mixed-integer programs, against SciPy, enumeration and other solvers."""

import copy
import itertools
import pickle
import sys
import threading

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import coo_array, csr_array

from softsolve import parallel
from softsolve.errors import SolverError
from softsolve.solvers.program import LinearProgram, MixedIntegerProgram
from support import optima
from support.vertices import zeros_and_ones

DTYPES = [np.float32, np.float64]


def total(theta, y):
    return np.sum(theta.astype(np.float64) * y, axis=1)


def assignment_program(size, kind=LinearProgram):
    matrix = optima.marginal_matrix(size, size)
    return kind(matrix, row_lower=1.0, row_upper=1.0, upper=1.0)


def random_constraints(rng, rows, columns):
    """Return a matrix and bounds that hold at a random point of the unit cube."""
    matrix = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.6)
    inside = matrix @ rng.random(columns)
    kind = rng.integers(0, 4, rows)
    low = np.select([kind == 0, kind == 1], [-np.inf, inside], inside - 0.5)
    high = np.select([kind == 2, kind == 1], [np.inf, inside], inside + 0.5)
    return matrix, low, high


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 5), (8, 12), (20, 15), (30, 80)])
def test_random_linear_programs_against_linprog(size, dtype):
    rng = np.random.default_rng(0)
    for _ in range(3):
        matrix, low, high = random_constraints(rng, *size)
        theta = rng.normal(size=(5, size[1])).astype(dtype)
        theta[3:] = rng.integers(-1, 2, (2, size[1]))
        given = csr_array(matrix) if size[1] > 10 else matrix
        solver = LinearProgram(given, row_lower=low, row_upper=high, upper=1.0)
        y = solver(theta)
        assert y.dtype == dtype
        assert solver.feasible(y).all()
        equal, below, above = low == high, high < np.inf, low > -np.inf
        for scores, found in zip(theta, total(theta, y), strict=True):
            result = linprog(
                -scores.astype(np.float64),
                A_ub=np.vstack([matrix[below], -matrix[above]]),
                b_ub=np.concatenate([high[below], -low[above]]),
                A_eq=matrix[equal],
                b_eq=low[equal],
                bounds=(0, 1),
                method="highs-ipm",
            )
            assert result.status == 0
            np.testing.assert_allclose(found, -result.fun, atol=2e-5)


def test_vertices_against_enumeration():
    """Every subset of constraints that meets in a feasible point, for small cases."""
    rng = np.random.default_rng(1)
    for _ in range(15):
        matrix, bound = rng.normal(size=(4, 3)), rng.random(4)
        normals = np.vstack([matrix, np.eye(3), np.eye(3)])
        offsets = np.concatenate([bound, np.zeros(3), np.ones(3)])
        corners = []
        for chosen in itertools.combinations(range(10), 3):
            tight = normals[list(chosen)]
            if abs(np.linalg.det(tight)) > 1e-9:
                corners.append(np.linalg.solve(tight, offsets[list(chosen)]))
        corners = np.array(corners)
        solver = LinearProgram(matrix, row_upper=bound, upper=1.0)
        corners = corners[solver.feasible(corners)]
        theta = rng.normal(size=(4, 3))
        theta[3] = 0
        y = solver(theta)
        np.testing.assert_allclose(total(theta, y), (corners @ theta.T).max(axis=0))
        apart = np.abs(y[:, None] - corners).max(axis=2).min(axis=1)
        np.testing.assert_allclose(apart, 0, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_assignment_polytope(dtype):
    theta = np.random.default_rng(2).normal(size=(10, 36)).astype(dtype)
    solver = assignment_program(6)
    y = solver(theta)
    np.testing.assert_allclose(y, np.round(y), atol=1e-9)
    for scores, solution in zip(theta, y, strict=True):
        rows, columns = linear_sum_assignment(scores.reshape(6, 6), maximize=True)
        expected = np.zeros((6, 6))
        expected[rows, columns] = 1
        np.testing.assert_allclose(solution.reshape(6, 6), expected, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (1, 8), (4, 6), (6, 14)])
def test_random_mixed_programs_against_milp(size, dtype):
    rng = np.random.default_rng(3)
    for _ in range(4):
        columns = size[1]
        matrix = rng.integers(0, 9, size).astype(np.float64)
        bound = matrix.sum(axis=1) * rng.uniform(0.2, 1.5)
        whole = rng.random(columns) < 0.7
        theta = rng.normal(size=(4, columns)).astype(dtype)
        theta[3] = rng.integers(-2, 4, columns)
        solver = MixedIntegerProgram(
            matrix, row_upper=bound, upper=2.0, integrality=whole
        )
        y = solver(theta)
        assert y.dtype == dtype
        assert solver.feasible(y).all()
        np.testing.assert_array_equal(y[:, whole], np.round(y[:, whole]))
        expected = [
            optima.mixed_program(row, matrix, -np.inf, bound, 0, 2, whole)
            for row in theta.astype(np.float64)
        ]
        np.testing.assert_allclose(total(theta, y), expected, atol=1e-5)


def test_whole_programs_against_brute_force_down_to_close_scores():
    """Scores that differ by a millionth of the largest are told apart."""
    rng = np.random.default_rng(4)
    points = zeros_and_ones(9)
    for _ in range(12):
        matrix = rng.integers(1, 9, (2, 9)).astype(np.float64)
        bound = matrix.sum(axis=1) // 2
        solver = MixedIntegerProgram(matrix, row_upper=bound, upper=1.0)
        theta = 1 + 1e-6 * rng.normal(size=(2, 9))
        inside = points[np.all(points @ matrix.T <= bound, axis=1)]
        best = (inside @ theta.T).max(axis=0)
        np.testing.assert_allclose(total(theta, solver(theta)), best, atol=1e-8)


@pytest.mark.parametrize("exponent", [-500, -30, 30, 500])
def test_scale_of_the_scores_does_not_matter(exponent):
    rng = np.random.default_rng(5)
    theta = rng.normal(size=(4, 25))
    linear = assignment_program(5)
    mixed = MixedIntegerProgram(np.ones((1, 25)), row_upper=7.0, upper=2.0)
    for solver in (linear, mixed):
        scaled = solver(np.ldexp(theta, exponent))
        np.testing.assert_array_equal(scaled, solver(theta))


@pytest.mark.parametrize("kind", [LinearProgram, MixedIntegerProgram])
@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.3, 3.0])
def test_starts_lead_to_the_same_maximum(temperature, kind):
    rng = np.random.default_rng(6)
    solver = assignment_program(5, kind)
    theta = rng.normal(size=(6, 25))
    y, starts = solver.prime(theta)
    np.testing.assert_array_equal(y, solver(theta))
    perturbed = theta + temperature * rng.normal(size=theta.shape)
    warm = solver(perturbed, starts=starts)
    assert solver.feasible(warm).all()
    np.testing.assert_allclose(
        total(perturbed, warm), total(perturbed, solver(perturbed)), rtol=1e-9
    )


def test_a_start_saves_iterations():
    """The same scores again need no iteration from their own basis."""
    solver = assignment_program(8)
    theta = np.random.default_rng(7).normal(size=(1, 64))
    before = parallel.get_num_threads()
    parallel.set_num_threads(1)
    try:
        _, starts = solver.prime(theta)
        info = solver._model()._highs.getInfo
        assert info().simplex_iteration_count > 0
        solver(theta, starts=starts)
        assert info().simplex_iteration_count == 0
    finally:
        parallel.set_num_threads(before)


@pytest.mark.parametrize("kind", [LinearProgram, MixedIntegerProgram])
def test_ties_do_not_depend_on_history_or_threads(kind):
    rng = np.random.default_rng(8)
    solver = assignment_program(4, kind)
    theta = rng.integers(0, 2, (24, 16)).astype(np.float64)
    expected = np.concatenate([assignment_program(4, kind)(row[None]) for row in theta])
    before = parallel.get_num_threads()
    try:
        for threads in (1, 2, 4):
            parallel.set_num_threads(threads)
            np.testing.assert_array_equal(solver(theta), expected)
            np.testing.assert_array_equal(solver(theta[::-1])[::-1], expected)
    finally:
        parallel.set_num_threads(before)


def test_starts_do_not_depend_on_history():
    rng = np.random.default_rng(9)
    solver = assignment_program(4)
    theta = rng.integers(0, 2, (12, 16)).astype(np.float64)
    _, starts = solver.prime(theta)
    forward = solver(theta + 0.01, starts=starts)
    backward = solver(theta[::-1] + 0.01, starts=starts[::-1])[::-1]
    np.testing.assert_array_equal(forward, backward)


def test_several_threads_use_one_solver():
    solver = assignment_program(5)
    theta = np.random.default_rng(10).normal(size=(20, 25))
    expected = solver(theta)
    found = [None] * 4

    def work(index):
        found[index] = solver(theta)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for y in found:
        np.testing.assert_array_equal(y, expected)


def test_copies_and_pickles_solve():
    solver = assignment_program(3)
    theta = np.random.default_rng(11).normal(size=(2, 9))
    expected = solver(theta)
    for other in (copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        np.testing.assert_array_equal(other(theta), expected)


@pytest.mark.parametrize("kind", [LinearProgram, MixedIntegerProgram])
def test_infeasible(kind):
    solver = kind([[1.0, 1.0]], row_lower=3.0, upper=1.0)
    with pytest.raises(SolverError, match=r"2 of the 2 rows .*first row 0: no point"):
        solver(np.ones((2, 2)))


@pytest.mark.parametrize("kind", [LinearProgram, MixedIntegerProgram])
def test_unbounded(kind):
    solver = kind([[1.0, -1.0]], row_upper=1.0)
    theta = np.array([[-1.0, -1.0], [1.0, 1.0]])
    with pytest.raises(
        SolverError, match=r"1 of the 2 rows .*first row 1: .*without bound"
    ):
        solver(theta)
    # A row that failed leaves nothing behind.
    np.testing.assert_array_equal(solver(theta[:1]), [[0, 0]])


def test_time_limit():
    rng = np.random.default_rng(12)
    matrix = rng.integers(1, 60, (20, 60)).astype(np.float64)
    bound = matrix.sum(axis=1) * 0.4
    solver = MixedIntegerProgram(matrix, row_upper=bound, upper=1.0, time_limit=0.02)
    theta = matrix.mean(axis=0)[None] / 20 + rng.normal(size=(2, 60))
    with pytest.raises(SolverError, match="first row 0: the time limit was reached"):
        solver(theta)
    # The limit is for each solve, not for all of them.
    easy = LinearProgram(np.ones((1, 60)), row_upper=9.0, upper=1.0, time_limit=0.05)
    assert easy.feasible(easy(rng.normal(size=(2000, 60)))).all()


def test_no_constraints_and_no_rows():
    solver = LinearProgram(np.zeros((0, 3)), lower=-1.0, upper=[1.0, 2.0, 3.0])
    theta = np.array([[1.0, -1.0, 2.0]])
    np.testing.assert_array_equal(solver(theta), [[1, -1, 3]])
    assert solver(theta[:0]).shape == (0, 3)


def test_project_leaves_what_equations_allow():
    rng = np.random.default_rng(13)
    solver = assignment_program(4)
    y = solver(rng.normal(size=(200, 16)))
    differences = y - y[0]
    projector = solver.project(np.eye(16))
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(differences @ projector, differences, atol=1e-12)
    assert np.linalg.matrix_rank(projector) == np.linalg.matrix_rank(differences)
    fixed = LinearProgram([[1.0, 1.0, 1.0]], row_upper=2.0, lower=[0, 1, 0], upper=1.0)
    np.testing.assert_allclose(fixed.project(np.ones(3)), [1, 0, 1], atol=1e-12)
    free = LinearProgram([[1.0, 1.0]], row_upper=1.0)
    np.testing.assert_array_equal(free.project(np.ones(2)), [1, 1])


def test_feasible_rejects():
    linear = LinearProgram([[1.0, 1.0]], row_lower=1.0, row_upper=1.0, upper=1.0)
    y = np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 1.0], [2.0, -1.0]])
    assert linear.feasible(y).tolist() == [True, True, False, False]
    mixed = MixedIntegerProgram([[1.0, 1.0]], row_lower=1.0, row_upper=1.0, upper=1.0)
    assert mixed.feasible(y).tolist() == [True, False, False, False]


def test_errors():
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        LinearProgram([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="must be finite; got nan in row 1"):
        LinearProgram([[1.0], [np.nan]])
    with pytest.raises(ValueError, match=r"row_upper.*\(2,\); got shape \(3,\)"):
        LinearProgram(np.eye(2), row_upper=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"upper=.* must not be NaN"):
        LinearProgram(np.eye(2), upper=np.nan)
    with pytest.raises(ValueError, match=r"got 2\.0 > 1\.0 at index 1"):
        MixedIntegerProgram(np.eye(2), lower=[0.0, 2.0], upper=1.0)
    with pytest.raises(ValueError, match="positive seconds; got 0"):
        MixedIntegerProgram(np.eye(2), time_limit=0)
    solver = LinearProgram(np.eye(2), upper=1.0)
    with pytest.raises(ValueError, match=r"one score per variable.*got \(3,\)"):
        solver(np.zeros((1, 3)))
    with pytest.raises(TypeError, match="takes no context"):
        solver(np.zeros((1, 2)), np.zeros(1))
    with pytest.raises(ValueError, match="must be finite; row 1 is not"):
        solver(np.array([[0.0, 0.0], [np.inf, 0.0]]))
    _, starts = solver.prime(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="one start per row of theta; got 1 for 2"):
        solver(np.zeros((2, 2)), starts=starts)


def test_without_highspy(monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ImportError, match=r"pip install 'softsolve\[lp\]'"):
        LinearProgram(np.eye(2))


def test_with_highspy_that_does_not_load(monkeypatch, tmp_path):
    (tmp_path / "highspy.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.delitem(sys.modules, "highspy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"cannot be loaded: undefined symbol\. Some"):
        MixedIntegerProgram(np.eye(2))


def test_shortest_path_polytope():
    """Flow conservation on a grid: a vertex is a path, of integers."""
    size = 5
    vertices = np.arange(size * size).reshape(size, size)
    right = np.column_stack([vertices[:, :-1].ravel(), vertices[:, 1:].ravel()])
    down = np.column_stack([vertices[:-1].ravel(), vertices[1:].ravel()])
    edges = np.vstack([right, down])
    ones, index = np.ones(len(edges)), np.arange(len(edges))
    matrix = coo_array((ones, (edges[:, 0], index)), shape=(size * size, len(edges)))
    matrix = matrix - coo_array((ones, (edges[:, 1], index)), shape=matrix.shape)
    supply = np.zeros(size * size)
    supply[[0, -1]] = 1, -1
    solver = LinearProgram(matrix, row_lower=supply, row_upper=supply, upper=1.0)
    theta = np.random.default_rng(14).normal(size=(10, len(edges)))
    y = solver(theta)
    np.testing.assert_allclose(y, np.round(y), atol=1e-9)
    for scores, found in zip(theta, total(theta, y), strict=True):
        best = np.full((size, size), -np.inf)
        best[0, 0] = 0
        for (tail, head), score in sorted(zip(edges.tolist(), scores, strict=True)):
            best.flat[head] = max(best.flat[head], best.flat[tail] + score)
        np.testing.assert_allclose(found, best[-1, -1])
