r"""Attaching derivatives of any order to averages of draws.

Averages are constants to JAX; the derivative rules here bring in the surrogate of
:class:`softsolve.estimators.Surrogate`, so that what is not differentiated costs
nothing.
"""

import functools
from typing import Any

import jax

from softsolve._arrays import inner
from softsolve.estimators import Samples, Surrogate
from softsolve.jax.random import differentiable_nu
from softsolve.jax.sampling import Call
from softsolve.layer import (
    check_second_derivatives,
    column_projector,
    raise_samples_not_kept,
)
from softsolve.products import ArrayProducts
from softsolve.settings import Settings

Array = Any
Draws = tuple[Array, Array, Array | None]


def surrogate(call: Call, tau: Array, temperature: Array, z: Array) -> Surrogate:
    """Return the surrogate at the draws."""
    settings = call.settings
    return Surrogate(
        settings.perturbation,
        z,
        (tau, temperature),
        nu=differentiable_nu(settings.noise),
        stop_gradient=jax.lax.stop_gradient,
    )


def _samples(call: Call, draws: Draws) -> Samples:
    _, values, at_point = draws
    return Samples(values, call.settings.baseline, at_point)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach(
    call: Call,
    mean: Array,
    tau: Array,
    temperature: Array,
    draws: Draws,
) -> Array:
    """Return the mean of samples (B, k) with its derivatives in the point."""
    return mean


@attach.defjvp
def _attach_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    _, tau, temperature, draws = primals
    if call.settings.drops:
        tau, temperature = only_once(call.settings, (tau, temperature))
    samples = _samples(call, draws)

    def smoothed(tau: Array, temperature: Array) -> Array:
        return surrogate(call, tau, temperature, draws[0]).expectation(samples)

    def along(step: Array, drift: Array) -> Array:
        return jax.jvp(smoothed, (tau, temperature), (step, drift))[1]

    step, drift = tangents[1:3]
    if not call.settings.symmetric:
        return attach(call, *primals), along(step, drift)
    # Half of the symmetric product is a transpose, which only linear maps have.
    still = jax.numpy.zeros_like(drift)
    project = column_projector(call.settings, call.event_shape)

    def push(v: Array) -> Array:
        return along(v, still)

    projected = project(step[..., None])[..., 0]
    (pulled,) = jax.linear_transpose(push, tau)(projected)
    both = 0.5 * (push(projected) + pulled)
    symmetric = project(both[..., None])[..., 0]
    return attach(call, *primals), symmetric + along(jax.numpy.zeros_like(step), drift)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def only_once(settings: Settings, point: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the point of first derivatives that have no derivatives."""
    return point


@only_once.defjvp
def _only_once_jvp(settings: Settings, primals: Any, tangents: Any) -> Any:
    check_second_derivatives(settings)
    return primals[0], tangents[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach_moment(
    call: Call,
    moment: Array,
    tau: Array,
    temperature: Array,
    draws: Draws,
) -> Array:
    """Return the derivative of the maximum in ε (B,) with its derivatives."""
    return moment


@attach_moment.defjvp
def _attach_moment_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    _, tau, temperature, (z, gradients, _) = primals

    def smoothed(tau: Array, temperature: Array) -> Array:
        return surrogate(call, tau, temperature, z).moment(gradients)

    _, along = jax.jvp(smoothed, (tau, temperature), tangents[1:3])
    return attach_moment(call, *primals), along


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def attach_maximum(
    call: Call,
    means: tuple[Array, Array, Array],
    tau: Array,
    temperature: Array,
    draws: Draws | None,
) -> Array:
    """Return the perturbed maximum (B,) with its derivatives in the point."""
    return means[0]


@attach_maximum.defjvp
def _attach_maximum_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    (value, gradient, moment), tau, temperature, draws = primals
    if draws is None:
        in_tau, in_temperature = without_draws(call, (gradient, moment), tau)
    else:
        in_tau = attach(call, gradient, tau, temperature, draws)
        in_temperature = attach_moment(call, moment, tau, temperature, draws)
    step, drift = tangents[1:3]
    return value, inner(in_tau, step) + in_temperature * drift


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def without_draws(
    call: Call, first: tuple[Array, Array], tau: Array
) -> tuple[Array, Array]:
    """Return first derivatives whose draws were not kept: second ones raise."""
    return first


@without_draws.defjvp
def _without_draws_jvp(call: Call, primals: Any, tangents: Any) -> Any:
    settings = call.settings
    size = 2 * settings.num_samples * primals[1].nbytes
    raise_samples_not_kept(settings, size)


def solution_from_maximum(
    call: Call, tau: Array, temperature: Array, draws: Draws
) -> Array:
    r"""Return :math:`E[F s]/\varepsilon` (B, d), with its derivatives of any order."""
    replaced = surrogate(call, tau, temperature, draws[0])
    return replaced.gradient(call.settings.noise, _samples(call, draws))


def smoothed_jacobian(
    call: Call, tau: Array, temperature: Array, draws: Draws
) -> Array:
    r"""Return the Jacobian in :math:`\tau` (B, k, d), with its own derivatives."""
    z, _, _ = draws
    point = (jax.lax.stop_gradient(tau), jax.lax.stop_gradient(temperature))
    samples = _samples(call, draws)
    made = ArrayProducts(call.settings, call.event_shape, point, z, samples)
    return _attach_jacobian(call, made.jacobian(), tau, temperature, draws)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attach_jacobian(
    call: Call, matrix: Array, tau: Array, temperature: Array, draws: Draws
) -> Array:
    """Return the Jacobian (B, k, d), given, with its derivatives."""
    return matrix


@_attach_jacobian.defjvp
def _attach_jacobian_jvp(
    call: Call, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    _, tau, temperature, draws = primals
    mean = jax.numpy.mean(draws[1], axis=1)

    def smoothed(tau: Array, temperature: Array) -> Array:
        if call.settings.form == "maximum":
            return solution_from_maximum(call, tau, temperature, draws)
        return attach(call, mean, tau, temperature, draws)

    def columns(tau: Array, temperature: Array) -> Array:
        def column(step: Array) -> Array:
            along = jax.numpy.broadcast_to(step, tau.shape)
            return jax.jvp(lambda at: smoothed(at, temperature), (tau,), (along,))[1]

        identity = jax.numpy.eye(tau.shape[1], dtype=tau.dtype)
        return jax.vmap(column, out_axes=2)(identity)

    _, along = jax.jvp(columns, (tau, temperature), tangents[1:3])
    return _attach_jacobian(call, *primals), along
