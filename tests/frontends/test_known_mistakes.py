"""Mistakes that libraries of this kind have made, each with the test that finds it."""

import jax
import numpy as np
import pytest
import torch

import softsolve.torch
from softsolve import solver
from softsolve.solvers import OneHot, Ranking
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import Exact, SoftmaxReference
from support.statistics import assert_derivative

frontends = pytest.mark.parametrize("name", FRONTENDS)
automatic = pytest.mark.parametrize("name", AUTOMATIC)
routes = pytest.mark.parametrize("route", ["array", "auto"])

THETA = np.array([0.4, -0.3, 0.1])
G = np.array([1.0, -2.0, 0.5])
ROWS = 400


def rows(vector, dtype=np.float64):
    return np.tile(np.asarray(vector, dtype), (ROWS, 1))


def softmax(eps):
    return Exact(SoftmaxReference().solution, THETA, eps)


def gumbel_layer(frontend, samples=100, **options):
    return frontend.layer(OneHot(), noise="gumbel", num_samples=samples, **options)


@frontends
@routes
@pytest.mark.parametrize("eps", [0.2, 4.0])
def test_missing_factor_of_one_over_epsilon(name, route, eps):
    frontend = FRONTENDS[name]
    layer = gumbel_layer(frontend, samples=400, route=route)
    in_theta, _ = frontend.vjp(layer, rows(THETA), rows(G), temperature=eps)
    assert_derivative(in_theta, G @ softmax(eps).jacobian, eps)


@frontends
@routes
def test_sum_over_samples_instead_of_mean(name, route):
    """Nothing grows with the number of samples."""
    frontend = FRONTENDS[name]
    exact = softmax(0.5)
    for samples in (10, 200):
        layer = gumbel_layer(frontend, samples, route=route)
        in_theta, in_eps = frontend.vjp(layer, rows(THETA), rows(G), temperature=0.5)
        size = np.abs(in_theta.mean(axis=0)).max()
        assert size < 2 * np.abs(G @ exact.jacobian).max()
        np.testing.assert_allclose(in_eps.mean(), G @ exact.in_temperature, rtol=0.3)
        loss = frontend.loss_of(layer, reduction="none")
        target = rows([0, 1, 0])
        value, _, _ = frontend.loss(loss, rows(THETA), target, temperature=0.5)
        cross_entropy = -0.5 * np.log(exact.value[1])
        assert value.mean() == pytest.approx(cross_entropy, rel=0.1)


@frontends
@routes
@pytest.mark.parametrize("baseline", ["none", "point", "leave_one_out"])
def test_wrong_gradient_in_epsilon(name, route, baseline):
    """The density's normaliser −d·log ε belongs to it, with any baseline."""
    frontend, eps = FRONTENDS[name], 0.5
    layer = gumbel_layer(frontend, samples=400, route=route, baseline=baseline)
    _, in_eps = frontend.vjp(layer, rows(THETA), rows(G), temperature=eps)
    assert_derivative(in_eps, G @ softmax(eps).in_temperature)


@automatic
@routes
def test_silently_wrong_second_derivatives(name, route):
    """Of a linear loss they are not zero; of others, not Gauss-Newton's part only."""
    frontend, eps = FRONTENDS[name], 0.8
    layer = gumbel_layer(frontend, samples=400, route=route)
    hessian = frontend.hessian(layer, rows(THETA), rows(G), temperature=eps)
    assert_derivative(hessian, softmax(eps).point_hessian(G)[:-1, :-1])


@frontends
@routes
def test_noise_shared_between_layers_rows_and_calls(name, route):
    frontend = FRONTENDS[name]
    theta = np.zeros((ROWS, 3))
    centred = []
    for seed in (0, 1):
        layer = gumbel_layer(frontend, samples=1, route=route)
        y = frontend.value(layer, theta, seed=seed)
        centred.append(y - 1 / 3)
    covariance = (centred[0] * centred[1]).sum(axis=1)
    assert abs(covariance.mean()) < 5 * covariance.std() / np.sqrt(ROWS)
    neighbours = (centred[0][1:] * centred[0][:-1]).sum(axis=1)
    assert abs(neighbours.mean()) < 5 * neighbours.std() / np.sqrt(ROWS)


