r"""Linear and mixed-integer programs in matrix form."""

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike
from scipy.linalg import orth
from scipy.sparse import csc_array, diags_array, issparse, vstack

from softsolve._arrays import constant
from softsolve.errors import SolverError
from softsolve.parallel import run_ranges
from softsolve.solvers.base import Array, Shape, Solver
from softsolve.solvers.highs import Model, Program, Start, import_highspy

# Entries of the equality rows, beyond which their null space is not worth computing.
_SMALL = 2_000_000

# What HiGHS calls feasible, for rows of ordinary size, with some room for rounding.
_TOLERANCE = 1e-6


class _MatrixProgram(Solver):
    """What linear and mixed-integer programs share."""

    host = True

    def __init__(
        self,
        matrix: Any,
        *,
        row_lower: ArrayLike,
        row_upper: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        integrality: ArrayLike,
        time_limit: float | None,
    ) -> None:
        name = type(self).__name__
        import_highspy(name)
        if not issparse(matrix):
            matrix = np.asarray(matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            msg = (
                f"{name}(matrix=...) must have a row per constraint and a column per "
                f"variable, shape (r, d) with d >= 1; got shape {matrix.shape}."
            )
            raise ValueError(msg)
        compressed = csc_array(matrix, dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(compressed.data))
        if bad.size:
            msg = (
                f"{name}(matrix=...) must be finite; got {compressed.data[bad[0]]} in "
                f"row {compressed.indices[bad[0]]}."
            )
            raise ValueError(msg)
        if time_limit is not None and not time_limit > 0:
            msg = f"{name}(time_limit=...) must be positive seconds; got {time_limit}."
            raise ValueError(msg)
        rows, columns = compressed.shape
        bounds = {
            "row_lower": (row_lower, rows),
            "row_upper": (row_upper, rows),
            "lower": (lower, columns),
            "upper": (upper, columns),
        }
        vectors = {
            bound: _vector(name, bound, values, size)
            for bound, (values, size) in bounds.items()
        }
        _check_order(name, vectors, "row_lower", "row_upper")
        _check_order(name, vectors, "lower", "upper")
        whole = _vector(name, "integrality", integrality, columns).astype(bool)
        self.program = Program(compressed, **vectors, whole=whole)
        self.time_limit = time_limit
        self._local = threading.local()

    def __repr__(self) -> str:
        rows, columns = self.program.matrix.shape
        return f"{type(self).__name__}({rows} constraints, {columns} variables)"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is one score per variable."""
        super().check(event_shape, context)
        columns = self.program.lower.size
        if tuple(event_shape) != (columns,):
            msg = (
                f"{self!r} must get one score per variable, an event of shape "
                f"({columns},); got {tuple(event_shape)}."
            )
            raise ValueError(msg)

    def __call__(
        self,
        theta: np.ndarray[Any, Any],
        *context: np.ndarray[Any, Any],
        starts: Sequence[Start] | None = None,
    ) -> np.ndarray[Any, Any]:
        """Solve ``theta`` (rows, d), each row from scratch or from its start.

        ``starts`` holds one start per row, as :meth:`prime` returns them.
        """
        return self._solve(theta, context, starts, remember=False)[0]

    def prime(
        self, theta: np.ndarray[Any, Any], *context: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], list[Start]]:
        """Solve ``theta`` (rows, d) and return the solutions, and a start for each row.

        A start is for rows of scores close to the one it was made for: pass a list with
        one for each of them as ``starts``. It is used where that pays, and may be
        shared by threads.
        """
        return self._solve(theta, context, None, remember=True)

    def _solve(
        self,
        theta: np.ndarray[Any, Any],
        context: tuple[np.ndarray[Any, Any], ...],
        starts: Sequence[Start] | None,
        *,
        remember: bool,
    ) -> tuple[np.ndarray[Any, Any], list[Start]]:
        self.check_batch(theta, context)
        rows = len(theta)
        if starts is not None and len(starts) != rows:
            msg = (
                f"{self!r} must get one start per row of theta; got {len(starts)} for "
                f"{rows} rows."
            )
            raise ValueError(msg)
        scores = np.asarray(theta, dtype=np.float64)
        bad = np.flatnonzero(~np.all(np.isfinite(scores), axis=1))
        if bad.size:
            msg = f"the scores for {self!r} must be finite; row {bad[0]} is not."
            raise ValueError(msg)
        y = np.empty_like(theta)
        remembered: dict[int, Start] = {}
        failures: dict[int, str] = {}

        def solve_range(start: int, stop: int) -> None:
            model = self._model()
            for row in range(start, stop):
                given = None if starts is None else starts[row]
                solution = model.solve(scores[row], given)
                if isinstance(solution, str):
                    failures[row] = solution
                    continue
                y[row] = solution
                if remember:
                    remembered[row] = model.start(scores[row], solution)

        run_ranges(solve_range, rows)
        if failures:
            row = min(failures)
            msg = (
                f"{self!r} failed on {len(failures)} of the {rows} rows it was given "
                f"(a layer gives one for each sample), first row {row}: "
                f"{failures[row]}."
            )
            raise SolverError(msg)
        return y, [remembered[row] for row in sorted(remembered)]

    def _model(self) -> Model:
        """Return the model of this thread, which is built when it is first wanted."""
        if not hasattr(self._local, "model"):
            self._local.model = Model(self.program, self.time_limit)
        model: Model = self._local.model
        return model

    def project(self, x: Array) -> Array:
        r"""Project ``x`` (..., d) on the directions that equality constraints leave.

        Those are the constraints and variables with equal bounds. Inequalities that
        happen to be tight everywhere are not looked for; large programs keep all
        directions.
        """
        fixed = self._fixed_directions
        if fixed is None:
            return x
        xp = array_namespace(x)
        basis = constant(fixed, x)
        return x - xp.matmul(xp.matmul(x, basis), xp.permute_dims(basis, (1, 0)))

    @cached_property
    def _fixed_directions(self) -> np.ndarray[Any, Any] | None:
        """Return an orthonormal basis (d, k) of what does not vary, if it is small."""
        program = self.program
        equal = np.flatnonzero(program.row_lower == program.row_upper)
        fixed = np.flatnonzero(program.lower == program.upper)
        columns = program.lower.size
        if (equal.size + fixed.size) * columns in range(1, _SMALL):
            unit = diags_array(np.ones(columns)).tocsr()
            rows = vstack([program.matrix.tocsr()[equal], unit[fixed]])
            basis: np.ndarray[Any, Any] = orth(rows.toarray().T)
            return basis
        return None

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` (rows, d) whether it satisfies the constraints.

        Up to 1e-6, and the rounding of sums in the dtype of ``y``.
        """
        y = np.asarray(y)
        self.check(y.shape[1:], context)
        program = self.program
        exact = y.astype(np.float64)
        rounding = 4 * np.finfo(y.dtype).eps
        sums = exact @ program.matrix.T
        slack = _TOLERANCE + rounding * (np.abs(exact) @ abs(program.matrix).T)
        valid = np.all(sums >= program.row_lower - slack, axis=1)
        valid &= np.all(sums <= program.row_upper + slack, axis=1)
        room = _TOLERANCE + rounding * np.abs(exact)
        valid &= np.all(exact >= program.lower - room, axis=1)
        valid &= np.all(exact <= program.upper + room, axis=1)
        whole = exact[:, program.whole]
        return valid & np.all(np.abs(whole - np.round(whole)) <= _TOLERANCE, axis=1)


class LinearProgram(_MatrixProgram):
    r"""A linear program in matrix form, solved by HiGHS.

    .. math::
        y^*(\theta) = \operatorname{argmax} \{ \langle y, \theta \rangle :
        l_r \le A y \le u_r,\ l \le y \le u \}

    Parameters
    ----------
    matrix
        :math:`A`, (r, d), an array or a SciPy sparse matrix.
    row_lower, row_upper
        Bounds of :math:`A y`, (r,) or one number; equal for an equation, infinite for
        no bound.
    lower, upper
        Bounds of :math:`y`, (d,) or one number.
    time_limit
        Seconds that a solve may take; one that takes longer is an error.

    Notes
    -----
    Scores are (rows, d). The dual simplex method, without presolve: a solution is a
    vertex (where the polytope has one), the same for the same scores. It is optimal for
    scores that differ by at most about 1e-10 of the largest, and satisfies the
    constraints within 1e-7.

    The model is built once per thread and only its costs change. HiGHS releases the
    GIL, so rows are solved on several threads. A start from the basis of close scores
    (:meth:`prime`) goes on with the primal method; it saves a factor of 2 to 5 on
    network problems, less on dense ones.

    Needs the extra ``softsolve[lp]``.

    References
    ----------
    Q. Huangfu and J. A. J. Hall, "Parallelizing the dual revised simplex method",
    Mathematical Programming Computation 10, 2018.

    Examples
    --------
    At most 4 in all, and at most 3 of each:

    >>> import numpy as np
    >>> from softsolve.solvers.program import LinearProgram
    >>> program = LinearProgram([[1.0, 1.0]], row_upper=4.0, upper=3.0)
    >>> program(np.array([[2.0, 1.0], [1.0, 2.0], [-1.0, 1.0]]))
    array([[3., 1.],
           [1., 3.],
           [0., 3.]])
    """

    def __init__(
        self,
        matrix: Any,
        *,
        row_lower: ArrayLike = -np.inf,
        row_upper: ArrayLike = np.inf,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        time_limit: float | None = None,
    ) -> None:
        super().__init__(
            matrix,
            row_lower=row_lower,
            row_upper=row_upper,
            lower=lower,
            upper=upper,
            integrality=False,
            time_limit=time_limit,
        )


class MixedIntegerProgram(_MatrixProgram):
    r"""A mixed-integer linear program in matrix form, solved by HiGHS.

    .. math::
        y^*(\theta) = \operatorname{argmax} \{ \langle y, \theta \rangle :
        l_r \le A y \le u_r,\ l \le y \le u,\ y_i \in \mathbb{Z} \text{ for } i \in I \}

    Parameters
    ----------
    matrix
        :math:`A`, (r, d), an array or a SciPy sparse matrix.
    row_lower, row_upper
        Bounds of :math:`A y`, (r,) or one number; equal for an equation, infinite for
        no bound.
    lower, upper
        Bounds of :math:`y`, (d,) or one number.
    integrality
        Which variables are whole numbers, (d,) or one truth value for all.
    time_limit
        Seconds that a solve may take; one that takes longer is an error, even if it has
        found a solution, since nothing would be known about its quality.

    Notes
    -----
    Scores are (rows, d). Branch and cut to a gap of zero (in HiGHS' arithmetic, about
    1e-9 of the largest score); whole numbers are returned as such. Its time can grow
    exponentially with d. The polytope is the convex hull of the points in braces; of
    several best ones, the same scores give the same.

    The model is built once per thread and only its costs change. HiGHS releases the
    GIL, so rows are solved on several threads. A start (:meth:`prime`) is the solution
    for close scores, as first incumbent.

    Needs the extra ``softsolve[lp]``.

    References
    ----------
    Q. Huangfu and J. A. J. Hall, "Parallelizing the dual revised simplex method",
    Mathematical Programming Computation 10, 2018, and https://highs.dev.

    Examples
    --------
    A knapsack of capacity 10:

    >>> import numpy as np
    >>> from softsolve.solvers.program import MixedIntegerProgram
    >>> program = MixedIntegerProgram([[6.0, 5.0, 5.0]], row_upper=10.0, upper=1.0)
    >>> program(np.array([[8.0, 5.0, 5.0], [11.0, 5.0, 5.0]]))
    array([[0., 1., 1.],
           [1., 0., 0.]])
    """

    def __init__(
        self,
        matrix: Any,
        *,
        row_lower: ArrayLike = -np.inf,
        row_upper: ArrayLike = np.inf,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        integrality: ArrayLike = True,
        time_limit: float | None = None,
    ) -> None:
        super().__init__(
            matrix,
            row_lower=row_lower,
            row_upper=row_upper,
            lower=lower,
            upper=upper,
            integrality=integrality,
            time_limit=time_limit,
        )


def _vector(name: str, bound: str, values: ArrayLike, size: int) -> np.ndarray:
    """Return ``values`` as a vector of float64; a single number stands for all."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape not in {(), (size,)}:
        msg = (
            f"{name}({bound}=...) must be one number or a vector of shape ({size},); "
            f"got shape {vector.shape}."
        )
        raise ValueError(msg)
    if np.any(np.isnan(vector)):
        msg = f"{name}({bound}=...) must not be NaN. Use infinity for no bound."
        raise ValueError(msg)
    return np.array(np.broadcast_to(vector, (size,)))


def _check_order(
    name: str, vectors: dict[str, np.ndarray], low: str, high: str
) -> None:
    bad = np.flatnonzero(vectors[low] > vectors[high])
    if bad.size:
        msg = (
            f"{name}({low}=..., {high}=...) must not cross; got "
            f"{vectors[low][bad[0]]} > {vectors[high][bad[0]]} at index {bad[0]}."
        )
        raise ValueError(msg)
