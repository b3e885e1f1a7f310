"""The blackbox baseline in torch and JAX: value, proxy, and what it must refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import func

import softsolve.jax
import softsolve.torch
from softsolve import SolverError, solver
from softsolve.solvers import Assignment, GraphPath, OneHot, Ranking, TopK

LENGTH = 3.0
EDGES = [[0, 1], [1, 2], [0, 2], [2, 0]]


@solver(batched=False)
def ranks(theta):
    return 1 + np.argsort(np.argsort(theta))


@solver
def masked(theta, mask):
    return OneHot()(np.where(mask, theta, -1e9))


class Torch:
    """Values and gradients by torch."""

    module = softsolve.torch

    def pull(self, layer, theta, g, *context):
        at = torch.tensor(theta, requires_grad=True)
        y = layer(at, *(torch.as_tensor(array) for array in context))
        (pulled,) = torch.autograd.grad(y, at, torch.tensor(g))
        return y.detach().numpy(), pulled.numpy()


class Jax:
    """Values and gradients by JAX."""

    module = softsolve.jax

    def __init__(self, *, compiled):
        self.compiled = compiled

    def pull(self, layer, theta, g, *context):
        def pull(theta, g, *context):
            y, back = jax.vjp(lambda at: layer(at, *context), theta)
            return y, back(g)[0]

        with jax.enable_x64(theta.dtype == np.float64):
            made = jax.jit(pull) if self.compiled else pull
            arrays = [jnp.asarray(array) for array in (theta, g, *context)]
            return tuple(np.asarray(part) for part in made(*arrays))


WAYS = {"torch": Torch(), "jax": Jax(compiled=False), "jax.jit": Jax(compiled=True)}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def scores(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@ways
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("solves", "event"),
    [(Ranking(), (5,)), (OneHot(), (5,)), (Assignment(), (3, 3)), (ranks, (5,))],
    ids=["ranking", "one-hot", "assignment", "function"],
)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)])
def test_interpolation(way, solves, event, dtype, batch):
    theta = scores(*batch, *event, dtype=dtype)
    g = scores(*batch, *event, seed=1, dtype=dtype)
    layer = way.module.BlackBox(solves, interpolation=LENGTH)
    y, pulled = way.pull(layer, theta, g)

    def solve(at):
        return np.asarray(solves(at.reshape(-1, *event))).reshape(at.shape)

    np.testing.assert_array_equal(y, solve(theta))
    moved = solve((theta - dtype(LENGTH) * g).astype(dtype))
    np.testing.assert_allclose(pulled, (solve(theta) - moved) / LENGTH, rtol=1e-6)
    assert y.dtype == pulled.dtype == dtype
    assert np.abs(pulled).max(initial=0) > 0 or theta.size < 10


@ways
@pytest.mark.parametrize("solves", [Ranking(), Ranking([5, 1, 1]), OneHot(), TopK(2)])
def test_many_rows_with_equal_scores(way, solves):
    size = 100 if repr(solves) == "Ranking()" else 3
    theta = scores(70, size).round(1)
    y, pulled = way.pull(way.module.BlackBox(solves), theta, scores(70, size, seed=1))
    np.testing.assert_array_equal(y, solves(theta))
    assert np.abs(pulled).max() > 0


@ways
def test_context(way):
    mask = np.array([[1, 1, 0, 1], [0, 1, 1, 1]]) > 0
    theta, g = scores(2, 4), scores(2, 4, seed=1)
    layer = way.module.BlackBox(masked, interpolation=LENGTH)
    y, pulled = way.pull(layer, theta, g, mask)
    np.testing.assert_array_equal(y, masked(theta, mask))
    moved = masked(theta - LENGTH * g, mask)
    np.testing.assert_allclose(pulled, (y - moved) / LENGTH)
    ends = np.array([[0, 2], [1, 0]])
    path = GraphPath(3, EDGES)
    costs = -np.abs(theta)
    y, _ = way.pull(way.module.BlackBox(path), costs, 0 * g, ends)
    np.testing.assert_array_equal(y, path(costs, ends))


@ways
def test_one_solve_each_way(way):
    calls = []

    @solver
    def counted(theta):
        calls.append(len(theta))
        return OneHot()(theta)

    way.pull(way.module.BlackBox(counted), scores(3, 4), scores(3, 4))
    assert calls == [3, 3]


@ways
def test_a_loss_is_lowered(way):
    """The solution that is wanted becomes that of the scores."""
    target = Ranking()(scores(1, 4, seed=5))
    layer, theta = way.module.BlackBox(Ranking(), interpolation=10.0), scores(1, 4)
    first = np.square(Ranking()(theta) - target).sum()
    for _ in range(30):
        y, pulled = way.pull(layer, theta, 2 * (Ranking()(theta) - target))
        theta = theta - 0.1 * pulled
    assert np.square(y - target).sum() < first
    np.testing.assert_array_equal(y, target)


def test_half_precision():
    layer = softsolve.torch.BlackBox(Ranking())
    theta = torch.tensor(scores(3, 4)).bfloat16().requires_grad_()
    y = layer(theta)
    (pulled,) = torch.autograd.grad(y.square().sum(), theta)
    assert y.dtype == pulled.dtype == torch.bfloat16
    layer = softsolve.jax.BlackBox(Ranking())
    y, pull = jax.vjp(layer, jnp.asarray(scores(3, 4), jnp.bfloat16))
    assert y.dtype == pull(y)[0].dtype == jnp.bfloat16


def test_transforms_of_jax():
    layer = softsolve.jax.BlackBox(ranks, interpolation=LENGTH)
    theta = jnp.asarray(scores(3, 4), jnp.float32)
    g = jnp.asarray(scores(3, 4, seed=1), jnp.float32)

    def loss(theta, g):
        return (layer(theta) * g).sum()

    expected = jax.grad(loss)(theta, g)
    np.testing.assert_allclose(jax.vmap(jax.grad(loss))(theta, g), expected)

    def descend(theta, _):
        return theta - 0.1 * jax.grad(loss)(theta, g), layer(theta)

    end, values = jax.lax.scan(descend, theta, None, length=3)
    by_hand = theta
    for value in values:
        np.testing.assert_array_equal(value, layer(by_hand))
        by_hand = by_hand - 0.1 * jax.grad(loss)(by_hand, g)
    np.testing.assert_allclose(end, by_hand, rtol=1e-5)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(layer, (theta,), (g,))
    with pytest.raises(RuntimeError, match="BlackBox has no second derivatives"):
        jax.jacrev(jax.grad(loss))(theta, g)


def test_transforms_of_torch():
    layer = softsolve.torch.BlackBox(ranks, interpolation=LENGTH)
    theta, g = torch.tensor(scores(3, 4)), torch.tensor(scores(3, 4, seed=1))

    def loss(theta, g):
        return (layer(theta) * g).sum()

    expected = func.grad(loss)(theta, g)
    torch.testing.assert_close(func.vmap(func.grad(loss))(theta, g), expected)
    with pytest.raises(RuntimeError, match="BlackBox has no forward-mode derivative"):
        func.jvp(layer, (theta,), (g,))
    at = theta.clone().requires_grad_()
    (pulled,) = torch.autograd.grad(loss(at, g), at, create_graph=True)
    with pytest.raises(RuntimeError, match="BlackBox has no second derivatives"):
        torch.autograd.grad(pulled.sum(), at)
    with pytest.raises(RuntimeError, match="BlackBox cannot be compiled"):
        torch.compile(layer, backend="eager", fullgraph=True)(theta)
    torch.compiler.reset()


@ways
@pytest.mark.parametrize("length", [0.0, -1.0, np.nan, np.inf])
def test_interpolations_that_cannot_be(way, length):
    with pytest.raises(ValueError, match="must be positive and finite; got"):
        way.module.BlackBox(Ranking(), interpolation=length)


@ways
@pytest.mark.parametrize("length", ["ten", None, True, [1.0]])
def test_interpolations_that_are_no_numbers(way, length):
    with pytest.raises(TypeError, match=r"\(interpolation=...\) must be a number; got"):
        way.module.BlackBox(Ranking(), interpolation=length)


@ways
@pytest.mark.parametrize(
    ("solves", "theta", "g", "error", "match"),
    [
        (Ranking(), [[1.0, np.nan]], [[1.0, 1.0]], ValueError, "theta must be finite"),
        (ranks, [[1.0, 2.0]], [[1.0, np.inf]], ValueError, "must be finite; row 0"),
        (Ranking([1, 2]), [[1.0] * 3], [[1.0] * 3], ValueError, "needs 2 scores in"),
        (
            solver(lambda theta: theta[:, 0], out_shape=()),
            [[1.0, 2.0]],
            [1.0],
            ValueError,
            r"must have the shape of the scores, \(2,\); got \(\)",
        ),
        (
            solver(lambda theta: theta * np.nan),
            [[1.0, 2.0]],
            [[1.0, 2.0]],
            SolverError,
            "must return finite solutions",
        ),
    ],
    ids=["theta", "gradient", "length", "shape", "solution"],
)
def test_bad_input(way, solves, theta, g, error, match):
    layer = way.module.BlackBox(solves)
    errors = (error, jax.errors.JaxRuntimeError) if isinstance(way, Jax) else error
    with pytest.raises(errors, match=match):
        way.pull(layer, np.array(theta), np.array(g))


def test_repr():
    for way in (softsolve.torch, softsolve.jax):
        text = repr(way.BlackBox(Ranking(), interpolation=2.5))
        assert "Ranking()" in text
        assert "interpolation=2.5" in text
