"""Comparing estimates with exact values, in standard errors of the samples.

Every comparison raises on failure, and shows that it could have failed.
"""

import numpy as np


def number_of_errors(entries):
    """Return how many standard errors to allow for so many entries at once.

    With Gaussian errors the chance of one false alarm is about 1e-5 up to 25 entries
    and 2e-6 up to 1,000.
    """
    if entries > 1000:
        msg = f"compare at most 1,000 entries at once; got {entries}"
        raise ValueError(msg)
    return 5 if entries <= 25 else 6


class Comparison:
    """Independent replicates (K, …) of an estimate, against its exact value (…)."""

    def __init__(self, replicates, exact):
        replicates = np.asarray(replicates)
        self.exact = np.asarray(exact, dtype=np.float64)
        if replicates.shape[1:] != self.exact.shape:
            msg = f"replicates {replicates.shape} do not match exact {self.exact.shape}"
            raise ValueError(msg)
        if len(replicates) < 100:
            msg = f"standard errors need at least 100 replicates; got {len(replicates)}"
            raise ValueError(msg)
        # Rounding is all that is left where an estimate has no variance.
        kind = replicates.dtype if replicates.dtype.kind == "f" else np.dtype(float)
        rounding = 8 * np.finfo(kind).eps * (1 + np.abs(self.exact))
        values = replicates.astype(np.float64)
        self.mean = values.mean(axis=0)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        self.tolerance = number_of_errors(self.exact.size) * error + rounding

    def excess(self, estimate):
        """Return by how many tolerances an estimate is off, at the worst entry."""
        if not np.isfinite(estimate).all():
            return np.inf
        return float(np.max(np.abs(estimate - self.exact) / self.tolerance, initial=0))

    def check(self):
        """Raise unless the mean of the replicates is the exact value."""
        excess = self.excess(self.mean)
        if not excess <= 1:
            msg = (
                f"off by {excess:.3g} times the tolerance\nestimate:\n{self.mean}\n"
                f"exact:\n{self.exact}\ntolerance:\n{self.tolerance}"
            )
            raise AssertionError(msg)

    def check_power(self, mutants):
        """Raise unless each of these wrong estimates would have been rejected."""
        for name, mutant in mutants.items():
            excess = self.excess(mutant)
            if not excess > 1:
                msg = f"{name} would pass: it is off by {excess:.3g} tolerances only"
                raise AssertionError(msg)


def assert_unbiased(replicates, exact):
    """Raise unless replicates (K, …) average to an exact value (…)."""
    Comparison(replicates, exact).check()


def assert_derivative(replicates, exact, temperature=None):
    """Do the same for a derivative, and show that no wrong one would have passed.

    Wrong ones are zero, the opposite and, given the temperature, one that lacks a
    factor of 1/ε or has one too many.
    """
    comparison = Comparison(replicates, exact)
    comparison.check()
    mutants = {"a zero": 0 * comparison.mean, "a flipped sign": -comparison.mean}
    if temperature is not None:
        mutants["a missing 1/ε"] = comparison.mean * temperature
        mutants["a second 1/ε"] = comparison.mean / temperature
    comparison.check_power(mutants)
