"""The fused route in NumPy, against the array route on the draws that it exports."""

import contextlib
from unittest import mock

import numpy as np
import pytest

import softsolve as ss
from softsolve.fused_products import FusedCall
from softsolve.numpy import FenchelYoungLoss, Perturbed
from softsolve.numpy.random import draw_keys

SOLVERS = {
    "one-hot": (ss.solvers.OneHot(), (5,)),
    "top-k": (ss.solvers.TopK(2), (6,)),
    "ranking": (ss.solvers.Ranking(), (6,)),
    "assignment": (ss.solvers.Assignment(), (4, 4)),
    "grid": (ss.solvers.DagGrid(), (4, 4)),
}
NOISES = ("normal", "gumbel", "logistic", "laplace")
BASELINES = ("none", "point", "leave_one_out")
SEED, SAMPLES = 3, 30


@contextlib.contextmanager
def given_noise(z):
    """Let every draw of the array route be z (B, M, d)."""

    def noise(_self, shape, dtype, rng):
        assert shape == z.shape
        return z.astype(dtype)

    with mock.patch.object(Perturbed, "_noise", noise):
        yield


class Pair:
    """One layer on both routes, and the same draws for both."""

    def __init__(self, name, dtype, *, batch=(3,), temperature=0.7, **options):
        solver, self.event = SOLVERS[name]
        options |= {"num_samples": SAMPLES, "temperature": temperature}
        self.fused = Perturbed(solver, route="fused", **options)
        self.array = Perturbed(solver, route="array", **options)
        self.dtype = np.dtype(dtype)
        rng = np.random.default_rng(0)
        shape = (*batch, *self.event)
        self.theta, self.g, self.v = rng.normal(size=(3, *shape)).astype(dtype)
        rows = int(np.prod(batch))
        flat = self.v.reshape(rows, *self.event)
        self.target = np.asarray(solver(flat)).reshape(shape)
        call = FusedCall(self.fused.settings, self.event)
        keys = draw_keys(rows, np.random.default_rng(SEED))
        self.z = call.work(self.dtype).draws(keys)

    def check(self, function):
        """Compare what a function of a layer returns, on both routes."""
        got = function(self.fused)
        with given_noise(self.z):
            wanted = function(self.array)
        if not isinstance(got, tuple):
            got, wanted = (got,), (wanted,)
        tolerance = 3e-4 if self.dtype == np.float32 else 1e-10
        for part, its in zip(got, wanted, strict=True):
            assert part.dtype == its.dtype == self.dtype
            assert part.shape == its.shape
            assert np.abs(its).max() > 0
            assert np.abs(part - its).max() <= tolerance * (1 + np.abs(its).max())


def check_all(pair, *, smooth=True):
    theta, g, v = pair.theta, pair.g, pair.v
    rng = {"rng": SEED}
    pair.check(lambda layer: layer(theta, **rng))
    pair.check(lambda layer: layer.sample(theta, **rng))
    pair.check(lambda layer: layer.vjp(theta, g, **rng))
    pair.check(lambda layer: layer.jvp(theta, v, temperature_direction=0.3, **rng))
    pair.check(lambda layer: layer.jacobian(theta, **rng))
    pair.check(lambda layer: layer.maximum(theta, **rng))
    if smooth:
        pair.check(lambda layer: layer.hessian(theta, g, **rng))

    def loss(layer):
        fenchel_young = FenchelYoungLoss(layer)
        value, gradients = fenchel_young.value_and_gradients(theta, pair.target, **rng)
        return value, *gradients

    pair.check(loss)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("noise", NOISES)
def test_both_routes_agree(name, noise, dtype):
    check_all(Pair(name, dtype, noise=noise), smooth=noise != "laplace")


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("name", ["one-hot", "ranking", "assignment"])
def test_both_routes_agree_for_every_baseline(name, baseline, symmetric):
    check_all(Pair(name, "float64", baseline=baseline, symmetric=symmetric))


def test_more_batch_axes_and_a_temperature_for_each():
    temperature = np.array([[0.5], [1.5]])
    check_all(Pair("ranking", "float64", batch=(2, 3), temperature=temperature))


def test_a_single_instance():
    check_all(Pair("assignment", "float64", batch=()))


