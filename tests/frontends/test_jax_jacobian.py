"""The Jacobian that a JAX layer returns is differentiable itself, never silently zero.

On the same draws, its derivatives are the second ones of the layer.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softsolve import solver
from softsolve.jax import Perturbed
from softsolve.solvers import OneHot, Ranking
from support.references import Exact, SoftmaxReference
from support.statistics import assert_derivative

SIZE = 3
KEY = jax.random.key(0)
THETA = np.array([0.4, -0.3, 0.1])


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@solver(linear=True)
def on_host(theta):
    return Ranking()(theta)


OPTIONS = {
    "fused": {},
    "fused, symmetric": {"symmetric": True},
    "array": {"route": "array"},
    "array, point": {"route": "array", "baseline": "point"},
    "array, symmetric": {"route": "array", "symmetric": True},
    "array, multiplicative": {"route": "array", "perturbation": "multiplicative"},
    "array, maximum": {"route": "array", "form": "maximum"},
    "host": {"solver": on_host},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_jacobian_has_derivatives(options):
    made_of = {"solver": Ranking(), "num_samples": 6, "noise": "normal"} | options
    layer = Perturbed(made_of.pop("solver"), **made_of)
    theta, eps = jnp.asarray(THETA), jnp.asarray(0.7)

    def smoothed(theta, eps):
        return layer(theta, key=KEY, temperature=eps)

    def matrix(theta, eps):
        return layer.jacobian(theta, key=KEY, temperature=eps)

    in_theta, in_eps = jax.jit(jax.jacrev(matrix, (0, 1)))(theta, eps)
    expected = jax.jacfwd(jax.jacrev(smoothed), (0, 1))(theta, eps)
    assert np.abs(expected[0]).max() > 0.1
    assert np.abs(expected[1]).max() > 0.1
    np.testing.assert_allclose(in_theta, expected[0], atol=1e-9)
    np.testing.assert_allclose(in_eps, expected[1], atol=1e-9)
    pushed = jax.jvp(matrix, (theta, eps), (theta, eps))[1]
    along = in_theta @ theta + in_eps * eps
    np.testing.assert_allclose(pushed, along, atol=1e-9)


def test_its_derivatives_under_vmap():
    layer = Perturbed(Ranking(), num_samples=6)

    def curved(key):
        return jax.jacfwd(lambda theta: layer.jacobian(theta, key=key))(THETA)

    keys = jax.random.split(KEY, 2)
    mapped = jax.vmap(curved)(keys)
    for index in range(2):
        np.testing.assert_allclose(mapped[index], curved(keys[index]), atol=1e-9)


@pytest.mark.parametrize("route", ["auto", "array"])
def test_its_derivatives_are_those_of_the_softmax(route):
    rows, eps, g = 400, 0.8, np.array([1.0, -2.0, 0.5])
    layer = Perturbed(OneHot(), noise="gumbel", num_samples=200, route=route)

    def product(theta):
        matrix = layer.jacobian(theta, key=KEY, temperature=eps)
        return jnp.einsum("i,bij->bj", g, matrix)

    rows = jnp.tile(THETA, (rows, 1))
    columns = [
        jax.jvp(product, (rows,), (jnp.broadcast_to(step, rows.shape),))[1]
        for step in jnp.eye(SIZE)
    ]
    exact = Exact(SoftmaxReference().solution, THETA, eps)
    hessian = exact.point_hessian(g)[:-1, :-1]
    assert_derivative(np.stack(columns, axis=2), hessian)


def test_those_that_are_not_there_raise():
    laplace = Perturbed(OneHot(), noise="laplace", num_samples=4)
    array = Perturbed(OneHot(), noise="laplace", num_samples=4, route="array")
    for layer in (laplace, array):
        assert layer.jacobian(THETA, key=KEY).shape == (SIZE, SIZE)
        with pytest.raises(ValueError, match="Laplace noise has no second derivative"):
            jax.jacfwd(lambda theta, at=layer: at.jacobian(theta, key=KEY))(THETA)

    @solver(on_failure="drop")
    def dropping(theta):
        return OneHot()(theta)

    layer = Perturbed(dropping, num_samples=4)
    with pytest.raises(RuntimeError, match="no estimate of its second derivatives"):
        jax.jacfwd(lambda theta: layer.jacobian(theta, key=KEY))(THETA)
    fused = Perturbed(OneHot(), num_samples=4)
    with pytest.raises(NotImplementedError, match="third derivatives of a perturbed"):
        jax.hessian(lambda theta: fused.jacobian(theta, key=KEY).sum())(THETA)
