"""Operators for torch.compile, which cannot trace what looks at values.

None of them has a derivative or needs one: they are called on detached tensors, and the
surrogate around them carries the derivatives.
"""

import torch

from softsolve.torch.sampling import check_point

Tensor = torch.Tensor


@torch.library.custom_op("softsolve::checked_point", mutates_args=())
def checked_point(theta: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return copies of the point, or raise if it cannot be used."""
    check_point(theta, temperature)
    return theta.clone(), temperature.clone()


@checked_point.register_fake
def _(theta: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(theta), torch.empty_like(temperature)
