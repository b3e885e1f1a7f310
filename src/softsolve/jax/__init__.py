"""Perturbed solvers in JAX."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:  # pragma: no cover
    _msg = (
        'softsolve.jax needs JAX, which is not installed: pip install "softsolve[jax]".'
    )
    raise ImportError(_msg, name="jax") from error

from softsolve.jax.blackbox import BlackBox
from softsolve.jax.layers import Distribution, Perturbed
from softsolve.jax.losses import FenchelYoungLoss

__all__ = ["BlackBox", "Distribution", "FenchelYoungLoss", "Perturbed"]
