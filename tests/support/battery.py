"""Statistics of draws (rows, samples, coordinates) that show what is not random.

Each returns numbers that have a known distribution where the draws are independent and
follow the law.
"""

import numpy as np
from scipy import stats

LAWS = {
    "normal": stats.norm,
    "gumbel": stats.gumbel_r,
    "logistic": stats.logistic,
    "laplace": stats.laplace,
}
LAGS = (1, 2, 3, 8, 16, 31, 32)
TAILS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def keys_of(rows, seed=0):
    """Return random keys of rows."""
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**31), 2**31, (rows, 2)).astype(np.int32)


def adjacent_keys(rows):
    """Return keys that differ in one step, in either half."""
    steps = np.arange(rows, dtype=np.int32)
    return np.stack([steps % 64, steps // 64], axis=1)


def uniform(noise, draws):
    """Return draws as what is uniform on the unit interval."""
    return LAWS[noise].cdf(draws.astype(np.float64))


def moment_scores(noise, draws):
    """Return how many standard errors the first four moments are off."""
    z, law = draws.astype(np.float64).ravel(), LAWS[noise]
    mean, variance, skewness, excess = law.stats(moments="mvsk")
    moments = (0, variance, skewness * variance**1.5, (excess + 3) * variance**2)
    scores = []
    for power, exact in enumerate(moments, start=1):
        terms = (z - mean) ** power
        scores.append((terms.mean() - exact) / (terms.std() / np.sqrt(z.size)))
    return np.array(scores)


def kolmogorov_smirnov(noise, draws):
    """Return p-values: of all draws, then of single coordinates, samples and rows."""
    parts = [draws]
    parts += [draws[:, :, j] for j in range(0, draws.shape[2], 9)]
    parts += [draws[:, m] for m in range(0, draws.shape[1], 3)]
    parts += [draws[row] for row in range(0, draws.shape[0], 4)]
    return np.array(
        [
            stats.kstest(part.ravel().astype(np.float64), LAWS[noise].cdf).pvalue
            for part in parts
        ]
    )


def correlation_scores(noise, draws):
    """Return correlations in standard errors, by axis, lag and power.

    Along rows, samples and coordinates; of u and of u² - E u², so that dependence of
    sizes shows too. Coordinates half a row apart share their words.
    """
    u = uniform(noise, draws) - 0.5
    lags = (*LAGS, (draws.shape[2] + 1) // 2)
    scores = {}
    for power in (1, 2):
        x = u if power == 1 else u**2 - 1 / 12
        variance = (1 / 12) ** 2 if power == 1 else (1 / 180) ** 2
        for axis in range(3):
            for lag in lags:
                if lag < x.shape[axis]:
                    a = np.moveaxis(x, axis, 0)
                    products = a[lag:] * a[:-lag]
                    error = np.sqrt(variance / products.size)
                    scores[axis, lag, power] = products.mean() / error
    return scores


def tail_counts(noise, draws):
    """Return for each of TAILS the counts beyond both quantiles."""
    z, law = draws.ravel(), LAWS[noise]
    return {
        p: (int((z < law.ppf(p)).sum()), int((z > law.isf(p)).sum())) for p in TAILS
    }
