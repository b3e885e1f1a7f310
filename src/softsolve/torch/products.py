r"""Products of the derivatives with vectors, as autograd functions.

Each is linear in its vectors, and its derivative in the point
:math:`(\tau, \varepsilon)` is another of them: of vjp it is hvp, of jvp jjvp. That of
hvp and jjvp in the point would be of third order, and raises.
"""

from typing import Any, NoReturn

import torch

from softsolve import estimators
from softsolve.layer import column_projector, identity_columns
from softsolve.torch.rules import Draws, Pair, Rule
from softsolve.torch.transforms import Function, or_zero, pushing, save

Tensor = torch.Tensor


class Vjp(Function):
    """Vector-Jacobian products of g (B, k, K): (B, d, K) and (B, K)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tau: Tensor,
        temperature: Tensor,
        g: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Pair:
        """Return the products."""
        point, draws = (tau, temperature), (z, values, at_point)
        return rule.vjp(point, g, draws)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        """Keep the point, the vectors and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return hvp in the point, jvp in g."""
        tau, temperature, g, *draws = ctx.saved_tensors
        v, e = gradients
        in_tau, in_temperature = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
        in_g = Jvp.apply(tau, temperature, v, e, *draws, ctx.rule)
        return in_tau.sum(-1), in_temperature.sum(-1), in_g, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Pair:
        """Return hvp along the point plus vjp of g's tangent."""
        with pushing(ctx) as (tau, temperature, g, *draws):
            columns = g.shape[-1]
            v = _columns(or_zero(tangents[0], tau), columns)
            e = _columns(or_zero(tangents[1], temperature), columns)
            by_point = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
            if tangents[2] is None:
                return by_point
            by_g = Vjp.apply(tau, temperature, tangents[2], *draws, ctx.rule)
            return by_point[0] + by_g[0], by_point[1] + by_g[1]


class Jvp(Function):
    """Jacobian-vector products of (v, e), (B, d, K) and (B, K): (B, k, K)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tau: Tensor,
        temperature: Tensor,
        v: Tensor,
        e: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        """Return the products."""
        point, draws = (tau, temperature), (z, values, at_point)
        return rule.jvp(point, (v, e), draws)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point, the directions and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[:7])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return hvp in the point, vjp in the direction."""
        tau, temperature, v, e, *draws = ctx.saved_tensors
        g = gradients[0]
        in_tau, in_temperature = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
        in_v, in_e = Vjp.apply(tau, temperature, g, *draws, ctx.rule)
        return (
            in_tau.sum(-1),
            in_temperature.sum(-1),
            in_v,
            in_e,
            None,
            None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return jjvp along the point plus jvp along the direction's tangent."""
        with pushing(ctx) as (tau, temperature, v, e, *draws):
            columns = v.shape[-1]
            w = _columns(or_zero(tangents[0], tau), columns)
            f = _columns(or_zero(tangents[1], temperature), columns)
            by_point = Jjvp.apply(tau, temperature, v, e, w, f, *draws, ctx.rule)
            if tangents[2] is None and tangents[3] is None:
                return by_point
            v_tangent, e_tangent = or_zero(tangents[2], v), or_zero(tangents[3], e)
            along = Jvp.apply(tau, temperature, v_tangent, e_tangent, *draws, ctx.rule)
            return by_point + along


class Hvp(Function):
    """Second derivatives: the gradients of ⟨E f, g⟩, differentiated along (v, e)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tau: Tensor,
        temperature: Tensor,
        g: Tensor,
        v: Tensor,
        e: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Pair:
        """Return the products, (B, d, K) and (B, K)."""
        point, draws = (tau, temperature), (z, values, at_point)
        return rule.hvp(point, g, (v, e), draws)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
        """Keep the point, the vectors and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[:8])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return jjvp in g, hvp in the direction; raise in the point."""
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            raise_third_order()
        tau, temperature, g, v, e, *draws = ctx.saved_tensors
        w, f = gradients
        in_g = Jjvp.apply(tau, temperature, v, e, w, f, *draws, ctx.rule)
        in_v, in_e = Hvp.apply(tau, temperature, g, w, f, *draws, ctx.rule)
        return None, None, in_g, in_v, in_e, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        raise_third_order()


class Jjvp(Function):
    """Second derivatives of E f along (v, e) and (w, f), (B, k, K)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        tau: Tensor,
        temperature: Tensor,
        v: Tensor,
        e: Tensor,
        w: Tensor,
        f: Tensor,
        z: Tensor,
        values: Tensor,
        at_point: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        """Return the products."""
        point, draws = (tau, temperature), (z, values, at_point)
        return rule.jjvp(point, (v, e), (w, f), draws)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point, the directions and the draws."""
        *_, ctx.rule = inputs
        save(ctx, *inputs[:9])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return hvp in the directions; raise in the point."""
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            raise_third_order()
        tau, temperature, v, e, w, f, *draws = ctx.saved_tensors
        g = gradients[0]
        in_v = Hvp.apply(tau, temperature, g, w, f, *draws, ctx.rule)
        in_w = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
        return None, None, *in_v, *in_w, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        raise_third_order()


def _columns(tangent: Tensor, count: int) -> Tensor:
    return tangent[..., None].expand(*tangent.shape, count)


def raise_third_order() -> NoReturn:
    """Raise for derivatives beyond the second."""
    msg = (
        "third derivatives of a perturbed solver are not available in torch; with "
        'form="maximum", where the solution is a derivative itself, nor are second '
        "ones. The JAX frontend (softsolve.jax) has derivatives of any order."
    )
    raise RuntimeError(msg)


def symmetric_product(
    rule: Rule, tau: Tensor, temperature: Tensor, v: Tensor, draws: list[Any]
) -> Tensor:
    """Return products with a Jacobian known to be symmetric, (B, d, K)."""
    still = torch.zeros_like(v[:, 0])
    return estimators.symmetric_projection(
        lambda u: Jvp.apply(tau, temperature, u, still, *draws, rule),
        lambda u: Vjp.apply(tau, temperature, u, *draws, rule)[0],
        column_projector(rule.settings, rule.event_shape),
        v,
    )


def jacobian(rule: Rule, point: Pair, draws: Draws) -> Tensor:
    r"""Return the Jacobian in :math:`\tau`, (B, k, d)."""
    identity = identity_columns(point[0])
    still = torch.zeros_like(identity[:, 0])
    if rule.settings.form == "maximum":
        ones = torch.ones_like(still)[:, None, :]
        return Hvp.apply(*point, ones, identity, still, *draws, rule)[0]
    if rule.settings.symmetric:
        return symmetric_product(rule, *point, identity, list(draws))
    return Jvp.apply(*point, identity, still, *draws, rule)
