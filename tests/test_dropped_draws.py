"""Layers over solvers that drop failed draws: estimates given success."""

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import norm

import softsolve as ss
import softsolve.torch
from support.black_boxes import quietly
from support.frontends import FRONTENDS
from support.statistics import Comparison, assert_derivative, assert_unbiased

ALL = pytest.mark.parametrize("frontend", FRONTENDS.values(), ids=FRONTENDS.keys())

CUT = 0.8


def upper_orthant(theta):
    """Return which scores are positive; fail where the first is beyond the cut."""
    y = (theta > 0).astype(theta.dtype)
    y[theta[:, 0] > CUT] = np.nan
    return y


def precision(frontend):
    """Return the type of which callbacks of JAX get all digits on any thread."""
    return np.float32 if frontend.name == "jax" else np.float64


def dropping():
    solver = ss.solver(upper_orthant, linear=True, on_failure="drop")
    quietly(solver, np.array([[9.0, 0.0]]))
    return solver


THETA, TEMPERATURE = np.array([0.2, -0.3]), 0.7


def exact_given_success():
    """Return E[y | success] (2,), its Jacobian, and its derivative in ε."""
    low, high = -THETA[0] / TEMPERATURE, (CUT - THETA[0]) / TEMPERATURE
    p, f = norm.cdf, norm.pdf
    other = THETA[1] / TEMPERATURE
    mean = np.array([1 - p(low) / p(high), p(other)])
    slope = f(low) / p(high) - p(low) * f(high) / p(high) ** 2
    jacobian = np.diag([slope, f(other)]) / TEMPERATURE
    drift = low * f(low) / p(high) - p(low) * high * f(high) / p(high) ** 2
    return mean, jacobian, np.array([drift, -other * f(other)]) / TEMPERATURE


@ALL
def test_estimates_are_of_the_expectation_given_success(frontend):
    draws = 12
    theta = np.tile(THETA, (20_000, 1)).astype(precision(frontend))
    layer = frontend.layer(dropping(), num_samples=draws, temperature=TEMPERATURE)
    mean, jacobian, drift = exact_given_success()
    assert_unbiased(frontend.value(layer, theta), mean)

    replicates = frontend.jacobian(layer, theta, seed=1)
    assert_derivative(replicates, jacobian, TEMPERATURE)
    comparison = Comparison(replicates, jacobian)
    # Over all draws, as if none had been dropped from the count.
    share = norm.cdf((CUT - THETA[0]) / TEMPERATURE)
    unconditional = np.diag(norm.pdf(THETA / TEMPERATURE)) / TEMPERATURE
    comparison.check_power(
        {
            "M - 1 for M' - 1": comparison.mean * (share * draws - 1) / (draws - 1),
            "the unconditional one": unconditional,
            "no baseline": jacobian
            + np.outer(mean, [-norm.pdf((CUT - THETA[0]) / TEMPERATURE) / share, 0])
            / TEMPERATURE,
        }
    )

    for index in (0, 1):
        g = np.zeros_like(theta)
        g[:, index] = 1
        in_theta, in_temperature = frontend.vjp(
            layer, theta, g, temperature=TEMPERATURE, seed=2
        )
        assert_unbiased(in_theta, jacobian[index])
        assert_derivative(in_temperature, drift[index])


def by_hand(theta, z, target):
    """Return what a layer must return for one row and draws (M, d)."""
    x = theta + TEMPERATURE * z
    kept = x[:, 0] <= CUT
    y, z, x = upper_orthant(x)[kept], z[kept], x[kept]
    centred = y - y.mean(axis=0)
    scale = TEMPERATURE * (len(y) - 1)
    return {
        "value": y.mean(axis=0),
        "jacobian": centred.T @ z / scale,
        "in temperature": centred.sum(axis=1) @ ((z * z).sum(axis=1) - 2) / scale,
        "maximum": (y * x).sum(axis=1).mean(),
        "loss": ((y - target) * x).sum(axis=1).mean(),
        "loss in theta": y.mean(axis=0) - target,
        "loss in temperature": ((y - target) * z).sum(axis=1).mean(),
    }


@pytest.mark.parametrize(
    ("frontend", "dtype"),
    [
        (FRONTENDS[name], dtype)
        for name, dtype in [
            ("numpy", np.float32),
            ("numpy", np.float64),
            ("torch", np.float32),
            ("torch", np.float64),
            ("jax", np.float64),
        ]
    ],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_formulas_over_the_draws_that_are_left(frontend, dtype):
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(30, 2)).astype(dtype) * 0.5
    z = rng.normal(size=(30, 8, 2)).astype(dtype)
    target = np.ones((30, 2), dtype)
    x = theta[:, None] + dtype(TEMPERATURE) * z
    left = (x[:, :, 0] <= CUT).sum(axis=1)
    theta, z, target = theta[left > 1], z[left > 1], target[left > 1]
    assert len(theta) > 20
    assert len(np.unique(left[left > 1])) > 3

    layer = frontend.layer(dropping(), num_samples=8, temperature=TEMPERATURE)
    loss = frontend.loss_of(layer, reduction="none")
    g = np.ones_like(theta)
    with frontend.given_noise(z):
        value = frontend.value(layer, theta)
        jacobian = frontend.jacobian(layer, theta)
        in_theta, in_temperature = frontend.vjp(
            layer, theta, g, temperature=TEMPERATURE
        )
        maximum = frontend.maximum(layer, theta)
        losses = frontend.loss(loss, theta, target, temperature=TEMPERATURE)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for row in range(len(theta)):
        exact = by_hand(
            *(array[row].astype(np.float64) for array in (theta, z, target))
        )
        found = {
            "value": value,
            "jacobian": jacobian,
            "in temperature": in_temperature,
            "maximum": maximum,
            "loss": losses[0],
            "loss in theta": losses[1],
            "loss in temperature": losses[2],
        }
        for name, number in exact.items():
            np.testing.assert_allclose(
                found[name][row], number, rtol=tolerance, atol=tolerance, err_msg=name
            )
        np.testing.assert_allclose(
            in_theta[row], exact["jacobian"].sum(axis=0), atol=10 * tolerance
        )
    assert value.dtype == jacobian.dtype == dtype


