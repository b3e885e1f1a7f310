"""What JAX layers are given: keys of both kinds, precision, context, temperatures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softsolve import solver
from softsolve.jax import FenchelYoungLoss, Perturbed
from softsolve.solvers import GraphPath, OneHot, Ranking

ROWS, SIZE = 3, 4
EDGES = [[0, 1], [1, 2], [0, 2], [2, 0]]


@solver(linear=True)
def host_ranks(theta):
    return np.argsort(np.argsort(theta, axis=-1), axis=-1) + 1


LAYERS = {
    "array": Perturbed(Ranking(), temperature=0.7, num_samples=6, route="array"),
    "fused": Perturbed(Ranking(), temperature=0.7, num_samples=6, route="fused"),
    "host": Perturbed(host_ranks, temperature=0.7, num_samples=6),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def scores(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape or (ROWS, SIZE)).astype(np.float32)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# Keys


@layers
def test_both_kinds_of_keys_draw_the_same(layer):
    typed, legacy = jax.random.key(5), jax.random.PRNGKey(5)
    assert legacy.dtype == np.uint32
    for wrap in (lambda function: function, jax.jit):
        smoothed = wrap(lambda at, key: layer(at, key=key))
        close(smoothed(scores(), typed), smoothed(scores(), legacy))


@layers
def test_batches_of_both_kinds_of_keys(layer):
    smoothed = jax.vmap(lambda at, key: layer(at, key=key))
    typed = jax.random.split(jax.random.key(5), ROWS)
    legacy = jax.random.split(jax.random.PRNGKey(5), ROWS)
    assert legacy.shape == (ROWS, 2)
    close(smoothed(scores(), typed), smoothed(scores(), legacy))


def test_a_key_is_asked_for():
    layer = LAYERS["array"]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
        layer(scores())


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (0, "0"),
        (None, "None"),
        (jax.random.split(jax.random.key(0), 3), r"shape \(3,\) of key<fry>"),
        (np.zeros((3, 2), np.uint32), r"shape \(3, 2\) of uint32"),
        (np.zeros(2), r"shape \(2,\) of float64"),
    ],
)
def test_what_is_no_key(key, found):
    layer = LAYERS["fused"]
    methods = (layer, layer.maximum, layer.jacobian, layer.sample, layer.distribution)
    loss = functools.partial(FenchelYoungLoss(layer), scores())
    for call in (*methods, loss):
        with pytest.raises(TypeError, match=f"key must be one of JAX's keys.*{found}"):
            call(scores(), key=key)


def test_keys_of_both_styles():
    layer, theta = LAYERS["fused"], scores()
    drawn = layer(theta, key=jax.random.key(3))
    np.testing.assert_array_equal(drawn, layer(theta, key=jax.random.PRNGKey(3)))
    other = layer(theta, key=jax.random.key(3, impl="rbg"))
    assert other.shape == drawn.shape
    assert (other != drawn).any()


# Precision


@layers
def test_single_precision_is_the_same_with_double_switched_on(layer):
    g = scores(seed=1)

    def everything(theta, key):
        y, pull = jax.vjp(functools.partial(layer, key=key), theta)
        target = jnp.asarray(Ranking()(jnp.asarray(scores(seed=2))))
        loss = jax.value_and_grad(FenchelYoungLoss(layer))(theta, target, key=key)
        hessian = jax.hessian(lambda at: (layer(at, key=key) * g).sum())(theta)
        return y, pull(g)[0], layer.maximum(theta, key=key), *loss, hessian

    found = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            key = jax.random.key(0)
            found.append(jax.jit(everything)(jnp.asarray(scores()), key))
    for single, under_double in zip(*found, strict=True):
        assert single.dtype == under_double.dtype == np.float32
        assert np.abs(single).max() > 0
        close(single, under_double, 1e-4)


def test_double_precision_needs_its_switch():
    theta = scores().astype(np.float64)
    for wide, kind in ((False, np.float32), (True, np.float64)):
        with jax.enable_x64(wide):
            for layer in LAYERS.values():
                assert layer(theta, key=jax.random.key(0)).dtype == kind


@layers
def test_half_precision_under_transforms(layer):
    theta = jnp.asarray(scores(), jnp.bfloat16)
    key = jax.random.key(0)

    def total(at):
        return (layer(at, key=key) * theta).sum()

    for made in (jax.jit(jax.grad(total))(theta), jax.jacfwd(total)(theta)):
        assert made.dtype == jnp.bfloat16
        assert np.isfinite(np.asarray(made, np.float32)).all()


# Shapes


@layers
@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (5,), (4, 1), (2, 3, 5)])
def test_any_batch_under_jit(layer, shape):
    theta = jnp.asarray(scores(*shape))

    @jax.jit
    def everything(theta, key):
        y, pull = jax.vjp(functools.partial(layer, key=key), theta)
        return y, pull(y)[0], layer.maximum(theta, key=key)

    y, pulled, maximum = everything(theta, jax.random.key(0))
    assert y.shape == pulled.shape == shape
    assert maximum.shape == shape[:-1]


def test_a_mean_of_no_losses_is_what_jax_says():
    loss = FenchelYoungLoss(LAYERS["array"], reduction="sum")
    theta = jnp.zeros((0, SIZE))
    assert loss(theta, theta, key=jax.random.key(0)) == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_are_added_before_they_are_rounded(reduction):
    theta = jnp.asarray(scores(300, SIZE), jnp.bfloat16)
    target = jnp.asarray(Ranking()(-theta.astype(jnp.float32)))
    loss = FenchelYoungLoss(LAYERS["fused"], reduction=reduction)
    key = jax.random.key(0)
    full = loss(theta.astype(jnp.float32), target, key=key)
    assert loss(theta, target, key=key) == full.astype(jnp.bfloat16)


# Context


@solver
def masked_on_host(theta, mask):
    return OneHot()(np.where(mask, theta, -1e9))


def masked(theta, mask):
    return OneHot()(jnp.where(mask, theta, -1e9))


@pytest.mark.parametrize("made_of", [masked_on_host, masked], ids=["host", "array"])
@pytest.mark.parametrize("wrap", [lambda function: function, jax.jit])
def test_context_under_vmap(made_of, wrap):
    layer = Perturbed(made_of, num_samples=6)
    mask = np.random.default_rng(3).random((2, ROWS, SIZE)) < 0.6
    mask[..., 0] = True
    theta, g = scores(2, ROWS, SIZE), scores(2, ROWS, SIZE, seed=1)
    keys = jax.random.split(jax.random.key(0), 2)

    def pulled(theta, mask, g, key):
        y, pull = jax.vjp(lambda at: layer(at, mask, key=key), theta)
        return y, pull(g)[0]

    mapped = wrap(jax.vmap(pulled))(theta, mask, g, keys)
    for index in range(2):
        single = pulled(theta[index], mask[index], g[index], keys[index])
        for whole, part in zip(mapped, single, strict=True):
            close(whole[index], part)
    assert (np.asarray(mapped[0])[~mask] == 0).all()
    # Shared by all that is mapped.
    shared = jax.vmap(pulled, in_axes=(0, None, 0, 0))(theta, mask[0], g, keys)
    assert (np.asarray(shared[0])[:, ~mask[0]] == 0).all()
    own = jax.vmap(pulled, in_axes=(None, 0, None, None))(theta[0], mask, g[0], keys[0])
    assert (np.asarray(own[0])[~mask] == 0).all()


@pytest.mark.parametrize("route", ["fused", "host"])
def test_endpoints_under_transforms(route):
    layer = Perturbed(GraphPath(3, EDGES), num_samples=40, route=route)
    theta = -jnp.abs(jnp.asarray(scores(2, ROWS, SIZE)))
    # Only from 0 to 2 is there a choice.
    ends = jnp.asarray([[[0, 2], [0, 1], [1, 0]], [[2, 1], [0, 2], [0, 2]]])
    keys = jax.random.split(jax.random.key(0), 2)

    def paths(theta, ends, key):
        return layer(theta, ends, key=key)

    mapped = jax.jit(jax.vmap(paths))(theta, ends, keys)
    for index in range(2):
        close(mapped[index], paths(theta[index], ends[index], keys[index]))
    gradient = jax.grad(lambda at: (jax.vmap(paths)(at, ends, keys) * theta).sum())
    assert np.abs(gradient(theta)).max() > 0


# Temperature


@layers
def test_temperatures_under_transforms(layer):
    theta, g = scores(), scores(seed=1)
    eps = np.array([0.4, 0.9, 1.5], np.float32)
    key = jax.random.key(2)

    def product(theta, eps):
        return (layer(theta, key=key, temperature=eps) * g).sum()

    reverse = jax.grad(product, 1)(theta, eps)
    close(jax.jacfwd(product, 1)(theta, eps), reverse, 1e-4)
    close(jax.jit(jax.grad(product, 1))(theta, eps), reverse, 1e-4)
    assert np.abs(reverse).min() > 0
    # One for all: its gradient is the sum.
    alike = np.full(ROWS, 0.8, np.float32)
    shared = jax.grad(product, 1)(theta, np.float32(0.8))
    close(shared, jax.grad(product, 1)(theta, alike).sum(), 1e-4)
    mapped = jax.vmap(lambda e: layer(theta, key=key, temperature=e))(eps)
    for index in range(3):
        close(mapped[index], layer(theta, key=key, temperature=eps[index]))
    # A learned one stays positive as exp of a parameter.
    log_eps = jax.grad(lambda log: product(theta, jnp.exp(log)))(0.0)
    close(log_eps, jax.grad(product, 1)(theta, 1.0))


@layers
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reductions_under_transforms(layer, reduction):
    loss = FenchelYoungLoss(layer, reduction=reduction)
    theta, key = scores(2, ROWS, SIZE), jax.random.key(0)
    target = np.asarray(Ranking()(scores(2 * ROWS, SIZE, seed=1))).reshape(theta.shape)
    value = jax.jit(lambda at: loss(at, target, key=key))(theta)
    each = FenchelYoungLoss(layer, reduction="none")(theta, target, key=key)
    assert each.shape == (2, ROWS)
    assert (each >= 0).all()
    close(value, each if reduction == "none" else getattr(each, reduction)(), 1e-4)
    gradient = jax.grad(lambda at: loss(at, target, key=key).sum())(theta)
    difference = layer(theta, key=key) - target
    close(gradient, difference / (2 * ROWS if reduction == "mean" else 1), 1e-4)
    in_target = jax.grad(lambda y: loss(theta, y, key=key).sum())(target)
    assert np.abs(in_target).max() == 0  # targets are constants
    keys = jax.random.split(key, 2)
    mapped = jax.vmap(lambda at, y, k: loss(at, y, key=k))(theta, target, keys)
    assert mapped.shape == ((2, ROWS) if reduction == "none" else (2,))
