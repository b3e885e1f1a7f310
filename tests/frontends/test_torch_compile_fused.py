"""The fused route under torch.compile: compiled passes as operators of the graph."""

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

from softsolve.errors import SolverError
from softsolve.fused_route import fused_pass, reason_against
from softsolve.solvers import GridPath, OneHot, Ranking, TopK
from softsolve.torch import FenchelYoungLoss, Perturbed
from softsolve.torch.operators import handle_of
from support.compilation import EPS, QUICK, THETA, G, closed, rows, softmax_layer
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


def scores(*shape, **options):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, **options)


def paths(**options):
    return GridPath(), scores(3, 4, 5) - 0.5, (), options


def between():
    ends = torch.tensor([[0, 0, 3, 4], [1, 1, 2, 2], [3, 0, 0, 4]])
    return GridPath(endpoints=True), scores(3, 4, 5) - 0.5, (ends,), {}


def choices(**options):
    return OneHot(), scores(6, 5), (), options


FUSED = {
    "choices": choices(),
    "winners": (OneHot(), scores(6, 5), (), {"num_samples": 200}),
    "no baseline": choices(baseline="none"),
    "point": choices(baseline="point"),
    "independent": choices(backward="independent"),
    "symmetric": choices(symmetric=True),
    "laplace": choices(noise="laplace"),
    "float64": (TopK(2), scores(2, 3, 5, dtype=torch.float64), (), {}),
    "half precision": (Ranking(), scores(4, 5, dtype=torch.bfloat16), (), {}),
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


def assert_same(function, *tensors, dynamic=None):
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=graphs, fullgraph=True, dynamic=dynamic)
    found = differentiate(compiled, *tensors)
    for ours, eager in zip(found, differentiate(function, *tensors), strict=True):
        assert ours.abs().max() > 0
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
    code = graphs.graphs[-1].code
    assert "torch.ops.softsolve.fused_" in code
    assert "randn" not in code


@pytest.mark.parametrize("name", FUSED)
def test_the_same_numbers_as_without_compilation(name):
    chosen, theta, context, options = FUSED[name]
    layer = Perturbed(chosen, **{"num_samples": 20} | options)
    eps = torch.linspace(0.2, 0.6, theta[..., 0].numel()).reshape(theta.shape[:-1])
    eps = eps[..., 0] if chosen.event_ndim == 2 else eps
    assert_same(lambda at, eps: layer(at, *context, temperature=eps), theta, eps)
    assert_same(lambda at: layer(at, *context), theta)


@pytest.mark.parametrize("gradient", ["exact", "difference"])
@pytest.mark.parametrize("name", ["choices", "paths", "context"])
def test_losses_and_maxima(name, gradient):
    chosen, theta, context, _ = FUSED[name]
    layer = Perturbed(chosen, num_samples=20)
    arrays = [array.numpy() for array in context]
    y = torch.as_tensor(np.asarray(chosen(theta.numpy(), *arrays))).to(theta)
    loss = FenchelYoungLoss(layer, gradient=gradient)
    eps = torch.tensor(0.4)
    assert_same(lambda at, eps: loss(at, y, *context, temperature=eps), theta, eps)
    assert_same(
        lambda at, eps: layer.maximum(at, *context, temperature=eps), theta, eps
    )


@pytest.mark.parametrize("name", ["choices", "independent", "paths"])
def test_sizes_that_vary(name):
    """Solutions of an unknown size are not kept, but solved once more."""
    chosen, theta, _, options = FUSED[name]
    layer = Perturbed(chosen, num_samples=6, **options)
    assert_same(layer, theta, dynamic=True)
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=graphs, fullgraph=True, dynamic=True)
    for count, size in ((4, 5), (2, 9), (3, 40)):
        shape = (count, *(size,) * chosen.event_ndim)
        at = -torch.rand(shape)
        found, expected = differentiate(compiled, at), differentiate(layer, at)
        assert all(map(torch.equal, found, expected))
    assert len({graph.code for graph in graphs.graphs if "fused" in graph.code}) == 1


