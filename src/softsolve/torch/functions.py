r"""The derivatives of perturbed solvers, as autograd functions.

Draws and solutions are constants here; these functions attach their derivatives to the
averages, in the point :math:`(\tau, \varepsilon)`. Second order closes with five
products of :mod:`softsolve.estimators`: the derivative of the mean is vjp or jvp, that
of vjp is (hvp, jvp), that of jvp is (hvp, vjp), that of hvp in its vectors is
(jjvp, hvp). Third derivatives raise.
"""

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from softsolve import estimators
from softsolve._arrays import inner
from softsolve.layer import (
    Settings,
    check_second_derivatives,
    column_projector,
    identity_columns,
    raise_samples_not_kept,
)
from softsolve.perturbation import DensityDerivatives
from softsolve.torch.precision import full_precision
from softsolve.torch.transforms import Function, first_order

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Draws = tuple[Any, Any, Any]


class Rule(Protocol):
    r"""How the products are computed from draws, on one of the routes.

    ``point`` is :math:`(\tau, \varepsilon)`; ``draws`` are the three tensors in which
    the route keeps its noise, samples and baseline.
    """

    @property
    def settings(self) -> Settings:
        """The layer's."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one instance."""

    def pull(self, point: Pair, g: Tensor, draws: Draws) -> Pair:
        """Return the vector-Jacobian product of one vector (B, k), (B, d) and (B,)."""

    def vjp(self, point: Pair, g: Tensor, draws: Draws) -> Pair:
        """Return vector-Jacobian products."""

    def jvp(self, point: Pair, direction: Pair, draws: Draws) -> Tensor:
        """Return Jacobian-vector products."""

    def hvp(self, point: Pair, g: Tensor, direction: Pair, draws: Draws) -> Pair:
        """Return derivatives of vector-Jacobian products."""

    def jjvp(self, point: Pair, direction: Pair, other: Pair, draws: Draws) -> Tensor:
        """Return derivatives of Jacobian-vector products."""

    def moment_gradient(self, point: Pair, draws: Draws) -> Pair:
        """Return the gradient of the maximum's derivative in the temperature."""

    def raise_not_kept(self, entries: int) -> NoReturn:
        """Say how to have derivatives for which so many entries' draws are missing."""


@dataclass(frozen=True)
class ArrayRule:
    """Products from noise (B, M, d), samples (B, M, k) and their baseline (B, k)."""

    settings: Settings
    event_shape: tuple[int, ...]

    def pull(self, point: Pair, g: Tensor, draws: Draws) -> Pair:
        """Return the vector-Jacobian product of one vector."""
        in_tau, in_temperature = self.vjp(point, g[..., None], draws)
        return in_tau[..., 0], in_temperature[..., 0]

    def vjp(self, point: Pair, g: Tensor, draws: Draws) -> Pair:
        """Return vector-Jacobian products."""
        with full_precision(g):
            return estimators.vjp(*self._prepare(point, draws), point[1], g)

    def jvp(self, point: Pair, direction: Pair, draws: Draws) -> Tensor:
        """Return Jacobian-vector products."""
        with full_precision(direction[0]):
            return estimators.jvp(*self._prepare(point, draws), point[1], direction)

    def hvp(self, point: Pair, g: Tensor, direction: Pair, draws: Draws) -> Pair:
        """Return derivatives of vector-Jacobian products."""
        check_second_derivatives(self.settings)
        with full_precision(g):
            return estimators.hvp(*self._prepare(point, draws), point[1], g, direction)

    def jjvp(self, point: Pair, direction: Pair, other: Pair, draws: Draws) -> Tensor:
        """Return derivatives of Jacobian-vector products."""
        check_second_derivatives(self.settings)
        with full_precision(direction[0]):
            prepared = self._prepare(point, draws)
            return estimators.jjvp(*prepared, point[1], direction, other)

    def moment_gradient(self, point: Pair, draws: Draws) -> Pair:
        """Return the gradient of the maximum's derivative in the temperature."""
        with full_precision(point[1]):
            return estimators.moment_gradient(*self._prepare(point, draws), point[1])

    def raise_not_kept(self, entries: int) -> NoReturn:
        """Say how to have derivatives for which so many entries' draws are missing."""
        size = 8 * self.settings.num_samples * entries
        raise_samples_not_kept(self.settings, size)

    def _prepare(
        self, point: Pair, draws: Draws
    ) -> tuple[DensityDerivatives, estimators.Samples]:
        z, values, at_point = draws
        settings = self.settings
        derivatives = DensityDerivatives(
            settings.noise, settings.perturbation, point[1], z
        )
        samples = values.to(z.dtype)
        return derivatives, estimators.Samples(samples, settings.baseline, at_point)


