"""The JAX layer: transformations, control flow, pytrees, solvers on the host."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softsolve import solver
from softsolve.jax import FenchelYoungLoss, Perturbed
from softsolve.solvers import OneHot, Ranking
from support.references import Exact, PermutahedronReference
from support.statistics import assert_derivative

ROWS, SIZE = 3, 4
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def scores(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape or (ROWS, SIZE)))


@solver(linear=True)
def host_ranks(theta):
    return np.argsort(np.argsort(theta, axis=-1), axis=-1) + 1


LAYERS = {
    "array": Perturbed(Ranking(), temperature=0.7, num_samples=6, route="array"),
    "auto": Perturbed(Ranking(), temperature=0.7, num_samples=6),
    "host": Perturbed(host_ranks, temperature=0.7, num_samples=6),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def close(a, b, tolerance=1e-10):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@layers
def test_jit(layer):
    g = scores(seed=1)

    def product(theta):
        return (layer(theta, key=KEY) * g).sum()

    expected = jax.value_and_grad(product)(scores())
    made = jax.jit(jax.value_and_grad(product))(scores())
    close(made[0], expected[0])
    close(made[1], expected[1])
    assert np.abs(expected[1]).min() > 0


@layers
def test_the_layer_is_traced_once_for_any_temperature(layer):
    traces = []

    @jax.jit
    def smoothed(layer, theta, key):
        traces.append(1)
        return layer(theta, key=key)

    first = smoothed(layer, scores(), KEY)
    close(first, layer(scores(), key=KEY))
    leaves, structure = jax.tree.flatten(layer)
    assert leaves == [0.7]
    warmer = jax.tree.unflatten(structure, [jnp.asarray(3.0)])
    close(smoothed(warmer, scores(), KEY), warmer(scores(), key=KEY))
    smoothed(warmer, scores(), jax.random.key(5))
    assert len(traces) <= 2  # a Python float, then an array


@layers
def test_gradient_in_the_layer(layer):
    """The layer is a pytree: its gradient is that of its temperature."""
    g = scores(seed=1)

    def product(layer):
        return (layer(scores(), key=KEY) * g).sum()

    in_layer = jax.grad(product)(layer)
    in_temperature = jax.grad(
        lambda eps: (layer(scores(), key=KEY, temperature=eps) * g).sum()
    )(0.7)
    assert type(in_layer) is Perturbed
    assert in_temperature != 0
    close(in_layer.temperature, in_temperature)
    loss = FenchelYoungLoss(layer)
    target = Ranking()(np.asarray(scores(seed=2)))
    in_loss = jax.grad(lambda loss: loss(scores(), target, key=KEY))(loss)
    assert in_loss.perturbed.temperature != 0


@layers
def test_jacobians(layer):
    blocks = layer.jacobian(scores(), key=KEY)

    def smoothed(theta):
        return layer(theta, key=KEY)

    for transform in (jax.jacrev, jax.jacfwd):
        full = np.array(transform(smoothed)(scores()))
        rows = np.arange(ROWS)
        close(full[rows, :, rows], blocks)
        full[rows, :, rows] = 0
        assert np.abs(full).max() == 0
    value, pushed = jax.jvp(smoothed, (scores(),), (scores(seed=2),))
    close(value, smoothed(scores()))
    close(pushed, jnp.einsum("bij,bj->bi", blocks, scores(seed=2)))


@layers
def test_hessians_in_every_order(layer):
    g = scores(1, SIZE, seed=1)

    def product(theta):
        return (layer(theta, key=KEY) * g).sum()

    theta = scores(1, SIZE)
    expected = jax.hessian(product)(theta)[0, :, 0]
    assert np.abs(expected).min() > 0
    close(expected, expected.T)
    for outer, inner in (
        (jax.jacfwd, jax.jacrev),
        (jax.jacrev, jax.jacrev),
        (jax.jacfwd, jax.jacfwd),
        (jax.jacrev, jax.jacfwd),
    ):
        close(jax.jit(outer(inner(product)))(theta)[0, :, 0], expected)


def test_third_derivatives():
    """Of any order, unbiased: here of softmax."""
    layer = Perturbed(
        OneHot(), temperature=1.0, num_samples=4000, noise="gumbel", route="array"
    )
    theta, g = jnp.asarray([0.4, -0.3]), jnp.asarray([1.0, -1.0])

    def third(function):
        return jax.jacfwd(jax.jacrev(jax.grad(function)))

    keys = jax.random.split(jax.random.key(1), 200)
    made = jax.lax.map(
        lambda key: third(lambda at: layer(at, key=key) @ g)(theta), keys
    )
    exact = third(lambda at: jax.nn.softmax(at) @ g)(theta)
    assert_derivative(made, exact)


@layers
def test_vmap(layer):
    """Each mapped row has the draws of its key, as in a loop."""
    keys = jax.random.split(KEY, ROWS)

    def smoothed(theta, key):
        return layer(theta, key=key)

    mapped = jax.vmap(smoothed)(scores(), keys)
    looped = [smoothed(*pair) for pair in zip(scores(), keys, strict=True)]
    close(mapped, jnp.stack(looped))
    jacobians = jax.jit(jax.vmap(jax.jacrev(smoothed)))(scores(), keys)
    close(jacobians[1], jax.jacfwd(smoothed)(scores()[1], keys[1]))
    nested = jax.vmap(jax.vmap(smoothed, in_axes=(0, None)), in_axes=(None, 0))
    assert nested(scores(), keys).shape == (ROWS, ROWS, SIZE)
    hessian = jax.hessian(lambda at, key: layer(at, key=key) @ scores(SIZE, seed=1))
    hessians = jax.jit(jax.vmap(hessian))(scores(), keys)
    assert hessians.shape == (ROWS, SIZE, SIZE)
    assert np.abs(hessians).max() > 0


@layers
def test_inside_scan_and_checkpoint(layer):
    target = scores(seed=1)

    def descend(theta, key):
        def loss(at):
            return ((layer(at, key=key) - target) ** 2).sum()

        value, gradient = jax.value_and_grad(loss)(theta)
        return theta - 0.01 * gradient, value

    keys = jax.random.split(KEY, 5)
    end, values = jax.lax.scan(descend, scores(), keys)
    theta = scores()
    for index, key in enumerate(keys):
        theta, value = descend(theta, key)
        close(values[index], value)
    close(end, theta)

    def product(at):
        return (layer(at, key=KEY) * target).sum()

    remembered = jax.grad(jax.checkpoint(product))(scores())
    close(remembered, jax.grad(product)(scores()))

    def through(at):
        return jax.lax.scan(lambda carry, key: (layer(carry, key=key), None), at, keys)[
            0
        ].sum()

    assert np.isfinite(jax.jit(jax.grad(through))(scores())).all()


@layers
def test_maximum_and_loss(layer):
    target = jnp.asarray(Ranking()(np.asarray(scores(seed=1))))
    loss = FenchelYoungLoss(layer, reduction="sum")

    def value(theta):
        return loss(theta, target, key=KEY)

    gradient = jax.jit(jax.grad(value))(scores())
    y = layer.sample(scores(), key=KEY).mean(axis=0)
    shifted = jax.grad(lambda at: layer.maximum(at, key=KEY).sum())(scores())
    close(gradient, shifted - target)
    assert y.shape == gradient.shape
    assert value(scores()) >= 0
    each = FenchelYoungLoss(layer, reduction="none")(scores(), target, key=KEY)
    assert each.shape == (ROWS,)
    close(each.sum(), value(scores()))
    mean = FenchelYoungLoss(layer)(scores(), target, key=KEY)
    close(each.mean(), mean)
    hessian = jax.hessian(value)(scores())
    assert np.abs(hessian).max() > 0


def test_routes_average_the_same_expectation():
    theta, g = np.array([0.4, -0.3, 0.1]), np.array([1.0, -2.0, 0.5])
    for layer in (
        Perturbed(host_ranks, temperature=0.7, num_samples=50),
        Perturbed(Ranking(), temperature=0.7, num_samples=50),
    ):
        gradient = jax.grad(lambda at, made=layer: (made(at, key=KEY) * g).sum())
        each = gradient(jnp.tile(theta, (400, 1)))
        exact = Exact(PermutahedronReference("normal").solution, theta, 0.7)
        assert_derivative(each, g @ exact.jacobian, 0.7)


def test_host_solvers_of_another_shape():
    function = solver(lambda theta: np.sort(theta, axis=-1)[:, -1], out_shape=())
    layer = Perturbed(function, num_samples=5)
    y = jax.jit(lambda at: layer(at, key=KEY))(scores())
    assert y.shape == (ROWS,)
    mapped = jax.vmap(lambda at: layer(at, key=KEY))(scores())
    assert mapped.shape == (ROWS,)
    wrong = Perturbed(solver(lambda theta: theta[:, :2]), num_samples=5)
    with pytest.raises(Exception, match=r"Tell JAX: softsolve.solver\(function"):
        jax.block_until_ready(wrong(scores(), key=KEY))


def test_context_of_each_row():
    def masked(theta, mask):
        return OneHot()(np.where(mask, theta, -np.inf))

    layer = Perturbed(solver(masked), num_samples=6)
    mask = np.ones((ROWS, SIZE), bool)
    mask[:, 0] = False
    for wrap in (lambda f: f, jax.jit):
        y = wrap(lambda at: layer(at, jnp.asarray(mask), key=KEY))(scores())
        assert (np.asarray(y)[:, 0] == 0).all()
        close(y.sum(axis=-1), np.ones(ROWS))
    gradient = jax.grad(
        lambda at: (layer(at, jnp.asarray(mask), key=KEY) * scores(seed=1)).sum()
    )(scores())
    assert np.abs(gradient).max() > 0
    with pytest.raises(ValueError, match="context argument 1"):
        layer(scores(), jnp.asarray(mask)[:2], key=KEY)


@layers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types_are_kept(layer, dtype):
    theta = scores().astype(dtype)
    y, pulled = jax.value_and_grad(lambda at: layer(at, key=KEY)[0, 0])(theta)
    assert y.dtype == pulled.dtype == theta.dtype
    assert layer.maximum(theta, key=KEY).dtype == theta.dtype
    assert layer.jacobian(theta, key=KEY).dtype == theta.dtype
    assert layer.sample(theta, key=KEY).dtype == theta.dtype
    target = Ranking()(theta)
    loss = FenchelYoungLoss(layer)(theta, target, key=KEY)
    assert loss.dtype == theta.dtype


def test_single_precision_under_double():
    """float32 scores stay float32 where JAX's default is float64."""
    layer = LAYERS["auto"]
    theta = scores().astype(jnp.float32)
    assert layer(theta, key=KEY, temperature=np.float64(0.5)).dtype == jnp.float32
    eps = jnp.full(ROWS, 0.5)
    pulled = jax.grad(lambda e: layer(theta, key=KEY, temperature=e).sum())(eps)
    assert pulled.dtype == jnp.float64  # its own


