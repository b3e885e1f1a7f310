"""Operators for torch.compile, which cannot trace what looks at values.

None of them has a derivative or needs one: they are called on detached tensors, and the
surrogate around them carries the derivatives.
"""

import weakref
from collections.abc import Sequence

import torch

from softsolve.layer import Settings
from softsolve.torch.host import check_point, solve_on_host

Tensor = torch.Tensor

# Operators take numbers and tensors only: the layers that compiled code calls, by id.
_SETTINGS: weakref.WeakValueDictionary[int, Settings] = weakref.WeakValueDictionary()


@torch.library.custom_op("softsolve::checked_point", mutates_args=())
def checked_point(theta: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return copies of the point, or raise if it cannot be used."""
    check_point(theta, temperature)
    return theta.clone(), temperature.clone()


@checked_point.register_fake
def _(theta: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(theta), torch.empty_like(temperature)


@torch.library.custom_op("softsolve::solve_rows", mutates_args=())
def solve_rows(
    handle: int, theta: Tensor, context: Sequence[Tensor], out_shape: Sequence[int]
) -> Tensor:
    """Return the solutions of a host solver, of the scores' type."""
    settings = _SETTINGS[handle]
    y = solve_on_host(settings, theta, tuple(context))
    settings.check_solutions(tuple(y.shape), len(theta), tuple(theta.shape[1:]))
    if tuple(y.shape[1:]) != tuple(out_shape):
        msg = (
            f"{settings.name} returned solutions of shape {tuple(y.shape[1:])}, not "
            f"{tuple(out_shape)}. Tell torch.compile: softsolve.solver(function, "
            f"out_shape={tuple(y.shape[1:])})."
        )
        raise ValueError(msg)
    # An operator must not return what it was given.
    return y.to(theta.dtype, copy=True)


@solve_rows.register_fake
def _(
    handle: int, theta: Tensor, context: Sequence[Tensor], out_shape: Sequence[int]
) -> Tensor:
    return theta.new_empty((theta.shape[0], *out_shape))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _remember(settings: Settings) -> int:
    _SETTINGS[id(settings)] = settings
    return id(settings)


def solve_compiled(
    settings: Settings, theta: Tensor, context: tuple[Tensor, ...]
) -> Tensor:
    """Call a solver of NumPy arrays from code that is being compiled."""
    _remember(settings)
    # Its id is asked for here, so that the code is compiled anew for other settings.
    out_shape = settings.out_shape(tuple(theta.shape[1:]))
    return solve_rows(id(settings), theta, list(context), list(out_shape))
