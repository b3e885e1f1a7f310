"""The smoothed solution, given, with its derivatives in the point."""

from typing import Any

import torch

from softsolve.torch.products import Jvp, Vjp, symmetric_product
from softsolve.torch.rules import Rule
from softsolve.torch.transforms import (
    Function,
    copied,
    first_order,
    or_zero,
    pushing,
    save,
)

Tensor = torch.Tensor


class Attach(Function):
    """The mean (B, k) of samples, given, with its derivatives in the point."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        mean: Tensor,
        tau: Tensor,
        temperature: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        """Return the mean."""
        return copied(mean)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[1:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the vjp in the point."""
        tau, temperature, *draws = ctx.saved_tensors
        symmetric = ctx.rule.settings.symmetric
        if first_order() and not symmetric:
            point, learned = (tau, temperature), ctx.needs_input_grad[2]
            pulled = ctx.rule.pull(point, gradients[0], draws, in_temperature=learned)
            return None, *pulled, None, None, None, None
        g = gradients[0][..., None]
        in_tau, in_temperature = Vjp.apply(tau, temperature, g, *draws, ctx.rule)
        if symmetric:
            in_tau = symmetric_product(ctx.rule, tau, temperature, g, draws)
        return None, in_tau[..., 0], in_temperature[..., 0], None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the jvp."""
        rule = ctx.rule
        with pushing(ctx) as (tau, temperature, *draws):
            v = or_zero(tangents[1], tau)[..., None]
            e = or_zero(tangents[2], temperature)[..., None]
            if not rule.settings.symmetric:
                return Jvp.apply(tau, temperature, v, e, *draws, rule)[..., 0]
            still = torch.zeros_like(v)
            drift = Jvp.apply(tau, temperature, still, e, *draws, rule)
            return (symmetric_product(rule, tau, temperature, v, draws) + drift)[..., 0]
