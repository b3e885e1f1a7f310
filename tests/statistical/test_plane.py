"""Any function of two scores, against integrals in the plane."""

import numpy as np
import pytest

from softsolve import solver
from softsolve.solvers import FiniteSet
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import Exact, PlaneReference
from support.solvers import CheapestOption
from support.statistics import assert_derivative, assert_unbiased

ROWS, SAMPLES = 400, 200
POLYGON = FiniteSet([[0.2, 1.0], [1.4, 0.3], [0.9, -1.1], [-0.8, -0.6], [-1.0, 0.9]])
G = np.array([1.0, -2.0])
V = np.array([0.6, 0.9])

frontends = pytest.mark.parametrize("name", FRONTENDS)
automatic = pytest.mark.parametrize("name", AUTOMATIC)


def rows(vector):
    return np.tile(np.asarray(vector, dtype=float), (ROWS, 1))


def integral(function, theta, eps, noise="normal", perturbation="additive"):
    plane = PlaneReference(function, noise, perturbation, theta, eps)
    return Exact(plane.expectation, theta, eps)


def best_value(x):
    return (POLYGON(x) * x).sum(-1)


@frontends
@pytest.mark.parametrize("noise", ["normal", "gumbel", "logistic", "laplace"])
def test_polygon(name, noise):
    frontend, theta, eps = FRONTENDS[name], np.array([0.4, -0.3]), 0.8
    exact = integral(POLYGON, theta, eps, noise)
    layer = frontend.layer(POLYGON, noise=noise, num_samples=SAMPLES)
    spread = np.full(ROWS, eps)
    assert_unbiased(frontend.value(layer, rows(theta), temperature=spread), exact.value)
    jacobian = frontend.jacobian(layer, rows(theta), temperature=spread)
    assert_derivative(jacobian, exact.jacobian, eps)
    _, in_temperature = frontend.vjp(layer, rows(theta), rows(G), temperature=eps)
    assert_derivative(in_temperature, G @ exact.in_temperature)
    value = frontend.maximum(layer, rows(theta), temperature=spread)
    assert_unbiased(value, integral(best_value, theta, eps, noise).value)


