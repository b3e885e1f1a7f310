"""The layer under torch.compile, as one graph."""

import copy
import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import func
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from softsolve import solver
from softsolve.errors import SolverError
from softsolve.fused_route import fused_pass, reason_against
from softsolve.noise import NOISES, CustomNoise
from softsolve.solvers import FiniteSet, GridPath, OneHot, Ranking, TopK
from softsolve.torch import BlackBox, FenchelYoungLoss, Perturbed
from softsolve.torch.operators import handle_of
from support.references import Exact, PlaneReference
from support.statistics import assert_derivative

# What autograd and the compiler make of each other, without generating code.
QUICK = {"backend": "aot_eager", "fullgraph": True}

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def _afresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


THETA = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
G = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
EPS, ROWS = 0.5, 400


def softmax_layer(**options):
    return Perturbed(
        OneHot(), temperature=EPS, num_samples=100, noise="gumbel", **options
    )


def closed(theta):
    return torch.softmax(theta / EPS, -1)


def rows(vector):
    return vector.expand(ROWS, 3).clone()


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


def paths(**options):
    return GridPath(), -torch.rand(3, 4, 5) + 0.2, (), options


def between():
    ends = torch.tensor([[0, 0, 3, 4], [1, 1, 2, 2], [3, 0, 0, 4]])
    return GridPath(endpoints=True), -torch.rand(3, 4, 5), (ends,), {}


def choices(**options):
    return OneHot(), torch.randn(6, 5), (), options


FUSED = {
    "choices": choices(),
    "no baseline": choices(baseline="none"),
    "point": choices(baseline="point"),
    "independent": choices(backward="independent"),
    "symmetric": choices(symmetric=True),
    "laplace": choices(noise="laplace"),
    "float64": (TopK(2), torch.randn(2, 3, 5, dtype=torch.float64), (), {}),
    "half precision": (Ranking(), torch.randn(4, 5, dtype=torch.bfloat16), (), {}),
    "paths": paths(),
    "paths, independent": paths(backward="independent", baseline="point"),
    "context": between(),
}


def differentiate(function, *tensors):
    """Return a function of tensors at one seed, with all gradients."""
    torch.manual_seed(3)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    torch.manual_seed(5)  # nothing is drawn in the backward pass
    return y.detach(), *torch.autograd.grad((y * weights).sum(), leaves)


