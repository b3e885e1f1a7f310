"""A solver under examination: every call of it checked, in NumPy's terms."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from softsolve._arrays import constant
from softsolve.errors import ContractError
from softsolve.solvers.base import Solver

Array = Any
Values = np.ndarray[Any, Any]


class Subject:
    """A solver with the scores and context that it is examined on.

    Attributes
    ----------
    name
        What the solver is called in messages.
    linear
        Whether it is declared to maximise ⟨y, θ⟩.
    theta, context
        The scores and the context as NumPy arrays.
    """

    def __init__(
        self, solver: Callable[..., Any], theta: Array, context: tuple[Array, ...]
    ) -> None:
        if isinstance(solver, type) or not callable(solver):
            msg = (
                f"check_solver(solver, theta) needs a function of scores; got "
                f"{solver!r}. Pass the solver itself, as you would to Perturbed."
            )
            raise TypeError(msg)
        self.solver = solver
        self.name = _name(solver)
        self.linear: bool = getattr(solver, "linear", False)
        self._like = (theta, *context)
        self.theta = to_numpy(theta)
        self.context = tuple(to_numpy(array) for array in context)
        self._check_arguments()

    def _check_arguments(self) -> None:
        event_ndim = getattr(self.solver, "event_ndim", 1)
        theta = self.theta
        if theta.dtype.kind != "f":
            msg = f"theta must be of a floating type; got {theta.dtype}."
            raise TypeError(msg)
        if theta.ndim != event_ndim + 1 or 0 in theta.shape:
            msg = (
                f"theta must be a batch of instances for {self.name}, rows first and "
                f"{event_ndim} axes for each; got shape {theta.shape}. A single "
                "instance is theta[None]; instances of more axes are declared by "
                "softsolve.solver(function, event_ndim=...)."
            )
            raise ValueError(msg)
        row = first_row(~np.isfinite(theta))
        if row is not None:
            msg = f"theta must be finite; got {show(theta[row])} in row {row}."
            raise ValueError(msg)
        for position, array in enumerate(self.context):
            if array.ndim == 0 or len(array) != len(theta):
                msg = (
                    f"context argument {position} must have one row for each of the "
                    f"{len(theta)} instances; got shape {array.shape}."
                )
                raise ValueError(msg)
        host = getattr(self.solver, "host", False)
        if host and not isinstance(self._like[0], np.ndarray):
            msg = (
                f"{self.name} takes NumPy arrays, which layers convert for it; got "
                f"{_kind(self._like[0])}. Pass theta as a NumPy array."
            )
            raise TypeError(msg)
        if isinstance(self.solver, Solver):
            self.solver.check(theta.shape[1:], self.context)

    def convert(self, values: Values, *context: Values) -> list[Array]:
        """Return new arrays in the framework and of the types of the arguments."""
        return [
            constant(array.copy(), like)
            for array, like in zip((values, *context), self._like, strict=False)
        ]

    def call(self, theta: Values, context: tuple[Values, ...]) -> tuple[Array, Values]:
        """Solve and check what each call must hold; return y as it is, and a copy."""
        given = self.convert(theta, *context)
        y = self.solver(*given)
        self._check_unchanged(given, (theta, *context))
        return y, self._checked_solution(y, theta)

    def solve(self, theta: Values, context: tuple[Values, ...], what: str) -> Values:
        """Solve scores that are not those given, and say which if that fails."""
        try:
            return self.call(theta, context)[1]
        except ContractError as error:
            error.add_note(f"check_solver: found on {what}.")
            raise
        except Exception as error:
            msg = (
                f"{self.name} raised {type(error).__name__} on {what}, though not on "
                f"theta itself: {error}. Layers hand over any number of rows, "
                "perturbed; raise softsolve.SolverError for scores without a solution."
            )
            raise ContractError(msg) from error

    def solve_given(self) -> Values:
        """Solve the scores as they were given; errors of the solver are left alone."""
        try:
            return self.call(self.theta, self.context)[1]
        except ContractError:
            raise
        except Exception as error:
            advice = (
                "A function of one instance is made into a solver by "
                "softsolve.solver(function, batched=False)."
                if getattr(self.solver, "batched", True)
                else "It is declared to take one instance at a time, batched=False."
            )
            error.add_note(
                f"check_solver: {self.name} raised this on theta of shape "
                f"{self.theta.shape}, as it was given, and {len(self.context)} context "
                f"argument(s). {advice}"
            )
            raise

    def solve_read_only(self) -> Values | None:
        """Solve the scores given in read-only arrays; None if not NumPy's."""
        given = self.convert(self.theta, *self.context)
        if not isinstance(given[0], np.ndarray):
            return None
        for array in given:
            array.flags.writeable = False
        try:
            return self._checked_solution(self.solver(*given), self.theta)
        except (TypeError, ValueError) as error:
            msg = (
                f"{self.name} raised {type(error).__name__} on read-only arrays, "
                f"though not on writable ones: {error}. JAX hands over such arrays: "
                "work on a copy (in Numba, leave signatures out or make one first)."
            )
            raise ContractError(msg) from error

    def fail(self, found: str, advice: str) -> NoReturn:
        """Raise for a broken contract."""
        msg = f"{self.name} {found}. {advice}"
        raise ContractError(msg)

    def _check_unchanged(self, given: list[Array], before: tuple[Values, ...]) -> None:
        for position, (array, values) in enumerate(zip(given, before, strict=True)):
            if not np.array_equal(to_numpy(array), values):
                what = "theta" if position == 0 else f"context argument {position - 1}"
                self.fail(
                    f"changed {what} in place",
                    "Work on a copy: a layer uses its arguments again.",
                )

    def _checked_solution(self, y: Array, theta: Values) -> Values:
        if not _same_framework(y, self._like[0]):
            self.fail(
                f"returned a {_kind(y)} for scores of type {_kind(self._like[0])}",
                "Return an array of the framework of theta; a function of NumPy arrays "
                "is made into a solver for every framework by "
                "softsolve.solver(function).",
            )
        values = to_numpy(y)
        self._check_shape(values.shape, theta.shape)
        if values.dtype.kind not in "biuf":
            self.fail(
                f"returned an array of type {values.dtype}",
                "Return booleans, integers or real numbers.",
            )
        bad = np.asarray(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
        if getattr(self.solver, "drops", False):
            bad &= ~failed_rows(values)
        row = first_row(bad)
        if row is not None:
            self.fail(
                f"returned NaN or an infinity in row {row}, for {show(theta[row])}",
                "Return finite solutions; raise softsolve.SolverError where there is "
                "none.",
            )
        return values.copy()

    def _check_shape(self, got: tuple[int, ...], given: tuple[int, ...]) -> None:
        rows = given[0]
        if not got or got[0] != rows:
            self.fail(
                f"returned shape {got} for {rows} row(s) of scores",
                f"Return one solution for each row, ({rows}, …). A function of one "
                "instance is made into a solver by softsolve.solver(function, "
                "batched=False).",
            )
        if self.linear and got != given:
            self.fail(
                f"returned shape {got} for scores of shape {given}",
                "A linear solver's solutions have the shape of its scores; drop "
                "linear=True for a function with other outputs.",
            )
        declared = getattr(self.solver, "out_shape", None)
        if declared is not None and got[1:] != tuple(declared):
            self.fail(
                f"returned shape {got[1:]} in each row, not the declared "
                f"out_shape={tuple(declared)}",
                f"Declare out_shape={got[1:]}.",
            )


def to_numpy(array: Array) -> Values:
    """Return an array of any framework as NumPy's."""
    return np.asarray(array.detach().cpu() if is_torch_array(array) else array)


def first_row(bad: Values) -> int | None:
    """Return the first row with a bad entry, (rows, …)."""
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    return int(rows[0]) if rows.size else None


def failed_rows(y: Values) -> Values:
    """Tell which rows are NaN throughout, as those of solves that failed are."""
    return np.asarray(np.isnan(y.astype(np.float64)).reshape(len(y), -1).all(axis=1))


def show(row: Values) -> str:
    """Return a row for a message, on one line and not too long."""
    text = np.array2string(row, precision=4, threshold=16, separator=", ")
    return " ".join(text.split())


def _name(solver: object) -> str:
    if isinstance(solver, Solver):
        return repr(solver)
    return getattr(solver, "__name__", type(solver).__name__)


def _kind(array: object) -> str:
    return f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"


def _same_framework(array: Array, like: Array) -> bool:
    try:
        return array_namespace(array) is array_namespace(like)
    except TypeError:  # no array at all
        return False
