"""Which noise the entries of a mapped call get, and what cannot be mapped."""

import numpy as np
import pytest
import torch
from torch import func

from softsolve import solver
from softsolve.solvers import GridPath, OneHot, Ranking
from softsolve.torch import BlackBox, FenchelYoungLoss, Perturbed
from support.statistics import assert_derivative, assert_unbiased

SIZE = 4


def ranks(theta):
    return 1 + np.argsort(np.argsort(theta, axis=-1), axis=-1)


def one_hot(theta):
    return np.eye(theta.shape[1])[theta.argmax(axis=-1)]


LAYERS = {
    "fused": (Ranking(), "fused"),
    "array": (Ranking(), "array"),
    "host": (solver(ranks, linear=True), "host"),
}
routes = pytest.mark.parametrize("route", LAYERS)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def layer_of(route, **options):
    made, taken = LAYERS[route]
    return Perturbed(made, temperature=0.7, num_samples=6, route=taken, **options)


def scores(*shape):
    return torch.randn(*shape, SIZE, dtype=torch.float64)


def target_of(*shape):
    return torch.arange(1.0, SIZE + 1, dtype=torch.float64).expand(*shape, SIZE)


def calls_of(layer):
    """Everything of a layer that draws noise, as functions of scores."""
    loss, g = FenchelYoungLoss(layer), scores()
    return {
        "solution": layer,
        "maximum": layer.maximum,
        "jacobian": layer.jacobian,
        "sample": layer.sample,
        "loss": lambda theta: loss(theta, target_of()),
        "gradient": func.grad(lambda theta: (layer(theta) * g).sum()),
        "gradient of the loss": func.grad(lambda theta: loss(theta, target_of())),
        "reverse mode": func.jacrev(layer),
        "forward mode": func.jacfwd(layer),
        "hessian": func.hessian(lambda theta: (layer(theta) * g).sum()),
        "hessian of the loss": func.hessian(lambda theta: loss(theta, target_of())),
    }


NAMES = list(calls_of(layer_of("array")))


@routes
@pytest.mark.parametrize("name", NAMES)
def test_same_and_different_noise(route, name):
    call, equal = calls_of(layer_of(route))[name], scores().expand(20, SIZE)
    same = func.vmap(call, randomness="same")(equal)
    assert (same == same[:1]).all()
    different = func.vmap(call, randomness="different")(equal)
    assert different.shape == same.shape
    assert len(torch.unique(different.reshape(20, -1), dim=0)) > 10


@routes
@pytest.mark.parametrize("name", NAMES)
def test_noise_differs_where_nothing_else_does(route, name):
    """A mapped axis that the scores do not depend on still draws its own noise."""
    call, theta = calls_of(layer_of(route))[name], scores()

    def replicate(number):
        return call(theta) + 0 * number

    numbers = torch.arange(20.0, dtype=torch.float64)
    made = func.vmap(replicate, randomness="different")(numbers)
    assert len(torch.unique(made.reshape(20, -1), dim=0)) > 10
    made = func.vmap(replicate, randomness="same")(numbers)
    assert (made == made[:1]).all()


@routes
def test_replicates_have_the_right_law(route):
    solver_, taken = {
        "fused": (OneHot(), "fused"),
        "array": (OneHot(), "array"),
        "host": (solver(one_hot, linear=True), "host"),
    }[route]
    layer = Perturbed(
        solver_, temperature=0.5, num_samples=40, noise="gumbel", route=taken
    )
    theta = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
    g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def replicate(number):
        return func.grad_and_value(lambda at: layer(at) @ g)(theta + 0 * number)

    count = torch.arange(400.0, dtype=torch.float64)
    gradient, value = func.vmap(replicate, randomness="different")(count)
    closed = func.grad_and_value(lambda at: torch.softmax(at / 0.5, -1) @ g)(theta)
    assert_derivative(gradient.numpy(), closed[0].numpy(), 0.5)
    assert_unbiased(value.numpy(), closed[1].numpy())


