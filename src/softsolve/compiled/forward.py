"""The forward pass of the fused route."""

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from softsolve.compiled import (
    buffers,
    lane_passes,
    passes,
    position_passes,
    top_passes,
)
from softsolve.compiled.lanes import LANES
from softsolve.compiled.random import FILL_LANES
from softsolve.compiled.work import FusedWork
from softsolve.solvers.base import KernelSolver

Array = np.ndarray[Any, Any]

# Share of the samples of a row that may be missing in its last block of lanes; beyond
# it, rows share blocks for what is left over.
WASTED = 1 / 8


class Forward(NamedTuple):
    r"""What a forward pass returns, for B rows of d entries.

    Attributes
    ----------
    mean
        Average solution, (B, d).
    moment
        Average :math:`\langle y_m, z_m \rangle`, (B,).
    samples
        The solutions in compact form, arrays with rows first; empty if not kept.
    loss
        With a target y: average :math:`\langle y_m - y, \theta + \varepsilon z_m
        \rangle`, (B,), summed sample by sample.
    lowest
        With a target: the smallest of these over the samples, (B,).
    gap_moment
        With a target: average :math:`\langle y_m - y, z_m \rangle`, the derivative of
        the loss in the temperature, (B,).
    slope
        For a solver that clips its scores: average :math:`(y_m - y) \odot
        1\{\theta + \varepsilon z_m < 0\}`, the derivative of the loss in θ, (B, d).
        The scores in ``loss`` and ``lowest`` are then :math:`\min(\theta +
        \varepsilon z_m, 0)`, and ``gap_moment`` has its terms where they are negative.
    winners
        If asked for: entry (k, j) is the sum of :math:`s_{mj}` over the samples whose
        solution is the k-th unit vector, float64 (B, d, d).
    """

    mean: Array
    moment: Array
    samples: tuple[Array, ...] = ()
    loss: Array | None = None
    lowest: Array | None = None
    gap_moment: Array | None = None
    slope: Array | None = None
    winners: Array | None = None


