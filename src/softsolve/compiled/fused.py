r"""The fused route: noise, solve and average in one compiled pass.

Nothing of size B·M·d in floats is kept: solutions stay in a compact form
(:mod:`softsolve.compiled.codecs`), noise is drawn again when it is wanted.
"""

from collections.abc import Callable
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from softsolve.compiled import (
    buffers,
    lane_passes,
    passes,
    position_passes,
    second_order,
    top_passes,
)
from softsolve.compiled.baselines import leave_one_out
from softsolve.compiled.kernel import Kernel
from softsolve.compiled.lanes import LANES
from softsolve.compiled.plan import plan_for, steps_evenly
from softsolve.compiled.random import FILL_LANES, FILL_ROWS, export_draws
from softsolve.parallel import RANGES_PER_THREAD, get_num_threads, run_ranges
from softsolve.solvers.base import KernelSolver, Solver

__all__ = ["Forward", "FusedPass", "leave_one_out"]

Array = np.ndarray[Any, Any]

# Coefficients of the noise's curvature as a polynomial in its score.
CURVATURE = {
    "normal": (1.0, 0.0, 0.0),
    "gumbel": (1.0, -1.0, 0.0),
    "logistic": (0.5, 0.0, -0.5),
}

# Work, in numbers drawn, up to which a second thread costs more than it saves, and how
# many of them solving may cost where it is not little more than drawing.
INLINE_NUMBERS, HEAVY = 1 << 18, 64
# Share of the samples of a row that may be missing in its last block of lanes; beyond
# it, rows share blocks for what is left over.
WASTED = 1 / 8
# Work, in numbers drawn, that takes about a millisecond.
SHORT_NUMBERS = 1 << 21
# Coordinates up to which it takes less time to add up the noise by who wins than to
# draw it again, and how many samples are then reduced together.
FEW_WINNERS, WINNERS_GROUP = 16, 1024
# Scores up to which the noise of LANES samples side by side fits the first-level cache.
LARGEST_VJP_LANES = 128
# Largest buffer, in numbers, for groups of one row that several threads share.
SPLIT_NUMBERS = 1 << 22


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


