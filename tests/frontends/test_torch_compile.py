"""The layer under torch.compile, as one graph."""

import numpy as np
import pytest
import torch
from torch import func

from softsolve import solver
from softsolve.errors import SolverError
from softsolve.noise import NOISES, CustomNoise
from softsolve.solvers import FiniteSet, OneHot, Ranking
from softsolve.torch import BlackBox, FenchelYoungLoss, Perturbed
from support.compilation import EPS, QUICK, ROWS, THETA, G, closed, rows, softmax_layer
from support.references import Exact, PlaneReference
from support.statistics import assert_derivative

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def _afresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    "options",
    [
        {"baseline": "none"},
        {"baseline": "point"},
        {"baseline": "leave_one_out"},
        {"form": "maximum"},
        {"backward": "independent"},
        {"symmetric": True},
    ],
)
@pytest.mark.parametrize("route", ["auto", "array"])
def test_forward_and_backward(options, route):
    layer = torch.compile(softmax_layer(**options, route=route), **QUICK)
    theta = rows(THETA).requires_grad_()
    y = layer(theta)
    (pulled,) = torch.autograd.grad((y * G).sum(), theta)
    gradient = func.grad(lambda at: closed(at) @ G)(THETA)
    assert_derivative(pulled.numpy(), gradient.numpy(), EPS)
    assert_derivative(y.detach().numpy(), closed(THETA).numpy())


def test_learned_temperature():
    eps = torch.full((ROWS,), EPS, dtype=torch.float64, requires_grad=True)
    plain = softmax_layer()
    layer = torch.compile(lambda at, eps: plain(at, temperature=eps), **QUICK)
    (pulled,) = torch.autograd.grad((layer(rows(THETA), eps) * G).sum(), eps)
    exact = func.grad(lambda e: torch.softmax(THETA / e, -1) @ G)(eps[0].detach())
    assert_derivative(pulled.numpy(), exact.numpy())


def test_multiplicative():
    points = FiniteSet([[0.2, 1.0], [1.4, 0.3], [0.9, -1.1], [-0.8, -0.6]])
    at, g = torch.tensor([0.8, -1.1], dtype=torch.float64), G[:2]
    plain = Perturbed(
        points, temperature=EPS, num_samples=100, perturbation="multiplicative"
    )
    plane = PlaneReference(points, "normal", "multiplicative", at.numpy(), EPS)
    exact = Exact(plane.expectation, at.numpy(), EPS)
    layer = torch.compile(plain, **QUICK)
    theta = at.expand(ROWS, 2).clone().requires_grad_()
    y = layer(theta)
    (pulled,) = torch.autograd.grad((y * g).sum(), theta)
    assert_derivative(y.detach().numpy(), exact.value)
    assert_derivative(pulled.numpy(), g.numpy() @ exact.jacobian, EPS)
    zero = theta.detach().clone()
    zero[2, 1] = 0
    with pytest.raises(ValueError, match=r"theta must not be zero .*; row 2 has \["):
        layer(zero)


def test_grad_and_jacrev():
    layer = softmax_layer()

    @torch.compile(**QUICK)
    def gradient(theta):
        return func.grad(lambda at: (layer(at) * G).sum())(theta)

    exact = func.grad(lambda at: closed(at) @ G)(THETA)
    assert_derivative(gradient(rows(THETA)).numpy(), exact.numpy(), EPS)

    @torch.compile(**QUICK)
    def jacobian(theta):
        return func.jacrev(lambda at: layer(at).sum(0))(theta)

    exact = func.jacrev(closed)(THETA)
    made = jacobian(rows(THETA)).movedim(1, 0)
    assert_derivative(made.numpy(), exact.numpy(), EPS)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_loss_and_maximum(reduction):
    plain = softmax_layer()
    loss = torch.compile(FenchelYoungLoss(plain, reduction=reduction), **QUICK)
    target = rows(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    theta = rows(THETA).requires_grad_()
    value = loss(theta, target)
    cross_entropy = -EPS * torch.log_softmax(THETA / EPS, -1)[1]
    if reduction == "none":
        assert_derivative(value.detach().numpy(), cross_entropy.numpy())
    else:
        assert value.item() == pytest.approx(cross_entropy.item(), rel=0.05)
    (pulled,) = torch.autograd.grad(value.sum(), theta)
    scale = ROWS if reduction == "mean" else 1
    exact = closed(THETA) - target[0]
    assert_derivative(scale * pulled.numpy(), exact.numpy())
    maximum = torch.compile(plain.maximum, **QUICK)
    (pulled,) = torch.autograd.grad(maximum(theta).sum(), theta)
    assert_derivative(pulled.numpy(), closed(THETA).numpy())


@pytest.mark.slow
def test_inside_a_model_with_code_generation():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), Perturbed(Ranking(), num_samples=8)
    )
    x = torch.randn(6, 4)
    compiled = torch.compile(model, fullgraph=True)
    y = compiled(x)
    torch.testing.assert_close(y.sum(-1), torch.full((6,), 15.0))
    (y * torch.arange(5.0)).sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()
    assert model[0].weight.grad.abs().max() > 0
    assert not torch.equal(compiled(x), y)  # noise is drawn anew


