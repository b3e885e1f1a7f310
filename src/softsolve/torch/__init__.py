"""Perturbed solvers in PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover
    _msg = (
        "softsolve.torch needs PyTorch, which is not installed: "
        'pip install "softsolve[torch]".'
    )
    raise ImportError(_msg, name="torch") from error

from softsolve.torch.blackbox import BlackBox
from softsolve.torch.layers import Distribution, Perturbed
from softsolve.torch.losses import FenchelYoungLoss

__all__ = ["BlackBox", "Distribution", "FenchelYoungLoss", "Perturbed"]
