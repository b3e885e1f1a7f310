"""Every noise on small polytopes, against quadrature."""

import numpy as np
import pytest

from softsolve.noise import NOISES
from softsolve.solvers import Hypercube, OneHot, Ranking
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import (
    CubeReference,
    Exact,
    PermutahedronReference,
    SimplexReference,
)
from support.statistics import assert_derivative, assert_unbiased

THETA = np.array([0.5, -0.2, 0.8])
G = np.array([1.0, -2.0, 0.5])
V = np.array([0.4, 1.0, -0.7])
ROWS, SAMPLES = 400, 250

POLYTOPES = {
    "simplex": (OneHot(), SimplexReference, np.array([0.0, 1.0, 0.0])),
    "permutahedron": (Ranking(), PermutahedronReference, np.array([3.0, 1.0, 2.0])),
    "cube": (Hypercube(signed=False), CubeReference, np.array([1.0, 1.0, 0.0])),
}


def rows(vector):
    return np.tile(vector, (ROWS, 1))


@pytest.mark.parametrize("name", FRONTENDS)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("solver", "reference", "target"), POLYTOPES.values(), ids=POLYTOPES
)
def test_every_noise(name, noise, solver, reference, target):
    frontend, eps = FRONTENDS[name], 0.6
    made = reference(noise)
    solution = Exact(made.solution, THETA, eps)
    maximum = Exact(made.maximum, THETA, eps)
    layer = frontend.layer(solver, noise=noise, num_samples=SAMPLES)
    spread = np.full(ROWS, eps)
    y = frontend.value(layer, rows(THETA), temperature=spread)
    assert_unbiased(y, solution.value)
    in_theta, in_temperature = frontend.vjp(
        layer, rows(THETA), rows(G), temperature=eps
    )
    assert_derivative(in_theta, G @ solution.jacobian, eps)
    assert_derivative(in_temperature, G @ solution.in_temperature)
    pushed = frontend.jvp(layer, rows(THETA), rows(V), temperature=eps, drift=0.5)
    along = solution.jacobian @ V + 0.5 * solution.in_temperature
    assert_derivative(pushed, along)
    value = frontend.maximum(layer, rows(THETA), temperature=spread)
    assert_unbiased(value, maximum.value)
    loss = frontend.loss_of(layer, reduction="none")
    value, in_theta, in_temperature = frontend.loss(
        loss, rows(THETA), rows(target), temperature=eps
    )
    # Noise shifts the maximum and the target's value alike by its mean.
    shift = eps * NOISES[noise].mean * target.sum()
    assert_derivative(value, maximum.value - THETA @ target - shift)
    assert_derivative(in_theta, solution.value - target)
    drift = maximum.in_temperature - NOISES[noise].mean * target.sum()
    assert_derivative(in_temperature, drift)
    if noise == "laplace":
        with pytest.raises(ValueError, match="second derivative"):
            frontend.hessian(layer, rows(THETA), rows(G), temperature=eps)
        return
    if name in AUTOMATIC:
        hessian = frontend.point_hessian(layer, rows(THETA), rows(G), temperature=eps)
        assert_derivative(hessian, solution.point_hessian(G))
        hessian = frontend.maximum_hessian(layer, rows(THETA), temperature=eps)
        assert_derivative(hessian, maximum.point_hessian())
    else:
        hessian = frontend.hessian(layer, rows(THETA), rows(G), temperature=eps)
        assert_derivative(hessian, solution.point_hessian(G)[:-1, :-1])


@pytest.mark.parametrize("name", FRONTENDS)
@pytest.mark.parametrize("baseline", ["none", "point", "leave_one_out"])
def test_temperature_of_each_row(name, baseline):
    """Rows of one call have their own temperatures, and gradients in them."""
    frontend, each = FRONTENDS[name], 300
    temperatures = np.array([0.3, 0.9, 2.0])
    layer = frontend.layer(Ranking(), num_samples=100, baseline=baseline)
    theta, g = np.tile(THETA, (3 * each, 1)), np.tile(G, (3 * each, 1))
    eps = np.repeat(temperatures, each)
    y = frontend.value(layer, theta, temperature=eps)
    in_theta, in_temperature = frontend.vjp(layer, theta, g, temperature=eps)
    for index, temperature in enumerate(temperatures):
        part = slice(index * each, (index + 1) * each)
        exact = Exact(
            PermutahedronReference("normal").solution, THETA, float(temperature)
        )
        assert_unbiased(y[part], exact.value)
        assert_derivative(in_theta[part], G @ exact.jacobian, temperature)
        assert_derivative(in_temperature[part], G @ exact.in_temperature)
