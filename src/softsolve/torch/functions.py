r"""The derivatives of perturbed solvers, as autograd functions.

Draws and solutions are constants here; these functions attach their derivatives to the
averages, in the point :math:`(\tau, \varepsilon)`. Second order closes with five
products of :mod:`softsolve.estimators`: the derivative of the mean is vjp or jvp, that
of vjp is (hvp, jvp), that of jvp is (hvp, vjp), that of hvp in its vectors is
(jjvp, hvp). Third derivatives raise.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.autograd import Function

from softsolve import estimators
from softsolve._arrays import inner
from softsolve.layer import Settings, column_projector, memory_message
from softsolve.perturbation import DensityDerivatives
from softsolve.torch.precision import full_precision

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rule:
    """What the products need besides tensors."""

    settings: Settings
    event_shape: tuple[int, ...]
    baseline: estimators.Baseline

    def derivatives(self, temperature: Tensor, z: Tensor) -> DensityDerivatives:
        """Return the derivatives of the density at the draws."""
        return DensityDerivatives(
            self.settings.noise, self.settings.perturbation, temperature, z
        )


def _third(*_: Any) -> NoReturn:
    msg = (
        "third derivatives of a perturbed solver are not available in torch. The JAX "
        "frontend (softsolve.jax) has derivatives of any order."
    )
    raise RuntimeError(msg)


def _prepare(
    rule: Rule, temperature: Tensor, z: Tensor, values: Tensor, at_point: Tensor | None
) -> tuple[DensityDerivatives, estimators.Samples]:
    samples = estimators.Samples(values.to(z.dtype), rule.baseline, at_point)
    return rule.derivatives(temperature, z), samples


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _or_zero(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


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
        g = gradients[0][..., None]
        in_tau, in_temperature = Vjp.apply(tau, temperature, g, *draws, ctx.rule)
        if ctx.rule.settings.symmetric:
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
        with full_precision(z):
            derivatives, samples = _prepare(rule, temperature, z, values, at_point)
            return estimators.vjp(derivatives, samples, temperature, g)

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
        with full_precision(z):
            derivatives, samples = _prepare(rule, temperature, z, values, at_point)
            return estimators.jvp(derivatives, samples, temperature, (v, e))

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
        with full_precision(z):
            derivatives, samples = _prepare(rule, temperature, z, values, at_point)
            return estimators.hvp(derivatives, samples, temperature, g, (v, e))

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
        with full_precision(z):
            derivatives, samples = _prepare(rule, temperature, z, values, at_point)
            return estimators.jjvp(derivatives, samples, temperature, (v, e), (w, f))

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
        rule: Rule,
    ) -> Tensor:
        """Return the moment."""
        return moment.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the point and the draws."""
        *_, ctx.rule = inputs
        _save(ctx, *inputs[1:5])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the moment."""
        in_tau, in_temperature = MomentGradient.apply(*ctx.saved_tensors, ctx.rule)
        g = gradients[0]
        return None, g[:, None] * in_tau, g * in_temperature, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the derivative of the moment along the tangents."""
        tau, temperature, z, values = ctx.saved_tensors
        in_tau, in_temperature = MomentGradient.apply(
            tau, temperature, z, values, ctx.rule
        )
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
        rule: Rule,
    ) -> Pair:
        """Return the gradient."""
        with full_precision(z):
            derivatives, samples = _prepare(rule, temperature, z, values, None)
            return estimators.moment_gradient(derivatives, samples, temperature)

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
        rule: Rule,
    ) -> Tensor:
        """Return the value."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the first derivatives, the point and the draws."""
        *_, ctx.rule = inputs
        _save(ctx, *inputs[1:7])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the first derivatives."""
        in_tau, in_temperature = _first_derivatives(ctx)
        g = gradients[0]
        through = (g[:, None] * in_tau, g * in_temperature)
        return None, None, None, *through, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the first derivatives along the tangents."""
        in_tau, in_temperature = _first_derivatives(ctx)
        tau, temperature = ctx.saved_tensors[2:4]
        along_tau = inner(in_tau, _or_zero(tangents[3], tau))
        return along_tau + in_temperature * _or_zero(tangents[4], temperature)


def _first_derivatives(ctx: Any) -> Pair:
    gradient, moment, tau, temperature, z, values = ctx.saved_tensors
    rule = ctx.rule
    if z is None:
        return WithoutDraws.apply(gradient, moment, tau, temperature, rule)
    return (
        Attach.apply(gradient, tau, temperature, z, values, None, rule),
        AttachMoment.apply(moment, tau, temperature, z, values, rule),
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
        ctx.rule, ctx.rows = inputs[-1], inputs[0].numel()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        """Raise and say how to have second derivatives."""
        settings = ctx.rule.settings
        size = 8 * settings.num_samples * ctx.rows
        raise RuntimeError(memory_message(size, settings.memory_budget))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        """Raise and say how to have second derivatives."""
        WithoutDraws.backward(ctx, *tangents)  # type: ignore[arg-type]