def test_one_graph_for_all_batches():
    graphs = CompileCounterWithBackend("aot_eager")
    layer = Perturbed(Ranking(), num_samples=6)
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    for count in (4, 7, 2, 7):
        theta = torch.randn(count, 5)
        torch._dynamo.mark_dynamic(theta, 0)
        compiled(theta.requires_grad_()).sum().backward()
    assert graphs.frame_count == 1


@pytest.mark.parametrize("chosen", [Ranking(), OneHot()])
def test_a_batch_of_none(chosen):
    layer = torch.compile(Perturbed(chosen, num_samples=200), **QUICK)
    theta = torch.zeros(0, 5, requires_grad=True)
    layer(theta).sum().backward()
    assert theta.grad.shape == (0, 5)


@pytest.mark.slow
def test_the_same_numbers_from_generated_code():
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


def test_checkpoints_draw_the_same_noise_again():
    layer = Perturbed(OneHot(), num_samples=8)

    def checkpointed(at):
        return checkpoint(lambda at: layer(at.sin()), at, use_reentrant=False)

    theta = torch.randn(6, 5)
    compiled = differentiate(torch.compile(checkpointed, **QUICK), theta)
    eager = differentiate(lambda at: layer(at.sin()), theta)
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_backward_pass_outlives_its_layer():
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


def test_copies_are_layers_of_their_own():
    first = Perturbed(OneHot(), num_samples=5)
    second = copy.deepcopy(first)
    second.settings = replace(second.settings, solver=Ranking())
    theta = torch.zeros(2, 3)
    for layer in (first, second, first):
        torch.manual_seed(1)
        found = torch.compile(layer, **QUICK)(theta)
        torch.manual_seed(1)
        assert torch.equal(found, layer(theta))


def test_nothing_is_kept_without_gradients():
    layer = Perturbed(Ranking(), num_samples=5)
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    theta = torch.zeros(2, 3)
    assert compiled(theta).shape == (2, 3)
    with torch.no_grad():
        compiled(theta.requires_grad_())
    assert len(graphs.graphs) == 2
    assert all("fused_mean" in graph.code for graph in graphs.graphs)


def test_exported_programs_do_without():
    """They may run where the layer is not."""
    program = torch.export.export(softmax_layer(), (rows(THETA),))
    assert "fused_" not in program.graph_module.code
    assert_derivative(program.module()(rows(THETA)).numpy(), closed(THETA).numpy())


@pytest.mark.parametrize("name", FUSED)
def test_operators_are_what_the_compiler_is_told(name):
    chosen, theta, context, options = FUSED[name]
    event_shape = list(theta.shape[-chosen.event_ndim :])
    theta = theta.float().reshape(-1, math.prod(event_shape)).requires_grad_()
    layer = Perturbed(chosen, **{"num_samples": 6} | options)
    eps = torch.ones(len(theta), dtype=theta.dtype, requires_grad=True)
    handle, operators = handle_of(layer.settings), torch.ops.softsolve

    def check(operator, *arguments):
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(operator.default, arguments, test_utils=tests)
        return operator(*arguments)

    given = (handle, theta, eps, list(context), event_shape)
    check(operators.fused_mean, *given)
    for keep in (True, False):
        for learned in (True, False):
            mean, *draws = check(operators.fused_solution, *given, keep, learned)
            pulled = (*draws, list(context), event_shape, torch.rand_like(mean))
            check(operators.fused_vjp, *given[:3], *pulled, learned)
    options = (list(context), event_shape, False)
    value, *slopes = check(operators.fused_maximum, *given[:3], None, *options)
    check(operators.fused_slopes, theta, *slopes, torch.rand_like(value))


def test_errors():
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
def test_second_derivatives_raise(what, backend, match):
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


def test_forward_mode_is_never_silently_zero():
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


def test_beside_a_transform():
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


def test_laplace_noise_has_first_derivatives_only():
    layer = Perturbed(OneHot(), noise="laplace", num_samples=4)

    @torch.compile(**QUICK)
    def gradient(theta):
        return func.grad(lambda at: layer(at).sum())(theta)

    with pytest.raises(Exception, match="cannot be compiled"):
        gradient(rows(THETA))
