"""Keeping the estimators out of autocast."""

import contextlib
from contextlib import AbstractContextManager

import torch


def full_precision(like: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which products keep the precision of their tensors."""
    kind = like.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