def test_forward_mode():
    """It is right, not silently zero."""
    layer = softmax_layer()

    @torch.compile(**QUICK)
    def pushed(theta):
        return func.jvp(layer, (theta,), (rows(G),))[1]

    exact = func.jacrev(closed)(THETA) @ G
    assert_derivative(pushed(rows(THETA)).numpy(), exact.numpy(), EPS)


@pytest.mark.parametrize("options", [{}, {"symmetric": True}])
def test_forward_over_reverse(options):
    """Second derivatives without a vectorised map, and none of them forgotten."""
    layer = softmax_layer(**options)

    @torch.compile(**QUICK)
    def hessian_vector_product(theta):
        gradient = func.grad(lambda at: (layer(at) * G).sum())
        return func.jvp(gradient, (theta,), (rows(G),))[1]

    exact = func.hessian(lambda at: closed(at) @ G)(THETA) @ G
    assert_derivative(hessian_vector_product(rows(THETA)).numpy(), exact.numpy(), EPS)


def test_symmetric_products_vanish_off_the_simplex():
    theta = rows(THETA).requires_grad_()
    for symmetric in (True, False):
        layer = torch.compile(softmax_layer(symmetric=symmetric), **QUICK)
        (pulled,) = torch.autograd.grad((layer(theta) * G).sum(), theta)
        assert (pulled.sum(-1).abs().max() < 1e-12) == symmetric


def test_reproducible_by_seed():
    layer = torch.compile(Perturbed(Ranking(), num_samples=4), **QUICK)
    theta = torch.zeros(10, 5)
    torch.manual_seed(3)
    first = layer(theta)
    assert not torch.equal(layer(theta), first)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(theta), first, rtol=0, atol=0)


def test_bad_scores_raise():
    layer = torch.compile(Perturbed(Ranking(), num_samples=4), **QUICK)
    theta = torch.zeros(4, 5)
    theta[2, 1] = torch.nan
    with pytest.raises(ValueError, match="theta must be finite; row 2"):
        layer(theta)
    plain = Perturbed(Ranking(), num_samples=4)
    layer = torch.compile(lambda at, eps: plain(at, temperature=eps), **QUICK)
    with pytest.raises(ValueError, match="temperature must be positive"):
        layer(torch.zeros(4, 5), torch.tensor([1.0, 1.0, -1.0, 1.0]))


class TestWhatCannotBeCompiledRaises:
    def raises(self, function, *arguments, match):
        with pytest.raises(Exception, match=match):
            torch.compile(function, **QUICK)(*arguments)

    @pytest.mark.parametrize(
        "noise",
        [
            "laplace",
            CustomNoise(
                lambda z: -abs(z),
                quantile=NOISES["laplace"].quantile,
                name="kinked",
                smooth=False,
            ),
        ],
        ids=["laplace", "custom"],
    )
    def test_noise_without_curvature(self, noise):
        layer = Perturbed(OneHot(), noise=noise, num_samples=4, route="array")
        theta = rows(THETA).requires_grad_()
        self.raises(layer, theta, match="cannot be compiled")
        loss = FenchelYoungLoss(layer)
        self.raises(loss, theta, rows(G), match="cannot be compiled")

    @pytest.mark.parametrize("name", ["jacobian", "sample", "distribution"])
    def test_other_methods(self, name):
        method = getattr(softmax_layer(), name)
        self.raises(method, rows(THETA), match=f"Perturbed.{name} cannot be compiled")

    def test_blackbox(self):
        layer = BlackBox(OneHot())
        self.raises(layer, rows(THETA), match="BlackBox cannot be compiled")

    def test_derivatives_of_a_backward_pass(self):
        theta = rows(THETA).requires_grad_()
        y = torch.compile(softmax_layer(), **QUICK)(theta)
        (first,) = torch.autograd.grad(y.square().sum(), theta, create_graph=True)
        with pytest.raises(RuntimeError, match=r"not .* support double backward"):
            torch.autograd.grad(first.sum(), theta)

    def test_derivatives_that_need_a_vectorised_map(self):
        """torch cannot trace random numbers inside of vmap."""
        layer = softmax_layer()

        def product(theta):
            return (layer(theta) * G).sum()

        for transform in (func.jacfwd, func.hessian):
            self.raises(transform(product), rows(THETA), match="random")


def one_hot(theta):
    """A solver of NumPy arrays."""
    return np.eye(theta.shape[1], dtype=np.int8)[theta.argmax(axis=-1)]


