"""Solving a batch of instances with an instance kernel, without noise."""

from typing import Any

import numba
import numpy as np
from numba import types

from softsolve.compiled.kernel import OK, Kernel
from softsolve.compiled.native import call_address


def _solve_rows(solve, theta, ints, reals, context, states, y, status, start, stop):  # type: ignore[no-untyped-def]
    failures = 0
    for row in range(start, stop):
        arguments = (theta[row], ints, reals, context[row], states[row], y[row])
        status[row] = call_address(solve, arguments)
        if status[row] != OK:
            failures += 1
    return failures


def _signature(dtype: np.dtype[Any]) -> Any:
    scores = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    ints = types.Array(types.int64, 1, "C")
    reals = types.Array(types.float64, 1, "C")
    rows = types.Array(types.float64, 2, "C")
    return types.int64(
        types.int64,
        *(scores, ints, reals, rows, rows, scores, ints, types.int64, types.int64),
    )


class _Driver(Kernel):
    signature = staticmethod(_signature)


_DRIVER = _Driver(_solve_rows)


def solve_rows(
    kernel: Kernel,
    theta: np.ndarray[Any, Any],
    ints: np.ndarray[Any, Any],
    reals: np.ndarray[Any, Any],
    context: np.ndarray[Any, Any],
    states: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Solve every row of ``theta`` (n, d); return solutions (n, d) and statuses (n,).

    ``context`` is (n, c) and ``states`` (n, s), float64; c and s may be 0.
    """
    # The drivers are compiled for writable arrays; JAX hands over read-only ones.
    theta, context = (np.require(array, None, ["C", "W"]) for array in (theta, context))
    y = np.zeros_like(theta)
    status = np.zeros(len(theta), dtype=np.int64)
    _DRIVER.compiled(theta.dtype)(
        kernel.address(theta.dtype),
        *(theta, ints, reals, context, states, y, status, 0, len(theta)),
    )
    return y, status
