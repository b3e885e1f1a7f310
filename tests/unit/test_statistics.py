"""The comparison that the statistical tests rest on can fail."""

import numpy as np
import pytest

from support.statistics import (
    Comparison,
    assert_derivative,
    assert_unbiased,
    number_of_errors,
)

EXACT = np.array([0.4, -0.3, 1.2])


def replicates(bias=0.0, scale=1.0, noise=1.0):
    rng = np.random.default_rng(0)
    return scale * (EXACT + bias) + noise * rng.standard_normal((2000, 3))


def test_accepts_an_unbiased_estimate():
    assert_unbiased(replicates(), EXACT)
    assert_derivative(replicates(), EXACT, temperature=0.5)


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.5, 2.0])
def test_rejects_mutants(scale):
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_unbiased(replicates(scale=scale), EXACT)


def test_rejects_a_bias_of_seven_standard_errors():
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_unbiased(replicates(bias=7 / np.sqrt(2000)), EXACT)


def test_rejects_nan():
    with pytest.raises(AssertionError, match="off by inf"):
        assert_unbiased(replicates() * np.nan, EXACT)


def test_rejects_a_constant_that_is_wrong():
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_unbiased(np.ones((100, 2)), np.array([1.0, 1.001]))


def test_accepts_a_constant_up_to_rounding():
    assert_unbiased(np.full((100, 1), 1 / 3, np.float32), np.array([1 / 3]))


@pytest.mark.parametrize(
    ("noise", "temperature", "mutant"),
    [(30.0, None, "a zero"), (1.0, 0.99, "a missing 1/ε")],
)
def test_refuses_to_compare_without_power(noise, temperature, mutant):
    with pytest.raises(AssertionError, match=f"{mutant} would pass"):
        assert_derivative(replicates(noise=noise), EXACT, temperature)


def test_refuses_what_it_cannot_judge():
    with pytest.raises(ValueError, match="at least 100 replicates"):
        assert_unbiased(np.zeros((99, 1)), np.zeros(1))
    with pytest.raises(ValueError, match="do not match"):
        Comparison(np.zeros((100, 3)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at most 1,000"):
        number_of_errors(1001)


def test_false_alarms_are_rare():
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(2000):
        comparison = Comparison(rng.standard_normal((100, 25)), np.zeros(25))
        alarms += comparison.excess(comparison.mean) > 1
    assert alarms <= 2
