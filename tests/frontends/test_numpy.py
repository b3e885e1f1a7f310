"""The NumPy layer: everything by methods."""

import numpy as np
import pytest

from softsolve import noise, solver
from softsolve.numpy import FenchelYoungLoss, Perturbed
from softsolve.solvers import OneHot, Ranking

routes = pytest.mark.parametrize("route", ["array", "auto"])


def scores(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@routes
@pytest.mark.parametrize(
    "shape", [(5,), (0, 5), (1, 5), (2, 3, 5), (2, 0, 5), (2, 1, 3, 5), (4, 1)]
)
@pytest.mark.parametrize("num_samples", [1, 4])
def test_any_batch(route, shape, num_samples):
    layer = Perturbed(Ranking(), num_samples=num_samples, route=route)
    theta, batch, size = scores(*shape), shape[:-1], shape[-1]
    assert layer(theta).shape == shape
    assert layer.maximum(theta).shape == batch
    in_theta, in_temperature = layer.vjp(theta, theta)
    assert in_theta.shape == shape
    assert in_temperature.shape == batch
    assert layer.jvp(theta, theta).shape == shape
    assert layer.jacobian(theta).shape == (*shape, size)
    assert layer.hessian(theta, theta).shape == (*shape, size)
    assert layer.sample(theta).shape == (num_samples, *shape)
    assert len(layer.distribution(theta)) == np.prod(batch, dtype=int)
    target = Ranking()(theta.reshape(-1, size)).reshape(shape)
    loss = FenchelYoungLoss(layer, reduction="none")
    value, gradients = loss.value_and_gradients(theta, target)
    assert value.shape == batch
    assert gradients.theta.shape == shape
    assert gradients.temperature.shape == batch


@routes
def test_methods_share_draws_under_a_seed(route):
    layer = Perturbed(Ranking(), num_samples=7, temperature=0.6, route=route)
    theta, g, v = scores(3, 4), scores(3, 4, seed=1), scores(3, 4, seed=2)
    y, drawn = layer(theta, rng=0), layer.sample(theta, rng=0)
    np.testing.assert_allclose(drawn.mean(axis=0), y, rtol=1e-12)
    jacobian = layer.jacobian(theta, rng=0)
    pulled, in_eps = layer.vjp(theta, g, rng=0)
    np.testing.assert_allclose(np.einsum("bi,bij->bj", g, jacobian), pulled, atol=1e-12)
    pushed = layer.jvp(theta, v, rng=0)
    np.testing.assert_allclose(np.einsum("bij,bj->bi", jacobian, v), pushed, atol=1e-12)
    drift = layer.jvp(theta, 0 * v, temperature_direction=1.0, rng=0)
    np.testing.assert_allclose((drift * g).sum(1), in_eps, atol=1e-10)
    for (solutions, frequencies), row in zip(
        layer.distribution(theta, rng=0), y, strict=True
    ):
        np.testing.assert_allclose(frequencies @ solutions, row, rtol=1e-12)
        assert (np.diff(frequencies) <= 0).all()
        assert len(np.unique(solutions, axis=0)) == len(solutions)


@routes
def test_seeds_and_generators(route):
    layer = Perturbed(Ranking(), num_samples=3, route=route)
    theta = np.zeros((30, 4))
    np.testing.assert_array_equal(layer(theta, rng=3), layer(theta, rng=3))
    assert (layer(theta, rng=3) != layer(theta, rng=4)).any()
    assert (layer(theta) != layer(theta)).any()
    rng = np.random.default_rng(3)
    np.testing.assert_array_equal(layer(theta, rng=rng), layer(theta, rng=3))
    assert (layer(theta, rng=rng) != layer(theta, rng=3)).any()  # it has moved on
    assert (layer(theta) != Perturbed(Ranking(), num_samples=3)(theta)).any()


@routes
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types_are_kept(route, dtype):
    layer = Perturbed(Ranking(), num_samples=4, temperature=0.5, route=route)
    theta = scores(3, 4, dtype=dtype)
    target = Ranking()(theta)
    loss = FenchelYoungLoss(layer)
    value, gradients = loss.value_and_gradients(theta, target)
    for made in (
        layer(theta),
        layer.maximum(theta),
        *layer.vjp(theta, theta),
        layer.jvp(theta, theta),
        layer.jacobian(theta),
        layer.hessian(theta, theta),
        layer.sample(theta),
        layer.distribution(theta)[0].solutions,
        value,
        *gradients,
    ):
        assert made.dtype == dtype


@routes
def test_losses_of_half_precision_are_added_before_they_are_rounded(route):
    """The sum of these losses, 180,000, is beyond half precision; the mean is not."""
    layer = Perturbed(Ranking(), num_samples=2, temperature=0.5, route=route)
    theta = 30 * np.tile(np.arange(4, dtype=np.float16), (600, 1))
    target = Ranking()(-theta)
    value = FenchelYoungLoss(layer)(theta, target, rng=0)
    assert value.dtype == np.float16
    full = FenchelYoungLoss(layer)(theta.astype(np.float32), target, rng=0)
    assert value == np.float16(full)
    assert 600 * full > np.finfo(np.float16).max


@routes
def test_strides_do_not_matter(route):
    layer = Perturbed(Ranking(), num_samples=4, route=route)
    base = scores(5, 6)
    for view in (
        base.T,
        base[::2, 1:5],
        np.broadcast_to(base[:1], (4, 6)),
        base[::-1, ::-1],
        np.asfortranarray(base),
    ):
        dense = np.ascontiguousarray(view)
        np.testing.assert_array_equal(layer(view, rng=0), layer(dense, rng=0))
        # The same sums, in the order that the strides suggest.
        np.testing.assert_allclose(
            layer.vjp(view, view, rng=0)[0],
            layer.vjp(dense, dense, rng=0)[0],
            rtol=1e-10,
            atol=1e-12,
        )


def test_inputs_are_not_changed():
    theta, target = scores(3, 4), Ranking()(scores(3, 4, seed=1))
    copies = theta.copy(), target.copy()
    for route in ("array", "auto"):
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        layer.vjp(theta, theta)
        FenchelYoungLoss(layer).value_and_gradients(theta, target)
    np.testing.assert_array_equal(theta, copies[0])
    np.testing.assert_array_equal(target, copies[1])


@routes
def test_reductions(route):
    layer = Perturbed(Ranking(), num_samples=5, temperature=0.5, route=route)
    theta = scores(2, 3, 4)
    target = Ranking()(scores(6, 4, seed=1)).reshape(2, 3, 4)
    each, gradients = FenchelYoungLoss(layer, reduction="none").value_and_gradients(
        theta, target, rng=0
    )
    np.testing.assert_allclose(gradients.theta, layer(theta, rng=0) - target)
    for reduction, scale in (("sum", 1), ("mean", 6)):
        loss = FenchelYoungLoss(layer, reduction=reduction)
        value, reduced = loss.value_and_gradients(theta, target, rng=0)
        np.testing.assert_allclose(value, each.sum() / scale)
        np.testing.assert_allclose(loss(theta, target, rng=0), value)
        for part, whole in zip(reduced, gradients, strict=True):
            np.testing.assert_allclose(part, whole / scale)


def test_temperatures_broadcast_over_the_batch():
    theta = scores(2, 3, 4)
    layer = Perturbed(Ranking(), num_samples=4, temperature=np.array([[0.5], [2.0]]))
    full = np.array([[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]])
    expected = layer(theta, rng=0, temperature=full)
    np.testing.assert_array_equal(layer(theta, rng=0), expected)


def test_context_reaches_the_solver_row_by_row():
    @solver(batched=False)
    def masked(theta, mask, offset):
        return np.where(mask, theta + offset, 0.0)

    layer = Perturbed(masked, num_samples=3, temperature=1e-9)
    theta = scores(2, 3, 4)
    mask = np.random.default_rng(1).random((2, 3, 4)) < 0.5
    offset = np.arange(3.0).reshape(1, 3)
    y = layer(theta, mask, offset)
    expected = np.where(mask, theta + offset[..., None], 0)
    np.testing.assert_allclose(y, expected, atol=1e-7)


def test_repr_shows_every_setting_that_matters():
    layer = Perturbed(
        Ranking(),
        temperature=0.25,
        num_samples=7,
        noise=noise.Gumbel(),
        baseline="point",
        symmetric=True,
    )
    text = repr(layer)
    for fact in (
        "Ranking()",
        "temperature=0.25",
        "num_samples=7",
        'noise="gumbel"',
        'baseline="point"',
        "symmetric=True",
        "route=",
    ):
        assert fact in text
    assert 'form="maximum"' in repr(Perturbed(OneHot(), form="maximum"))
    assert "mean" in repr(FenchelYoungLoss(Perturbed(OneHot())))
