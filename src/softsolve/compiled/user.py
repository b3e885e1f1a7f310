"""A user's own function of one instance, compiled into the fused passes."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (kernels have one signature)

import inspect
import logging
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, overload

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from softsolve.compiled.compilation import (
    LONG,
    compile_function,
    logger,
    with_fingerprint,
)
from softsolve.compiled.kernel import OK, Kernel, kernel
from softsolve.compiled.native import call_void, read_int64
from softsolve.solvers.base import Array, KernelSolver, Shape

UserFunction = Callable[..., None]
Solution = Literal["binary", "integer", "real"]

LARGEST_EVENT_NDIM = 3


# Declared as what type checkers cannot see through.
njit: Any = numba.njit


@njit
def _address(theta, ints):
    return read_int64(ints[0], theta.itemsize // 4 - 1)


# Adapters: the user's function is called by its address, which is data to them, so they
# are compiled once and kept on disk whatever function is used.
@kernel
def call_1d(theta, ints, reals, context, state, y):
    """Call a function of a vector of scores."""
    y[:] = 0
    call_void(_address(theta, ints), (theta, y))
    return OK


@kernel
def call_1d_context(theta, ints, reals, context, state, y):
    """Call a function of a vector of scores and a context."""
    y[:] = 0
    call_void(_address(theta, ints), (theta, context, y))
    return OK


@kernel
def call_2d(theta, ints, reals, context, state, y):
    """Call a function of a matrix of scores."""
    y[:] = 0
    shape = (ints[1], ints[2])
    call_void(_address(theta, ints), (theta.reshape(shape), y.reshape(shape)))
    return OK


@kernel
def call_2d_context(theta, ints, reals, context, state, y):
    """Call a function of a matrix of scores and a context."""
    y[:] = 0
    shape = (ints[1], ints[2])
    call_void(_address(theta, ints), (theta.reshape(shape), context, y.reshape(shape)))
    return OK


@kernel
def call_3d(theta, ints, reals, context, state, y):
    """Call a function of scores with three axes."""
    y[:] = 0
    shape = (ints[1], ints[2], ints[3])
    call_void(_address(theta, ints), (theta.reshape(shape), y.reshape(shape)))
    return OK


@kernel
def call_3d_context(theta, ints, reals, context, state, y):
    """Call a function of scores with three axes and a context."""
    y[:] = 0
    shape = (ints[1], ints[2], ints[3])
    call_void(_address(theta, ints), (theta.reshape(shape), context, y.reshape(shape)))
    return OK


_ADAPTERS = {
    (1, False): call_1d,
    (1, True): call_1d_context,
    (2, False): call_2d,
    (2, True): call_2d_context,
    (3, False): call_3d,
    (3, True): call_3d_context,
}


class UserKernel(Kernel):
    """The adapter of a user's function; it compiles the function when first wanted."""

    def __init__(self, function: UserFunction, event_ndim: int, context: bool) -> None:
        super().__init__(function)  # type: ignore[arg-type]
        self.adapter = _ADAPTERS[event_ndim, context]
        self.event_ndim = event_ndim
        self.context = context
        # Where the adapter finds the function for float32 and for float64 scores.
        self.places = np.zeros(2, dtype=np.int64)
        self._dispatchers: dict[str, Any] = {}

    def compiled(self, dtype: np.dtype[Any]) -> Any:
        """Return the adapter for scores of ``dtype``, its function compiled."""
        dtype = np.dtype(dtype)
        with self._lock:
            if dtype.name not in self._dispatchers:
                dispatcher = self._compile(dtype)
                (code,) = dispatcher.overloads.values()
                self._dispatchers[dtype.name] = dispatcher
                self.places[dtype.itemsize // 4 - 1] = (
                    code.library.get_pointer_to_function(code.fndesc.llvm_func_name)
                )
        return self.adapter.compiled(dtype)

    def address(self, dtype: np.dtype[Any]) -> int:
        """Return where the adapter's code is."""
        self.compiled(dtype)
        return self.adapter.address(dtype)

    def _compile(self, dtype: np.dtype[Any]) -> Any:
        scores = types.Array(numba.from_dtype(dtype), self.event_ndim, "C")
        context = [types.Array(types.float64, 1, "C")] if self.context else []
        signature = types.none(scores, *context, scores)
        try:
            compiled = compile_function(with_fingerprint(self.function), signature)
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise TypeError(self._explain(error, dtype)) from error
        told = (self.__name__, dtype.name, compiled.seconds)
        if compiled.obstacle is not None:
            logger.warning(
                "compiled %s for %s in %.1f s; it cannot be kept on disk, so every "
                "process compiles it again: %s. Put it into a module, in a directory "
                "that can be written to.",
                *(*told, compiled.obstacle),
            )
        elif not compiled.loaded:
            level = logging.WARNING if compiled.seconds > LONG else logging.INFO
            text = "compiled %s for %s in %.1f s; kept on disk for later runs."
            logger.log(level, text, *told)
        return compiled.dispatcher

    def _explain(self, error: Exception, dtype: np.dtype[Any]) -> str:
        """Return what keeps the function from compiling, and what to change."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        lines = [line.rstrip() for line in text.splitlines()]
        noise = ("Failed in nopython", "During:", "No implementation", "- Resolution")
        essence = [line for line in lines if line.strip()]
        told = [line for line in essence if not line.strip().startswith(noise)]
        reason = (told or essence)[0].strip()
        places = re.findall(r"line (\d+)", text)
        where = self.function.__code__
        line = places[-1] if places else where.co_firstlineno
        return (
            f"@compiled cannot compile {self.__name__} for {dtype.name} scores with "
            f"{self.event_ndim} axes ({where.co_filename}, line {line}): {reason}\n"
            "It must be a function that Numba compiles: loops, arithmetic and those "
            "parts of NumPy that Numba supports, on arrays theta and y of the same "
            "type; functions it calls need @numba.njit. It returns nothing, but writes "
            "into y."
        )

    def __reduce__(self) -> Any:
        return UserKernel, (self.function, self.event_ndim, self.context)


class CompiledSolver(KernelSolver):
    """A solver made of a user's function by :func:`compiled`."""

    def __init__(
        self,
        function: UserFunction,
        *,
        linear: bool,
        solution: Solution,
        event_ndim: int,
    ) -> None:
        function = getattr(function, "py_func", function)  # of one that is jitted
        if not isinstance(function, FunctionType):
            msg = (
                "@compiled needs a function that is written in Python, with def; got "
                f"{function!r}."
            )
            raise TypeError(msg)
        if linear not in (True, False):
            msg = f"compiled(linear=...) must be True or False; got {linear!r}."
            raise TypeError(msg)
        parameters = list(inspect.signature(function).parameters)
        if len(parameters) not in (2, 3):
            msg = (
                "@compiled needs a function of (theta, y) or of (theta, context, y); "
                f"{function.__name__} has the parameters {', '.join(parameters)}."
            )
            raise TypeError(msg)
        if event_ndim not in range(1, LARGEST_EVENT_NDIM + 1):
            msg = (
                f"compiled(event_ndim=...) must be 1, 2 or 3; got {event_ndim!r}. "
                "Flatten further axes and reshape inside the function."
            )
            raise ValueError(msg)
        if solution not in ("binary", "integer", "real"):
            msg = (
                "compiled(solution=...) must be 'binary', 'integer' or 'real'; got "
                f"{solution!r}. 'real' is always right."
            )
            raise ValueError(msg)
        self.function = function
        self.linear = linear
        self.solution = solution
        self.event_ndim = event_ndim
        self.takes_context = len(parameters) == 3
        self.kernel = UserKernel(function, event_ndim, self.takes_context)
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if an instance has other axes, or the context is missing."""
        if len(event_shape) != self.event_ndim:
            msg = (
                f"{self!r} needs instances with {self.event_ndim} axes; got shape "
                f"{event_shape}. Set compiled(event_ndim=...)."
            )
            raise ValueError(msg)
        if len(context) != self.takes_context:
            expected = "one context array" if self.takes_context else "theta alone"
            msg = f"{self!r} takes {expected}; got {len(context)} extra argument(s)."
            raise TypeError(msg)

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return where the function's address is, and the shape."""
        place: int = self.kernel.places.ctypes.data  # type: ignore[attr-defined]
        return np.array([place, *event_shape], dtype=np.int64), np.zeros(0)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray
    ) -> np.ndarray:
        """Flatten each row's context."""
        self.check(event_shape, context)
        if not context:
            return np.zeros((rows, 0))
        given = np.asarray(context[0], dtype=np.float64)
        if given.ndim == 0 or len(given) != rows:
            msg = (
                f"{self!r}: the context needs one entry for each of the {rows} rows of "
                f"theta; got shape {given.shape}."
            )
            raise ValueError(msg)
        return np.ascontiguousarray(given.reshape(rows, -1))

    def __call__(self, theta: np.ndarray, *context: np.ndarray) -> np.ndarray:
        """Solve ``theta`` (rows, *event), or a single instance (*event)."""
        theta = np.asarray(theta)
        if theta.ndim == self.event_ndim:
            one = [np.asarray(given)[None] for given in context]
            return super().__call__(theta[None], *one)[0]
        return super().__call__(theta, *context)

    def __reduce__(self) -> Any:
        # The name of the function is now this solver's: copies refer to it by name.
        owner: Any = sys.modules.get(self.__module__)
        if getattr(owner, self.__qualname__, None) is self:
            return self.__qualname__
        settings = (self.linear, self.solution, self.event_ndim)
        return _remade, (self.function, *settings)

    def __repr__(self) -> str:
        return f"<compiled solver {self.__name__}>"