@routes
@pytest.mark.parametrize("name", NAMES)
def test_mapping_without_saying_how_raises(route, name):
    """As torch does where it draws random numbers itself."""
    call = calls_of(layer_of(route))[name]
    with pytest.raises(RuntimeError, match='pass randomness="different"'):
        func.vmap(call)(scores(3))


@routes
@pytest.mark.parametrize("inner", ["same", "different"])
@pytest.mark.parametrize("outer", ["same", "different"])
def test_nested(route, inner, outer):
    layer = layer_of(route)
    mapped = func.vmap(func.vmap(layer, randomness=inner), randomness=outer)
    y = mapped(scores().expand(5, 7, 2, SIZE))
    assert y.shape == (5, 7, 2, SIZE)
    assert len(torch.unique(y.reshape(-1, SIZE), dim=0)) > 1  # rows of a call differ
    across_outer, across_inner = (y != y[:1]).any(), (y != y[:, :1]).any()
    assert across_outer == (outer == "different")
    assert across_inner == (inner == "different")


@routes
def test_any_axis_and_generators(route):
    layer, theta = layer_of(route), scores(3)

    def smoothed(at):
        return layer(at, generator=torch.Generator().manual_seed(1))

    state = torch.get_rng_state()
    last = func.vmap(smoothed, in_dims=1, out_dims=1, randomness="different")
    first = func.vmap(smoothed, randomness="different")
    torch.testing.assert_close(last(theta.T), first(theta).T, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    # One entry is a call of its own.
    torch.testing.assert_close(first(theta[:1])[0], smoothed(theta[0]))


@routes
def test_mapped_temperatures_and_targets(route):
    layer = layer_of(route)
    loss, theta = FenchelYoungLoss(layer), scores(2)
    eps = torch.linspace(0.2, 3, 50, dtype=torch.float64)

    def at(eps):
        return layer(theta, temperature=eps)

    y = func.vmap(at, randomness="same")(eps)
    assert y.shape == (50, 2, SIZE)
    slopes = func.vmap(func.jacrev(at), randomness="different")(eps)
    assert slopes.shape == (50, 2, SIZE)
    assert slopes.abs().max() > 0
    targets = Ranking()(scores(30)).reshape(30, 1, SIZE).expand(30, 2, SIZE)
    mapped = func.vmap(loss, in_dims=(None, 0), randomness="same")(theta, targets)
    assert mapped.shape == (30,)
    assert len(torch.unique(mapped)) > 5


def test_context_and_clipped_costs():
    layer = Perturbed(GridPath(endpoints=True), temperature=0.5, num_samples=5)
    loss = FenchelYoungLoss(layer)
    theta = -torch.rand(6, 3, 3, dtype=torch.float64)
    ends = torch.tensor([0, 0, 2, 2]).expand(6, 4)
    target = layer.settings.solver(theta.numpy(), ends.numpy())
    mapped = func.vmap(func.grad(loss), randomness="different")
    made = mapped(theta, torch.as_tensor(target), ends)
    assert made.shape == theta.shape
    assert made.abs().max() > 0


@routes
def test_empty_batches(route):
    layer = layer_of(route)
    none = torch.zeros(0, SIZE)
    assert func.jacrev(layer)(none).shape == (0, SIZE, 0, SIZE)
    assert func.jacfwd(layer)(none).shape == (0, SIZE, 0, SIZE)
    hessian = func.hessian(lambda theta: layer(theta).sum())(none)
    assert hessian.shape == (0, SIZE, 0, SIZE)
    for randomness in ("same", "different"):
        mapped = func.vmap(layer, randomness=randomness)
        assert mapped(torch.zeros(3, 0, SIZE)).shape == (3, 0, SIZE)


def test_solvers_without_noise_need_no_randomness():
    theta = scores(3)
    y = func.vmap(BlackBox(Ranking()))(theta)
    torch.testing.assert_close(y, Ranking()(theta))