@ALL
def test_samples_and_distribution(frontend):
    theta = np.tile(THETA, (3, 1)).astype(precision(frontend))
    layer = frontend.layer(dropping(), num_samples=200, temperature=TEMPERATURE)
    sampled = frontend.sample(layer, theta)
    dropped = np.isnan(sampled).all(axis=2)
    assert 0 < dropped.sum() < 200
    assert not np.isnan(sampled[~dropped]).any()
    for row, (solutions, frequencies) in enumerate(frontend.distribution(layer, theta)):
        kept = sampled[~dropped[:, row], row]
        np.testing.assert_allclose(frequencies.sum(), 1, rtol=1e-6)
        np.testing.assert_allclose(frequencies @ solutions, kept.mean(0), rtol=1e-6)


@ALL
def test_a_row_without_draws_is_an_error(frontend):
    layer = frontend.layer(dropping(), num_samples=6, temperature=0.1)
    theta = np.array([[0.0, 0.0], [5.0, 0.0]])
    match = r"failed on 6 of the 6 draws of instance 1, and an average needs one"
    with pytest.raises(ss.SolverError, match=match):
        frontend.value(layer, theta)
    with pytest.raises(ss.SolverError, match=match):
        frontend.maximum(layer, theta)


@ALL
def test_one_draw_has_no_derivative(frontend):
    layer = frontend.layer(dropping(), num_samples=3, temperature=1.0)
    theta = np.zeros((2, 2))
    z = np.zeros((2, 3, 2))
    z[1, 1:, 0] = 5
    match = r"failed on 2 of the 3 draws of instance 1, and derivatives need two"
    with frontend.given_noise(z):
        with pytest.raises(ss.SolverError, match=match):
            frontend.jacobian(layer, theta)
        with pytest.raises(ss.SolverError, match=match):
            frontend.vjp(layer, theta, np.ones_like(theta), temperature=1.0)
        if frontend.name != "jax":  # which cannot know what will be asked for
            assert np.isfinite(frontend.value(layer, theta)).all()
        assert np.isfinite(frontend.maximum(layer, theta)).all()


@ALL
def test_no_second_derivatives(frontend):
    layer = frontend.layer(dropping(), num_samples=30, temperature=0.5)
    theta = np.zeros((2, 2))
    match = "has no estimate of its second derivatives"
    with pytest.raises(RuntimeError, match=match):
        frontend.hessian(layer, theta, np.ones_like(theta), temperature=0.5)
    if frontend.name != "numpy":
        with pytest.raises(RuntimeError, match=match):
            frontend.maximum_hessian(layer, theta, temperature=0.5)


@ALL
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": 1}, "does not go with num_samples=1"),
        ({"baseline": "none"}, 'does not go with baseline="none"'),
        ({"baseline": "point"}, 'does not go with baseline="point"'),
        ({"form": "maximum"}, 'does not go with form="maximum"'),
        ({"symmetric": True}, "does not go with symmetric=True"),
    ],
)
def test_what_does_not_go_with_dropped_draws(frontend, options, match):
    with pytest.raises(ValueError, match=match):
        frontend.layer(dropping(), **options)


@ALL
def test_nothing_changes_where_nothing_fails(frontend):
    def positive(theta):
        return (theta > 0).astype(theta.dtype)

    theta = np.random.default_rng(4).normal(size=(5, 3))
    results = []
    for on_failure in ("raise", "drop"):
        with warnings.catch_warnings(action="error"):
            solver = ss.solver(positive, linear=True, on_failure=on_failure)
            layer = frontend.layer(solver, num_samples=9, temperature=0.5)
            results.append(
                (
                    frontend.value(layer, theta),
                    frontend.jacobian(layer, theta),
                    frontend.maximum(layer, theta),
                )
            )
        assert solver.dropped == 0
    for raised, dropped in zip(*results, strict=True):
        np.testing.assert_allclose(dropped, raised, rtol=1e-12, atol=1e-12)


def test_dropped_draws_do_not_compile():
    layer = softsolve.torch.Perturbed(dropping(), num_samples=3)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Observed exception"):
        compiled(torch.zeros(1, 2))
