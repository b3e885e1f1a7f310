"""Perturbed layers of optax and jaxopt, compiled, over solvers in pure JAX."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from jaxopt import loss as jaxopt_loss
    from jaxopt import perturbations as jaxopt_perturbations

Solve = Callable[[Any], Any]


class JaxLayer:
    """A layer of flat instances (B, d), with what is timed of it.

    ``perturbed(theta_row, key)`` is the smoothed solution of a row, ``loss`` its
    Fenchel-Young loss. Keys are made inside of the compiled functions.
    """

    def __init__(self, name: str, perturbed: Any, loss: Any, solve: Solve, data: Any):
        self.name = name
        theta, g, y = (jnp.asarray(array.reshape(len(array), -1)) for array in data)

        def keys(seed: Any) -> Any:
            return jax.random.split(jax.random.key(seed), len(theta))

        @jax.jit
        def maximiser(theta: Any, g: Any, seed: Any) -> Any:
            each = keys(seed)
            mean, pull = jax.vjp(lambda t: jax.vmap(perturbed)(t, each), theta)
            return mean, pull(g)[0]

        @jax.jit
        def loss_gradient(theta: Any, y: Any, seed: Any) -> Any:
            each = keys(seed)
            return jax.grad(lambda t: jax.vmap(loss)(t, y, each).sum())(theta)

        self._maximiser = lambda seed: maximiser(theta, g, seed)
        self._loss_gradient = lambda seed: loss_gradient(theta, y, seed)
        self._solve = jax.jit(jax.vmap(solve))
        self._seed = 0

    def maximiser(self) -> tuple[Any, Any]:
        """Return the smoothed solutions and the gradient of their product with g."""
        self._seed += 1
        return jax.block_until_ready(self._maximiser(self._seed))

    def loss_gradient(self) -> Any:
        """Return the gradient of the Fenchel-Young loss."""
        self._seed += 1
        return jax.block_until_ready(self._loss_gradient(self._seed))

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Solve perturbed scores (n, d)."""
        return np.asarray(self._solve(jnp.asarray(x)))


def optax_layer(solve: Solve, data: Any, temperature: float, samples: int) -> JaxLayer:
    """Return optax's layer."""

    def smoothed(function: Solve) -> Any:
        return optax.perturbations.make_perturbed_fun(
            function, samples, temperature, optax.perturbations.Normal()
        )

    solution = smoothed(solve)
    maximum = smoothed(lambda x: jnp.vdot(solve(x), x))

    def loss(theta: Any, y: Any, key: Any) -> Any:
        of_key = optax.losses.make_fenchel_young_loss(lambda x: maximum(key, x))
        return of_key(theta, y)

    return JaxLayer("optax", lambda theta, key: solution(key, theta), loss, solve, data)


def jaxopt_layer(solve: Solve, data: Any, temperature: float, samples: int) -> JaxLayer:
    """Return jaxopt's layer."""
    options = {
        "num_samples": samples,
        "sigma": temperature,
        "noise": jaxopt_perturbations.Normal(),
    }
    solution = jaxopt_perturbations.make_perturbed_argmax(
        solve, control_variate=True, **options
    )
    maximum = jaxopt_perturbations.make_perturbed_max(solve, **options)
    loss = jaxopt_loss.make_fenchel_young_loss(max_fun=maximum)
    return JaxLayer(
        "jaxopt", solution, lambda theta, y, key: loss(y, theta, key), solve, data
    )
