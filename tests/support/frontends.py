"""One interface to the three frontends, NumPy in and out.

Scores are (B, d) or (B, *event), temperatures (B,). With B rows of equal scores a call
gives B independent replicates of whatever it estimates.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch

import softsolve.jax
import softsolve.numpy
import softsolve.torch
from softsolve.jax import sampling as jax_sampling
from softsolve.torch import sampling as torch_sampling


def spread(temperature: Any, theta: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.asarray(temperature, theta.dtype), theta.shape[:1]).copy()


class NumpyFrontend:
    name = "numpy"
    module = softsolve.numpy

    def layer(self, solver, **options):
        return self.module.Perturbed(solver, **options)

    def loss_of(self, layer, **options):
        return self.module.FenchelYoungLoss(layer, **options)

    def value(self, layer, theta, *context, temperature=None, seed=0):
        return layer(theta, *context, rng=seed, temperature=temperature)

    def maximum(self, layer, theta, *, temperature=None, seed=0):
        return layer.maximum(theta, rng=seed, temperature=temperature)

    def vjp(self, layer, theta, g, *context, temperature, seed=0):
        eps = spread(temperature, theta)
        return tuple(layer.vjp(theta, g, *context, rng=seed, temperature=eps))

    def jvp(self, layer, theta, v, *, temperature, drift=0.0, seed=0):
        eps = spread(temperature, theta)
        return layer.jvp(
            theta, v, temperature_direction=drift, rng=seed, temperature=eps
        )

    def jacobian(self, layer, theta, *, temperature=None, seed=0):
        return layer.jacobian(theta, rng=seed, temperature=temperature)

    def hessian(self, layer, theta, g, *, temperature, seed=0):
        return layer.hessian(theta, g, rng=seed, temperature=spread(temperature, theta))

    def loss(self, loss, theta, y, *, temperature, seed=0):
        eps = spread(temperature, theta)
        value, gradients = loss.value_and_gradients(theta, y, rng=seed, temperature=eps)
        return value, *gradients

    def sample(self, layer, theta, *, temperature=None, seed=0):
        return layer.sample(theta, rng=seed, temperature=temperature)

    def distribution(self, layer, theta, *, temperature=None, seed=0):
        return layer.distribution(theta, rng=seed, temperature=temperature)

    def draw(self, noise, shape, dtype, seed=0):
        from softsolve.numpy.random import draw

        return draw(noise, shape, np.dtype(dtype), np.random.default_rng(seed))

    def array(self, values):
        return np.asarray(values)

    @contextlib.contextmanager
    def given_noise(self, z: np.ndarray) -> Iterator[None]:
        """Let every draw be z (B, M, d)."""

        def noise(_self, shape, dtype, rng):
            assert shape == z.shape
            return z.astype(dtype)

        with mock.patch.object(softsolve.numpy.Perturbed, "_noise", noise):
            yield


class TorchFrontend:
    name = "torch"
    module = softsolve.torch

    def layer(self, solver, **options):
        return self.module.Perturbed(solver, **options)

    def loss_of(self, layer, **options):
        return self.module.FenchelYoungLoss(layer, **options)

    def _point(self, theta, temperature, *, grad):
        at = torch.tensor(theta, requires_grad=grad)
        if temperature is None:
            return at, None
        return at, torch.tensor(spread(temperature, theta), requires_grad=grad)

    def _generator(self, seed):
        return torch.Generator().manual_seed(seed)

    def value(self, layer, theta, *context, temperature=None, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        given = tuple(torch.as_tensor(array) for array in context)
        y = layer(at, *given, generator=self._generator(seed), temperature=eps)
        return y.numpy()

    def maximum(self, layer, theta, *, temperature=None, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        value = layer.maximum(at, generator=self._generator(seed), temperature=eps)
        return value.numpy()

    def vjp(self, layer, theta, g, *context, temperature, seed=0):
        at, eps = self._point(theta, temperature, grad=True)
        given = tuple(torch.as_tensor(array) for array in context)
        y = layer(at, *given, generator=self._generator(seed), temperature=eps)
        pulled = torch.autograd.grad(y, (at, eps), torch.tensor(g))
        return tuple(part.numpy() for part in pulled)

    def jvp(self, layer, theta, v, *, temperature, drift=0.0, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        generator = self._generator(seed)

        def smoothed(at, eps):
            return layer(at, generator=generator, temperature=eps)

        direction = (torch.tensor(v), torch.full_like(eps, drift))
        return torch.func.jvp(smoothed, (at, eps), direction)[1].numpy()

    def jacobian(self, layer, theta, *, temperature=None, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        made = layer.jacobian(at, generator=self._generator(seed), temperature=eps)
        return made.numpy()

    def hessian(self, layer, theta, g, *, temperature, seed=0):
        size = theta.shape[1]
        full = self.point_hessian(layer, theta, g, temperature=temperature, seed=seed)
        return full[:, :size, :size]

    def point_hessian(self, layer, theta, g, *, temperature, seed=0):
        """Return the Hessian of ⟨y_ε(θ), g⟩ in (θ, ε), (B, d + 1, d + 1)."""
        at, eps = self._point(theta, temperature, grad=True)
        y = layer(at, generator=self._generator(seed), temperature=eps)
        return self._second((y * torch.tensor(g)).sum(), at, eps)

    def maximum_hessian(self, layer, theta, *, temperature, seed=0):
        """Return the Hessian of F_ε(θ) in (θ, ε), (B, d + 1, d + 1)."""
        at, eps = self._point(theta, temperature, grad=True)
        value = layer.maximum(at, generator=self._generator(seed), temperature=eps)
        return self._second(value.sum(), at, eps)

    @staticmethod
    def _second(total, at, eps):
        first = torch.autograd.grad(total, (at, eps), create_graph=True)
        gradient = torch.cat([first[0], first[1][:, None]], dim=1)
        rows = []
        for index in range(gradient.shape[1]):
            second = torch.autograd.grad(
                gradient[:, index].sum(), (at, eps), retain_graph=True
            )
            rows.append(torch.cat([second[0], second[1][:, None]], dim=1))
        return torch.stack(rows, dim=1).numpy()

    def maximum_gradients(self, layer, theta, *, temperature, seed=0):
        at, eps = self._point(theta, temperature, grad=True)
        value = layer.maximum(at, generator=self._generator(seed), temperature=eps)
        return tuple(p.numpy() for p in torch.autograd.grad(value.sum(), (at, eps)))

    def loss(self, loss, theta, y, *, temperature, seed=0):
        at, eps = self._point(theta, temperature, grad=True)
        generator = self._generator(seed)
        value = loss(at, torch.tensor(y), generator=generator, temperature=eps)
        pulled = torch.autograd.grad(value.sum(), (at, eps))
        return value.detach().numpy(), *(part.numpy() for part in pulled)

    def sample(self, layer, theta, *, temperature=None, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        drawn = layer.sample(at, generator=self._generator(seed), temperature=eps)
        return drawn.numpy()

    def distribution(self, layer, theta, *, temperature=None, seed=0):
        at, eps = self._point(theta, temperature, grad=False)
        generator = self._generator(seed)
        found = layer.distribution(at, generator=generator, temperature=eps)
        return [tuple(part.numpy() for part in row) for row in found]

    def draw(self, noise, shape, dtype, seed=0):
        from softsolve.torch.random import draw

        like = torch.from_numpy(np.zeros(1, dtype))
        return draw(noise, shape, like, self._generator(seed)).numpy()

    def array(self, values):
        return torch.as_tensor(np.asarray(values))

    @contextlib.contextmanager
    def given_noise(self, z: np.ndarray) -> Iterator[None]:
        """Let every draw be z (B, M, d)."""

        def noise(_self, theta, count):
            assert (len(theta), count, theta.shape[1]) == z.shape
            return torch.tensor(z, dtype=theta.dtype)

        with mock.patch.object(torch_sampling.Call, "noise", noise):
            yield


def _in_precision(method):
    """Switch JAX to 64 bits where the scores have them."""

    @functools.wraps(method)
    def call(self, layer, theta, *args, **options):
        with jax.enable_x64(np.asarray(theta).dtype == np.float64):
            made = method(self, layer, theta, *args, **options)
            if isinstance(made, tuple):
                return tuple(np.asarray(part) for part in made)
            return np.asarray(made)

    return call


class JaxFrontend:
    name = "jax"
    module = softsolve.jax

    def layer(self, solver, **options):
        return self.module.Perturbed(solver, **options)

    def loss_of(self, layer, **options):
        return self.module.FenchelYoungLoss(layer, **options)

    @_in_precision
    def value(self, layer, theta, *context, temperature=None, seed=0):
        return layer(theta, *context, key=jax.random.key(seed), temperature=temperature)

    @_in_precision
    def maximum(self, layer, theta, *, temperature=None, seed=0):
        key = jax.random.key(seed)
        return layer.maximum(theta, key=key, temperature=temperature)

    @_in_precision
    def vjp(self, layer, theta, g, *context, temperature, seed=0):
        def smoothed(at, eps):
            return layer(at, *context, key=jax.random.key(seed), temperature=eps)

        _, pull = jax.vjp(smoothed, theta, spread(temperature, theta))
        return pull(jax.numpy.asarray(g))

    @_in_precision
    def jvp(self, layer, theta, v, *, temperature, drift=0.0, seed=0):
        eps = spread(temperature, theta)

        def smoothed(at, eps):
            return layer(at, key=jax.random.key(seed), temperature=eps)

        return jax.jvp(smoothed, (theta, eps), (v, np.full_like(eps, drift)))[1]

    @_in_precision
    def jacobian(self, layer, theta, *, temperature=None, seed=0):
        key = jax.random.key(seed)
        return layer.jacobian(theta, key=key, temperature=temperature)

    def hessian(self, layer, theta, g, *, temperature, seed=0):
        size = theta.shape[1]
        full = self.point_hessian(layer, theta, g, temperature=temperature, seed=seed)
        return full[:, :size, :size]

    @_in_precision
    def point_hessian(self, layer, theta, g, *, temperature, seed=0):
        """Return the Hessian of ⟨y_ε(θ), g⟩ in (θ, ε), (B, d + 1, d + 1)."""

        def product(at, eps):
            y = layer(at, key=jax.random.key(seed), temperature=eps)
            return (y * g).sum()

        return self._second(product, theta, spread(temperature, theta))

    @_in_precision
    def maximum_hessian(self, layer, theta, *, temperature, seed=0):
        """Return the Hessian of F_ε(θ) in (θ, ε), (B, d + 1, d + 1)."""

        def total(at, eps):
            return layer.maximum(at, key=jax.random.key(seed), temperature=eps).sum()

        return self._second(total, theta, spread(temperature, theta))

    @staticmethod
    def _second(function, theta, eps):
        size = theta.shape[1]

        def gradient(point):
            pulled = jax.grad(function, (0, 1))(point[:, :size], point[:, size])
            return jax.numpy.concatenate([pulled[0], pulled[1][:, None]], axis=1)

        point = jax.numpy.concatenate([theta, eps[:, None]], axis=1)

        def column(direction):
            along = jax.numpy.broadcast_to(direction, point.shape)
            return jax.jvp(gradient, (point,), (along,))[1]

        columns = jax.vmap(column)(jax.numpy.eye(size + 1, dtype=theta.dtype))
        return jax.numpy.moveaxis(columns, 0, 2)

    @_in_precision
    def maximum_gradients(self, layer, theta, *, temperature, seed=0):
        def total(at, eps):
            return layer.maximum(at, key=jax.random.key(seed), temperature=eps).sum()

        return jax.grad(total, (0, 1))(
            jax.numpy.asarray(theta), spread(temperature, theta)
        )

    @_in_precision
    def loss(self, loss, theta, y, *, temperature, seed=0):
        def losses(at, eps):
            value = loss(at, y, key=jax.random.key(seed), temperature=eps)
            return value.sum(), value

        gradient = jax.grad(losses, (0, 1), has_aux=True)
        pulled, value = gradient(jax.numpy.asarray(theta), spread(temperature, theta))
        return value, *pulled

    @_in_precision
    def sample(self, layer, theta, *, temperature=None, seed=0):
        return layer.sample(theta, key=jax.random.key(seed), temperature=temperature)

    def distribution(self, layer, theta, *, temperature=None, seed=0):
        key = jax.random.key(seed)
        return layer.distribution(theta, key=key, temperature=temperature)

    def draw(self, noise, shape, dtype, seed=0):
        from softsolve.jax.random import draw

        with jax.enable_x64(np.dtype(dtype) == np.float64):
            return np.asarray(draw(noise, jax.random.key(seed), shape, dtype))

    def array(self, values):
        return jax.numpy.asarray(values)

    @contextlib.contextmanager
    def given_noise(self, z: np.ndarray) -> Iterator[None]:
        """Let every draw be z (B, M, d)."""

        def draw(noise, key, shape, dtype):
            assert tuple(shape) == z.shape
            return jax.numpy.asarray(z, dtype)

        with mock.patch.object(jax_sampling, "draw", draw):
            yield


FRONTENDS = {
    frontend.name: frontend
    for frontend in (NumpyFrontend(), TorchFrontend(), JaxFrontend())
}
AUTOMATIC = {name: FRONTENDS[name] for name in ("torch", "jax")}
