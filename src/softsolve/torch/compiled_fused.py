"""The fused route under torch.compile: compiled passes as operators of the graph.

They have first derivatives, in reverse mode. What torch.func differentiates inside of
compiled code, or is in forward mode, is compiled as the surrogate of
:mod:`softsolve.torch.compiled`. Where it shows only when the code runs that other
derivatives are wanted, that raises: of an operator without them, torch would silently
take zeros.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import has_static_value

from softsolve.compiled.fused import FusedPass
from softsolve.fused_route import takes_fused_route
from softsolve.settings import Settings
from softsolve.torch.fused import (
    FusedRule,
    SampleFused,
    SampleFusedMaxima,
    compiled_pass,
    draw_keys,
)
from softsolve.torch.operators import handle_of, settings_of
from softsolve.torch.products import symmetric_product
from softsolve.torch.rows import Rows
from softsolve.torch.rules import Pair, three
from softsolve.torch.sampling import Call
from softsolve.torch.transforms import in_reverse_only, scaled_rows

Tensor = torch.Tensor
KEYS, CODES = torch.int32, torch.uint8


def takes_operators(call: Call, rows: Rows, *, maximum: bool) -> bool:
    """Tell whether a call that is being compiled has the fused route's operators."""
    on_cpu = rows.theta.device.type == "cpu"
    return call.generator is None and _fuses(call.settings, on_cpu, maximum)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _fuses(settings: Settings, on_cpu: bool, maximum: bool) -> bool:
    if not in_reverse_only():
        return False
    if torch.compiler.is_exporting():  # another process does not have this layer
        return False
    return takes_fused_route(
        settings, on_cpu=on_cpu, maximum=maximum, clips_values=True
    )


def smoothed_solution(call: Call, rows: Rows) -> Tensor:
    """Return the smoothed solution (B, d), with first derivatives."""
    call.out_shape = call.event_shape
    theta, temperature = rows.theta, rows.temperature
    context, event_shape = list(rows.context), list(call.event_shape)
    given = (handle_of(call.settings), theta, temperature, context, event_shape)
    differentiable = theta.requires_grad or temperature.requires_grad
    if not (differentiable and torch.is_grad_enabled()):
        return fused_mean(*given)
    # How large a solution is when kept, only the plan for one shape tells.
    keep = all(has_static_value(size) for size in event_shape)
    mean, *_ = fused_solution(*given, keep, temperature.requires_grad)
    return mean


def smoothed_maximum(call: Call, rows: Rows, target: Tensor | None) -> Tensor:
    """Return the perturbed maximum (B,) relative to a target, likewise."""
    point, context = (rows.theta, rows.temperature), list(rows.context)
    options = (context, list(call.event_shape), call.difference)
    value, *_ = fused_maximum(handle_of(call.settings), *point, target, *options)
    return value


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _raise_second_order(ctx: Any, *gradients: Tensor | None) -> NoReturn:
    msg = (
        "the backward pass of a compiled layer has no derivatives. Call the layer "
        "outside of torch.compile, or differentiate by torch.func inside of it."
    )
    raise RuntimeError(msg)


