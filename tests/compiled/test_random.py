"""A battery on the counter-based generator, beyond what averages could show."""

import numpy as np
import pytest
from scipy import stats

from softsolve import parallel
from softsolve.compiled.random import export_draws
from support.battery import (
    LAWS,
    adjacent_keys,
    correlation_scores,
    keys_of,
    kolmogorov_smirnov,
    moment_scores,
    tail_counts,
    uniform,
)

CASES = [(noise, dtype) for noise in LAWS for dtype in (np.float32, np.float64)]
case = pytest.mark.parametrize(("noise", "dtype"), CASES)


@case
def test_moments(noise, dtype):
    z = export_draws(noise, keys_of(8), 1000, 250, dtype)
    assert np.isfinite(z).all()
    assert (abs(moment_scores(noise, z)) < 5).all()


@case
@pytest.mark.parametrize("keys", [keys_of, adjacent_keys])
def test_kolmogorov_smirnov(noise, dtype, keys):
    values = kolmogorov_smirnov(noise, export_draws(noise, keys(50), 40, 200, dtype))
    assert values[0] > 1e-4
    assert values.min() > 1e-4 / len(values)


@case
@pytest.mark.parametrize("keys", [keys_of, adjacent_keys])
def test_correlations(noise, dtype, keys):
    z = export_draws(noise, keys(64), 64, 97, dtype)
    for place, score in correlation_scores(noise, z).items():
        assert abs(score) < 5.5, place


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
    z = export_draws(noise, keys_of(20), 1000, 500, dtype)
    for probability, counts in tail_counts(noise, z).items():
        low, high = stats.binom.interval(1 - 1e-5, z.size, probability)
        assert all(low <= count <= high for count in counts), probability


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
    """Draws that depend a little on a neighbour, or are a little too wide, are seen."""
    z = export_draws("normal", keys_of(64), 64, 97, np.float32).astype(float)
    z[1:] = np.sqrt(0.99) * z[1:] + 0.1 * z[:-1]
    assert abs(correlation_scores("normal", z)[0, 1, 1]) > 5.5
    wide = 1.01 * export_draws("normal", keys_of(50), 40, 200, np.float32)
    assert abs(moment_scores("normal", wide)[1]) > 5
    assert kolmogorov_smirnov("normal", 1.02 * wide)[0] < 1e-4
    low, high = stats.binom.interval(1 - 1e-5, wide.size, 1e-4)
    assert not low <= tail_counts("normal", 1.1 * wide)[1e-4][1] <= high


def test_empty():
    assert export_draws("normal", keys_of(0), 3, 4, np.float32).shape == (0, 3, 4)
    assert export_draws("normal", keys_of(2), 3, 0, np.float32).shape == (2, 3, 0)
