"""What a fused pass runs, and how threads share it."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from softsolve.compiled import buffers, passes
from softsolve.compiled.kernel import Kernel
from softsolve.compiled.lanes import LANES
from softsolve.compiled.plan import plan_for, steps_evenly
from softsolve.compiled.random import FILL_ROWS
from softsolve.parallel import RANGES_PER_THREAD, get_num_threads, run_ranges
from softsolve.solvers.base import Solver

Array = np.ndarray[Any, Any]

# Work, in numbers drawn, up to which a second thread costs more than it saves, and how
# many of them solving may cost where it is not little more than drawing.
INLINE_NUMBERS, HEAVY = 1 << 18, 64
# Work, in numbers drawn, that takes about a millisecond.
SHORT_NUMBERS = 1 << 21
# Largest buffer, in numbers, for groups of one row that several threads share.
SPLIT_NUMBERS = 1 << 22
# Coordinates up to which it takes less time to add up the noise by who wins than to
# draw it again, and how many samples are then reduced together.
FEW_WINNERS, WINNERS_GROUP = 16, 1024


def group_size(num_samples: int, least: int = 0) -> int:
    """Return how many samples are reduced together, at least some of many."""
    groups = max(8, min(32, num_samples // 256))
    size = max(-(-num_samples // groups), min(least, num_samples))
    multiple = LANES if num_samples >= LANES else 2
    return -(-size // multiple) * multiple


class FusedWork:
    """A solver's kernels for instances of a shape, and how threads share their rows.

    The samples of a row are reduced in groups, whose size depends on their number
    alone. Threads share the rows or, where these are few, the groups of all rows, each
    with a slot of its own for what it adds up.
    """

    def __init__(
        self,
        solver: Solver,
        event_shape: tuple[int, ...],
        noise: str,
        num_samples: int,
        *,
        antithetic: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        self.solver = solver
        self.event_shape = tuple(event_shape)
        self.size = prod(self.event_shape)
        self.noise = noise
        self.num_samples = num_samples
        self.antithetic = antithetic
        self.dtype = np.dtype(dtype)
        self.plan = plan_for(solver, self.event_shape, self.dtype)
        self.codec = self.plan.codec
        self.table = self.plan.values
        self.even = steps_evenly(self.plan)
        self.positions = getattr(solver, "family", None) == "argmax"
        few = self.positions and self.size <= FEW_WINNERS
        self.sums_winners = few and num_samples >= LANES and not antithetic
        least = WINNERS_GROUP if self.sums_winners else 0
        self.group = group_size(num_samples, least)
        self.groups = -(-num_samples // self.group)
        self.scored = noise != "normal"
        self.inline = INLINE_NUMBERS
        self.fill = FILL_ROWS[noise].address(self.dtype)
        self.decode = self.codec.decode.address(self.dtype)
        self.no_center = np.zeros((0, self.size), self.dtype)
        self.no_winners = np.zeros((0, self.size, self.size))
        self._passes: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}

    def _address(self, name: str, function: Kernel) -> int:
        if name not in self._addresses:
            self._addresses[name] = function.address(self.dtype)
        return self._addresses[name]

    def _compiled(self, name: str, work: passes.Pass) -> Any:
        if name not in self._passes:
            self._passes[name] = work.compiled(self.dtype)
        return self._passes[name]

    def _alone(self, rows: int, solving: bool) -> bool:
        """Tell whether there is too little work for a second thread."""
        numbers = rows * self.num_samples * self.size
        heavy = solving and not self.plan.light
        return numbers * (HEAVY if heavy else 1) <= self.inline

    def _split(self, rows: int, width: int, *, solving: bool) -> bool:
        """Tell whether the threads share rows: few rows, many samples, enough work."""
        return (
            rows < 4 * get_num_threads()
            and self.groups > 1
            and rows * self.groups * width <= SPLIT_NUMBERS
            and not self._alone(rows, solving)
        )

    def _run(
        self,
        rows: int,
        split: bool,
        run: Callable[[int, int], Any],
        *,
        grain: int = 1,
        groups: int,
        solving: bool,
    ) -> None:
        """Run the groups of all rows; those of one row together, unless split."""
        if self._alone(rows, solving):
            run(0, rows * groups)
            return
        # A range takes some microseconds by itself: fewer of them for less work.
        numbers = rows * self.num_samples * self.size
        apiece = 3 if numbers <= SHORT_NUMBERS else RANGES_PER_THREAD
        if split:
            run_ranges(run, rows * groups, ranges_per_thread=apiece)
        else:
            run_ranges(
                lambda start, stop: run(start * groups, stop * groups),
                rows,
                grain=grain,
                ranges_per_thread=apiece,
            )

    def _slots(self, rows: int, split: bool) -> int:
        return rows * self.groups if split else rows

    def _folded(self, slots: Array, rows: int, split: bool) -> Array:
        """Add the groups of each row, in the order in which one thread adds them."""
        if not split:
            return slots
        folded = slots.reshape(rows, self.groups, *slots.shape[1:])
        total = np.zeros_like(folded[:, 0])
        for group in range(self.groups):
            total += folded[:, group]
        return total

    def _divided(self, total: Array, divisor: Any) -> Array:
        if total.size < buffers.LARGE:
            return (total / divisor).astype(self.dtype)
        quotient = buffers.empty(total.shape, self.dtype)
        return np.divide(total, divisor, out=quotient, casting="same_kind")