def group_size(num_samples: int, least: int = 0) -> int:
    """Return how many samples are reduced together, at least some of many."""
    groups = max(8, min(32, num_samples // 256))
    size = max(-(-num_samples // groups), min(least, num_samples))
    multiple = LANES if num_samples >= LANES else 2
    return -(-size // multiple) * multiple


class FusedPass:
    r"""A solver's forward pass and the derivatives of its average.

    Parameters
    ----------
    solver
        What to perturb.
    event_shape
        Shape of one instance; arrays below are flattened to d entries.
    noise
        ``"normal"``, ``"gumbel"``, ``"logistic"`` or ``"laplace"``.
    num_samples
        Draws per row, M.
    antithetic
        Whether draws come in mirrored pairs; M is even then.
    dtype
        float32 or float64, the type of all scores and results.

    Notes
    -----
    Arrays are C-contiguous. ``temperature`` is (B,), ``keys`` int32 (B, 2),
    ``context`` as the solver packs it. Derivatives weigh each sample by
    :math:`y_m - b_m`, which is ``scale · (y_m - center)``, further mixed with the
    mirrored sample by ``mixing`` (see :func:`leave_one_out`); without a center the
    baseline is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.compiled.fused import FusedPass, leave_one_out
    >>> from softsolve.solvers import OneHot
    >>> fused = FusedPass(OneHot(), (3,), "gumbel", 4000, dtype=np.float64)
    >>> theta, temperature = np.log([[0.5, 0.3, 0.2]]), np.ones(1)
    >>> keys = np.array([[7, 8]], dtype=np.int32)
    >>> result = fused.forward(theta, temperature, keys)
    >>> print(result.mean.round(1))
    [[0.5 0.3 0.2]]
    >>> g = np.array([[[1.0, 0.0, 0.0]]])
    >>> how = leave_one_out(4000)
    >>> gradient, _ = fused.vjp(
    ...     result.samples, keys, temperature, g, result.mean, *how
    ... )
    >>> print(gradient.round(1) + 0.0)
    [[[ 0.2 -0.2 -0.1]]]
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
        winner_sums = np.zeros((slots if winners else 0, size, size))
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

    def _derive(
        self,
        work: passes.Pass,
        samples: tuple[Array, ...],
        keys: Array,
        baseline: tuple[Array | None, float, float],
        directions: tuple[Array, ...],
        outputs: tuple[tuple[int, ...], ...],
        unwanted: tuple[Array, ...] = (),
    ) -> list[Array]:
        """Run a pass over kept samples; sum what it writes for each row.

        ``unwanted`` are arrays without rows, for outputs that are not computed.
        """
        (codes,) = samples
        rows = len(codes)
        center, scale, mixing = baseline
        middle = self.no_center if center is None else center
        width = sum(prod(shape) for shape in outputs)
        split = self._split(rows, width, solving=False)
        slots = self._slots(rows, split)
        sums = [buffers.zeros((slots, *shape)) for shape in outputs]
        compiled = self._compiled(work.__name__, work)
        fill = self.fill
        if work is position_passes.VJP_POSITION_LANES:
            fill = self._address("fill_lanes", FILL_LANES[self.noise])

        def run(start: int, stop: int) -> None:
            compiled(
                *(fill, self.decode, self.scored, codes, self.table, keys),
                *(self.antithetic, self.group, split, middle, scale, mixing),
                *directions,
                *sums,
                *unwanted,
                *(start, stop),
            )

        self._run(rows, split, run, groups=self.groups, solving=False)
        return [self._folded(total, rows, split) for total in sums]

    def _scaled(self, total: Array, temperature: Array, power: int) -> Array:
        epsilon = temperature.astype(np.float64)
        divisor = self.num_samples * (epsilon if power == 1 else epsilon**power)
        shape = (-1,) + (1,) * (total.ndim - 1)
        return self._divided(total, divisor.reshape(shape))

    def _divided(self, total: Array, divisor: Any) -> Array:
        if total.size < buffers.LARGE:
            return (total / divisor).astype(self.dtype)
        quotient = buffers.empty(total.shape, self.dtype)
        return np.divide(total, divisor, out=quotient, casting="same_kind")

    def vjp(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        temperature: Array,
        g: Array,
        center: Array | None = None,
        scale: float = 1.0,
        mixing: float = 0.0,
    ) -> tuple[Array, Array]:
        r"""Return the gradients in θ and ε of :math:`\langle \bar y, g \rangle`.

        For cotangents g (B, K, d): with :math:`a_m = \langle y_m - b_m, g \rangle`

        .. math::

            \frac{1}{\varepsilon M} \sum_m a_m s_m \quad (B, K, d), \qquad
            \frac{1}{\varepsilon M} \sum_m a_m (\langle z_m, s_m \rangle - d)
            \quad (B, K).
        """
        options = (samples, keys, (center, scale, mixing), g)
        totals, sides = self._pull(*options, in_temperature=True)
        return (
            self._scaled(totals, temperature, 1),
            self._scaled(sides, temperature, 1),
        )

    def vjp_in_theta(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        temperature: Array,
        g: Array,
        center: Array | None = None,
        scale: float = 1.0,
        mixing: float = 0.0,
    ) -> Array:
        """Return the first of what :meth:`vjp` returns, in less time."""
        options = (samples, keys, (center, scale, mixing), g)
        (totals,) = self._pull(*options, in_temperature=False)
        return self._scaled(totals, temperature, 1)

    def vjp_of_winners(
        self,
        winners: Array,
        temperature: Array,
        g: Array,
        center: Array | None = None,
        scale: float = 1.0,
    ) -> Array:
        """Return what :meth:`vjp_in_theta` does, from the sums of a forward pass."""
        middle = self.no_center if center is None else center
        factors = scale / (self.num_samples * temperature.astype(np.float64))
        pulled = np.empty_like(g)
        work = self._compiled("vjp_winners", position_passes.VJP_WINNERS)
        work(winners, middle, factors, g, pulled)
        return pulled

    def _pull(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        baseline: tuple[Array | None, float, float],
        g: Array,
        *,
        in_temperature: bool,
    ) -> list[Array]:
        cotangents = g.shape[1]
        in_lanes = (
            self.positions
            and self.num_samples >= LANES // 2
            and self.size <= LARGEST_VJP_LANES
        )
        work = position_passes.VJP_POSITION_LANES if in_lanes else passes.VJP_ROWS
        options = (work, samples, keys, baseline, (g,))
        in_theta = (cotangents, self.size)
        if in_temperature:
            return self._derive(*options, (in_theta, (cotangents,)))
        return self._derive(*options, (in_theta,), (np.zeros((0, cotangents)),))

    def jvp(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        temperature: Array,
        v: Array,
        e: Array,
        center: Array | None = None,
        scale: float = 1.0,
        mixing: float = 0.0,
    ) -> Array:
        r"""Return the derivative of the average along (v, e), (B, K, d).

        For tangents v (B, K, d) of θ and e (B, K) of ε:
        :math:`\frac{1}{\varepsilon M} \sum_m (y_m - b_m) D_m(v, e)`.
        """
        (totals,) = self._derive(
            passes.JVP_ROWS,
            *(samples, keys, (center, scale, mixing), (v, e)),
            ((v.shape[1], self.size),),
        )
        return self._scaled(totals, temperature, 1)

    def hvp(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        temperature: Array,
        g: Array,
        v: Array,
        e: Array,
        center: Array | None = None,
        scale: float = 1.0,
        mixing: float = 0.0,
    ) -> tuple[Array, Array]:
        r"""Return the derivative of :meth:`vjp` along (v, e): (B, K, d) and (B, K).

        For each of K pairs of a cotangent g and tangents (v, e): the gradient in p of
        :math:`\frac{1}{\varepsilon^2 M} \sum_m a_m Q_m(p, (v, e))`.
        """
        totals, sides = self._derive(
            second_order.HVP_ROWS,
            *(samples, keys, (center, scale, mixing)),
            (self._curvature(), g, v, e),
            ((v.shape[1], self.size), (v.shape[1],)),
        )
        return (
            self._scaled(totals, temperature, 2),
            self._scaled(sides, temperature, 2),
        )

    def jjvp(
        self,
        samples: tuple[Array, ...],
        keys: Array,
        temperature: Array,
        v: Array,
        e: Array,
        w: Array,
        f: Array,
        center: Array | None = None,
        scale: float = 1.0,
        mixing: float = 0.0,
    ) -> Array:
        r"""Return the second derivative of the average along (v, e) and (w, f).

        (B, K, d): :math:`\frac{1}{\varepsilon^2 M} \sum_m (y_m - b_m)
        Q_m((w, f), (v, e))`.
        """
        (totals,) = self._derive(
            second_order.JJVP_ROWS,
            *(samples, keys, (center, scale, mixing)),
            (self._curvature(), v, e, w, f),
            ((v.shape[1], self.size),),
        )
        return self._scaled(totals, temperature, 2)

    def _curvature(self) -> Array:
        if self.noise not in CURVATURE:
            names = ", ".join(f'"{name}"' for name in CURVATURE)
            msg = (
                f"{self.noise.capitalize()} noise has no second derivative of ν, which "
                f"second derivatives need. Use one of {names}."
            )
            raise ValueError(msg)
        return np.array(CURVATURE[self.noise], self.dtype)

    def draws(self, keys: Array) -> Array:
        """Return the noise of all samples, (B, M, d)."""
        return export_draws(
            self.noise,
            *(keys, self.num_samples, self.size, self.dtype),
            antithetic=self.antithetic,
        )

    def solutions(self, samples: tuple[Array, ...]) -> Array:
        """Return the solutions of all samples, (B, M, d)."""
        (codes,) = samples
        y = np.empty((*codes.shape[:2], self.size), self.dtype)
        decode = self.codec.decode.compiled(self.dtype)
        for row in range(len(codes)):
            decode(codes[row], self.table, y[row])
        return y
