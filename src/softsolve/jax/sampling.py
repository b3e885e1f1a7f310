"""Drawing noise and solving in JAX, outside of differentiation."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softsolve import estimators, layer
from softsolve._arrays import inner
from softsolve.array_route import (
    SAMPLES_TO_PRIME_FOR,
    first_bad_row,
    must_look_at_solutions,
    prime,
    repeat_starts,
    solve_draws,
)
from softsolve.jax.callbacks import call_host
from softsolve.jax.checks import require
from softsolve.jax.random import draw
from softsolve.perturbation import DensityDerivatives
from softsolve.retained import Retained, raise_too_few
from softsolve.settings import Settings

Array = Any


@dataclass(frozen=True)
class Call:
    """What one call of a layer asks of its draws, besides arrays."""

    settings: Settings
    event_shape: tuple[int, ...]
    difference: bool = False

    def derivatives(self, temperature: Array, z: Array) -> DensityDerivatives:
        """Return the derivatives of the density at the draws."""
        return DensityDerivatives(
            self.settings.noise, self.settings.perturbation, temperature, z
        )

    def solve(
        self, x: Array, context: tuple[Array, ...], theta: Array | None = None
    ) -> tuple[Array, tuple[int, ...]]:
        """Solve perturbed scores (B, M, d); return (B, M, k) and a solution's shape.

        The solver may start from the unperturbed scores ``theta`` (B, d), if given.
        """
        solve = functools.partial(self._solve_rows, theta)
        return solve_draws(self.settings, solve, x, self.event_shape, context)

    def averaged(self, y: Array, x: Array) -> Array:
        """Return what the form of the layer averages: solutions or their values."""
        return self.values(y, x)[..., None] if self.settings.form == "maximum" else y

    def values(self, y: Array, x: Array) -> Array:
        """Return what solutions are worth (B, M)."""
        return inner(y, estimators.scores_reached(x, clips=self.settings.clips))

    def samples(
        self,
        theta: Array,
        temperature: Array,
        context: tuple[Array, ...],
        key: Array,
        *,
        fill: bool = True,
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Return noise (B, M, d), samples (B, M, k) and the shape of a solution.

        Where failed draws are dropped, they are filled for estimates or else NaN.
        """
        shapes: list[tuple[int, ...]] = []

        def one_chunk(key: Array, count: int) -> tuple[Array, Array]:
            z, x = self._perturbed(theta, temperature, key, count)
            y, out_shape = self.solve(x, context, theta)
            shapes.append(out_shape)
            return z, self.averaged(y, x)

        keys, count = self._chunks(theta, key)
        if keys is None:
            z, values = one_chunk(key, count)
        else:
            parts = jax.lax.map(functools.partial(one_chunk, count=count), keys)
            z, values = (_join(part) for part in parts)
        if fill:
            values = self._retained(values, 2).fill(values)
        out_shape = shapes[-1]
        return z, values, self.event_shape if self.form_is_maximum else out_shape

    @property
    def form_is_maximum(self) -> bool:
        """Whether samples are values of the maximum."""
        return self.settings.form == "maximum"

    def at_point(self, theta: Array, context: tuple[Array, ...]) -> Array | None:
        """Return a sample at the unperturbed scores (B, k), if the baseline is that."""
        if self.settings.baseline != "point":
            return None
        point = theta[:, None, :]
        y, _ = self.solve(point, context)
        return self.averaged(y, point)[:, 0]

    def maxima(
        self,
        theta: Array,
        temperature: Array,
        target: Array | None,
        context: tuple[Array, ...],
        key: Array,
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array] | None]:
        """Return the maximum (B,), its gradient (B, d) and moment (B,), and draws.

        All relative to a target (B, d), if there is one. The draws are noise and the
        gradients of each sample (B, M, d), unless there are too many to keep.
        """

        def one_chunk(key: Array, count: int) -> tuple[Any, Any]:
            z, x = self._perturbed(theta, temperature, key, count)
            y, _ = self.solve(x, context, theta)
            retained = self._retained(y, 1)
            y = retained.replace(y, target)
            difference = y if target is None else y - target[:, None, :]
            values = self.values(difference, x)
            if target is not None:
                values = values + self._require_maxima(values, y, target, x)
            values, difference = retained.weigh(values), retained.weigh(difference)
            gradients = estimators.maximum_gradients(
                self.settings.perturbation, difference, x, clips=self.settings.clips
            )
            moment = estimators.moment(self.derivatives(temperature, z), gradients)
            shown = difference if self.difference else gradients
            means = (values.mean(axis=1), shown.mean(axis=1), moment)
            return means, (z, shown)

        keys, count = self._chunks(theta, key)
        if keys is None:
            means, draws = one_chunk(key, count)
            return means, None if self.settings.drops else draws
        chunk = functools.partial(one_chunk, count=count)
        means = jax.lax.map(lambda key: chunk(key)[0], keys)
        value, gradient, moment = (part.mean(axis=0) for part in means)
        return (value, gradient, moment), None

    def _retained(self, y: Array, least: int) -> Retained:
        """Tell which draws are left, if failed ones are dropped; at least so many.

        Whether derivatives will be asked for is not known beforehand, so that the mean
        of solutions needs as many draws as they do.
        """
        retained = Retained(self.settings, y)
        if self.settings.drops:
            settings = self.settings
            retained.count = retained.count + require(
                retained.count >= least,
                lambda row, left: raise_too_few(settings, row, int(left)),
                retained.count,
            ).astype(y.dtype)
        return retained

    def _chunks(self, theta: Array, key: Array) -> tuple[Array | None, int]:
        settings = self.settings
        rows, size = theta.shape
        count = settings.chunk(rows, size, theta.dtype.itemsize)
        while settings.num_samples % count:  # chunks of a loop are of one size
            count -= 1
        if count == settings.num_samples:
            return None, count
        return jax.random.split(key, settings.num_samples // count), count

    def _perturbed(
        self, theta: Array, temperature: Array, key: Array, count: int
    ) -> tuple[Array, Array]:
        rows, size = theta.shape
        z = draw(self.settings.noise, key, (rows, count, size), theta.dtype)
        return z, self.settings.perturbation.perturb(theta, temperature, z)

    def _solve_rows(self, point: Array | None, theta: Array, *context: Array) -> Array:
        settings = self.settings
        if settings.host:
            starts_pay = point is not None and hasattr(settings.solver, "prime")
            start = (point,) if starts_pay else ()
            return _solve_on_host(settings, self.event_shape, start, theta, context)
        y = jax.lax.stop_gradient(_solve_traced(settings, theta, context))
        if must_look_at_solutions(settings) and y.ndim and len(y) == len(theta):
            good = jnp.isfinite(y).reshape(len(theta), -1).all(axis=1)
            name = settings.name
            zero = require(good, lambda row: layer.raise_bad_solution(name, row))
            y = y + zero.astype(y.dtype) if y.dtype != bool else y
        return y

    def _require_maxima(self, gaps: Array, y: Array, target: Array, x: Array) -> Array:
        missed = gaps + layer.gap_tolerance(y, target, x)
        good = (missed >= 0).all(axis=1)
        name = self.settings.name
        zero = require(
            good,
            lambda row, gap: layer.raise_missed_maximum(name, row, float(gap)),
            gaps.min(axis=1),
        )
        return zero.astype(gaps.dtype)


def _solve_traced(
    settings: Settings, theta: Array, context: tuple[Array, ...]
) -> Array:
    """Call a solver of JAX's own arrays."""
    advice = (
        "Functions of NumPy arrays, and what JAX cannot trace, are made into solvers "
        "by softsolve.solver, which calls them on the host."
    )
    try:
        y = settings.solver(theta, *context)
    except (
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
        jax.errors.ConcretizationTypeError,
    ) as error:
        msg = f"{settings.name} is not a function that JAX can trace. {advice}"
        raise TypeError(msg) from error
    if not isinstance(y, jax.Array) or jnp.issubdtype(y.dtype, jnp.complexfloating):
        found = f"{y.dtype}" if isinstance(y, jax.Array) else f"{type(y)}"
        msg = (
            f"{settings.name} must return a jax.Array of booleans, integers or real "
            f"numbers; got {found}. {advice}"
        )
        raise TypeError(msg)
    return y


def _solve_on_host(
    settings: Settings,
    event_shape: tuple[int, ...],
    start: tuple[Array, ...],
    theta: Array,
    context: tuple[Array, ...],
) -> Array:
    """Solve rows of scores; ``start`` may hold the unperturbed ones, (B, d)."""
    out_shape = settings.out_shape(event_shape)

    def on_host(theta: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray]:
        lead = theta.shape[: theta.ndim - len(event_shape)]
        rows = math.prod(lead)
        flat = [
            array.reshape(rows, *array.shape[len(lead) :])
            for array in (theta, *arrays[len(start) :])
        ]
        given = _starts(settings, event_shape, arrays[: len(start)], flat)
        y = np.asarray(settings.solver(*flat, **given))
        settings.check_solutions(y.shape, rows, event_shape)
        if y.shape[1:] != out_shape:
            msg = (
                f"{settings.name} returned solutions of shape {y.shape[1:]}, not "
                f"{out_shape}. Tell JAX: softsolve.solver(function, "
                f"out_shape={y.shape[1:]})."
            )
            raise ValueError(msg)
        if must_look_at_solutions(settings):
            row = first_bad_row(y)
            if row is not None:
                layer.raise_bad_solution(settings.name, row)
        return (y.astype(theta.dtype, copy=False).reshape(*lead, *out_shape),)

    shape = jax.ShapeDtypeStruct((len(theta), *out_shape), theta.dtype)
    (y,) = call_host(
        on_host, [shape], theta, *start, *context, vmap_method="broadcast_all"
    )
    return y


def _starts(
    settings: Settings,
    event_shape: tuple[int, ...],
    start: tuple[Array, ...],
    flat: list[np.ndarray],
) -> dict[str, list[Any]]:
    """Return where to start for each row of scores and context, if that pays."""
    theta, *context = flat
    size = math.prod(event_shape)
    points = [array.reshape(-1, size) for array in start]
    if not points or not len(theta):
        return {}
    count = len(theta) // len(points[0])
    if count < SAMPLES_TO_PRIME_FOR:
        return {}
    each = tuple(array[::count] for array in context)
    starts = prime(settings, points[0], event_shape, each)
    return {} if starts is None else {"starts": repeat_starts(starts, count)}


def _join(parts: Array) -> Array:
    """Join chunks (C, B, m, k) along the samples, (B, C·m, k)."""
    chunks, rows, count, size = parts.shape
    return jnp.moveaxis(parts, 0, 1).reshape(rows, chunks * count, size)