@layers
@pytest.mark.parametrize("shape", [(5,), (0, 5), (1, 5), (2, 3, 5), (2, 0, 5), (4, 1)])
def test_any_batch(layer, shape):
    theta = scores(*shape)
    y, pull = jax.vjp(functools.partial(layer, key=KEY), theta)
    assert y.shape == shape
    assert pull(y)[0].shape == shape
    assert layer.maximum(theta, key=KEY).shape == shape[:-1]
    assert layer.jacobian(theta, key=KEY).shape == (*shape, shape[-1])
    assert layer.sample(theta, key=KEY).shape == (6, *shape)
    assert len(layer.distribution(theta, key=KEY)) == np.prod(shape[:-1], dtype=int)


@layers
def test_keys(layer):
    """The same key gives the same noise, another key other noise; rows differ."""
    theta = jnp.zeros((30, SIZE))
    first = layer(theta, key=KEY)
    close(layer(theta, key=KEY), first)
    assert (layer(theta, key=jax.random.key(1)) != first).any()
    assert len(np.unique(first, axis=0)) > 10
    legacy = jax.random.PRNGKey(0)
    assert layer(theta, key=legacy).shape == theta.shape


def test_memory_budget_of_second_derivatives():
    layer = Perturbed(
        Ranking(), num_samples=8, memory_budget=ROWS * SIZE * 64, route="array"
    )
    gradient = jax.grad(lambda at: layer.maximum(at, key=KEY).sum())
    assert gradient(scores()).shape == (ROWS, SIZE)
    with pytest.raises(RuntimeError, match="memory_budget"):
        jax.jacfwd(gradient)(scores())