class ForwardPass(FusedWork):
    """Drawing noise, solving and averaging, in one pass."""

    def forward(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: Array | None = None,
        *,
        keep: bool = True,
        winners: bool = False,
        target: Array | None = None,
        clip: bool = False,
    ) -> Forward:
        """Solve for all samples of ``theta`` (B, d) and average.

        With ``winners``, where this pass ``sums_winners``, return these sums too: what
        :meth:`vjp_of_winners` takes instead of samples, without drawing them again.
        With ``clip``, values are those of scores clipped at zero, as a solver sees them
        that clips; without a target they are those of the maximum (a target of 0).

        Raises
        ------
        SolverError
            If the solver failed on a sample; it names the first such row.
        """
        rows, size = theta.shape
        samples = self.num_samples
        least = LANES // 2 if self.plan.light else LANES // 4
        side_by_side = self.plan.block is not None and rows * samples >= least
        apart = side_by_side and samples < LANES
        split = not apart and self._split(rows, size, solving=True)
        slots = self._slots(rows, split)
        kept = (rows, samples if keep else 0, self.codec.width)
        codes = buffers.empty(kept, np.uint8)
        totals = buffers.zeros((slots, size))
        slopes = buffers.zeros((slots if clip else 0, size))
        scalars = np.zeros((slots, 4))
        scalars[:, passes.LOWEST] = np.inf
        status = np.zeros(slots, np.int64)
        if context is None:
            context = np.zeros((rows, 0))
        with_loss = clip or target is not None
        if target is None:
            target = np.zeros_like(theta) if clip else self.no_center
        inputs: Any = (theta, temperature, keys, context, split, codes, target)
        winner_sums = self.no_winners
        if winners:
            winner_sums = np.zeros((slots, size, size))
        if self.positions and samples >= LANES:
            run = partial(self._positions(*inputs), totals, scalars, winner_sums)
        elif self.plan.top:
            run = partial(self._top(*inputs), totals, scalars)
        else:
            run = partial(self._rows(*inputs), totals, slopes, scalars, status)
        if side_by_side and not (self.plan.top or (self.positions and not apart)):
            into = (totals, slopes, scalars, status)
            self._run_lanes(inputs, into, split=split, apart=apart)
        else:
            self._run(rows, split, run, groups=self.groups, solving=True)
        if np.count_nonzero(status):
            self._raise_failures(status, rows)
        mean = self._divided(self._folded(totals, rows, split), samples)
        lowest = scalars[:, passes.LOWEST]
        if split:
            lowest = lowest.reshape(rows, -1).min(1)
        sums = (self._folded(scalars, rows, split) / samples).astype(self.dtype)
        result = Forward(
            mean,
            sums[:, passes.MOMENT],
            (codes,) if keep else (),
            winners=self._folded(winner_sums, rows, split) if winners else None,
        )
        if not with_loss:
            return result
        slope = None
        if clip:
            slope = (self._folded(slopes, rows, split) / samples).astype(self.dtype)
        return result._replace(
            loss=sums[:, passes.LOSS],
            lowest=lowest.astype(self.dtype),
            gap_moment=sums[:, passes.GAP_MOMENT],
            slope=slope,
        )

    def _positions(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: Array,
        split: bool,
        codes: Array,
        target: Array,
    ) -> Callable[..., Any]:
        """Return the forward pass for the largest of the scores."""
        return partial(
            self._compiled("forward_positions", position_passes.FORWARD_POSITION_LANES),
            self._address("fill_lanes", FILL_LANES[self.noise]),
            *(self.scored, theta, temperature, keys, self.antithetic),
            *(self.num_samples, self.group, split, codes, target),
        )

    def _top(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: Array,
        split: bool,
        codes: Array,
        target: Array,
    ) -> Callable[..., Any]:
        """Return the forward pass for the few largest of the scores."""
        return partial(
            self._compiled("forward_top", top_passes.FORWARD_TOP_ROWS),
            *(self.fill, self.scored, theta, temperature, keys, self.plan.top),
            *(self.antithetic, self.num_samples, self.group, split, codes, target),
        )

    def _rows(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: Array,
        split: bool,
        codes: Array,
        target: Array,
    ) -> Callable[..., Any]:
        """Return the forward pass that solves one instance at a time."""
        plan = self.plan
        work = self._compiled("forward_rows", passes.FORWARD_ROWS)
        return partial(
            work,
            self.fill,
            self._address("kernel", plan.kernel),
            self._address("encode", self.codec.encode),
            self.scored,
            *(theta, temperature, keys, plan.ints, plan.reals, context),
            plan.state_size,
            *(self.antithetic, self.num_samples, self.group, split),
            *(codes, target, self.table),
        )

    def _run_lanes(
        self, inputs: Any, into: tuple[Array, ...], *, split: bool, apart: bool
    ) -> None:
        """Solve blocks of instances: whole ones of a row, then what is left of rows."""
        rows, samples = len(inputs[0]), self.num_samples
        rest = samples % LANES
        empty = LANES - rest if rest else 0
        whole = 0 if apart else samples
        if whole and rows > 1 and not split and empty > WASTED * samples:
            whole -= rest
        if whole:
            run = partial(
                self._lanes(*inputs, first=0, last=whole, group=self.group), *into
            )
            groups = -(-whole // self.group)
            self._run(rows, split, run, groups=groups, solving=True)
        if whole < samples:
            run = partial(
                self._lanes(*inputs, first=whole, last=samples, group=0), *into
            )
            # Samples of several rows share a block: cut where few blocks are cut.
            grain = LANES // gcd(samples - whole, LANES)
            self._run(rows, False, run, grain=grain, groups=1, solving=True)

    def _lanes(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: Array,
        split: bool,
        codes: Array,
        target: Array,
        *,
        first: int,
        last: int,
        group: int,
    ) -> Callable[..., Any]:
        """Return the forward pass that solves blocks of instances.

        Of the samples from ``first`` to ``last``, in groups, or of one row after the
        other if there are none.
        """
        plan, encode = self.plan, self.codec.encode_lanes
        assert plan.block is not None
        assert encode is not None
        samples = self.num_samples
        work = self._compiled("forward_lanes", lane_passes.FORWARD_LANES)
        return partial(
            work,
            self._address("fill_lanes", FILL_LANES[self.noise]),
            self._address("block", plan.block),
            self._address("encode_lanes", encode),
            self.scored,
            *(theta, temperature, keys, plan.ints, plan.reals, context),
            *(self.antithetic, samples, first, last, group > 0, group or last - first),
            *(split, codes.reshape(-1, self.codec.width), target),
            *(self.table, self.even),
        )

    def _raise_failures(self, status: Array, rows: int) -> None:
        slots = status.reshape(rows, -1)
        first = np.argmax(slots != 0, axis=1)
        assert isinstance(self.solver, KernelSolver)
        self.solver.raise_failures(slots[np.arange(rows), first])