def _operator(
    fake: Callable[..., Any],
    *,
    save: Callable[..., None] = _save_nothing,
    pull: Callable[..., Any] = _raise_second_order,
    random: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of tensors on the CPU.

    ``fake`` says what the compiler sees of it, ``save`` and ``pull`` what the backward
    pass keeps and does.
    """
    tags = (torch.Tag.nondeterministic_seeded,) if random else ()

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"softsolve::{function.__name__}"
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=tags)
        torch.library.impl(name, "CPU", function)
        torch.library.register_fake(name, fake)
        torch.library.register_autograd(name, pull, setup_context=save)
        operator: Callable[..., Any] = getattr(torch.ops.softsolve, function.__name__)
        return operator

    return register


@dataclass
class _Keyed(Call):
    """A call that remembers the keys of its rows, or is told them."""

    keys: Tensor | None = None

    def draw_rows(self, draw: Callable[[int], Tensor], rows: int) -> Tensor:
        """Draw the keys unless there are some."""
        if self.keys is None:
            self.keys = super().draw_rows(draw, rows)
        return self.keys


def _call(
    handle: int, event_shape: Sequence[int], *, keep: bool, keys: Tensor | None = None
) -> _Keyed:
    return _Keyed(settings_of(handle), tuple(event_shape), None, keep, keys=keys)


def _mean_shape(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
) -> Tensor:
    return theta.new_empty(theta.shape)


@_operator(_mean_shape, random=True)
def fused_mean(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
) -> Tensor:
    """Return the mean solution (B, d)."""
    _refuse_forward_mode()
    call = _call(handle, event_shape, keep=False)
    return SampleFused.forward(call, theta, temperature, *context)[0]


def _solution_shapes(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    keep: bool,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    settings, (rows, size) = settings_of(handle), theta.shape
    mean, keys = theta.new_empty((rows, size)), theta.new_empty((rows, 2), dtype=KEYS)
    if not keep:
        return mean, keys, *_nothing(theta)
    work = compiled_pass(settings, tuple(event_shape), theta.dtype)
    if _winners_do(settings, work, learned):
        kept = theta.new_empty((rows, size, size), dtype=torch.float64)
    else:
        shape = (rows, settings.num_samples, work.codec.width)
        kept = theta.new_empty(shape, dtype=CODES)
    centers = 0 if settings.baseline == "none" else rows
    return mean, keys, kept, theta.new_empty((centers, size))


def _winners_do(settings: Settings, work: FusedPass, learned: bool) -> bool:
    """Tell whether sums by who wins are all that the backward pass needs."""
    return work.sums_winners and not (learned or settings.symmetric)


def _save_draws(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.handle, theta, temperature, context, ctx.event_shape, *_ = inputs
    ctx.save_for_backward(theta, temperature, *output[1:], *context)


def _pull_solution(ctx: Any, g: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    theta, temperature, keys, kept, center, *context = ctx.saved_tensors
    learned = ctx.needs_input_grad[2]
    in_theta, in_temperature = fused_vjp(
        *(ctx.handle, theta, temperature, keys, kept, center, context),
        *(ctx.event_shape, g, learned),
    )
    nothing = [None] * len(context)
    gradients = in_theta, in_temperature if learned else None
    return None, *gradients, nothing, None, None, None


@_operator(_solution_shapes, random=True, save=_save_draws, pull=_pull_solution)
def fused_solution(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    keep: bool,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean (B, d); keys, what is kept of solutions, and their baseline.

    Unless they are kept, the latter two are empty; so is a baseline of zero.
    """
    _refuse_forward_mode()
    call = _call(handle, event_shape, keep=keep)
    work = compiled_pass(call.settings, call.event_shape, theta.dtype)
    call.winners = keep and _winners_do(call.settings, work, learned)
    mean, *draws = SampleFused.forward(call, theta, temperature, *context)
    if call.settings.independent_backward:
        call.keys = None
        if keep:
            _, *draws = SampleFused.forward(call, theta, temperature, *context)
    keys = call.draw_rows(lambda rows: draw_keys(rows, None), len(theta))
    kept, center = _nothing(theta)
    if keep:
        _, kept, *centers = draws
        center = centers[0] if centers else center
    return mean, keys, kept, center


def _nothing(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes of solutions and a baseline, without entries."""
    return theta.new_empty((0, 0, 0), dtype=CODES), theta.new_empty((0, theta.shape[1]))


def _vjp_shapes(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    keys: Tensor,
    kept: Tensor,
    center: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    g: Tensor,
    learned: bool,
) -> Pair:
    along = len(temperature) if learned else 0
    return theta.new_empty(theta.shape), temperature.new_empty((along,))


@_operator(_vjp_shapes)
def fused_vjp(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    keys: Tensor,
    kept: Tensor,
    center: Tensor,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    g: Tensor,
    learned: bool,
) -> Pair:
    """Return the vjp of the mean (B, d); (B,) in a learned temperature."""
    _refuse_forward_mode()
    call = _call(handle, event_shape, keep=True, keys=keys)
    draws = [keys, kept, center] if len(center) else [keys, kept]
    if not len(kept):  # solved once more
        _, *draws = SampleFused.forward(call, theta, temperature, *context)
    how: Literal["codes", "winners"]
    how = "codes" if draws[1].dtype == CODES else "winners"
    rule, point = FusedRule(call.settings, call.event_shape, how), (theta, temperature)
    in_theta, along = rule.pull(point, g, three(draws), in_temperature=learned)
    if call.settings.symmetric:
        product = symmetric_product(rule, *point, g[..., None], [*three(draws)])
        in_theta = product[..., 0].contiguous()
    return in_theta, temperature.new_empty((0,)) if along is None else along


def _maximum_shapes(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    target: Tensor | None,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    difference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = temperature.shape
    gradient = theta.new_empty(theta.shape)
    return theta.new_empty(rows), gradient, theta.new_empty(rows)


def _save_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.count = len(inputs[4])
    ctx.save_for_backward(inputs[1], *output[1:])


def _pull_maximum(ctx: Any, g: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    slopes = fused_slopes(*ctx.saved_tensors, g)
    return None, *slopes, None, [None] * ctx.count, None, None


@_operator(_maximum_shapes, random=True, save=_save_slopes, pull=_pull_maximum)
def fused_maximum(
    handle: int,
    theta: Tensor,
    temperature: Tensor,
    target: Tensor | None,
    context: Sequence[Tensor],
    event_shape: Sequence[int],
    difference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum (B,), its gradient (B, d) and moment (B,)."""
    _refuse_forward_mode()
    call = _call(handle, event_shape, keep=False)
    call.difference = difference
    found = SampleFusedMaxima.forward(call, theta, temperature, target, *context)
    value, gradient, moment = (tensor.contiguous() for tensor in found[:3])
    return value, gradient, moment


def _slopes_shapes(theta: Tensor, gradient: Tensor, moment: Tensor, g: Tensor) -> Pair:
    return gradient.new_empty(gradient.shape), moment.new_empty(moment.shape)


@_operator(_slopes_shapes)
def fused_slopes(theta: Tensor, gradient: Tensor, moment: Tensor, g: Tensor) -> Pair:
    """Return the first derivatives (B, d) and (B,), each row times its factor (B,).

    The scores are not read: as an operator of them that has no derivative, this raises
    where gradients would be differentiated as if they did not depend on them.
    """
    _refuse_forward_mode()
    return scaled_rows(gradient, g), g * moment


def _refuse_forward_mode() -> None:
    """Raise in code that was compiled before forward mode was entered."""
    if forward_ad._current_level >= 0:
        msg = (
            "this layer was compiled outside of forward-mode differentiation and is "
            "called inside of it, where its derivative would be lost. Compile the "
            "function that differentiates, or call the layer outside of torch.compile."
        )
        raise RuntimeError(msg)
