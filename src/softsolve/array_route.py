"""The array route: all draws as rows of one batch, solved a chunk at a time."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from array_api_compat import array_namespace

from softsolve.layer import Settings, accepts_any_function, repeat_rows
from softsolve.solvers.base import Array, Shape

Solve = Callable[..., Any]


def chunk_sizes(settings: Settings, theta: Array) -> Iterator[int]:
    """Yield how many draws to solve at a time, to stay within the memory budget."""
    rows, size = theta.shape
    itemsize = int(getattr(theta.dtype, "itemsize", 8))
    chunk = settings.chunk(rows, size, itemsize)
    for start in range(0, settings.num_samples, chunk):
        yield min(chunk, settings.num_samples - start)


def solve_draws(
    settings: Settings,
    solve: Solve,
    x: Array,
    event_shape: Shape,
    context: tuple[Array, ...],
) -> tuple[Array, Shape]:
    """Solve perturbed scores (B, M, d); return solutions (B, M, k) and their shape.

    ``solve`` calls the solver in the framework at hand; solutions are cast to the type
    of the scores, because NumPy would promote int8 with float32 to float64.
    """
    xp = array_namespace(x)
    rows, count, _ = x.shape
    instances = xp.reshape(x, (rows * count, *event_shape))
    y = solve(instances, *(repeat_rows(array, count) for array in context))
    settings.check_solutions(tuple(y.shape), rows * count, event_shape)
    out_shape = tuple(y.shape[1:])
    if y.dtype != x.dtype:
        y = xp.astype(y, x.dtype)
    return xp.reshape(y, (rows, count, math.prod(out_shape))), out_shape


def first_bad_row(values: Array) -> int | None:
    """Return the first row with NaN or an infinity, for concrete arrays (B, …)."""
    xp = array_namespace(values)
    finite = xp.isfinite(values)
    if bool(xp.all(finite)):
        return None
    good = xp.all(xp.reshape(finite, (finite.shape[0], -1)), axis=1)
    return int(xp.argmax(xp.astype(~good, xp.int32)))


def must_look_at_solutions(settings: Settings) -> bool:
    """Tell whether solutions come from a user's function, which may return NaN."""
    return accepts_any_function(settings.solver)
