r"""What a solver is.

A solver is *a pure, deterministic function from a batch of scores to a batch of
solutions, row by row*. Any callable with that contract will do; the classes here add
what can be declared about it.
"""

import abc
import math
import operator
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from softsolve.compiled.kernel import INFEASIBLE, OK, BlockKernel, Kernel
from softsolve.compiled.rows import solve_rows
from softsolve.errors import SolverError
from softsolve.parallel import run_ranges

Array = Any
Shape = tuple[int, ...]

# Scores that a thread solves at least: fewer take less time than waking it.
SMALLEST_SHARE = 2048


def as_numbers(solution: object, name: str) -> np.ndarray:
    """Return what a function returned as an array, or raise if it is not numbers."""
    try:
        y = np.asarray(solution)
    except ValueError:  # a list of rows of several lengths
        found = f"{type(solution).__name__} with rows of several lengths"
    else:
        if y.dtype.kind in "biuf":
            return y
        given = isinstance(solution, np.ndarray)
        found = f"{'an array' if given else type(solution).__name__} of type {y.dtype}"
    msg = (
        f"{name} must return an array of booleans, integers or real numbers, one "
        f"solution for each row; it returned {found}."
    )
    raise TypeError(msg)


def whole_number(name: str, value: object) -> int:
    """Return a whole number, NumPy's included, as an int, or raise."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        msg = f"{name} must be a whole number; got {value!r}."
        raise TypeError(msg) from None


def _holds_whole_numbers(array: Array) -> bool:
    """Tell it from the type, faster than the array API does."""
    kind = getattr(array.dtype, "kind", "")  # torch's types have none
    return kind in ("b", "i", "u") or not getattr(
        array.dtype, "is_floating_point", True
    )


class Solver(abc.ABC):
    r"""A solver with what is known about it.

    Attributes
    ----------
    event_ndim
        Number of trailing axes of ``theta`` that belong to one instance.
    linear
        Whether it maximises :math:`\langle y, \theta \rangle` over a fixed set,
        exactly: then the perturbed maximum, Fenchel-Young losses and symmetric
        Jacobians hold.
    exact
        Whether a linear solver always finds a maximum. A heuristic does not: values of
        the perturbed maximum are then lower bounds, and what rests on them is the
        heuristic's.
    host
        Whether it takes and returns NumPy arrays only. Otherwise it is written in the
        array API and takes arrays of any framework, on any device.
    """

    event_ndim: int = 1
    linear: bool = True
    exact: bool = True
    host: bool = False

    @abc.abstractmethod
    def __call__(self, theta: Array, *context: Array) -> Array:
        """Solve ``theta`` of shape (rows, *event), row by row."""

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if the solver cannot take instances of this shape or this context."""
        if context:
            msg = (
                f"{self!r} takes no context, but got {len(context)} extra argument(s). "
                "Call the layer with theta alone."
            )
            raise TypeError(msg)
        if len(event_shape) != self.event_ndim:
            msg = (
                f"{self!r} takes instances with event_ndim={self.event_ndim} axes; got "
                f"shape {tuple(event_shape)}."
            )
            raise ValueError(msg)

    def check_batch(self, theta: Array, context: tuple[Array, ...] = ()) -> None:
        """Raise unless ``theta`` (rows, *event) is a batch of instances.

        Layers check what they are given before they draw any noise; this is for calls
        of the solver by itself.
        """
        shape = getattr(theta, "shape", None)
        if shape is None:
            msg = (
                f"{self!r} takes an array of scores, with a row for each instance; got "
                f"a {type(theta).__name__}. Make one: numpy.array(theta, dtype=float)."
            )
            raise TypeError(msg)
        if len(shape) == self.event_ndim:
            msg = (
                f"{self!r} takes a batch of scores, with a row for each instance; got "
                f"shape {tuple(shape)}. A single instance is a batch of one: "
                "theta[None]."
            )
            raise ValueError(msg)
        if _holds_whole_numbers(theta):  # in which a solution would lose its fractions
            msg = (
                f"{self!r}: theta must be of a floating type; got {theta.dtype}. "
                "Convert it: theta.float() in torch, theta.astype(float) elsewhere."
            )
            raise TypeError(msg)
        self.check(tuple(shape[1:]), context)

    def project(self, x: Array) -> Array:
        r"""Project ``x`` (..., *event) on the directions of the solver's polytope.

        These are the vectors :math:`y - y'` of solutions and what they span. The
        default is the identity, right for a polytope with interior.
        """
        return x

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` (rows, *event) whether it is a solution at all."""
        msg = f"{type(self).__name__} has no feasibility check"
        raise NotImplementedError(msg)


class KernelSolver(Solver):
    """A solver with an instance kernel (see :mod:`softsolve.compiled.kernel`).

    A subclass sets :attr:`kernel` and, where it needs them, overrides
    :meth:`structure`, :meth:`pack_context` and :meth:`state_size`.

    Attributes
    ----------
    kernel
        The instance kernel.
    block
        A kernel for many instances side by side, where there is one.
    solution
        What entries a solution has: ``"binary"`` (0 or 1), ``"integer"`` (whole
        numbers within int16) or ``"real"``. Decides how solutions are kept.
    failures
        What each failure code of the kernel means, and what to do about it.
    """

    host = True
    kernel: Kernel
    block: BlockKernel | None = None
    solution: Literal["binary", "integer", "real"] = "real"
    failures: ClassVar[Mapping[int, str]] = {INFEASIBLE: "the instance is infeasible"}

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return what all instances share, as the kernel's ``ints`` and ``reals``."""
        return np.asarray(event_shape, dtype=np.int64), np.zeros(0)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray
    ) -> np.ndarray:
        """Check the per-row context and pack it into a float64 array (rows, c)."""
        self.check(event_shape, context)
        return np.zeros((rows, 0))

    def state_size(self, event_shape: Shape) -> int:
        """Return the length of the kernel's warm-start state; 0 where it has none."""
        return 0

    def __call__(self, theta: np.ndarray, *context: np.ndarray) -> np.ndarray:
        """Solve ``theta`` (rows, *event) with the kernel, each row from scratch.

        Large batches are solved on several threads.
        """
        self.check_batch(theta, context)
        rows, event_shape = len(theta), theta.shape[1:]
        size = math.prod(event_shape)
        scores = self._usable(theta).reshape(rows, size)
        packed = self.pack_context(rows, event_shape, *context)
        ints, reals = self.structure(event_shape)
        states = np.zeros((rows, self.state_size(event_shape)))
        y, status = np.empty_like(scores), np.empty(rows, dtype=np.int64)

        def solve_range(start: int, stop: int) -> None:
            part = slice(start, stop)
            given = (scores[part], ints, reals, packed[part], states[part])
            y[part], status[part] = solve_rows(self.kernel, *given)

        run_ranges(solve_range, rows, grain=1 + SMALLEST_SHARE // max(1, size))
        self.raise_failures(status, " (a layer gives one for each sample)")
        return y.reshape(theta.shape)

    def _usable(self, theta: np.ndarray) -> np.ndarray:
        """Return scores as an array that kernels can take, or raise."""
        scores = np.asarray(theta)
        if scores.dtype not in (np.float32, np.float64):
            msg = (
                f"{self!r}: theta must be float32 or float64; got {scores.dtype}. "
                "Convert it with theta.astype(float)."
            )
            raise TypeError(msg)
        finite = np.isfinite(scores)
        if not finite.all():
            row = int(np.argmin(finite.reshape(len(scores), -1).all(axis=1)))
            msg = (
                f"the scores for {self!r} must be finite; row {row} has "
                f"{scores[row][~finite[row]][0]}. To forbid something, give it a score "
                "far below the others."
            )
            raise ValueError(msg)
        return scores

    def raise_failures(self, status: np.ndarray, which: str = "") -> None:
        """Raise a :class:`SolverError` that names the first row that failed.

        ``which`` says, in brackets, what the rows are.
        """
        failed = np.flatnonzero(status != OK)
        if failed.size:
            row = int(failed[0])
            reason = self.failures[int(status[row])]
            msg = (
                f"{self!r} failed on {failed.size} of the {len(status)} rows it was "
                f"given{which}, first row {row}: {reason}"
            )
            raise SolverError(msg)
