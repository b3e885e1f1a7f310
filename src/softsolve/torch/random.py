"""Noise from torch's generators."""

from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from softsolve.noise import (
    DERIVATIVES,
    Elementwise,
    Gumbel,
    Laplace,
    Logistic,
    Noise,
    Normal,
)


def own_generator(
    generator: torch.Generator | None, device: torch.device
) -> torch.Generator | None:
    """Return what a call draws from: under data-parallel training, the rank's own.

    Ranks that were seeded alike would else draw the same noise for their parts of a
    batch. None stands for torch's default generator.
    """
    parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    if generator is not None or not parallel or torch.compiler.is_compiling():
        return generator
    with temporarily_clear_interpreter_stack():  # a seed is no part of what is mapped
        seeds = torch.randint(2**62, (torch.distributed.get_world_size(),))
        seed = int(seeds[torch.distributed.get_rank()])
    return torch.Generator(device).manual_seed(seed)


def draw(
    noise: Noise,
    shape: tuple[int, ...],
    like: torch.Tensor,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Draw noise of that shape, with the type and on the device of a tensor."""
    # torch.compile takes shapes that vary only where no generator is named.
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    if isinstance(noise, Normal):
        return torch.randn(shape, dtype=like.dtype, device=like.device, **given)
    if isinstance(noise, Gumbel):
        return -_exponential(shape, like, generator).log()
    if isinstance(noise, Logistic):
        first = _exponential(shape, like, generator)
        return (first / _exponential(shape, like, generator)).log()
    if isinstance(noise, Laplace):
        return _exponential(shape, like, generator) - _exponential(
            shape, like, generator
        )
    grid = torch.rand(shape, dtype=torch.float64, device=like.device, **given)
    # Away from 0 and 1, whose quantiles are infinite.
    uniform = grid.clamp(2.0**-53, 1 - 2.0**-53)
    return _quantile(noise, uniform).to(like.dtype)


def _quantile(noise: Noise, uniform: torch.Tensor) -> torch.Tensor:
    try:
        drawn = noise.quantile(uniform)
    except TypeError:  # a quantile function written for NumPy
        drawn = noise.quantile(uniform.cpu().numpy())
    return torch.as_tensor(drawn, device=uniform.device)


def _exponential(
    shape: tuple[int, ...], like: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    empty = torch.empty(shape, dtype=like.dtype, device=like.device)
    return empty.exponential_(generator=generator).clamp_min(
        torch.finfo(like.dtype).tiny
    )


def _derivative(function: Elementwise, z: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda at: function(at).sum())(z)


DERIVATIVES["torch"] = _derivative
