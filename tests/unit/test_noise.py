"""Noises: densities, scores, moments and draws."""

import jax
import numpy as np
import pytest
import torch
from array_api_compat import array_namespace
from scipy import integrate, stats

import softsolve as ss
from softsolve.noise import NOISES, CustomNoise, get_noise
from softsolve.solvers import OneHot
from support.frontends import AUTOMATIC, FRONTENDS
from support.references import SCIPY, Exact, SimplexReference
from support.statistics import assert_derivative, assert_unbiased

names = pytest.mark.parametrize("name", NOISES)
frontends = pytest.mark.parametrize("frontend", FRONTENDS)
smooth = pytest.mark.parametrize("name", ["normal", "gumbel", "logistic"])

POINTS = np.array([-2.1, -0.7, 0.2, 1.3, 3.4])


def logistic_log_density(z):
    xp = array_namespace(z)
    return -z - 2 * xp.log1p(xp.exp(-z))


def logistic_quantile(u):
    xp = array_namespace(u)
    return xp.log(u) - xp.log1p(-u)


def own_noise(**options):
    return CustomNoise(logistic_log_density, quantile=logistic_quantile, **options)


@names
def test_density_and_quantile(name):
    noise, reference = NOISES[name], SCIPY[name]
    levels = np.array([1e-6, 0.02, 0.3, 0.5, 0.9, 1 - 1e-6])
    np.testing.assert_allclose(noise.quantile(levels), reference.ppf(levels), atol=1e-9)
    constant = noise.nu(POINTS) + reference.logpdf(POINTS)
    np.testing.assert_allclose(constant, constant[0], atol=1e-12)


@names
def test_moments(name):
    noise, reference = NOISES[name], SCIPY[name]
    assert noise.mean == pytest.approx(float(reference.mean()), abs=1e-12)
    assert noise.variance == pytest.approx(float(reference.var()), abs=1e-12)
    skew = float(reference.stats(moments="s"))
    assert noise.symmetric == (abs(skew) < 1e-12)


@names
def test_score_is_the_derivative_of_nu(name):
    noise, h = NOISES[name], 1e-5
    slope = (noise.nu(POINTS + h) - noise.nu(POINTS - h)) / (2 * h)
    np.testing.assert_allclose(noise.score(POINTS), slope, rtol=1e-8, atol=1e-9)


@smooth
def test_curvature_is_the_derivative_of_the_score(name):
    noise, h = NOISES[name], 1e-5
    slope = (noise.score(POINTS + h) - noise.score(POINTS - h)) / (2 * h)
    np.testing.assert_allclose(noise.curvature(POINTS), slope, rtol=1e-8, atol=1e-9)


@names
def test_expected_score_is_zero_and_curvature_is_its_square(name):
    noise, density = NOISES[name], SCIPY[name].pdf

    def expectation(function):
        points = np.array([-1.0, 0.0, 1.0])
        return integrate.quad(
            lambda z: float(function(np.array(z))) * density(z),
            *(-40, 60),
            points=points,
            limit=400,
        )[0]

    assert expectation(noise.score) == pytest.approx(0, abs=1e-8)
    if noise.smooth:  # Fisher's information, both ways
        squared = expectation(lambda z: noise.score(z) ** 2)
        assert expectation(noise.curvature) == pytest.approx(squared, rel=1e-7)


def test_laplace_has_no_curvature():
    assert not NOISES["laplace"].smooth
    with pytest.raises(ValueError, match="no second derivative of ν"):
        NOISES["laplace"].curvature(POINTS)


@names
def test_the_same_functions_in_every_framework(name):
    noise = NOISES[name]
    functions = ["nu", "score", *(["curvature"] if noise.smooth else [])]
    for function in functions:
        expected = getattr(noise, function)(POINTS)
        in_torch = getattr(noise, function)(torch.tensor(POINTS))
        np.testing.assert_allclose(in_torch.numpy(), expected, rtol=1e-12)
        in_jax = getattr(noise, function)(jax.numpy.asarray(POINTS))
        np.testing.assert_allclose(in_jax, expected, rtol=2e-6, atol=1e-6)


@names
def test_nu_does_not_overflow(name):
    if name != "gumbel":  # whose density is doubly exponential
        assert np.isfinite(NOISES[name].nu(np.array([-500.0, 500.0]))).all()


@frontends
@names
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_follow_the_distribution(frontend, name, dtype):
    noise = NOISES[name]
    z = FRONTENDS[frontend].draw(noise, (200, 100), dtype, seed=5)
    assert z.dtype == dtype
    assert np.isfinite(z).all()
    flat = z.ravel().astype(np.float64)
    assert stats.kstest(flat, SCIPY[name].cdf).pvalue > 1e-4
    for other in NOISES:
        if other != name:
            assert stats.kstest(flat, SCIPY[other].cdf).pvalue < 1e-6
    assert_unbiased(z.mean(axis=1), noise.mean)
    centred = z.astype(np.float64) - noise.mean
    assert_unbiased((centred**2).mean(axis=1), noise.variance)
    assert_unbiased(np.asarray(noise.score(z.astype(float))).mean(axis=1), 0.0)


