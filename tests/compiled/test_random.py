"""A battery on the counter-based generator, beyond what averages could show."""

import numpy as np
import pytest
from scipy import stats

from softsolve import parallel
from softsolve.compiled.random import export_draws

LAWS = {
    "normal": stats.norm,
    "gumbel": stats.gumbel_r,
    "logistic": stats.logistic,
    "laplace": stats.laplace,
}
CASES = [(noise, dtype) for noise in LAWS for dtype in (np.float32, np.float64)]
case = pytest.mark.parametrize(("noise", "dtype"), CASES)


def keys_of(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**31), 2**31, (rows, 2)).astype(np.int32)


def adjacent_keys(rows):
    """Keys that differ in one step, in either half."""
    steps = np.arange(rows, dtype=np.int32)
    return np.stack([steps % 64, steps // 64], axis=1)


def uniform(noise, draws):
    return LAWS[noise].cdf(draws.astype(np.float64))


@case
def test_moments(noise, dtype):
    z = export_draws(noise, keys_of(8), 1000, 250, dtype).astype(np.float64).ravel()
    law = LAWS[noise]
    assert np.isfinite(z).all()
    mean, variance, skewness, excess = law.stats(moments="mvsk")
    moments = (0, variance, skewness * variance**1.5, (excess + 3) * variance**2)
    for power, exact in enumerate(moments, start=1):
        terms = (z - mean) ** power
        assert abs(terms.mean() - exact) < 5 * terms.std() / np.sqrt(z.size)


@case
@pytest.mark.parametrize("keys", [keys_of, adjacent_keys])
def test_kolmogorov_smirnov(noise, dtype, keys):
    z = export_draws(noise, keys(50), 40, 200, dtype)
    law = LAWS[noise]
    assert stats.kstest(z.ravel(), law.cdf).pvalue > 1e-4
    # Each coordinate, each sample and each row by itself: the least of many p-values.
    slices = [z[:, :, j] for j in range(0, 200, 9)]
    slices += [z[:, m] for m in range(0, 40, 3)] + [z[row] for row in range(0, 50, 4)]
    least = min(stats.kstest(part.ravel(), law.cdf).pvalue for part in slices)
    assert least > 1e-4 / len(slices)


@case
@pytest.mark.parametrize("keys", [keys_of, adjacent_keys])
def test_correlations(noise, dtype, keys):
    size = 97
    u = uniform(noise, export_draws(noise, keys(64), 64, size, dtype)) - 0.5
    half = (size + 1) // 2
    for power in (1, 2):
        # u and u² - E u², so that dependence of sizes shows too.
        x = u if power == 1 else u**2 - 1 / 12
        variance = (1 / 12) ** 2 if power == 1 else (1 / 180) ** 2
        for axis in range(3):
            for lag in (1, 2, 3, 8, 16, 31, 32, half):
                if lag >= x.shape[axis]:
                    continue
                a = np.moveaxis(x, axis, 0)
                products = a[lag:] * a[:-lag]
                error = np.sqrt(variance / products.size)
                assert abs(products.mean()) < 5.5 * error, (axis, lag, power)


@case
def test_pairs_are_uniform_in_the_plane(noise, dtype):
    """Draws that share words, and neighbours: no structure in two dimensions."""
    u = uniform(noise, export_draws(noise, adjacent_keys(100), 100, 64, dtype))
    for a, b in (
        (u[..., :32], u[..., 32:]),
        (u[..., :-1], u[..., 1:]),
        (u[:, :-1], u[:, 1:]),
        (u[:-1], u[1:]),
    ):
        counts, *_ = np.histogram2d(
            a.ravel(), b.ravel(), bins=32, range=[[0, 1], [0, 1]]
        )
        assert stats.chisquare(counts.ravel()).pvalue > 1e-5


@case
def test_bits_are_even_and_independent(noise, dtype):
    """The sixteen leading bits of u: counts of ones, and of each pair of bits."""
    u = uniform(noise, export_draws(noise, adjacent_keys(64), 32, 128, dtype)).ravel()
    words = np.minimum((u * 2**16).astype(np.int64), 2**16 - 1)
    bits = (words[:, None] >> np.arange(16)) & 1
    signs = 2 * bits - 1
    error = 1 / np.sqrt(len(u))
    assert (abs(signs.mean(0)) < 5 * error).all()
    products = signs.T @ signs / len(u) - np.eye(16)
    assert (abs(products) < 5.5 * error).all()


@case
def test_tails(noise, dtype):
    z = export_draws(noise, keys_of(20), 1000, 500, dtype).ravel()
    law = LAWS[noise]
    for probability in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        for count in (
            (z > law.isf(probability)).sum(),
            (z < law.ppf(probability)).sum(),
        ):
            low, high = stats.binom.interval(1 - 1e-5, z.size, probability)
            assert low <= count <= high, (probability, count)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adjacent_keys_and_samples_share_no_draws(dtype):
    z = export_draws("gumbel", adjacent_keys(200), 50, 20, dtype).ravel()
    repeats = z.size - len(np.unique(z))
    # Distinct 32-bit words collide with this mean; float32 merges some more.
    allowed = 0 if dtype == np.float64 else 2000
    assert repeats <= allowed


@case
def test_antithetic_draws_mirror(noise, dtype):
    z = export_draws(noise, keys_of(5), 40, 33, dtype, antithetic=True)
    first, second = uniform(noise, z[:, ::2]), uniform(noise, z[:, 1::2])
    np.testing.assert_allclose(first + second, 1.0, atol=1e-6)
    if noise != "gumbel":
        np.testing.assert_array_equal(z[:, ::2], -z[:, 1::2])
    independent = export_draws(noise, keys_of(5), 20, 33, dtype)
    np.testing.assert_array_equal(z[:, ::2], independent)


def test_draws_depend_on_their_place_only():
    keys = keys_of(9)
    whole = export_draws("logistic", keys, 12, 70, np.float32)
    np.testing.assert_array_equal(
        whole[3:5, :7], export_draws("logistic", keys[3:5], 7, 70, np.float32)
    )
    before = parallel.get_num_threads()
    for threads in (1, 2, 4):
        parallel.set_num_threads(threads)
        again = export_draws("logistic", keys, 12, 70, np.float32)
        np.testing.assert_array_equal(whole, again)
    parallel.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 63, 64, 65, 130])
def test_every_size(size):
    z = export_draws("normal", keys_of(4), 500, size, np.float32)
    assert np.isfinite(z).all()
    assert (abs(z.mean((0, 1))) < 5 / np.sqrt(2000)).all()
    assert (abs((z**2).mean((0, 1)) - 1) < 5 * np.sqrt(2 / 2000)).all()


def test_the_battery_can_fail():
    """A generator that repeats its draws for a neighbouring row is caught."""
    z = export_draws("normal", keys_of(64), 64, 97, np.float32).astype(float)
    z[1:] = 0.9 * z[1:] + 0.1 * z[:-1]
    products = z[1:] * z[:-1]
    assert abs(products.mean()) > 5.5 / np.sqrt(products.size)


def test_empty():
    assert export_draws("normal", keys_of(0), 3, 4, np.float32).shape == (0, 3, 4)
    assert export_draws("normal", keys_of(2), 3, 0, np.float32).shape == (2, 3, 0)
