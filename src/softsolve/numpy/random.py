"""Noise from NumPy's generators."""

import numpy as np

from softsolve.noise import Gumbel, Laplace, Logistic, Noise, Normal


def draw(
    noise: Noise,
    shape: tuple[int, ...],
    dtype: np.dtype,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw noise of that shape, float32 or float64."""
    if isinstance(noise, Normal):
        return rng.standard_normal(shape, dtype=dtype)
    if isinstance(noise, Gumbel):
        return -np.log(_exponential(shape, dtype, rng))
    if isinstance(noise, Logistic):
        return np.log(_exponential(shape, dtype, rng) / _exponential(shape, dtype, rng))
    if isinstance(noise, Laplace):
        return _exponential(shape, dtype, rng) - _exponential(shape, dtype, rng)
    # Midpoints of a fine grid: never 0 or 1, whose quantiles are infinite.
    uniform = (rng.integers(0, 2**52, shape) + 0.5) / 2**52
    return np.asarray(noise.quantile(uniform), dtype=dtype)


def _exponential(
    shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator
) -> np.ndarray:
    draws = rng.standard_exponential(shape, dtype=dtype)
    return np.maximum(draws, np.finfo(dtype).tiny)


def draw_keys(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the key of each row's noise, int32 (B, 2)."""
    return rng.integers(-(2**31), 2**31, (rows, 2), dtype=np.int32)