@frontends
def test_draws_are_independent(frontend):
    """Neither samples nor coordinates nor rows are correlated."""
    z = FRONTENDS[frontend].draw(NOISES["normal"], (40, 500, 4), np.float64, seed=6)
    products = np.einsum("bmi,bmj->mij", z, z) / len(z)
    assert_unbiased(products, np.eye(4))
    assert_unbiased((z[:, 1:] * z[:, :-1]).mean(axis=0), np.zeros(4))
    assert_unbiased((z[1:] * z[:-1]).mean(axis=0), np.zeros(4))


@frontends
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_custom_noise_is_drawn_from_its_quantiles(frontend, dtype):
    z = FRONTENDS[frontend].draw(own_noise(), (20_000,), dtype, seed=7)
    assert z.dtype == dtype
    assert stats.kstest(z.astype(float), stats.logistic.cdf).pvalue > 1e-4
    student = CustomNoise(
        lambda z: -2 * array_namespace(z).log1p(z**2 / 3), quantile=stats.t(3).ppf
    )
    z = FRONTENDS[frontend].draw(student, (20_000,), dtype, seed=7)
    assert z.dtype == dtype
    assert stats.kstest(z.astype(float), stats.t(3).cdf).pvalue > 1e-4


def test_custom_noise_derives_its_score_in_every_framework():
    noise, exact = own_noise(), NOISES["logistic"]
    assert noise.mean == pytest.approx(0, abs=1e-6)
    assert noise.variance == pytest.approx(exact.variance, rel=1e-5)
    assert noise.symmetric
    for function in ("score", "curvature"):
        made, expected = getattr(noise, function), getattr(exact, function)(POINTS)
        np.testing.assert_allclose(made(POINTS), expected, rtol=1e-6)
        np.testing.assert_allclose(made(torch.tensor(POINTS)), expected, rtol=1e-10)
        with jax.enable_x64(True):
            in_jax = made(jax.numpy.asarray(POINTS))
            np.testing.assert_allclose(in_jax, expected, rtol=1e-10)


def test_custom_noise_takes_exact_derivatives():
    exact = NOISES["logistic"]
    noise = own_noise(score=exact.score, curvature=exact.curvature)
    np.testing.assert_array_equal(noise.score(POINTS), exact.score(POINTS))
    np.testing.assert_array_equal(noise.curvature(POINTS), exact.curvature(POINTS))


@frontends
def test_custom_noise_in_a_layer(frontend):
    made, eps = FRONTENDS[frontend], 0.6
    theta, g = np.array([0.3, -0.4, 0.6]), np.array([1.0, -2.0, 0.5])
    exact = Exact(SimplexReference("logistic").solution, theta, eps)
    layer = made.layer(OneHot(), noise=own_noise(), num_samples=200)
    rows = np.tile(theta, (400, 1))
    in_theta, in_temperature = made.vjp(
        layer, rows, np.tile(g, (400, 1)), temperature=eps
    )
    assert_derivative(in_theta, g @ exact.jacobian, eps)
    assert_derivative(in_temperature, g @ exact.in_temperature)
    hessian = made.hessian(layer, rows, np.tile(g, (400, 1)), temperature=eps)
    assert_derivative(hessian, exact.point_hessian(g)[:-1, :-1])


@pytest.mark.parametrize("frontend", AUTOMATIC)
def test_custom_noise_with_a_kink_has_first_derivatives_only(frontend):
    noise = CustomNoise(
        lambda z: -array_namespace(z).abs(z),
        quantile=NOISES["laplace"].quantile,
        smooth=False,
    )
    made = FRONTENDS[frontend]
    layer = made.layer(OneHot(), noise=noise, num_samples=4)
    theta = np.zeros((2, 3))
    in_theta, _ = made.vjp(layer, theta, np.eye(3)[:2], temperature=1.0)
    assert np.isfinite(in_theta).all()
    with pytest.raises(ValueError, match="smooth=False"):
        made.hessian(layer, theta, theta + 1, temperature=1.0)


REJECTED = {
    "exponential": (
        lambda z: -z,
        lambda u: -np.log1p(-u),
        "the score must have expectation 0",
    ),
    "Cauchy": (
        lambda z: -np.log1p(z**2),
        lambda u: np.tan(np.pi * (u - 0.5)),
        "its mean must be finite",
    ),
    "wrong quantile": (
        lambda z: -0.5 * z**2,
        lambda u: 2 * stats.norm.ppf(u),
        "quantile and log_density disagree",
    ),
    "infinite quantile": (
        lambda z: -0.5 * z**2,
        lambda u: np.where(u < 0.1, -np.inf, stats.norm.ppf(u)),
        "must be finite for 0 < u < 1",
    ),
}


@pytest.mark.parametrize(
    ("log_density", "quantile", "message"), REJECTED.values(), ids=REJECTED
)
def test_unsuitable_noise_is_rejected(log_density, quantile, message):
    with pytest.raises(ValueError, match=message):
        CustomNoise(log_density, quantile=quantile)


def test_noise_by_name():
    assert get_noise("gumbel") is NOISES["gumbel"]
    assert get_noise(NOISES["normal"]) is NOISES["normal"]
    assert ss.noise.Normal() == NOISES["normal"]
    assert hash(ss.noise.Normal()) == hash(NOISES["normal"])
    assert ss.noise.Normal() != ss.noise.Gumbel()