class TestMultiplicative:
    theta, eps = np.array([0.8, -1.1]), 0.6

    def layer(self, frontend, **options):
        return frontend.layer(
            POLYGON, num_samples=SAMPLES, perturbation="multiplicative", **options
        )

    def exact(self, function):
        return integral(function, self.theta, self.eps, perturbation="multiplicative")

    @frontends
    @pytest.mark.parametrize("baseline", ["none", "point", "leave_one_out"])
    def test_solution(self, name, baseline):
        frontend, exact = FRONTENDS[name], self.exact(POLYGON)
        layer, theta = self.layer(frontend, baseline=baseline), rows(self.theta)
        y = frontend.value(layer, theta, temperature=np.full(ROWS, self.eps))
        assert_unbiased(y, exact.value)
        in_theta, in_temperature = frontend.vjp(
            layer, theta, rows(G), temperature=self.eps
        )
        assert_derivative(in_theta, G @ exact.jacobian, self.eps)
        assert_derivative(in_temperature, G @ exact.in_temperature)
        pushed = frontend.jvp(layer, theta, rows(V), temperature=self.eps, drift=0.3)
        along = exact.jacobian @ V + 0.3 * exact.in_temperature
        assert_derivative(pushed, along)
        jacobian = frontend.jacobian(layer, theta, temperature=np.full(ROWS, self.eps))
        assert_derivative(jacobian, exact.jacobian, self.eps)

    @frontends
    def test_loss(self, name):
        target = POLYGON.vertices[3]
        exact = self.exact(lambda x: best_value(x) - x @ target)
        frontend = FRONTENDS[name]
        loss = frontend.loss_of(self.layer(frontend), reduction="none")
        value, in_theta, in_temperature = frontend.loss(
            loss, rows(self.theta), rows(target), temperature=self.eps
        )
        assert value.min() >= 0
        assert_derivative(value, exact.value)
        assert_derivative(in_theta, exact.jacobian)
        assert_derivative(in_temperature, exact.in_temperature)
        # The gradient is E[W ⊙ (y* − y)], and E[W] = 1.
        weighted = self.exact(lambda x: x / self.theta * POLYGON(x)).value
        assert_derivative(in_theta, weighted - target)

    @automatic
    def test_second_derivatives(self, name):
        frontend = FRONTENDS[name]
        layer, theta = self.layer(frontend), rows(self.theta)
        hessian = frontend.point_hessian(layer, theta, rows(G), temperature=self.eps)
        assert_derivative(hessian, self.exact(POLYGON).point_hessian(G))
        hessian = frontend.maximum_hessian(layer, theta, temperature=self.eps)
        exact = self.exact(best_value).point_hessian()
        # F is 1-homogeneous in θ: its Hessian vanishes along θ.
        np.testing.assert_allclose(exact[:2, :2] @ self.theta, 0, atol=1e-3)
        assert_derivative(hessian, exact)

    @frontends
    def test_scale_free(self, name):
        """Scores times c have the same solutions: the loss can collapse to 0."""
        frontend = FRONTENDS[name]
        layer, theta = self.layer(frontend), rows(self.theta)[:5]
        given = {"temperature": np.full(5, self.eps), "seed": 3}
        one = frontend.value(layer, theta, **given)
        np.testing.assert_array_equal(frontend.value(layer, 4 * theta, **given), one)
        value = frontend.maximum(layer, theta, **given)
        scaled = frontend.maximum(layer, 4 * theta, **given)
        np.testing.assert_allclose(scaled, 4 * value, rtol=1e-12)


class TestClipping:
    theta, eps, target = np.array([-0.4, -0.7]), 0.8, np.array([0.0, 1.0])

    def exact(self, function):
        return integral(function, self.theta, self.eps)

    def value_of(self, x):
        return np.minimum(x, 0).max(-1)

    def gap(self, x):
        return self.value_of(x) - np.minimum(x, 0) @ self.target

    @frontends
    def test_maximum(self, name):
        frontend = FRONTENDS[name]
        layer = frontend.layer(CheapestOption(), num_samples=SAMPLES)
        spread = np.full(ROWS, self.eps)
        value = frontend.maximum(layer, rows(self.theta), temperature=spread)
        assert_unbiased(value, self.exact(self.value_of).value)
        assert (value <= 0).all()
        if name in AUTOMATIC:
            in_theta, in_temperature = frontend.maximum_gradients(
                layer, rows(self.theta), temperature=self.eps
            )
            exact = self.exact(self.value_of)
            assert_derivative(in_theta, exact.jacobian)
            assert_derivative(in_temperature, exact.in_temperature)
            hessian = frontend.maximum_hessian(
                layer, rows(self.theta), temperature=self.eps
            )
            assert_derivative(hessian, exact.point_hessian())

    @frontends
    def test_exact_loss(self, name):
        frontend = FRONTENDS[name]
        layer = frontend.layer(CheapestOption(), num_samples=SAMPLES)
        loss = frontend.loss_of(layer, reduction="none")
        value, in_theta, in_temperature = frontend.loss(
            loss, rows(self.theta), rows(self.target), temperature=self.eps
        )
        exact = self.exact(self.gap)
        assert value.min() >= 0
        assert_derivative(value, exact.value)
        assert_derivative(in_theta, exact.jacobian)
        assert_derivative(in_temperature, exact.in_temperature)

    @frontends
    def test_difference_surrogate(self, name):
        frontend = FRONTENDS[name]
        layer = frontend.layer(CheapestOption(), num_samples=SAMPLES)
        loss = frontend.loss_of(layer, reduction="none", gradient="difference")
        value, in_theta, _ = frontend.loss(
            loss, rows(self.theta), rows(self.target), temperature=self.eps
        )
        assert_derivative(value, self.exact(self.gap).value)
        difference = self.exact(CheapestOption()).value - self.target
        assert_derivative(in_theta, difference)
        exact = self.exact(self.gap).jacobian
        assert np.abs(difference - exact).max() > 0.05  # they are not the same

    @frontends
    def test_gradients_of_one_sample(self, name):
        frontend = FRONTENDS[name]
        theta = rows(self.theta)[:6]
        z = np.random.default_rng(0).normal(size=(6, 4, 2))
        x = theta[:, None] + self.eps * z
        y = CheapestOption()(x.reshape(-1, 2)).reshape(x.shape)
        difference = y - self.target
        with frontend.given_noise(z):
            layer = frontend.layer(CheapestOption(), num_samples=4, route="array")
            for gradient, factor in (("exact", x < 0), ("difference", 1.0)):
                loss = frontend.loss_of(layer, reduction="none", gradient=gradient)
                _, in_theta, _ = frontend.loss(
                    loss, theta, rows(self.target)[:6], temperature=self.eps
                )
                direct = (difference * factor).mean(axis=1)
                np.testing.assert_allclose(in_theta, direct, atol=1e-12)


