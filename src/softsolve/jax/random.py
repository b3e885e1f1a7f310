"""Noise from JAX's keys, and ν in a form that JAX differentiates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softsolve.noise import (
    DERIVATIVES,
    Elementwise,
    Gumbel,
    Laplace,
    Logistic,
    Noise,
    Normal,
)

Array = Any


def check_key(key: object) -> None:
    """Raise unless this is one of JAX's keys, of the new style or the old."""
    if isinstance(key, jax.Array | np.ndarray):
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if key.ndim == 0 if typed else key.ndim == 1 and key.dtype == np.uint32:
            return
        found = f"shape {key.shape} of {key.dtype}"
    else:
        found = repr(key)
    msg = (
        f"key must be one of JAX's keys, such as jax.random.key(0); got {found}. For a "
        "key each, jax.vmap over instances and keys."
    )
    raise TypeError(msg)


def draw(noise: Noise, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw noise of that shape and type."""
    if isinstance(noise, Normal):
        return jax.random.normal(key, shape, dtype)
    if isinstance(noise, Gumbel):
        return jax.random.gumbel(key, shape, dtype)
    if isinstance(noise, Logistic):
        return jax.random.logistic(key, shape, dtype)
    if isinstance(noise, Laplace):
        return jax.random.laplace(key, shape, dtype)
    tiny = float(jnp.finfo(dtype).eps) / 4
    uniform = jax.random.uniform(key, shape, dtype, minval=tiny, maxval=1 - tiny)
    return _quantile(noise, uniform)


def _quantile(noise: Noise, uniform: Array) -> Array:
    try:
        drawn = noise.quantile(uniform)
        if isinstance(drawn, jax.Array):
            return drawn.astype(uniform.dtype)
    except (TypeError, jax.errors.TracerArrayConversionError):
        pass  # a quantile function written for NumPy

    def on_host(values: Array) -> np.ndarray:
        return np.asarray(noise.quantile(np.asarray(values)), dtype=values.dtype)

    shape = jax.ShapeDtypeStruct(uniform.shape, uniform.dtype)
    return jax.pure_callback(on_host, shape, uniform, vmap_method="broadcast_all")


def differentiable_nu(noise: Noise) -> Callable[[Array], Array]:
    """Return ν with the noise's own score and curvature as its derivatives.

    A noise without curvature thus raises where a second derivative is taken.
    """

    @jax.custom_jvp
    def score(z: Array) -> Array:
        return noise.score(z)

    @score.defjvp
    def _score_jvp(
        primals: tuple[Array], tangents: tuple[Array]
    ) -> tuple[Array, Array]:
        (z,), (step,) = primals, tangents
        return score(z), noise.curvature(z) * step

    @jax.custom_jvp
    def nu(z: Array) -> Array:
        return noise.nu(z)

    @nu.defjvp
    def _nu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (z,), (step,) = primals, tangents
        return nu(z), score(z) * step

    return nu


def _derivative(function: Elementwise, z: Array) -> Array:
    return jax.grad(lambda at: function(at).sum())(z)


DERIVATIVES["jax"] = _derivative
