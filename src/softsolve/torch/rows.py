"""A call's arguments as rows."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softsolve import layer
from softsolve.settings import Settings
from softsolve.torch.transforms import vary_where_random

Tensor = torch.Tensor
Temperature = float | Tensor


@dataclass(frozen=True)
class Rows:
    """A call's scores as rows (B, d) with their temperatures (B,) and context."""

    theta: Tensor
    temperature: Tensor
    context: tuple[Tensor, ...]
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def fixed(self) -> tuple[Tensor, Tensor]:
        """Scores and temperatures, outside of differentiation."""
        return self.theta.detach(), self.temperature.detach()

    @property
    def drawn_at(self) -> tuple[Tensor, Tensor]:
        """The same, varying wherever the noise does, for calls that are mapped."""
        theta, temperature = self.fixed
        return vary_where_random(theta), temperature

    def restore(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Give results (B, k) the batch's shape and the scores' type."""
        full_shape = self.batch_shape + shape
        if values.shape != full_shape:
            values = values.reshape(full_shape)
        return values if values.dtype == self.dtype else values.to(self.dtype)


def lay_out(
    settings: Settings, theta: Tensor, context: tuple[Tensor, ...], temperature: Any
) -> Rows:
    """Check scores, context and temperature, and lay them out as rows."""
    layer.check_type(theta, torch.Tensor, "theta", "Use torch.as_tensor.")
    if not theta.is_floating_point():
        layer.raise_integer_theta(theta.dtype)
    batch_shape, event_shape = settings.split_shape(tuple(theta.shape))
    half = theta.dtype in (torch.float16, torch.bfloat16)
    work = torch.float32 if half else theta.dtype
    count, size = math.prod(batch_shape), math.prod(event_shape)
    # Views cost as much as small solvers, in the backward pass once more.
    flat = theta.to(work) if half else theta
    if flat.shape != (count, size):
        flat = flat.reshape(count, size)
    if not isinstance(temperature, torch.Tensor):
        layer.check_temperature(temperature)
        temperature = as_tensor(temperature)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.to(device=theta.device, dtype=work)
        spread = layer.spread_temperature(temperature, batch_shape)
    else:
        spread = torch.full((count,), temperature, dtype=work, device=theta.device)
    contexts = layer.flatten_context(
        batch_shape,
        tuple(torch.as_tensor(array, device=theta.device) for array in context),
    )
    settings.check_instances(event_shape, contexts)
    return Rows(flat, spread, contexts, batch_shape, event_shape, theta.dtype)


def as_tensor(temperature: Any) -> Any:
    """Return numbers as floats, and arrays or lists of them as tensors."""
    if isinstance(temperature, torch.Tensor | float):
        return temperature
    if isinstance(temperature, int) or np.ndim(temperature) == 0:
        return float(temperature)
    return torch.as_tensor(np.asarray(temperature, dtype=float))