class TestOtherOutputs:
    """Functions whose output has another shape than the scores."""

    theta, eps = np.array([0.5, -0.3]), 0.7

    @staticmethod
    def largest_twice(x):
        best = x.max(-1, keepdims=True)
        return np.concatenate([best, best**2, np.tanh(best)], axis=-1)

    @staticmethod
    def cost(x):
        """What a decision costs: not differentiable, a number."""
        return np.where(x[:, 0] > x[:, 1], 1.5, np.where(x[:, 1] > 0.4, -0.5, 0.3))

    @frontends
    def test_vector(self, name):
        frontend = FRONTENDS[name]
        layer = frontend.layer(
            solver(self.largest_twice, out_shape=(3,)), num_samples=SAMPLES
        )
        exact = integral(self.largest_twice, self.theta, self.eps)
        given, g = {"temperature": self.eps}, np.array([1.0, -0.5, 2.0])
        spread = np.full(ROWS, self.eps)
        y = frontend.value(layer, rows(self.theta), temperature=spread)
        assert_unbiased(y, exact.value)
        in_theta, in_temperature = frontend.vjp(
            layer, rows(self.theta), rows(g), **given
        )
        assert_derivative(in_theta, g @ exact.jacobian, self.eps)
        assert_derivative(in_temperature, g @ exact.in_temperature)
        pushed = frontend.jvp(layer, rows(self.theta), rows(V), drift=0.4, **given)
        assert_derivative(pushed, exact.jacobian @ V + 0.4 * exact.in_temperature)
        jacobian = frontend.jacobian(layer, rows(self.theta), temperature=spread)
        assert jacobian.shape == (ROWS, 3, 2)
        assert_derivative(jacobian, exact.jacobian)

    @frontends
    def test_number(self, name):
        frontend = FRONTENDS[name]
        layer = frontend.layer(solver(self.cost, out_shape=()), num_samples=SAMPLES)
        exact = integral(self.cost, self.theta, self.eps)
        spread = np.full(ROWS, self.eps)
        y = frontend.value(layer, rows(self.theta), temperature=spread)
        assert y.shape == (ROWS,)
        assert_unbiased(y, exact.value)
        ones = np.ones(ROWS)
        in_theta, in_temperature = frontend.vjp(
            layer, rows(self.theta), ones, temperature=self.eps
        )
        assert_derivative(in_theta, exact.jacobian, self.eps)
        assert_derivative(in_temperature, exact.in_temperature)
        jacobian = frontend.jacobian(layer, rows(self.theta), temperature=spread)
        assert_derivative(jacobian, exact.jacobian, self.eps)
