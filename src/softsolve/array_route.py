"""The array route: all draws as rows of one batch, solved a chunk at a time."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from array_api_compat import array_namespace

from softsolve.layer import accepts_any_function, repeat_rows
from softsolve.settings import Settings
from softsolve.solvers.base import Array, Shape

Solve = Callable[..., Any]
Starts = list[Any] | None

# One solve more than there are draws, which then take a fraction of their time.
SAMPLES_TO_PRIME_FOR = 4

# So many numbers of noise are drawn at a time.
BLOCK = 2**20


def chunk_sizes(settings: Settings, theta: Array) -> Iterator[int]:
    """Yield how many draws to solve at a time, to stay within the memory budget."""
    rows, size = theta.shape
    itemsize = int(getattr(theta.dtype, "itemsize", 8))
    chunk = settings.chunk(rows, size, itemsize)
    for start in range(0, settings.num_samples, chunk):
        yield min(chunk, settings.num_samples - start)


def noise_chunks(
    settings: Settings, theta: Array, draw: Callable[[int], Array]
) -> Iterator[Array]:
    """Yield noise (B, m, d) for as many draws m as are to be solved at a time.

    ``draw`` draws it for a number of samples of each row, here in blocks that do not
    depend on the memory budget, so that the numbers do not either.
    """
    total = settings.num_samples
    block = min(total, max(1, BLOCK // max(1, math.prod(theta.shape))))
    blocks = (draw(min(block, total - start)) for start in range(0, total, block))
    chunk = next(chunk_sizes(settings, theta))
    if chunk < block:
        for z in blocks:
            for start in range(0, z.shape[1], chunk):
                yield z[:, start : start + chunk, :]
        return
    together = math.ceil(chunk / block) if chunk == total else chunk // block
    while parts := list(itertools.islice(blocks, together)):
        yield join_draws(parts)


def join_draws(parts: list[Array]) -> Array:
    """Return arrays (B, m, …) of some draws each as one of them all."""
    if len(parts) == 1:
        return parts[0]
    return array_namespace(parts[0]).concat(parts, axis=1)


class RunningSum:
    """A sum of arrays, one after the other, that does not lose digits.

    What rounding takes away from an addition is added with the next (Kahan).
    """

    def __init__(self) -> None:
        self.total: Array = 0.0
        self._lost: Array = 0.0

    def add(self, part: Array) -> None:
        """Add an array."""
        part = part - self._lost
        total = self.total + part
        self._lost = (total - self.total) - part
        self.total = total


def solve_draws(
    settings: Settings,
    solve: Solve,
    x: Array,
    event_shape: Shape,
    context: tuple[Array, ...],
    starts: Starts = None,
) -> tuple[Array, Shape]:
    """Solve perturbed scores (B, M, d); return solutions (B, M, k) and their shape.

    ``solve`` calls the solver in the framework at hand; solutions are cast to the type
    of the scores, because NumPy would promote int8 with float32 to float64. ``starts``
    are those of :func:`prime`.
    """
    xp = array_namespace(x)
    rows, count, _ = x.shape
    instances = xp.reshape(x, (rows * count, *event_shape))
    contexts = (repeat_rows(array, count) for array in context)
    if starts is None:
        y = solve(instances, *contexts)
    else:
        y = solve(instances, *contexts, starts=repeat_starts(starts, count))
    settings.check_solutions(tuple(y.shape), rows * count, event_shape)
    out_shape = tuple(y.shape[1:])
    if y.dtype != x.dtype:
        y = xp.astype(y, x.dtype)
    return xp.reshape(y, (rows, count, math.prod(out_shape))), out_shape


def prime(
    settings: Settings, theta: Array, event_shape: Shape, context: tuple[Array, ...]
) -> Starts:
    """Solve the unperturbed scores (B, d); return where to start for each row's draws.

    For solvers on the host that have starts, given NumPy arrays; None where there are
    too few draws for another solve to pay.
    """
    primed = getattr(settings.solver, "prime", None)
    if primed is None or settings.num_samples < SAMPLES_TO_PRIME_FOR:
        return None
    instances = theta.reshape(len(theta), *event_shape)
    return list(primed(instances, *context)[1])


def repeat_starts(starts: list[Any], count: int) -> list[Any]:
    """Repeat the start of each row ``count`` times in a row."""
    return [start for start in starts for _ in range(count)]


def first_bad_row(values: Array) -> int | None:
    """Return the first row with NaN or an infinity, for concrete arrays (B, …)."""
    xp = array_namespace(values)
    finite = xp.isfinite(values)
    if bool(xp.all(finite)):
        return None
    good = xp.all(xp.reshape(finite, (finite.shape[0], -1)), axis=1)
    return int(xp.argmax(xp.astype(~good, xp.int32)))


def must_look_at_solutions(settings: Settings) -> bool:
    """Tell whether solutions come from a user's function, which must not be NaN."""
    return accepts_any_function(settings.solver) and not settings.drops
