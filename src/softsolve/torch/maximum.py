r"""The perturbed maximum, given, with its derivatives in the point.

Its gradient is the smoothed solution, which has derivatives of its own; its derivative
in the temperature, the moment, has one more.
"""

from typing import Any, NoReturn

import torch

from softsolve._arrays import inner
from softsolve.torch.attached import Attach
from softsolve.torch.products import raise_third_order
from softsolve.torch.rules import Pair, Rule
from softsolve.torch.transforms import (
    Function,
    first_order,
    or_zero,
    pushing,
    save,
    scaled_rows,
)

Tensor = torch.Tensor


class AttachMaximum(Function):
    r"""The perturbed maximum (B,), given, with its derivatives in the point.

    First derivatives are the means of the sampled maxima's gradients, and the moment;
    ``z`` and ``values`` (those gradients) serve second derivatives and may be absent.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        value: Tensor,
        gradient: Tensor,
        moment: Tensor,
        tau: Tensor,
        temperature: Tensor,
        z: Tensor | None,
        values: Tensor | None,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        """Return the value."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the first derivatives, the point and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[1:8])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the first derivatives."""
        in_tau, in_temperature = _first_derivatives(ctx.saved_tensors, ctx.rule)
        g = gradients[0]
        learned = ctx.needs_input_grad[4]
        through = (scaled_rows(in_tau, g), g * in_temperature if learned else None)
        return None, None, None, *through, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the first derivatives along the tangents."""
        with pushing(ctx) as saved:
            in_tau, in_temperature = _first_derivatives(saved, ctx.rule)
            along_tau = inner(in_tau, or_zero(tangents[3], saved[2]))
            return along_tau + in_temperature * or_zero(tangents[4], saved[3])


def _first_derivatives(saved: tuple[Any, ...], rule: Rule) -> Pair:
    gradient, moment, tau, temperature, *draws = saved
    if first_order():
        return gradient, moment
    if draws[0] is None:
        return WithoutDraws.apply(gradient, moment, tau, temperature, rule)
    return (
        Attach.apply(gradient, tau, temperature, *draws, rule),
        AttachMoment.apply(moment, tau, temperature, *draws, rule),
    )


class WithoutDraws(Function):
    """First derivatives whose draws were not kept, so that second ones raise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        gradient: Tensor,
        moment: Tensor,
        tau: Tensor,
        temperature: Tensor,
        rule: Rule,
    ) -> Pair:
        """Return the first derivatives."""
        return gradient.clone(), moment.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        """Keep what the message tells."""
        ctx.rule, ctx.entries = inputs[-1], inputs[0].numel()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        """Raise and say how to have second derivatives."""
        rule: Rule = ctx.rule
        rule.raise_not_kept(ctx.entries)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise and say how to have second derivatives."""
        rule: Rule = ctx.rule
        rule.raise_not_kept(ctx.entries)


class AttachMoment(Function):
    """The derivative of the maximum in the temperature (B,), with its derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        moment: Tensor,
        tau: Tensor,
        temperature: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        """Return the moment."""
        return moment.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[1:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the moment."""
        in_tau, in_temperature = MomentGradient.apply(*ctx.saved_tensors, ctx.rule)
        g = gradients[0]
        return None, g[:, None] * in_tau, g * in_temperature, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the derivative of the moment along the tangents."""
        with pushing(ctx) as (tau, temperature, *draws):
            in_tau, in_temperature = MomentGradient.apply(
                tau, temperature, *draws, ctx.rule
            )
            along_tau = inner(in_tau, or_zero(tangents[1], tau))
            return along_tau + in_temperature * or_zero(tangents[2], temperature)


class MomentGradient(Function):
    """The gradient of the moment, (B, d) and (B,); it has no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tau: Tensor,
        temperature: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Pair:
        """Return the gradient."""
        return rule.moment_gradient((tau, temperature), (z, values, at_point))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        """Raise: this is the third order."""
        raise_third_order()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        raise_third_order()
