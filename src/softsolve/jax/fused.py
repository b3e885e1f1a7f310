"""The fused route in JAX: averages of compiled passes, and their derivatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softsolve._arrays import inner
from softsolve.estimators import Direction
from softsolve.fused_products import FusedCall
from softsolve.jax.host import run_on_host
from softsolve.jax.sampling import Call
from softsolve.jax.works import Hvp, Jjvp, Jvp, Maxima, Mean, Product, Solutions, Vjp
from softsolve.products import Products

Array = Any
Point = tuple[Array, Array]
Draws = tuple[Array, ...]


class FusedProducts(Products):
    """Derivatives from draws in compact form, (keys, codes, baseline)."""

    def __init__(self, call: FusedCall, point: Point, draws: Draws) -> None:
        super().__init__(call.settings, call.event_shape, point)
        self.call = call
        self.point = point
        self.draws = draws

    def vjp(self, g: Array) -> tuple[Array, Array]:
        """Return vector-Jacobian products of the mean solution."""
        in_tau, in_temperature = self._run(Vjp(self.call), g)
        return in_tau, in_temperature

    def jvp(self, direction: Direction) -> Array:
        """Return Jacobian-vector products of the mean solution."""
        return self._run(Jvp(self.call), *direction)[0]

    def hvp(self, g: Array, direction: Direction) -> tuple[Array, Array]:
        """Return derivatives of :meth:`vjp` along a direction."""
        in_tau, in_temperature = self._run(Hvp(self.call), g, *direction)
        return in_tau, in_temperature

    def jjvp(self, direction: Direction, other: Direction) -> Array:
        """Return derivatives of :meth:`jvp` along another direction."""
        return self._run(Jjvp(self.call), *direction, *other)[0]

    def _run(self, work: Product, *vectors: Array) -> tuple[Array, ...]:
        return run_on_host(work, *self.point, *vectors, *self.draws)


def draw_keys(key: Array, rows: int) -> Array:
    """Draw the key of each row's noise, uint32 (B, 2)."""
    return jax.random.bits(key, (rows, 2), np.uint32)


def solutions(
    call: Call,
    theta: Array,
    temperature: Array,
    keys: Array,
    context: tuple[Array, ...],
) -> Array:
    """Return the solutions drawn (B, M, d)."""
    work = Solutions(compiled(call))
    return run_on_host(work, *_fixed(theta, temperature), keys, *context)[0]


def products(
    call: Call,
    theta: Array,
    temperature: Array,
    keys: Array,
    context: tuple[Array, ...],
) -> FusedProducts:
    """Draw, and return the products of the samples, with their derivatives."""
    _, draws = _draw(call, _fixed(theta, temperature), keys, context)
    return FusedProducts(compiled(call), (theta, temperature), draws)


def compiled(call: Call) -> FusedCall:
    """Return the compiled passes of a call."""
    return FusedCall(call.settings, call.event_shape)


def _mean(call: Call, point: Point, keys: Array, context: tuple[Array, ...]) -> Array:
    return run_on_host(Mean(compiled(call), keep=False), *point, keys, *context)[0]


def _draw(
    call: Call, point: Point, keys: Array, context: tuple[Array, ...]
) -> tuple[Array, Draws]:
    """Return the mean solution, and what draws the samples again."""
    work = Mean(compiled(call), keep=True)
    mean, codes = run_on_host(work, *point, keys, *context)
    if call.settings.baseline == "leave_one_out":
        return mean, (keys, codes, mean)
    if call.settings.baseline == "point":
        return mean, (keys, codes, call.at_point(point[0], context))
    return mean, (keys, codes)


def _fixed(theta: Array, temperature: Array) -> Point:
    return jax.lax.stop_gradient(theta), jax.lax.stop_gradient(temperature)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def smoothed(
    call: Call,
    theta: Array,
    temperature: Array,
    keys: tuple[Array, ...],
    context: tuple[Array, ...],
) -> Array:
    """Return the smoothed solution (B, d) with its derivatives.

    Keys are those of the mean and, where they are others, those of its derivatives.
    Solutions are kept only where the mean is differentiated.
    """
    return _mean(call, _fixed(theta, temperature), keys[0], context)