def _third(*_: Any) -> NoReturn:
    msg = (
        "third derivatives of a perturbed solver are not available in torch. The JAX "
        "frontend (softsolve.jax) has derivatives of any order."
    )
    raise RuntimeError(msg)


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _or_zero(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


def three(draws: list[Tensor]) -> Draws:
    """Return the tensors of the draws, None for a baseline that there is not."""
    z, values, *at_point = draws
    return z, values, at_point[0] if at_point else None


def jacobian(rule: Rule, point: Pair, draws: Draws) -> Tensor:
    r"""Return the Jacobian in :math:`\tau` (B, k, d), without derivatives."""
    identity = identity_columns(point[0])
    still = torch.zeros_like(identity[:, 0])
    if rule.settings.form == "maximum":
        ones = torch.ones_like(still)[:, None, :]
        return rule.hvp(point, ones, (identity, still), draws)[0]
    if rule.settings.symmetric:
        return _symmetric(rule, *point, identity, list(draws))
    return rule.jvp(point, (identity, still), draws)


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
        return mean.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point and the draws."""
        *_, ctx.rule = inputs
        _save(ctx, *inputs[1:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the vjp in the point."""
        tau, temperature, *draws = ctx.saved_tensors
        symmetric = ctx.rule.settings.symmetric
        if first_order() and not symmetric:
            pulled = ctx.rule.pull((tau, temperature), gradients[0], draws)
            return None, *pulled, None, None, None, None
        g = gradients[0][..., None]
        in_tau, in_temperature = Vjp.apply(tau, temperature, g, *draws, ctx.rule)
        if symmetric:
            in_tau = _symmetric(ctx.rule, tau, temperature, g, draws)
        return None, in_tau[..., 0], in_temperature[..., 0], None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the jvp."""
        tau, temperature, *draws = ctx.saved_tensors
        v = _or_zero(tangents[1], tau)[..., None]
        e = _or_zero(tangents[2], temperature)[..., None]
        rule = ctx.rule
        if not rule.settings.symmetric:
            return Jvp.apply(tau, temperature, v, e, *draws, rule)[..., 0]
        still = torch.zeros_like(v)
        drift = Jvp.apply(tau, temperature, still, e, *draws, rule)
        return (_symmetric(rule, tau, temperature, v, draws) + drift)[..., 0]


def _symmetric(
    rule: Rule, tau: Tensor, temperature: Tensor, v: Tensor, draws: list[Any]
) -> Tensor:
    still = torch.zeros_like(v[:, 0])
    return estimators.symmetric_projection(
        lambda u: Jvp.apply(tau, temperature, u, still, *draws, rule),
        lambda u: Vjp.apply(tau, temperature, u, *draws, rule)[0],
        column_projector(rule.settings, rule.event_shape),
        v,
    )


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
        _save(ctx, *inputs[:6])

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
        tau, temperature, g, *draws = ctx.saved_tensors
        columns = g.shape[-1]
        v = _columns(_or_zero(tangents[0], tau), columns)
        e = _columns(_or_zero(tangents[1], temperature), columns)
        by_point = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
        if tangents[2] is None:
            return by_point
        by_g = Vjp.apply(tau, temperature, tangents[2], *draws, ctx.rule)
        return by_point[0] + by_g[0], by_point[1] + by_g[1]


def _columns(tangent: Tensor, count: int) -> Tensor:
    return tangent[..., None].expand(*tangent.shape, count)


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
        _save(ctx, *inputs[:7])

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
        tau, temperature, v, e, *draws = ctx.saved_tensors
        columns = v.shape[-1]
        w = _columns(_or_zero(tangents[0], tau), columns)
        f = _columns(_or_zero(tangents[1], temperature), columns)
        by_point = Jjvp.apply(tau, temperature, v, e, w, f, *draws, ctx.rule)
        if tangents[2] is None and tangents[3] is None:
            return by_point
        v_tangent, e_tangent = _or_zero(tangents[2], v), _or_zero(tangents[3], e)
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
        _save(ctx, *inputs[:8])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return jjvp in g, hvp in the direction; raise in the point."""
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            _third()
        tau, temperature, g, v, e, *draws = ctx.saved_tensors
        w, f = gradients
        in_g = Jjvp.apply(tau, temperature, v, e, w, f, *draws, ctx.rule)
        in_v, in_e = Hvp.apply(tau, temperature, g, w, f, *draws, ctx.rule)
        return None, None, in_g, in_v, in_e, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        _third()


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
        _save(ctx, *inputs[:9])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return hvp in the directions; raise in the point."""
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            _third()
        tau, temperature, v, e, w, f, *draws = ctx.saved_tensors
        g = gradients[0]
        in_v = Hvp.apply(tau, temperature, g, w, f, *draws, ctx.rule)
        in_w = Hvp.apply(tau, temperature, g, v, e, *draws, ctx.rule)
        return None, None, *in_v, *in_w, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        _third()


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
        _save(ctx, *inputs[1:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the moment."""
        in_tau, in_temperature = MomentGradient.apply(*ctx.saved_tensors, ctx.rule)
        g = gradients[0]
        return None, g[:, None] * in_tau, g * in_temperature, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the derivative of the moment along the tangents."""
        tau, temperature, *_ = ctx.saved_tensors
        in_tau, in_temperature = MomentGradient.apply(*ctx.saved_tensors, ctx.rule)
        along_tau = inner(in_tau, _or_zero(tangents[1], tau))
        return along_tau + in_temperature * _or_zero(tangents[2], temperature)


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
        _third()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise: this is the third order."""
        _third()


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
        _save(ctx, *inputs[1:8])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the first derivatives."""
        in_tau, in_temperature = _first_derivatives(ctx)
        g = gradients[0]
        through = (g[:, None] * in_tau, g * in_temperature)
        return None, None, None, *through, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the first derivatives along the tangents."""
        in_tau, in_temperature = _first_derivatives(ctx)
        tau, temperature = ctx.saved_tensors[2:4]
        along_tau = inner(in_tau, _or_zero(tangents[3], tau))
        return along_tau + in_temperature * _or_zero(tangents[4], temperature)


def _first_derivatives(ctx: Any) -> Pair:
    gradient, moment, tau, temperature, *draws = ctx.saved_tensors
    if first_order():
        return gradient, moment
    rule = ctx.rule
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