@routes
def test_frozen_noise(route):
    """Layers made alike draw apart, also call by call, without being told to."""
    theta = torch.zeros(50, 3)
    torch.manual_seed(0)
    made = [
        softsolve.torch.Perturbed(OneHot(), num_samples=1, route=route)
        for _ in range(2)
    ]
    drawn = [made[0](theta), made[1](theta), made[0](theta)]
    # A generator that is handed over moves on; one layer does not move another's.
    generator = torch.Generator().manual_seed(1)
    drawn += [made[0](theta, generator=generator) for _ in range(2)]
    for i in range(len(drawn)):
        for j in range(i):
            assert not torch.equal(drawn[i], drawn[j])
    plain = np.zeros((50, 3))
    first, second = (
        softsolve.numpy.Perturbed(OneHot(), num_samples=1, route=route)
        for _ in range(2)
    )
    assert (first(plain) != second(plain)).any()
    assert (first(plain) != first(plain)).any()
    rng = np.random.default_rng(0)
    assert (first(plain, rng=rng) != first(plain, rng=rng)).any()


@frontends
@pytest.mark.parametrize("kind", [np.int8, np.int64, bool, np.float32])
def test_solvers_that_return_other_types(name, kind):
    """Integers, truth values and single precision are cast before any formula."""
    frontend, eps = FRONTENDS[name], 0.5

    @solver(linear=True)
    def argmax(theta):
        return OneHot()(theta).astype(kind)

    for dtype in (np.float32, np.float64):
        layer = frontend.layer(argmax, noise="gumbel", num_samples=100)
        in_theta, in_eps = frontend.vjp(
            layer, rows(THETA, dtype), rows(G, dtype), temperature=eps
        )
        assert in_theta.dtype == in_eps.dtype == dtype
        assert_derivative(in_theta, G @ softmax(eps).jacobian, eps)
        value = frontend.value(layer, rows(THETA, dtype))
        assert value.dtype == dtype
        loss = frontend.loss_of(layer, reduction="none")
        value, in_theta, _ = frontend.loss(
            loss, rows(THETA, dtype), rows([0, 1, 0], dtype), temperature=eps
        )
        assert value.dtype == in_theta.dtype == dtype
        assert_derivative(in_theta, softmax(eps).value - [0, 1, 0])


def test_native_solvers_that_return_other_types():
    theta = torch.zeros(5, 3)

    def booleans(theta):
        return theta == theta.max(-1, keepdim=True).values

    y = softsolve.torch.Perturbed(booleans, num_samples=3)(theta)
    assert y.dtype == torch.float32
    assert torch.allclose(y.sum(-1), torch.ones(5))

    def traced(theta):
        return (theta == theta.max(-1, keepdims=True)).astype("int8")

    y = softsolve.jax.Perturbed(traced, num_samples=3)(
        np.zeros((5, 3), np.float32), key=jax.random.key(0)
    )
    assert y.dtype == np.float32


@frontends
def test_extra_arguments_break_the_backward_pass(name):
    frontend = FRONTENDS[name]

    @solver
    def masked(theta, mask):
        return OneHot()(np.where(mask, theta, -1e9))

    layer = frontend.layer(masked, noise="gumbel", num_samples=100)
    mask = rows([1, 1, 0]) > 0
    in_theta, in_eps = frontend.vjp(
        layer, rows(THETA), rows(G), frontend.array(mask), temperature=0.5
    )
    exact = Exact(lambda theta, eps: torch.softmax(theta[:2] / eps, 0), THETA, 0.5)
    assert_derivative(in_theta[:, :2], G[:2] @ exact.jacobian[:, :2], 0.5)
    assert_derivative(in_eps, G[:2] @ exact.in_temperature)


@frontends
@routes
def test_value_inconsistent_with_gradient(name, route):
    """The loss's finite differences, on the same draws, are its gradient."""
    frontend, h = FRONTENDS[name], 1e-6
    layer = frontend.layer(Ranking(), num_samples=9, route=route)
    loss = frontend.loss_of(layer, reduction="none")
    rng = np.random.default_rng(0)
    theta, target = rng.normal(size=(4, 3)), Ranking()(rng.normal(size=(4, 3)))

    def value(theta, eps):
        return frontend.loss(loss, theta, target, temperature=eps, seed=5)[0]

    _, in_theta, in_eps = frontend.loss(loss, theta, target, temperature=0.6, seed=5)
    for index in range(3):
        step = h * np.eye(3)[index]
        slope = (value(theta + step, 0.6) - value(theta - step, 0.6)) / (2 * h)
        np.testing.assert_allclose(in_theta[:, index], slope, atol=1e-6)
    slope = (value(theta, 0.6 + h) - value(theta, 0.6 - h)) / (2 * h)
    np.testing.assert_allclose(in_eps, slope, atol=1e-6)


