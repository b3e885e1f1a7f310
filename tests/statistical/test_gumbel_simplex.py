"""Gumbel noise on the simplex, where everything is known: softmax and log-sum-exp."""

import numpy as np
import pytest

from softsolve.solvers import OneHot
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import Exact, SoftmaxReference
from support.statistics import assert_derivative, assert_unbiased

THETA = np.array([0.6, -0.3, 0.1, -0.9])
TARGET = np.array([0.0, 1.0, 0.0, 0.0])
G = np.array([1.0, -2.0, 0.5, 0.3])
V = np.array([0.4, 1.0, -0.7, 0.2])
ROWS = 400

frontends = pytest.mark.parametrize("name", FRONTENDS)
precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64])
temperatures = pytest.mark.parametrize("eps", [0.3, 0.8, 2.5])

OPTIONS = {
    "none": {"baseline": "none"},
    "point": {"baseline": "point"},
    "leave-one-out": {"baseline": "leave_one_out"},
    "array": {"route": "array"},
    "symmetric": {"symmetric": True},
    "symmetric, no baseline": {"symmetric": True, "baseline": "none"},
    "maximum": {"form": "maximum"},
    "maximum, no baseline": {"form": "maximum", "baseline": "none"},
    "maximum, point": {"form": "maximum", "baseline": "point"},
}


def rows(vector, dtype=np.float64):
    return np.tile(vector.astype(dtype), (ROWS, 1))


def solution(eps):
    return Exact(SoftmaxReference().solution, THETA, eps)


def maximum(eps):
    return Exact(SoftmaxReference().maximum, THETA, eps)


def cross_entropy(theta, eps):
    """ε·CE(θ/ε, y) for the target."""
    logits = theta / eps
    return eps * (logits.logsumexp(0) - logits[int(TARGET.argmax())])


@frontends
@precisions
@temperatures
def test_solution_and_first_derivatives(name, dtype, eps):
    frontend, exact = FRONTENDS[name], solution(eps)
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=256)
    theta, given = rows(THETA, dtype), {"temperature": eps}
    y = frontend.value(layer, theta, temperature=np.full(ROWS, eps, dtype), seed=1)
    assert y.dtype == dtype
    assert_unbiased(y, exact.value)
    in_theta, in_temperature = frontend.vjp(layer, theta, rows(G, dtype), **given)
    assert in_theta.dtype == in_temperature.dtype == dtype
    assert_derivative(in_theta, G @ exact.jacobian, eps)
    assert_derivative(in_temperature, G @ exact.in_temperature, eps)
    pushed = frontend.jvp(layer, theta, rows(V, dtype), drift=0.6, **given)
    assert pushed.dtype == dtype
    along = exact.jacobian @ V + 0.6 * exact.in_temperature
    assert_derivative(pushed, along, eps)
    jacobian = frontend.jacobian(layer, theta, temperature=np.full(ROWS, eps, dtype))
    assert jacobian.dtype == dtype
    assert_derivative(jacobian, exact.jacobian, eps)


@frontends
@precisions
@temperatures
def test_hessian(name, dtype, eps):
    frontend = FRONTENDS[name]
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=256)
    hessian = frontend.hessian(
        layer, rows(THETA, dtype), rows(G, dtype), temperature=eps
    )
    assert hessian.dtype == dtype
    assert_derivative(hessian, solution(eps).point_hessian(G)[:-1, :-1], eps)


@pytest.mark.parametrize("name", AUTOMATIC)
@temperatures
def test_second_derivatives_with_temperature(name, eps):
    frontend = FRONTENDS[name]
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=256)
    hessian = frontend.point_hessian(layer, rows(THETA), rows(G), temperature=eps)
    assert_derivative(hessian, solution(eps).point_hessian(G), eps)
    hessian = frontend.maximum_hessian(layer, rows(THETA), temperature=eps)
    assert_derivative(hessian, maximum(eps).point_hessian(), eps)