def test_scores_that_are_not_contiguous_or_read_only():
    pair = Pair("top-k", "float64", batch=(6,))
    wanted = pair.fused(pair.theta, rng=SEED)
    strided = np.repeat(pair.theta, 2, axis=1)[:, ::2]
    assert np.array_equal(pair.fused(strided, rng=SEED), wanted)
    strided.flags.writeable = False
    assert np.array_equal(pair.fused(strided, rng=SEED), wanted)
    broadcast = np.broadcast_to(pair.theta[:1], (6, 6))
    gradients = pair.fused.vjp(broadcast, np.broadcast_to(pair.g[:1], (6, 6)), rng=SEED)
    assert gradients.theta.shape == (6, 6)


def test_solutions_and_frequencies_are_those_of_the_draws():
    pair = Pair("one-hot", "float64")
    found = pair.fused.distribution(pair.theta, rng=SEED)
    mean = pair.fused(pair.theta, rng=SEED)
    for row, distribution in enumerate(found):
        got = distribution.frequencies @ distribution.solutions
        np.testing.assert_allclose(got, mean[row], rtol=1e-12)


def test_the_seed_decides_the_noise():
    pair = Pair("one-hot", "float32")
    layer, theta = pair.fused, pair.theta
    assert np.array_equal(layer(theta, rng=1), layer(theta, rng=1))
    assert not np.array_equal(layer(theta, rng=1), layer(theta, rng=2))
    generator = np.random.default_rng(1)
    first, second = layer(theta, rng=generator), layer(theta, rng=generator)
    assert np.array_equal(first, layer(theta, rng=1))
    assert not np.array_equal(first, second)


def test_half_precision_and_empty_batches():
    layer = Perturbed(ss.solvers.OneHot(), num_samples=4, route="fused")
    half = np.zeros((2, 3), np.float16)
    assert layer(half).dtype == np.float16
    assert layer.vjp(half, half).theta.dtype == np.float16
    assert layer(np.zeros((0, 3))).shape == (0, 3)
    assert layer.jacobian(np.zeros((0, 3))).shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("solver", "options", "route"),
    [
        (ss.solvers.OneHot(), {}, "fused"),
        (ss.solvers.Assignment(), {}, "fused"),
        (ss.solvers.Assignment(), {"form": "maximum"}, "host"),
        (ss.solvers.OneHot(), {"perturbation": "multiplicative"}, "array"),
        (ss.solvers.OneHot(), {"route": "array"}, "array"),
        (ss.solvers.Hypercube(), {}, "array"),
        (ss.solver(np.sign), {}, "host"),
    ],
)
def test_repr_shows_the_route_that_is_taken(solver, options, route):
    layer = Perturbed(solver, **options)
    assert f'route="{route}"' in repr(layer)
    with mock.patch.object(FusedCall, "mean", side_effect=AssertionError("fused")):
        theta = np.ones((2, 2, 2) if layer.settings.event_ndim == 2 else (2, 3))
        if route == "fused":
            with pytest.raises(AssertionError, match="fused"):
                layer(theta)
        else:
            assert layer(theta).shape == theta.shape


def test_losses_of_solvers_that_clip_take_another_route():
    layer = Perturbed(ss.solvers.GridPath(), num_samples=3)
    theta = -np.ones((2, 3, 3))
    y = ss.solvers.GridPath()(theta)
    with mock.patch.object(FusedCall, "maxima", side_effect=AssertionError):
        value, gradients = FenchelYoungLoss(layer).value_and_gradients(theta, y, rng=0)
    assert value >= 0
    assert gradients.theta.shape == theta.shape


def test_asking_for_the_fused_route_in_vain_raises():
    layer = Perturbed(ss.solvers.Hypercube(), route="fused")
    with pytest.raises(ValueError, match="no compiled kernel"):
        layer(np.zeros((2, 3)))


def test_a_target_that_is_better_than_every_solution_raises():
    loss = FenchelYoungLoss(Perturbed(ss.solvers.OneHot(), num_samples=2))
    theta = np.array([[0.0, 0.0], [1.0, -1.0]])
    with pytest.raises(ss.errors.SolverError, match=r"missed the maximum.*row 1"):
        loss(theta, np.array([[1.0, 0.0], [9.0, -9.0]]), rng=0)