def _remade(
    function: UserFunction, linear: bool, solution: Solution, event_ndim: int
) -> CompiledSolver:
    return CompiledSolver(
        function, linear=linear, solution=solution, event_ndim=event_ndim
    )


@overload
def compiled(function: UserFunction) -> CompiledSolver: ...


@overload
def compiled(
    *, linear: bool = ..., solution: Solution = ..., event_ndim: int = ...
) -> Callable[[UserFunction], CompiledSolver]: ...


def compiled(
    function: UserFunction | None = None,
    *,
    linear: bool = True,
    solution: Solution = "real",
    event_ndim: int = 1,
) -> CompiledSolver | Callable[[UserFunction], CompiledSolver]:
    r"""Make a solver of a function of one instance, compiled with Numba.

    Noise, solve and average then run in one compiled pass around the function, on all
    threads, without the interpreter.

    Parameters
    ----------
    function
        ``f(theta, y)`` reads the scores of one instance and writes the solution that
        maximises :math:`\langle y, \theta \rangle` into ``y``, an array of zeros of
        the same shape and type. With three parameters, ``f(theta, context, y)``, it
        also gets what this instance alone has: one row of the context that the layer
        is called with, as a flat float64 array. It must be pure, and leave ``theta``
        as it is. Indices are not checked, as always with Numba: it must not write
        beyond ``y``.
    linear
        Whether it maximises :math:`\langle y, \theta \rangle` over a fixed set,
        exactly. If not, only what holds for any function is offered.
    solution
        What the entries of a solution are: ``"binary"``, ``"integer"`` (within int16)
        or ``"real"``. The first two take less memory; nothing checks them.
    event_ndim
        How many axes one instance has, 1 to 3.

    Notes
    -----
    The first call compiles the function for the type of its scores, which takes about
    a second, and keeps the code on disk where it can: for functions that are defined
    in a file, and call none that is defined within another function. What takes long,
    or cannot be kept, is told through the logger ``softsolve``. As always with Numba,
    global variables are constants of the compiled code; a new process that has other
    values, or other functions that it calls, compiles it anew.

    Examples
    --------
    >>> import numpy as np
    >>> import softsolve as ss
    >>> @ss.compiled(solution="binary")
    ... def no_neighbours(theta, y):
    ...     "The best set of positions of which no two are next to each other."
    ...     d = theta.size
    ...     best = np.zeros(d + 2)
    ...     for i in range(d - 1, -1, -1):
    ...         best[i] = max(best[i + 1], theta[i] + best[i + 2])
    ...     i = 0
    ...     while i < d:
    ...         if best[i] > best[i + 1]:
    ...             y[i] = 1
    ...             i += 1
    ...         i += 1
    >>> no_neighbours(np.array([[2.0, 3.0, 2.0, -1.0], [1.0, 3.0, 1.0, 1.0]]))
    array([[1., 0., 1., 0.],
           [0., 1., 0., 1.]])
    """
    if function is None:
        return lambda function: CompiledSolver(
            function, linear=linear, solution=solution, event_ndim=event_ndim
        )
    return CompiledSolver(
        function, linear=linear, solution=solution, event_ndim=event_ndim
    )