@frontends
@routes
def test_promoted_or_demoted_types(name, route):
    frontend = FRONTENDS[name]
    for dtype in (np.float32, np.float64):
        layer = gumbel_layer(frontend, samples=4, route=route)
        theta, eps = rows(THETA, dtype), np.full(ROWS, 0.5)  # float64 temperatures
        assert frontend.value(layer, theta, temperature=eps).dtype == dtype
        assert frontend.maximum(layer, theta, temperature=eps).dtype == dtype
        assert frontend.jacobian(layer, theta, temperature=eps).dtype == dtype
        for part in frontend.vjp(layer, theta, theta, temperature=0.5):
            assert part.dtype == dtype
    # float64 is not computed in float32 on the way.
    layer = gumbel_layer(frontend, samples=4, route=route)
    theta = rows(THETA)[:1]
    value = frontend.maximum(layer, theta + 1, temperature=np.array([1e-9]), seed=1)
    assert value[0] == pytest.approx(1.4, abs=2e-8)
    assert abs(value[0] - 1.4) > 1e-12
    assert np.float64(np.float32(value[0])) != value[0]


@frontends
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solutions_rounded_on_the_host(name, dtype):
    """Solutions of NumPy functions have the scores' type, with all of its digits."""
    frontend = FRONTENDS[name]
    layer = frontend.layer(solver(lambda theta: OneHot()(theta) / 3), num_samples=4)
    eps = np.full(1, 1e-9, dtype)
    y = frontend.value(layer, np.array([[1, 2, 0]], dtype), temperature=eps)
    assert y.dtype == dtype
    assert y[0, 1] == dtype(1) / dtype(3)


@frontends
def test_missing_half_of_the_variance(name):
    """Multiplicative noise has mean one: exp(εZ − ε²/2), not exp(εZ)."""
    frontend = FRONTENDS[name]
    layer = frontend.layer(
        solver(lambda theta: theta), num_samples=100, perturbation="multiplicative"
    )
    y = frontend.value(layer, rows(THETA), temperature=np.full(ROWS, 0.7))
    assert_derivative(y, THETA)
    in_theta, in_eps = frontend.vjp(layer, rows(THETA), rows(G), temperature=0.7)
    assert_derivative(in_theta, G, 0.7)
    assert abs(in_eps.mean()) < 5 * in_eps.std() / np.sqrt(ROWS)


@frontends
def test_baseline_with_vector_and_size_one_outputs(name):
    """A baseline does not meddle with the axes of the output."""
    frontend = FRONTENDS[name]
    for shape in ((1,), (2,), ()):

        def head(theta, shape=shape):
            return theta[:, : shape[0]] if shape else theta[:, 0]

        for baseline in ("none", "point", "leave_one_out"):
            layer = frontend.layer(
                solver(head, out_shape=shape), num_samples=300, baseline=baseline
            )
            g = np.ones((ROWS, *shape))
            in_theta, _ = frontend.vjp(layer, rows(THETA), g, temperature=0.5)
            exact = np.zeros(3)
            exact[: shape[0] if shape else 1] = 1
            assert_derivative(in_theta, exact, 0.5)


@frontends
@routes
def test_gumbel_noise_does_not_shift_the_loss(name, route):
    """Its mean is not zero: the loss is still the cross-entropy, without εγ."""
    frontend = FRONTENDS[name]
    loss = frontend.loss_of(gumbel_layer(frontend, route=route), reduction="none")
    value, _, _ = frontend.loss(loss, rows(THETA), rows([1, 0, 0]), temperature=0.9)
    assert_derivative(value, -0.9 * np.log(softmax(0.9).value[0]))


@automatic
def test_solver_calls_of_value_and_gradient(name):
    """A value with its gradient solves each draw once."""
    calls = []

    @solver(linear=True)
    def counted(theta):
        calls.append(len(theta))
        return OneHot()(theta)

    frontend = FRONTENDS[name]
    for baseline, expected in (("leave_one_out", 60), ("point", 66)):
        layer = frontend.layer(counted, num_samples=10, baseline=baseline)
        calls.clear()
        frontend.vjp(layer, rows(THETA)[:6], rows(G)[:6], temperature=0.5)
        assert sum(calls) == expected
    calls.clear()
    loss = frontend.loss_of(frontend.layer(counted, num_samples=10))
    frontend.loss(loss, rows(THETA)[:6], rows([0, 1, 0])[:6], temperature=0.5)
    assert sum(calls) == 60


def test_ascending_ranks():
    """argmax over v = (1..d) gives the largest score the largest rank."""
    theta = np.array([[0.1, 5.0, -2.0]])
    np.testing.assert_array_equal(Ranking()(theta), [[2, 3, 1]])
