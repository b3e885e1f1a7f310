"""Autograd functions that cost little outside of torch.func's transforms."""

from typing import Any

import torch


def transforms_active() -> bool:
    """Tell whether a function transform of torch.func is running."""
    return torch._C._are_functorch_transforms_active()


def first_order() -> bool:
    """Tell whether a backward pass is not differentiated itself."""
    dual = torch.autograd.forward_ad._current_level >= 0
    return not (torch.is_grad_enabled() or dual or transforms_active())


class Function(torch.autograd.Function):
    """An autograd function without default arguments.

    torch binds the arguments of every call to the signature of ``forward``, to fill in
    defaults, which takes longer than a small solver. Here are none to fill in.
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function."""
        if transforms_active():
            return super().apply(*args)
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]
