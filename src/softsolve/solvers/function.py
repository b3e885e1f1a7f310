"""Solvers made of a user's function."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, overload

import numpy as np

from softsolve.solvers.base import Array, Shape, Solver

Function = Callable[..., Any]


class FunctionSolver(Solver):
    """A user's function as a solver; made by :func:`solver`."""

    def __init__(
        self,
        function: object,
        *,
        batched: bool,
        linear: bool,
        workers: int | None,
        executor: Executor | None,
        event_ndim: int,
        out_shape: tuple[int, ...] | None,
        native: bool,
    ) -> None:
        if not callable(function):
            msg = f"solver(function) needs a callable; got {function!r}."
            raise TypeError(msg)
        if workers is not None and workers < 1:
            msg = f"solver(workers=...) must be at least 1; got {workers}."
            raise ValueError(msg)
        if native and (not batched or workers is not None or executor is not None):
            msg = (
                "solver(native=True) hands the framework's own batch to the function: "
                "batched=False, workers= and executor= do not go with it. Drop "
                "native=True to work on NumPy arrays."
            )
            raise ValueError(msg)
        self.function = function
        self.batched = batched
        self.linear = linear
        self.workers = workers
        self.executor = executor
        self.event_ndim = event_ndim
        self.out_shape = out_shape
        self.host = not native
        functools.update_wrapper(self, function)

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Accept any shape and any context: the function is the judge of them."""

    def __call__(self, theta: Array, *context: Array) -> Array:
        """Call the function on the batch, or on each instance of it."""
        if self.batched and self.workers is None and self.executor is None:
            return self.function(theta, *context)
        pieces = self._pieces(len(theta))
        call = functools.partial(_solve_piece, self.function, self.batched)
        columns = [[array[piece] for piece in pieces] for array in (theta, *context)]
        if self.executor is not None:
            solved = list(self.executor.map(call, *columns))
        elif (self.workers or 1) > 1 and len(pieces) > 1:
            with ThreadPoolExecutor(self.workers) as pool:
                solved = list(pool.map(call, *columns))
        else:
            solved = list(map(call, *columns))
        return np.concatenate(solved) if solved else np.zeros_like(theta)

    def _pieces(self, rows: int) -> list[slice]:
        workers = self.workers or (os.cpu_count() or 1 if self.executor else 1)
        # Several pieces a worker, so that one slow piece does not hold up the rest.
        size = max(1, -(-rows // (4 * workers))) if workers > 1 else max(rows, 1)
        return [slice(start, start + size) for start in range(0, rows, size)]

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        facts = [name, f"batched={self.batched}", f"linear={self.linear}"]
        if self.workers is not None:
            facts.append(f"workers={self.workers}")
        if self.executor is not None:
            facts.append(f"executor={type(self.executor).__name__}")
        return f"solver({', '.join(facts)})"


def _solve_piece(
    function: Function, batched: bool, theta: np.ndarray, *context: np.ndarray
) -> np.ndarray:
    if batched:
        return np.asarray(function(theta, *context))
    return np.stack(
        [np.asarray(function(*row)) for row in zip(theta, *context, strict=True)]
    )


@overload
def solver(
    function: Function,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> FunctionSolver: ...


@overload
def solver(
    function: None = None,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> Callable[[Function], FunctionSolver]: ...


def solver(
    function: Function | None = None,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> FunctionSolver | Callable[[Function], FunctionSolver]:
    r"""Make a solver of a function, as a call or as a decorator.

    The function gets NumPy arrays and returns NumPy arrays, in every framework. It
    must be pure and deterministic, row by row.

    Parameters
    ----------
    function
        ``function(theta, *context)``: solutions for scores, a batch of them (rows
        first) or, with ``batched=False``, one instance.
    batched
        Whether the function takes a batch of instances.
    linear
        Declare that it maximises :math:`\langle y, \theta\rangle` over a fixed set,
        exactly. Then the perturbed maximum and Fenchel-Young losses are available.
    workers
        Solve with this many threads: for functions that release the GIL.
    executor
        Solve with an executor of yours (anything with ``map`` as in
        :mod:`concurrent.futures`): processes, a cluster.
    event_ndim
        Number of axes of one instance's scores.
    out_shape
        Shape of one instance's output, if it is not that of the scores: JAX and
        torch.compile must know it beforehand.
    native
        Hand the framework's own arrays to the function instead of NumPy's (a batch of
        them): for functions written in torch or jax.numpy, to declare facts of them.

    Examples
    --------
    >>> @solver(batched=False, linear=True)
    ... def argmax(theta):
    ...     return np.eye(len(theta))[theta.argmax()]
    >>> argmax(np.array([[1.0, 3.0, 2.0]]))
    array([[0., 1., 0.]])
    """
    options: dict[str, Any] = {
        "batched": batched,
        "linear": linear,
        "workers": workers,
        "executor": executor,
        "event_ndim": event_ndim,
        "out_shape": out_shape,
        "native": native,
    }
    if function is None:
        return functools.partial(FunctionSolver, **options)
    return FunctionSolver(function, **options)