@smoothed.defjvp
def _smoothed_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    theta, temperature, keys, context = primals
    fixed = _fixed(theta, temperature)
    mean, draws = _draw(call, fixed, keys[-1], context)
    if len(keys) > 1:
        mean = _mean(call, fixed, keys[0], context)

    def attached(theta: Array, temperature: Array) -> Array:
        return attach(call, mean, theta, temperature, draws)

    return jax.jvp(attached, (theta, temperature), tangents[:2])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach(
    call: Call, mean: Array, theta: Array, temperature: Array, draws: Draws
) -> Array:
    """Return the mean solution (B, d), given, with its derivatives."""
    return mean


@attach.defjvp
def _attach_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    _, theta, temperature, draws = primals
    step, drift = tangents[1:3]
    made = FusedProducts(compiled(call), (theta, temperature), draws)
    along = made.push((step[..., None], drift[..., None]))[..., 0]
    return attach(call, *primals), along


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach_moment(
    call: Call, moment: Array, theta: Array, temperature: Array, draws: Draws
) -> Array:
    """Return the derivative of the maximum in ε (B,), given, with its derivatives."""
    return moment


@attach_moment.defjvp
def _attach_moment_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    _, theta, temperature, draws = primals
    step, drift = tangents[1:3]
    made = FusedProducts(compiled(call), (theta, temperature), draws)
    still = jnp.zeros_like(theta)[..., None]
    in_theta = made.jvp((still, jnp.ones_like(temperature)[:, None]))[..., 0]
    # The maximum is 1-homogeneous in (θ, ε), so that its gradient is constant along it.
    in_temperature = -inner(theta, in_theta) / temperature
    along = inner(in_theta, step) + in_temperature * drift
    return attach_moment(call, *primals), along


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach_maximum(
    call: Call,
    means: tuple[Array, Array, Array],
    theta: Array,
    temperature: Array,
    target: Array | None,
    keys: Array,
    context: tuple[Array, ...],
) -> Array:
    """Return the perturbed maximum (B,), given with its gradients, differentiable."""
    return means[0]


@attach_maximum.defjvp
def _attach_maximum_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    means, *rest = primals
    in_theta, in_temperature = first_derivatives(call, means[1:], *rest)
    step, drift = tangents[1:3]
    along = inner(in_theta, step) + in_temperature * drift
    return attach_maximum(call, *primals), along


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def first_derivatives(
    call: Call,
    given: Point,
    theta: Array,
    temperature: Array,
    target: Array | None,
    keys: Array,
    context: tuple[Array, ...],
) -> Point:
    """Return the gradient and the moment of the maximum with their derivatives.

    For these, the same draws are solved once more. What is averaged are solutions less
    the target, so the target takes the place of a baseline where there is none.
    """
    return given


@first_derivatives.defjvp
def _first_derivatives_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Point, Point]:
    (gradient, moment), theta, temperature, target, keys, context = primals
    _, draws = _draw(call, _fixed(theta, temperature), keys, context)
    if call.settings.baseline == "none" and target is not None:
        draws = (*draws, target)

    def attached(theta: Array, temperature: Array) -> Point:
        return (
            attach(call, gradient, theta, temperature, draws),
            attach_moment(call, moment, theta, temperature, draws),
        )

    return jax.jvp(attached, (theta, temperature), tangents[1:3])


def smoothed_maximum(
    call: Call,
    theta: Array,
    temperature: Array,
    target: Array | None,
    keys: Array,
    context: tuple[Array, ...],
) -> Array:
    """Return the perturbed maximum (B,) relative to a target, with its derivatives."""
    work = Maxima(compiled(call), targeted=target is not None)
    operands = (keys, *context) if target is None else (keys, target, *context)
    means = run_on_host(work, *_fixed(theta, temperature), *operands)
    return attach_maximum(call, means, theta, temperature, target, keys, context)
