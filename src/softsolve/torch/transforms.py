"""Autograd functions under torch.func's transforms, and without them at little cost."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
    temporarily_pop_interpreter_stack,
)
from torch.autograd import forward_ad

Tensor = torch.Tensor


def transforms_active() -> bool:
    """Tell whether a function transform of torch.func is running."""
    return torch._C._are_functorch_transforms_active()


def in_reverse_only() -> bool:
    """Tell whether neither forward mode nor a function transform is running."""
    return forward_ad._current_level < 0 and not transforms_active()


def first_order() -> bool:
    """Tell whether a backward pass is not differentiated itself."""
    return not torch.is_grad_enabled() and in_reverse_only()


def vary_where_random(theta: Tensor) -> Tensor:
    """Return scores that vary along each axis mapped with randomness="different".

    Whoever maps a call along such an axis asks for other noise in each entry, even if
    nothing else of the call depends on it.
    """
    if not transforms_active():
        return theta
    with contextlib.ExitStack() as above:
        zeros = []
        for transform in reversed(retrieve_all_functorch_interpreters()):
            if isinstance(transform, VmapInterpreter):
                zeros.append(_zero_along(transform))
            above.enter_context(temporarily_pop_interpreter_stack())
    for zero in zeros:
        theta = theta + zero.to(theta)
    return theta


def _zero_along(transform: VmapInterpreter) -> Tensor:
    size = transform.batch_size() if transform.randomness() == "different" else 1
    zeros = torch.zeros(size)
    if size == 1:
        return zeros[0]
    return _functorch._add_batch_dim(zeros, 0, transform.level())


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


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Keep tensors for the backward pass, and for forward mode where there is one."""
    ctx.save_for_backward(*tensors)
    if not in_reverse_only():
        ctx.save_for_forward(*tensors)


@contextlib.contextmanager
def pushing(ctx: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what a jvp was saved, in a context that differentiates the jvp itself.

    torch switches forward mode off inside of a custom jvp: of what is computed there,
    outer forward-mode derivatives would silently be zero. Switched on again, it must
    not follow the tangents that this jvp is called for, which saved tensors carry.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield tuple(
            None if tensor is None else _primal(tensor) for tensor in ctx.saved_tensors
        )


def _primal(tensor: Tensor) -> Tensor:
    """Return a tensor without the tangent that the jvp at hand is called for."""
    if not transforms_active():
        return forward_ad.unpack_dual(tensor).primal
    transform = _functorch.peek_interpreter_stack()
    if transform.key() != _functorch.TransformType.Vmap:
        return forward_ad.unpack_dual(tensor).primal
    # A generated vmap rule maps the jvp, and torch cannot unpack what is mapped.
    level = transform.level()
    is_mapped = _functorch.maybe_get_level(tensor) == level
    plain = _functorch.get_unwrapped(tensor) if is_mapped else tensor
    with temporarily_pop_interpreter_stack():
        plain = _primal(plain)
    if not is_mapped:
        return plain
    return _functorch._add_batch_dim(plain, _functorch.maybe_get_bdim(tensor), level)


# Entries from which torch works on a tensor with several threads. They keep spinning
# for some milliseconds, on the cores that the next compiled pass is to run on.
SHARED_WORK = 1 << 15


def _keep_to_this_thread(tensor: Tensor) -> bool:
    large = tensor.numel() >= SHARED_WORK and tensor.device.type == "cpu"
    return large and tensor.is_contiguous() and not transforms_active()


def copied(tensor: Tensor) -> Tensor:
    """Return a copy, made by this thread alone."""
    if _keep_to_this_thread(tensor):
        return torch.from_numpy(tensor.detach().numpy().copy())
    return tensor.clone()


def scaled_rows(rows: Tensor, factors: Tensor) -> Tensor:
    """Return rows (B, d), each times its factor (B,), by this thread alone."""
    if first_order() and _keep_to_this_thread(rows):
        product = rows.detach().numpy() * factors.detach().numpy()[:, None]
        return torch.from_numpy(product)
    return factors[:, None] * rows


def or_zero(tangent: Tensor | None, like: Tensor) -> Tensor:
    """Return a tangent, which may be missing, as a tensor."""
    return torch.zeros_like(like) if tangent is None else tangent
