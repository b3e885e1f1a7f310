"""What the paper proves, of the estimates."""

import numpy as np
import pytest

from softsolve.noise import NOISES
from softsolve.solvers import FiniteSet, OneHot, Ranking
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import Exact, SoftmaxReference
from support.statistics import Comparison, assert_derivative

frontends = pytest.mark.parametrize("name", FRONTENDS)
automatic = pytest.mark.parametrize("name", AUTOMATIC)

SIZE = 4
POLYGON = FiniteSet(np.random.default_rng(3).normal(size=(7, SIZE)))


@frontends
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
def test_expected_loss_is_the_loss_of_the_expected_target(name, noise):
    """E[L(θ; Y)] = L(θ; E Y) + const; as it is estimated, the constant is 0."""
    frontend, rng = FRONTENDS[name], np.random.default_rng(0)
    theta = rng.normal(size=(1, SIZE))
    targets, weights = POLYGON.vertices, rng.dirichlet(np.ones(7))
    z = NOISES[noise].quantile(rng.random((1, 20, SIZE)))
    layer = frontend.layer(POLYGON, noise=noise, num_samples=20, route="array")
    loss = frontend.loss_of(layer)
    with frontend.given_noise(z):
        each = [
            frontend.loss(loss, theta, target[None], temperature=0.7)
            for target in targets
        ]
        mean = frontend.loss(loss, theta, (weights @ targets)[None], temperature=0.7)
    for part in range(3):
        averaged = sum(
            weight * values[part] for weight, values in zip(weights, each, strict=True)
        )
        np.testing.assert_allclose(averaged, mean[part], atol=1e-12)


@frontends
def test_loss_inside_the_hull_is_off_by_a_constant(name):
    """For Gumbel noise the true loss is ε·KL(y, softmax): short of it by ε·entropy."""
    frontend, eps = FRONTENDS[name], 0.6
    target = np.array([0.5, 0.3, 0.2])
    layer = frontend.layer(OneHot(), noise="gumbel", num_samples=100)
    loss = frontend.loss_of(layer, reduction="none")
    entropy = -(target * np.log(target)).sum()
    for theta in (np.array([0.4, -0.3, 0.1]), np.array([-1.0, 0.2, 0.7])):
        softmax = Exact(SoftmaxReference().solution, theta, eps).value
        divergence = eps * (target * np.log(target / softmax)).sum()
        value, in_theta, _ = frontend.loss(
            loss,
            np.tile(theta, (400, 1)),
            np.tile(target, (400, 1)),
            temperature=eps,
        )
        assert_derivative(value, divergence + eps * entropy)
        assert_derivative(in_theta, softmax - target)


@frontends
@pytest.mark.parametrize("noise", NOISES)
def test_bounds_of_the_maximum(name, noise):
    """ε⟨y*, E Z⟩ ≤ F_ε − F ≤ ε F_1(0), on every set of draws."""
    frontend, rng = FRONTENDS[name], np.random.default_rng(1)
    theta = rng.normal(size=(50, SIZE))
    eps = rng.uniform(0.1, 3, 50)
    z = NOISES[noise].quantile(rng.random((50, 6, SIZE)))
    layer = frontend.layer(POLYGON, noise=noise, num_samples=6, route="array")
    y = np.asarray(POLYGON(theta))
    with frontend.given_noise(z):
        smooth = frontend.maximum(layer, theta, temperature=eps)
        at_zero = frontend.maximum(layer, 0 * theta, temperature=np.ones(50))
    excess = smooth - (y * theta).sum(1)
    lower = eps * (y * z.mean(axis=1)).sum(1)
    assert (excess >= lower - 1e-12).all()
    assert (excess <= eps * at_zero + 1e-12).all()
    assert (excess > lower + 1e-3).any()  # neither holds as an equality
    assert (excess < eps * at_zero - 1e-3).any()


@frontends
def test_maximum_is_lipschitz_and_its_gradient_too(name):
    """|F(θ) − F(θ')| ≤ R‖θ − θ'‖ and ‖J‖ ≤ R·E‖s‖/ε (Proposition 2.2)."""
    frontend, rng = FRONTENDS[name], np.random.default_rng(2)
    radius = np.linalg.norm(POLYGON.vertices, axis=1).max()
    theta, other = rng.normal(size=(2, 40, SIZE))
    z = rng.normal(size=(40, 5, SIZE))
    layer = frontend.layer(POLYGON, num_samples=5, route="array")
    eps = np.full(40, 0.5)
    with frontend.given_noise(z):
        change = frontend.maximum(layer, theta, temperature=eps) - frontend.maximum(
            layer, other, temperature=eps
        )
    bound = radius * np.linalg.norm(theta - other, axis=1)
    assert (np.abs(change) <= bound + 1e-12).all()
    layer = frontend.layer(POLYGON, num_samples=20_000)
    for temperature in (0.2, 1.0):
        jacobian = frontend.jacobian(
            layer, theta[:3], temperature=np.full(3, temperature)
        )
        norms = np.linalg.norm(jacobian, ord=2, axis=(1, 2))
        assert (norms <= radius * np.sqrt(SIZE) / temperature).all()
        assert (norms > 0.01).all()