class TestSolversOnTheHost:
    """Functions of NumPy arrays are called from the graph, as an operator."""

    def layer(self, **options):
        function = solver(one_hot, linear=True)
        return Perturbed(
            function, temperature=EPS, num_samples=100, noise="gumbel", **options
        )

    @pytest.mark.parametrize("dynamic", [None, True])
    def test_forward_and_backward(self, dynamic):
        layer = torch.compile(self.layer(), dynamic=dynamic, **QUICK)
        gradient = func.grad(lambda at: closed(at) @ G)(THETA)
        for count in (ROWS, ROWS + 1, 1):  # recompiles for sizes, or not
            theta = THETA.expand(count, 3).clone().requires_grad_()
            y = layer(theta)
            assert y.shape == theta.shape
            (pulled,) = torch.autograd.grad((y * G).sum(), theta)
            if count > 1:
                assert_derivative(y.detach().numpy(), closed(THETA).numpy())
                assert_derivative(pulled.numpy(), gradient.numpy(), EPS)

    def test_grad_jacrev_and_forward_mode(self):
        layer = self.layer()

        @torch.compile(**QUICK)
        def derivatives(theta):
            return (
                func.grad(lambda at: (layer(at) * G).sum())(theta),
                func.jacrev(lambda at: layer(at).sum(0))(theta),
                func.jvp(layer, (theta,), (rows(G),))[1],
            )

        gradient, jacobian, pushed = derivatives(rows(THETA))
        exact = func.jacrev(closed)(THETA)
        assert_derivative(gradient.numpy(), (exact.T @ G).numpy(), EPS)
        assert_derivative(jacobian.movedim(1, 0).numpy(), exact.numpy(), EPS)
        assert_derivative(pushed.numpy(), (exact @ G).numpy(), EPS)

    def test_loss(self):
        loss = torch.compile(FenchelYoungLoss(self.layer(), reduction="none"), **QUICK)
        target = rows(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
        theta = rows(THETA).requires_grad_()
        value = loss(theta, target)
        cross_entropy = -EPS * torch.log_softmax(THETA / EPS, -1)[1]
        assert_derivative(value.detach().numpy(), cross_entropy.numpy())
        (pulled,) = torch.autograd.grad(value.sum(), theta)
        assert_derivative(pulled.numpy(), (closed(THETA) - target[0]).numpy())

    def test_each_layer_calls_its_own_solver(self):
        """Also where a layer is exchanged after the graph was compiled."""
        held = {"a": self.constant(1), "b": self.constant(2)}

        @torch.compile(**QUICK)
        def both(theta):
            return held["a"](theta) + 10 * held["b"](theta)

        theta = torch.zeros(2, 3)
        assert (both(theta) == 21).all()
        held["a"] = self.constant(3)
        assert (both(theta) == 23).all()

    def constant(self, value):
        return Perturbed(solver(lambda theta: 0 * theta + value), num_samples=2)

    @pytest.mark.parametrize("dynamic", [None, True])
    def test_context(self, dynamic):
        function = solver(lambda theta, limit: np.fmin(theta, limit) + 0)
        plain = Perturbed(function, num_samples=3, temperature=0.1)
        layer = torch.compile(plain, dynamic=dynamic, **QUICK)
        for count in (2, 3):
            limits = torch.arange(count)[:, None] - 9.0
            y = layer(torch.zeros(count, 4), limits)
            torch.testing.assert_close(y, limits.expand(count, 4))
            shared = layer(torch.zeros(count, 4), torch.tensor([[-9.0]]))
            torch.testing.assert_close(shared, torch.full((count, 4), -9.0))

    def test_another_shape_must_be_declared(self):
        def short(theta):
            return theta[:, :2].clip(0)

        theta = rows(THETA).requires_grad_()
        layer = Perturbed(solver(short, out_shape=(2,)), num_samples=4)
        y = torch.compile(layer, **QUICK)(theta)
        assert y.shape == (ROWS, 2)
        (pulled,) = torch.autograd.grad(y.sum(), theta)
        assert pulled.abs().max() > 0
        layer = Perturbed(solver(short), num_samples=4)
        with pytest.raises(ValueError, match=r"shape \(2,\), not \(3,\). Tell torch"):
            torch.compile(layer, **QUICK)(theta)

    @pytest.mark.parametrize(
        ("function", "match"),
        [
            (lambda theta: theta * np.nan, "must return finite solutions"),
            (lambda theta: theta[0], "one solution for each of the"),
        ],
    )
    def test_bad_solutions_raise(self, function, match):
        layer = torch.compile(Perturbed(solver(function), num_samples=4), **QUICK)
        with pytest.raises((SolverError, ValueError), match=match):
            layer(torch.zeros(3, 4))

    def test_dropped_draws_raise(self):
        function = solver(one_hot, on_failure="drop")
        layer = torch.compile(Perturbed(function, num_samples=4), **QUICK)
        with pytest.raises(Exception, match="drops failed draws, which cannot be"):
            layer(rows(THETA))