class TestFusedRoute:
    """The compiled passes are operators of the graph."""

    def same(self, function, *tensors, **options):
        graphs = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            function, backend=graphs, fullgraph=True, dynamic=options.get("dynamic")
        )
        found = differentiate(compiled, *tensors)
        for ours, eager in zip(found, differentiate(function, *tensors), strict=True):
            assert ours.abs().max() > 0
            torch.testing.assert_close(ours, eager, rtol=0, atol=0)
        code = graphs.graphs[-1].code
        assert "torch.ops.softsolve.fused_" in code
        assert "randn" not in code

    @pytest.mark.parametrize("name", FUSED)
    def test_the_same_numbers_as_without_compilation(self, name):
        chosen, theta, context, options = FUSED[name]
        layer = Perturbed(chosen, num_samples=20, **options)
        eps = torch.linspace(0.2, 0.6, theta[..., 0].numel()).reshape(theta.shape[:-1])
        eps = eps[..., 0] if chosen.event_ndim == 2 else eps
        self.same(lambda at, eps: layer(at, *context, temperature=eps), theta, eps)
        self.same(lambda at: layer(at, *context), theta)

    @pytest.mark.parametrize("gradient", ["exact", "difference"])
    @pytest.mark.parametrize("name", ["choices", "paths", "context"])
    def test_losses_and_maxima(self, name, gradient):
        chosen, theta, context, _ = FUSED[name]
        layer = Perturbed(chosen, num_samples=20)
        arrays = [array.numpy() for array in context]
        y = torch.as_tensor(np.asarray(chosen(theta.numpy(), *arrays))).to(theta)
        loss = FenchelYoungLoss(layer, gradient=gradient)
        eps = torch.tensor(0.4)
        self.same(lambda at, eps: loss(at, y, *context, temperature=eps), theta, eps)
        self.same(
            lambda at, eps: layer.maximum(at, *context, temperature=eps), theta, eps
        )

    @pytest.mark.parametrize("name", ["choices", "independent", "paths"])
    def test_sizes_that_vary(self, name):
        """Solutions of an unknown size are not kept, but solved once more."""
        chosen, theta, _, options = FUSED[name]
        layer = Perturbed(chosen, num_samples=6, **options)
        self.same(layer, theta, dynamic=True)
        graphs = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(layer, backend=graphs, fullgraph=True, dynamic=True)
        for count, size in ((4, 5), (2, 9), (3, 40)):
            shape = (count, *(size,) * chosen.event_ndim)
            at = -torch.rand(shape)
            found, expected = differentiate(compiled, at), differentiate(layer, at)
            assert all(map(torch.equal, found, expected))
        assert (
            len({graph.code for graph in graphs.graphs if "fused" in graph.code}) == 1
        )

    def test_one_graph_for_all_batches(self):
        graphs = CompileCounterWithBackend("aot_eager")
        layer = Perturbed(Ranking(), num_samples=6)
        compiled = torch.compile(layer, backend=graphs, fullgraph=True)
        for count in (4, 7, 2, 7):
            theta = torch.randn(count, 5)
            torch._dynamo.mark_dynamic(theta, 0)
            compiled(theta.requires_grad_()).sum().backward()
        assert graphs.frame_count == 1
        assert "uint8" not in graphs.graphs[0].code

    def test_a_batch_of_none(self):
        layer = torch.compile(Perturbed(Ranking(), num_samples=3), **QUICK)
        theta = torch.zeros(0, 5, requires_grad=True)
        layer(theta).sum().backward()
        assert theta.grad.shape == (0, 5)

    @pytest.mark.slow
    def test_the_same_numbers_from_generated_code(self):
        layer = Perturbed(Ranking(), num_samples=8, backward="independent")
        loss = FenchelYoungLoss(layer)
        theta = torch.randn(4, 5)
        y = Ranking()(torch.randn(4, 5))

        def both(at):
            return layer(at).sin() + loss(at, y)

        compiled = torch.compile(both, fullgraph=True)
        found, expected = differentiate(compiled, theta), differentiate(both, theta)
        for ours, eager in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)

    def test_checkpoints_draw_the_same_noise_again(self):
        layer = Perturbed(OneHot(), num_samples=8)

        def checkpointed(at):
            return checkpoint(lambda at: layer(at.sin()), at, use_reentrant=False)

        theta = torch.randn(6, 5)
        compiled = differentiate(torch.compile(checkpointed, **QUICK), theta)
        eager = differentiate(lambda at: layer(at.sin()), theta)
        for ours, theirs in zip(compiled, eager, strict=True):
            torch.testing.assert_close(ours, theirs)

    def test_a_backward_pass_outlives_its_layer(self):
        theta = torch.randn(6, 5)
        _, expected = differentiate(Perturbed(OneHot(), num_samples=8), theta)

        def forgetful(at):
            layer = Perturbed(OneHot(), num_samples=8)
            y = torch.compile(layer, **QUICK)(at)
            del layer
            torch.compiler.reset()
            fused_pass.cache_clear()
            reason_against.cache_clear()
            gc.collect()
            others = [Perturbed(Ranking(), num_samples=8) for _ in range(20)]
            torch.compile(others[-1], **QUICK)(at.detach())
            return y

        found = differentiate(forgetful, theta)[1]
        torch.testing.assert_close(found, expected)

    def test_copies_are_layers_of_their_own(self):
        first = Perturbed(OneHot(), num_samples=5)
        second = copy.deepcopy(first)
        second.settings = replace(second.settings, solver=Ranking())
        theta = torch.zeros(2, 3)
        for layer in (first, second, first):
            torch.manual_seed(1)
            found = torch.compile(layer, **QUICK)(theta)
            torch.manual_seed(1)
            assert torch.equal(found, layer(theta))

    def test_nothing_is_kept_without_gradients(self):
        layer = Perturbed(Ranking(), num_samples=5)
        graphs = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(layer, backend=graphs, fullgraph=True)
        theta = torch.zeros(2, 3)
        assert compiled(theta).shape == (2, 3)
        with torch.no_grad():
            compiled(theta.requires_grad_())
        assert len(graphs.graphs) == 2
        assert all("fused_mean" in graph.code for graph in graphs.graphs)

    def test_exported_programs_do_without(self):
        """They may run where the layer is not."""
        program = torch.export.export(softmax_layer(), (rows(THETA),))
        assert "fused_" not in program.graph_module.code
        assert_derivative(program.module()(rows(THETA)).numpy(), closed(THETA).numpy())

    @pytest.mark.parametrize("name", FUSED)
    def test_operators_are_what_the_compiler_is_told(self, name):
        chosen, theta, context, options = FUSED[name]
        event_shape = list(theta.shape[-chosen.event_ndim :])
        theta = theta.float().reshape(-1, math.prod(event_shape)).requires_grad_()
        layer = Perturbed(chosen, num_samples=6, **options)
        eps = torch.ones(len(theta), dtype=theta.dtype, requires_grad=True)
        handle, operators = handle_of(layer.settings), torch.ops.softsolve

        def check(operator, *arguments):
            tests = ("test_schema", "test_autograd_registration", "test_faketensor")
            torch.library.opcheck(operator.default, arguments, test_utils=tests)
            return operator(*arguments)

        given = (handle, theta, eps, list(context), event_shape)
        check(operators.fused_mean, *given)
        for keep in (True, False):
            mean, *draws = check(operators.fused_solution, *given, keep)
            for learned in (True, False):
                pulled = (*draws, list(context), event_shape, torch.rand_like(mean))
                check(operators.fused_vjp, *given[:3], *pulled, learned)
        options = (list(context), event_shape, False)
        value, *slopes = check(operators.fused_maximum, *given[:3], None, *options)
        check(operators.fused_slopes, theta, *slopes, torch.rand_like(value))

    def test_errors(self):
        theta = torch.zeros(2, 3, 3)
        theta[1] = 1
        layer = Perturbed(GridPath(negative="raise"), num_samples=2, temperature=1e-6)
        with pytest.raises(SolverError, match="row 1"):
            torch.compile(layer, **QUICK)(theta - 0.5)
        loss = FenchelYoungLoss(Perturbed(Ranking(), num_samples=2))
        loss = torch.compile(loss, **QUICK)
        y = torch.tensor([[1.0, 2.0, 3.0]])
        with pytest.raises(SolverError, match="missed the maximum"):
            loss(y, 100 * y)
        with pytest.raises(ValueError, match="y must be finite; row 0"):
            loss(y, torch.nan * y)
        with pytest.raises(ValueError, match="theta must be finite; row 0"):
            loss(torch.inf * y, y)

    @pytest.mark.parametrize("what", ["solution", "loss"])
    @pytest.mark.parametrize(
        ("backend", "match"),
        [("eager", "has no derivatives"), ("aot_eager", "not .* double backward")],
    )
    def test_second_derivatives_raise(self, what, backend, match):
        """Also of what is linear in the output, beside other terms."""
        layer = Perturbed(OneHot(), num_samples=8)
        loss = FenchelYoungLoss(layer)
        theta = torch.randn(4, 3, requires_grad=True)
        y = OneHot()(torch.randn(4, 3))
        function = layer if what == "solution" else lambda at: loss(at, y)
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        value = (compiled(theta) * (G.float() if what == "solution" else 1)).sum()
        (first,) = torch.autograd.grad(value, theta, create_graph=True)
        with pytest.raises(RuntimeError, match=match):
            torch.autograd.grad(first.square().sum() + theta.sum(), theta)

    def test_forward_mode_is_never_silently_zero(self):
        layer = softmax_layer()
        target = rows(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
        loss = FenchelYoungLoss(layer, reduction="none")
        exact = func.jacrev(closed)(THETA) @ G
        for function in (layer, lambda at: loss(at, target)):
            torch.compiler.reset()
            compiled = torch.compile(function, **QUICK)
            compiled(rows(THETA))
            with (
                forward_ad.dual_level(),
                pytest.raises(RuntimeError, match="outside of forward-mode"),
            ):
                compiled(forward_ad.make_dual(rows(THETA), rows(G)))
        torch.compiler.reset()
        compiled = torch.compile(layer, **QUICK)
        with forward_ad.dual_level():
            y = compiled(forward_ad.make_dual(rows(THETA), rows(G)))
            pushed = forward_ad.unpack_dual(y).tangent
        assert_derivative(pushed.numpy(), exact.numpy(), EPS)

    def test_beside_a_transform(self):
        """One graph holds the operators, and the surrogate where torch.func is."""
        layer = softmax_layer()

        @torch.compile(**QUICK)
        def both(theta):
            gradient = func.grad(lambda at: (layer(at) * G).sum())(theta)
            return layer(theta), gradient, layer(theta)

        first, gradient, second = both(rows(THETA))
        assert_derivative(first.numpy(), closed(THETA).numpy())
        assert not torch.equal(first, second)
        exact = func.grad(lambda at: closed(at) @ G)(THETA)
        assert_derivative(gradient.numpy(), exact.numpy(), EPS)

    def test_laplace_noise_has_first_derivatives_only(self):
        layer = Perturbed(OneHot(), noise="laplace", num_samples=4)

        @torch.compile(**QUICK)
        def gradient(theta):
            return func.grad(lambda at: layer(at).sum())(theta)

        with pytest.raises(Exception, match="cannot be compiled"):
            gradient(rows(THETA))


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