@frontends
def test_limits_of_the_temperature(name):
    frontend, rng = FRONTENDS[name], np.random.default_rng(4)
    theta = rng.normal(size=(200, SIZE))
    layer = frontend.layer(Ranking(), num_samples=50)
    cold = {"temperature": np.full(200, 1e-12)}
    np.testing.assert_array_equal(
        frontend.value(layer, theta, **cold), Ranking()(theta)
    )
    np.testing.assert_allclose(
        frontend.maximum(layer, theta, **cold),
        (Ranking()(theta) * theta).sum(1),
        rtol=1e-9,
    )
    hot = frontend.value(layer, theta, temperature=np.full(200, 1e9))
    Comparison(hot, np.full(SIZE, 2.5)).check()  # argmin Ω, the centre


@frontends
def test_solutions_are_nearly_optimal_when_cold(name):
    """0 ≤ ⟨y* − y_ε, θ⟩ ≤ C·ε, with C = F_1(0) for centred noise."""
    frontend, rng = FRONTENDS[name], np.random.default_rng(5)
    theta, z = rng.normal(size=(50, SIZE)), rng.normal(size=(50, 6, SIZE))
    layer = frontend.layer(POLYGON, num_samples=6, route="array")
    y = np.asarray(POLYGON(theta))
    with frontend.given_noise(z):
        at_zero = frontend.maximum(layer, 0 * theta, temperature=np.ones(50))
        for eps in (0.01, 0.1, 1.0):
            smooth = frontend.value(layer, theta, temperature=np.full(50, eps))
            loss = ((y - smooth) * theta).sum(1)
            lowest = eps * (y * z.mean(axis=1)).sum(1)
            assert (loss >= -1e-12).all()
            assert (loss <= eps * at_zero - lowest + 1e-12).all()


@automatic
def test_quadratic_loss_on_shared_draws_is_biased(name):
    """The gradient of ½‖ȳ − t‖² is unbiased with backward="independent" only."""
    frontend, eps, rows = FRONTENDS[name], 0.7, 20_000
    theta, target = np.array([0.4, -0.3, 0.1]), np.array([1.0, 0.0, 0.0])
    exact = Exact(SoftmaxReference().solution, theta, eps)
    gradient = exact.jacobian.T @ (exact.value - target)
    found = {}
    for backward in ("shared", "independent"):
        layer = frontend.layer(
            OneHot(), noise="gumbel", num_samples=2, backward=backward
        )
        found[backward] = quadratic_gradient(
            frontend, layer, np.tile(theta, (rows, 1)), target, eps
        )
    assert_derivative(found["independent"], gradient, eps)
    shared = Comparison(found["shared"], gradient)
    with pytest.raises(AssertionError, match="times the tolerance"):
        shared.check()
    bias = np.linalg.norm(shared.mean - gradient) / np.linalg.norm(gradient)
    assert 0.1 < bias < 2


def quadratic_gradient(frontend, layer, theta, target, eps):
    if frontend.name == "torch":
        import torch

        at = torch.tensor(theta, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        y = layer(at, generator=generator, temperature=eps)
        (0.5 * (y - torch.tensor(target)).square().sum()).backward()
        return at.grad.numpy()
    import jax

    def total(at):
        y = layer(at, key=jax.random.key(0), temperature=eps)
        return 0.5 * ((y - target) ** 2).sum()

    with jax.enable_x64(True):
        return np.asarray(jax.grad(total)(jax.numpy.asarray(theta)))


@automatic
def test_independent_draws_do_not_change_the_value(name):
    """Linear losses are unbiased either way, and so is the value."""
    frontend, eps = FRONTENDS[name], 0.5
    theta, g = np.array([0.4, -0.3, 0.1]), np.array([1.0, -2.0, 0.5])
    exact = Exact(SoftmaxReference().solution, theta, eps)
    for form in ("solution", "maximum"):
        layer = frontend.layer(
            OneHot(),
            noise="gumbel",
            num_samples=400,
            backward="independent",
            form=form,
        )
        rows = np.tile(theta, (400, 1))
        y = frontend.value(layer, rows, temperature=np.full(400, eps))
        Comparison(y, exact.value).check()
        in_theta, in_temperature = frontend.vjp(
            layer, rows, np.tile(g, (400, 1)), temperature=eps
        )
        assert_derivative(in_theta, g @ exact.jacobian, eps)
        assert_derivative(in_temperature, g @ exact.in_temperature)
