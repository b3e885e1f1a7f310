r"""The fused route: noise, solve and average in one compiled pass.

Nothing of size B·M·d in floats is kept: solutions stay in a compact form
(:mod:`softsolve.compiled.codecs`), noise is drawn again when it is wanted.
"""

from math import prod
from typing import Any

import numpy as np

from softsolve.compiled import buffers, passes, position_passes, second_order
from softsolve.compiled.baselines import leave_one_out
from softsolve.compiled.forward import Forward, ForwardPass
from softsolve.compiled.lanes import LANES
from softsolve.compiled.random import FILL_LANES, export_draws

__all__ = ["Forward", "FusedPass", "leave_one_out"]

Array = np.ndarray[Any, Any]

# Coefficients of the noise's curvature as a polynomial in its score.
CURVATURE = {
    "normal": (1.0, 0.0, 0.0),
    "gumbel": (1.0, -1.0, 0.0),
    "logistic": (0.5, 0.0, -0.5),
}

# Scores up to which the noise of LANES samples side by side fits the first-level cache.
LARGEST_VJP_LANES = 128


class FusedPass(ForwardPass):
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