@frontends
@precisions
@temperatures
def test_maximum(name, dtype, eps):
    frontend, exact = FRONTENDS[name], maximum(eps)
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=64)
    spread = np.full(ROWS, eps, dtype)
    value = frontend.maximum(layer, rows(THETA, dtype), temperature=spread)
    assert value.dtype == dtype
    assert_unbiased(value, exact.value)
    if name in AUTOMATIC:
        in_theta, in_temperature = frontend.maximum_gradients(
            layer, rows(THETA, dtype), temperature=eps
        )
        assert_unbiased(in_theta, exact.jacobian)
        assert_derivative(in_temperature, exact.in_temperature)


@frontends
@precisions
@temperatures
def test_fenchel_young_loss_is_cross_entropy(name, dtype, eps):
    frontend, exact = FRONTENDS[name], Exact(cross_entropy, THETA, eps)
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=64)
    loss = frontend.loss_of(layer, reduction="none")
    value, in_theta, in_temperature = frontend.loss(
        loss, rows(THETA, dtype), rows(TARGET, dtype), temperature=eps
    )
    assert value.dtype == in_theta.dtype == in_temperature.dtype == dtype
    assert value.min() >= -1e-6
    assert_derivative(value, exact.value)
    assert_derivative(in_theta, exact.jacobian)
    assert_derivative(in_temperature, exact.in_temperature)


@frontends
@temperatures
def test_samples_and_distribution(name, eps):
    """Draws from p_θ are one-hot with the probabilities of softmax."""
    frontend, exact = FRONTENDS[name], solution(eps)
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=64)
    given = {"temperature": np.full(ROWS, eps)}
    drawn = frontend.sample(layer, rows(THETA), **given)
    assert drawn.shape == (64, ROWS, 4)
    assert_unbiased(drawn.mean(axis=0), exact.value)
    frequencies = np.zeros((ROWS, 4))
    for row, (solutions, shares) in enumerate(
        frontend.distribution(layer, rows(THETA), **given)
    ):
        frequencies[row, solutions.argmax(axis=1)] = shares
        assert len(np.unique(solutions, axis=0)) == len(solutions)
        assert (np.sort(shares)[::-1] == shares).all()
    assert_unbiased(frequencies, exact.value)


@frontends
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_estimator(name, options):
    frontend, eps = FRONTENDS[name], 0.5
    exact, given = solution(eps), {"temperature": eps}
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=400, **options)
    theta = rows(THETA)
    y = frontend.value(layer, theta, temperature=np.full(ROWS, eps))
    assert_unbiased(y, exact.value)
    in_theta, in_temperature = frontend.vjp(layer, theta, rows(G), **given)
    assert_derivative(in_theta, G @ exact.jacobian, eps)
    assert_derivative(in_temperature, G @ exact.in_temperature)
    pushed = frontend.jvp(layer, theta, rows(V), drift=0.6, **given)
    assert_derivative(pushed, exact.jacobian @ V + 0.6 * exact.in_temperature)
    jacobian = frontend.jacobian(layer, theta, temperature=np.full(ROWS, eps))
    assert_derivative(jacobian, exact.jacobian, eps)
    if options.get("form") != "maximum":
        hessian = frontend.hessian(layer, theta, rows(G), **given)
        assert_derivative(hessian, exact.point_hessian(G)[:-1, :-1])


@frontends
def test_symmetric_jacobians_are_symmetric_and_vanish_off_the_simplex(name):
    frontend = FRONTENDS[name]
    layer = frontend.layer(OneHot(), num_samples=5, symmetric=True)
    jacobian = frontend.jacobian(layer, rows(THETA))
    np.testing.assert_allclose(jacobian, np.swapaxes(jacobian, 1, 2), atol=1e-12)
    np.testing.assert_allclose(jacobian.sum(axis=1), 0, atol=1e-12)
    for row in (0, 3):
        in_theta, _ = frontend.vjp(layer, rows(THETA), rows(G), temperature=1.0)
        pushed = frontend.jvp(layer, rows(THETA), rows(G), temperature=1.0)
        np.testing.assert_allclose(in_theta[row], pushed[row], atol=1e-12)


@frontends
def test_one_sample_is_unbiased(name):
    frontend, eps = FRONTENDS[name], 0.5
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=1)
    theta = np.tile(THETA, (40_000, 1))
    in_theta, _ = frontend.vjp(layer, theta, np.tile(G, (40_000, 1)), temperature=eps)
    assert_derivative(in_theta, G @ solution(eps).jacobian, eps)
