"""Properties of perturbed solvers that hold for every set of draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from softsolve.solvers import FiniteSet, Hypercube, L1Ball, OneHot, Ranking, TopK
from support.frontends import FRONTENDS

ROWS, SAMPLES, SIZE = 12, 4, 5
POLYGON = FiniteSet(np.random.default_rng(3).integers(-3, 4, (8, SIZE)))
SOLVERS = [
    OneHot(),
    TopK(2),
    Ranking(),
    Ranking([0.0, 0.0, 1.0, 1.0, 3.0]),
    Hypercube(),
    Hypercube(signed=False),
    L1Ball(2.0),
    POLYGON,
]
SYMMETRIC = [solver for solver in SOLVERS if solver is not POLYGON]

numbers = st.floats(-10, 10, width=32)
# Whole numbers tie.
scores = st.one_of(
    arrays(np.float64, (ROWS, SIZE), elements=numbers),
    arrays(np.float64, (ROWS, SIZE), elements=st.integers(-2, 2).map(float)),
)
draws = arrays(np.float64, (ROWS, SAMPLES, SIZE), elements=st.floats(-4, 4, width=32))
temperatures = arrays(np.float64, (ROWS,), elements=st.floats(0.125, 8, width=32))


def cases(solvers):
    """Pair frontends with solvers; calls in JAX take long, so there with few."""
    pairs = [
        pytest.param(name, solver, id=f"{name}-{solver!r}")
        for solver in solvers
        for name in FRONTENDS
        if name != "jax" or type(solver) in (Ranking, FiniteSet)
    ]
    return pytest.mark.parametrize(("name", "solver"), pairs)


few = settings(max_examples=8)


def layer_of(frontend, solver, **options):
    return frontend.layer(solver, num_samples=SAMPLES, route="array", **options)


@cases(SOLVERS)
@few
@given(theta=scores, z=draws, eps=temperatures)
def test_averages_are_in_the_hull_and_losses_nonnegative(name, solver, theta, z, eps):
    frontend = FRONTENDS[name]
    layer = layer_of(frontend, solver)
    vertices = np.asarray(solver(np.random.default_rng(0).normal(size=(60, SIZE))))
    with frontend.given_noise(z):
        y = frontend.value(layer, theta, temperature=eps)
        maximum = frontend.maximum(layer, theta, temperature=eps)
        drawn = frontend.sample(layer, theta, temperature=eps)
        loss = frontend.loss_of(layer, reduction="none")
        target = np.asarray(solver(theta[::-1].copy()))
        value = np.asarray(loss_value(frontend, loss, theta, target, eps))
    assert drawn.shape == (SAMPLES, ROWS, SIZE)
    assert np.asarray(solver.feasible(drawn.reshape(-1, SIZE))).all()
    np.testing.assert_allclose(drawn.mean(axis=0), y, atol=1e-12)
    directions = np.random.default_rng(1).normal(size=(20, SIZE))
    reach = (np.asarray(solver(directions)) * directions).sum(1)
    assert (y @ directions.T <= reach + 1e-9).all()
    x = theta[:, None] + eps[:, None, None] * z
    best = (x @ vertices.T).max(axis=-1).mean(axis=1)
    assert (maximum >= best - 1e-9).all()
    assert (value >= -1e-9).all()
    # The loss is the maximum less what the target reaches.
    reached = (target * x.mean(axis=1)).sum(1)
    np.testing.assert_allclose(value, maximum - reached, atol=1e-9)


def loss_value(frontend, loss, theta, target, eps):
    return frontend.loss(loss, theta, target, temperature=eps)[0]


@cases(SOLVERS)
@few
@given(theta=scores, z=draws, eps=temperatures)
def test_a_batch_is_a_loop(name, solver, theta, z, eps):
    frontend = FRONTENDS[name]
    layer = layer_of(frontend, solver)
    with frontend.given_noise(z):
        y = frontend.value(layer, theta, temperature=eps)
        in_theta, in_eps = frontend.vjp(layer, theta, z[:, 0], temperature=eps)
    for row in (0, 5, ROWS - 1):
        part = slice(row, row + 1)
        with frontend.given_noise(z[part]):
            one = frontend.value(layer, theta[part], temperature=eps[part])
            pulled = frontend.vjp(layer, theta[part], z[part, 0], temperature=eps[part])
        np.testing.assert_allclose(y[part], one, atol=1e-12)
        np.testing.assert_allclose(in_theta[part], pulled[0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(in_eps[part], pulled[1], rtol=1e-9, atol=1e-8)


@cases(SOLVERS)
@few
@given(
    theta=scores, z=draws, eps=temperatures, factor=st.sampled_from([0.25, 2.0, 16.0])
)
def test_scaling_law(name, solver, theta, z, eps, factor):
    """y_{cε}(cθ) = y_ε(θ) and F_{cε}(cθ) = c·F_ε(θ)."""
    frontend = FRONTENDS[name]
    layer = layer_of(frontend, solver)
    with frontend.given_noise(z):
        one = frontend.value(layer, theta, temperature=eps)
        scaled = frontend.value(layer, factor * theta, temperature=factor * eps)
        np.testing.assert_array_equal(one, scaled)
        one = frontend.maximum(layer, theta, temperature=eps)
        scaled = frontend.maximum(layer, factor * theta, temperature=factor * eps)
        np.testing.assert_allclose(scaled, factor * one, rtol=1e-12)
        pulled = frontend.vjp(layer, theta, z[:, 0], temperature=eps)
        scaled = frontend.vjp(layer, factor * theta, z[:, 0], temperature=factor * eps)
        for before, after in zip(pulled, scaled, strict=True):
            np.testing.assert_allclose(after, before / factor, rtol=1e-9, atol=1e-9)


@cases(SYMMETRIC)
@few
@given(
    theta=arrays(np.float64, (ROWS, SIZE), elements=numbers, unique=True),
    z=draws,
    eps=temperatures,
    order=st.permutations(range(SIZE)),
)
def test_permutations_of_scores_and_noise(name, solver, theta, z, eps, order):
    frontend = FRONTENDS[name]
    x = theta[:, None] + eps[:, None, None] * z
    if (np.diff(np.sort(np.abs(x), axis=-1), axis=-1) < 1e-9).any():
        return  # ties go to the lowest index, wherever that is
    layer = layer_of(frontend, solver)
    with frontend.given_noise(z):
        one = frontend.value(layer, theta, temperature=eps)
        pulled, _ = frontend.vjp(layer, theta, z[:, 0], temperature=eps)
    with frontend.given_noise(z[..., order]):
        other = frontend.value(layer, theta[:, order], temperature=eps)
        after, _ = frontend.vjp(
            layer, theta[:, order], z[:, 0][:, order], temperature=eps
        )
    np.testing.assert_allclose(other, one[:, order], atol=1e-12)
    np.testing.assert_allclose(after, pulled[:, order], rtol=1e-9, atol=1e-9)


@cases(SOLVERS)
@few
@given(theta=scores, other=scores, z=draws, eps=temperatures, weight=st.floats(0, 1))
def test_the_maximum_is_convex(name, solver, theta, other, z, eps, weight):
    frontend = FRONTENDS[name]
    layer = layer_of(frontend, solver)
    middle = weight * theta + (1 - weight) * other
    with frontend.given_noise(z):
        ends = [
            frontend.maximum(layer, at, temperature=eps)
            for at in (theta, other, middle)
        ]
        slope = frontend.value(layer, theta, temperature=eps)
    assert (ends[2] <= weight * ends[0] + (1 - weight) * ends[1] + 1e-9).all()
    # Its gradient is the average solution, from which the tangent stays below.
    tangent = ends[0] + (slope * (other - theta)).sum(1)
    assert (ends[1] >= tangent - 1e-9).all()
