"""The exact values that estimates are compared with, against each other."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from softsolve.solvers import Hypercube, OneHot, Ranking
from support.references import (
    CubeReference,
    Exact,
    PermutahedronReference,
    PlaneReference,
    SimplexReference,
    SoftmaxReference,
)

NOISES = ["normal", "gumbel", "logistic", "laplace"]


def test_quadrature_is_softmax_for_gumbel_noise():
    theta, eps = np.array([0.3, -0.4, 0.9]), 0.6
    g = np.array([1.0, -2.0, 0.5])
    for name in ("solution", "maximum"):
        made = Exact(getattr(SimplexReference("gumbel"), name), theta, eps)
        closed = Exact(getattr(SoftmaxReference(), name), theta, eps)
        np.testing.assert_allclose(made.value, closed.value, rtol=1e-9)
        np.testing.assert_allclose(made.jacobian, closed.jacobian, rtol=1e-8)
        np.testing.assert_allclose(
            made.in_temperature, closed.in_temperature, rtol=1e-8
        )
        weights = g if name == "solution" else None
        np.testing.assert_allclose(
            made.point_hessian(weights), closed.point_hessian(weights), rtol=1e-7
        )


def test_quadrature_is_normal_for_two_scores():
    theta, eps = np.array([0.3, -0.4]), 0.6
    exact = Exact(SimplexReference("normal").solution, theta, eps)
    chance = ndtr(0.7 / (eps * np.sqrt(2)))
    np.testing.assert_allclose(exact.value, [chance, 1 - chance], rtol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "reference", [SimplexReference, PermutahedronReference, CubeReference]
)
def test_solutions_are_gradients_of_maxima(reference, noise):
    theta, eps = np.array([0.3, -0.4, 0.9]), 0.6
    made = reference(noise)
    gradient = Exact(made.maximum, theta, eps).jacobian
    solution = Exact(made.solution, theta, eps).value
    np.testing.assert_allclose(gradient, solution, atol=1e-5)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("solver", "reference"),
    [
        (OneHot(), SimplexReference),
        (Ranking(), PermutahedronReference),
        (Hypercube(signed=False), CubeReference),
    ],
)
def test_integrals_in_the_plane(solver, reference, noise):
    theta, eps = np.array([0.31, -0.43]), 0.7
    plane = PlaneReference(solver, noise, "additive", theta, eps)
    made = Exact(plane.expectation, theta, eps)
    exact = Exact(reference(noise).solution, theta, eps)
    np.testing.assert_allclose(made.value, exact.value, atol=4e-3)
    np.testing.assert_allclose(made.jacobian, exact.jacobian, atol=5e-3)
    np.testing.assert_allclose(made.in_temperature, exact.in_temperature, atol=5e-3)


def test_multiplicative_integrals_in_the_plane():
    theta, eps = np.array([0.8, -1.3]), 0.5
    plane = PlaneReference(lambda x: x, "normal", "multiplicative", theta, eps)
    made = Exact(plane.expectation, theta, eps)  # E[θW] = θ for every ε
    np.testing.assert_allclose(made.value, theta, rtol=1e-5)
    np.testing.assert_allclose(made.jacobian, np.eye(2), atol=1e-5)
    np.testing.assert_allclose(made.in_temperature, 0, atol=1e-4)
    assert torch.is_tensor(plane.values)
