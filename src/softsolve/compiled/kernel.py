r"""Instance kernels: one Numba function that solves one instance.

Every compiled solver is built on one such function, with one signature for all of
them, so that the passes in this package (draw noise, solve, average) are compiled
once and take the kernel as an argument::

    @kernel
    def solve(theta, ints, reals, context, state, y):
        ...
        return OK

==========  =============  ==========================================================
argument    Numba type     meaning
==========  =============  ==========================================================
theta       T[::1]         scores of the instance, flattened; read only
ints        int64[::1]     what all instances share: shapes, graphs, weights
reals       float64[::1]   the same for real numbers
context     float64[::1]   what this instance alone has: endpoints, masks, capacities
state       float64[::1]   warm start; see below. Empty where the kernel has none
y           T[::1]         the solution, flattened; the kernel writes every entry
==========  =============  ==========================================================

``T`` is float32 or float64. The kernel returns :data:`OK` or a failure code, whose
text the solver declares. It is a pure function of its arguments: the same scores give
the same solution, ties go to the lowest index, and nothing is kept between calls.

Warm starts: where a kernel declares a state, it is called once with the unperturbed
scores and ``state[0] == 0``; it then solves from scratch, writes what helps later
solves into ``state[1:]`` and sets ``state[0] = 1``. Calls for the perturbed scores get
that state (``state[0] == 1``) and must not change it.

A kernel is compiled for an explicit signature and handed on by its address, because
Numba's disk cache never hits in another process for a function that was passed as a
dispatcher or closed over, and a first-class function costs 20 µs a call to hand on.
"""

import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from softsolve.compiled.compilation import announcements, compile_function

OK = 0
INFEASIBLE = 1

KernelFunction = Callable[..., int]


def kernel_signature(dtype: np.dtype[Any]) -> Any:
    """Return the Numba signature of an instance kernel for scores of ``dtype``."""
    scores = types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")
    ints = types.Array(types.int64, 1, "C")
    reals = types.Array(types.float64, 1, "C")
    return types.int64(scores, ints, reals, reals, reals, scores)


def block_signature(dtype: np.dtype[Any]) -> Any:
    """Return the Numba signature of a block kernel for scores of ``dtype``."""
    scores = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    ints = types.Array(types.int64, 1, "C")
    reals = types.Array(types.float64, 1, "C")
    context = types.Array(types.float64, 2, "C")
    y = types.Array(types.uint8, 2, "C")
    return types.void(scores, ints, reals, context, y, ints)


class Kernel:
    """An instance kernel, compiled for a floating type when it is first wanted."""

    signature: Callable[[np.dtype[Any]], Any] = staticmethod(kernel_signature)

    def __init__(self, function: KernelFunction) -> None:
        self.function = function
        self.__module__ = function.__module__
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self._compiled: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()

    def compiled(self, dtype: np.dtype[Any]) -> Any:
        """Return the machine code for scores of ``dtype``, from the cache if it can."""
        name = np.dtype(dtype).name
        with self._lock:
            if name not in self._compiled:
                signature = self.signature(np.dtype(dtype))
                compiled = compile_function(self.function, signature)
                announcements.of(self.__name__, name, compiled)
                self._compiled[name] = compiled.dispatcher
            return self._compiled[name]

    def address(self, dtype: np.dtype[Any]) -> int:
        """Return where the machine code is, for passes that call it from compiled code.

        The code lives as long as the kernel.
        """
        name = np.dtype(dtype).name
        if name not in self._addresses:
            dispatcher = self.compiled(dtype)
            (overload,) = dispatcher.overloads.values()
            self._addresses[name] = overload.library.get_pointer_to_function(
                overload.fndesc.llvm_func_name
            )
        return self._addresses[name]

    def __reduce__(self) -> str:
        # A kernel is a module's global: copies and pickles refer to it by name.
        return self.__name__

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__name__}>"


def kernel(function: KernelFunction) -> Kernel:
    """Declare an instance kernel; see the module's docstring for its arguments."""
    return Kernel(function)


class BlockKernel(Kernel):
    """A kernel that solves ``lanes`` instances side by side, for vector hardware.

    ``block(theta, ints, reals, context, y, status)`` takes scores of shape (d, lanes),
    coordinate-major so that a loop over the last axis vectorises, the context of each
    lane (lanes, c), and writes 0 or 1 (or, where a plan has a table of values, a place
    in it) into every entry of ``y``, uint8 (d, lanes), and
    a status into every entry of ``status``, int64 (lanes,). It must agree with the
    instance kernel of the same solver on every instance, ties included.
    """

    signature = staticmethod(block_signature)

    def __init__(self, function: KernelFunction, lanes: int) -> None:
        super().__init__(function)
        self.lanes = lanes


def block_kernel(lanes: int) -> Callable[[KernelFunction], BlockKernel]:
    """Declare a block kernel of so many lanes; see :class:`BlockKernel`."""
    return lambda function: BlockKernel(function, lanes)
