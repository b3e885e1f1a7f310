"""Operators for torch.compile, which cannot trace what looks at values.

None of them has a derivative or needs one: they are called on detached tensors, and the
surrogate around them carries the derivatives. For those of the fused route, see
:mod:`softsolve.torch.compiled_fused`.
"""

from collections.abc import Sequence

import torch

from softsolve.layer import check_gaps
from softsolve.settings import Settings
from softsolve.torch.host import (
    check_point,
    check_target,
    check_values,
    solve_on_host,
)

Tensor = torch.Tensor

# Operators take numbers and tensors only: the layers that compiled code calls, by id.
# They are kept: a backward pass may run when its layer is gone, and must not find
# another one, of the same id.
_SETTINGS: dict[int, Settings] = {}


@torch.library.custom_op("softsolve::checked_point", mutates_args=())
def checked_point(
    theta: Tensor, temperature: Tensor, multiplicative: bool
) -> tuple[Tensor, Tensor]:
    """Return copies of the point, or raise if it cannot be used."""
    check_point(theta, temperature, multiplicative=multiplicative)
    return theta.clone(), temperature.clone()


@checked_point.register_fake
def _(
    theta: Tensor, temperature: Tensor, multiplicative: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(theta), torch.empty_like(temperature)


@torch.library.custom_op("softsolve::checked_target", mutates_args=())
def checked_target(target: Tensor) -> Tensor:
    """Return a copy of the targets, or raise if they are not finite."""
    check_target(target)
    return target.clone()


@checked_target.register_fake
def _(target: Tensor) -> Tensor:
    return torch.empty_like(target)


@torch.library.custom_op("softsolve::checked_values", mutates_args=())
def checked_values(handle: int, y: Tensor, rows: int) -> Tensor:
    """Return a copy of a solver's solutions, or raise if they are not finite."""
    check_values(settings_of(handle), y, rows)
    return y.clone()


@checked_values.register_fake
def _(handle: int, y: Tensor, rows: int) -> Tensor:
    return torch.empty_like(y)


@torch.library.custom_op("softsolve::checked_gaps", mutates_args=())
def checked_gaps(
    handle: int, gaps: Tensor, y: Tensor, target: Tensor, x: Tensor
) -> Tensor:
    """Return a copy of sampled losses, or raise if one is below zero."""
    check_gaps(settings_of(handle), gaps, y, target, x)
    return gaps.clone()


@checked_gaps.register_fake
def _(handle: int, gaps: Tensor, y: Tensor, target: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(gaps)


@torch.library.custom_op("softsolve::solve_rows", mutates_args=())
def solve_rows(
    handle: int, theta: Tensor, context: Sequence[Tensor], out_shape: Sequence[int]
) -> Tensor:
    """Return the solutions of a host solver, of the scores' type."""
    settings = settings_of(handle)
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
    out_shape = settings.out_shape(tuple(theta.shape[1:]))
    return solve_rows(handle_of(settings), theta, list(context), list(out_shape))


def check_compiled_values(settings: Settings, y: Tensor, rows: int) -> Tensor:
    """Return solutions that compiled code checks before it goes on."""
    return checked_values(handle_of(settings), y, rows)


def check_compiled_gaps(
    settings: Settings, gaps: Tensor, y: Tensor, target: Tensor, x: Tensor
) -> Tensor:
    """Return sampled losses that compiled code checks before it goes on."""
    return checked_gaps(handle_of(settings), gaps, y, target, x)


def handle_of(settings: Settings) -> int:
    """Return the number that stands for a layer in compiled code."""
    _remember(settings)
    # Its id is asked for here, so that the code is compiled anew for other settings.
    return id(settings)


def settings_of(handle: int) -> Settings:
    """Return the layer that a number stands for."""
    return _SETTINGS[handle]
