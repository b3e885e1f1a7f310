"""The perturbed solver as a torch module."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from softsolve import layer
from softsolve.estimators import Samples, Surrogate, best_baseline
from softsolve.fused_route import takes_fused_route, usual_route
from softsolve.layer import DEFAULT_MEMORY_BUDGET, Settings
from softsolve.noise import Noise
from softsolve.torch.attached import Attach
from softsolve.torch.fused import (
    Decode,
    FusedRule,
    SampleFused,
    SampleFusedMaxima,
)
from softsolve.torch.maximum import AttachMaximum
from softsolve.torch.operators import checked_point, checked_target
from softsolve.torch.precision import full_precision
from softsolve.torch.products import Vjp, jacobian
from softsolve.torch.random import own_generator
from softsolve.torch.rules import ArrayRule, Rule, three
from softsolve.torch.sampling import Call, SampleMaxima, SampleSolutions, sampled_maxima
from softsolve.torch.transforms import vary_where_random

Tensor = torch.Tensor
Temperature = float | Tensor


class Distribution(NamedTuple):
    """Distinct solutions (n, *event) of one row and how often each was drawn (n,)."""

    solutions: Tensor
    frequencies: Tensor


@dataclass(frozen=True)
class Rows:
    """A call's scores as rows (B, d) with their temperatures (B,) and context."""

    theta: Tensor
    temperature: Tensor
    context: tuple[Tensor, ...]
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def fixed(self) -> tuple[Tensor, Tensor]:
        """Scores and temperatures, outside of differentiation."""
        return self.theta.detach(), self.temperature.detach()

    @property
    def drawn_at(self) -> tuple[Tensor, Tensor]:
        """The same, varying wherever the noise does, for calls that are mapped."""
        theta, temperature = self.fixed
        return vary_where_random(theta), temperature

    def restore(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Give results (B, k) the batch's shape and the scores' type."""
        full_shape = self.batch_shape + shape
        if values.shape != full_shape:
            values = values.reshape(full_shape)
        return values if values.dtype == self.dtype else values.to(self.dtype)


def _as_tensor(temperature: Any) -> Any:
    """Return numbers as floats, and arrays or lists of them as tensors."""
    if isinstance(temperature, torch.Tensor | float):
        return temperature
    if isinstance(temperature, int) or np.ndim(temperature) == 0:
        return float(temperature)
    return torch.as_tensor(np.asarray(temperature, dtype=float))


class Perturbed(nn.Module):
    r"""A smoothed, differentiable solver.

    The perturbed maximiser :math:`y_\varepsilon(\theta) = E[y^*(\theta+\varepsilon Z)]`
    (Definition 2.1), estimated from ``num_samples`` draws, with unbiased derivatives in
    the scores and in the temperature (Proposition 3.1).

    Gradients are unbiased for losses that are linear in the output; for others the
    output and its Jacobian share their draws, and the gradient has a bias that shrinks
    as 1/M. ``backward="independent"`` draws afresh for the Jacobian and has none.

    Parameters
    ----------
    solver
        One of :mod:`softsolve.solvers`, or any function of a batch of scores.
    temperature
        :math:`\varepsilon`: a float, a tensor that broadcasts over the batch, or a
        ``nn.Parameter`` to learn it.
    num_samples
        M, the number of draws.
    noise
        ``"normal"``, ``"gumbel"``, ``"logistic"``, ``"laplace"`` or a
        :class:`softsolve.noise.Noise`.
    perturbation
        ``"additive"``, or ``"multiplicative"`` for scores that must keep their sign.
    baseline
        What is subtracted from the samples in derivatives: ``"none"``, ``"point"``
        (the unperturbed solution: one more solve), ``"leave_one_out"`` or ``"auto"``
        (leave-one-out from two samples on).
    form
        ``"solution"`` averages solutions; ``"maximum"`` takes the other forms of
        Proposition 3.1, from sampled values of the maximum.
    backward
        ``"shared"``, or ``"independent"`` to draw afresh for derivatives.
    symmetric
        Project derivatives on what is known of the Jacobian: symmetric, and zero off
        the directions of the polytope. For exact linear solvers.
    route
        ``"auto"``, or one of ``"fused"``, ``"array"`` and ``"host"``.
    memory_budget
        Bytes that the draws solved at a time may take.

    Notes
    -----
    Noise comes from torch's default generator, or from ``generator=``. ``torch.vmap``
    decides by ``randomness=`` where it is the same. Processes of ``torch.distributed``
    draw their own, even if they are seeded alike, unless the layer is compiled.

    Examples
    --------
    >>> from softsolve.solvers import Ranking
    >>> soft_rank = Perturbed(Ranking(), temperature=0.1, num_samples=100)
    >>> theta = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    >>> soft_rank(theta).square().sum().backward()
    >>> theta.grad.shape
    torch.Size([1, 3])
    """

    temperature: Any

    def __init__(
        self,
        solver: Callable[..., Any],
        *,
        temperature: Temperature = 1.0,
        num_samples: int = 10,
        noise: str | Noise = "normal",
        perturbation: Literal["additive", "multiplicative"] = "additive",
        baseline: Literal["auto", "none", "point", "leave_one_out"] = "auto",
        form: Literal["solution", "maximum"] = "solution",
        backward: Literal["shared", "independent"] = "shared",
        symmetric: bool = False,
        route: Literal["auto", "fused", "array", "host"] = "auto",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        super().__init__()
        self.settings = Settings.create(
            solver,
            num_samples=num_samples,
            noise=noise,
            perturbation=perturbation,
            baseline=baseline,
            form=form,
            backward=backward,
            symmetric=symmetric,
            route=route,
            memory_budget=memory_budget,
        )
        if isinstance(temperature, torch.Tensor):
            layer.check_temperature(temperature.detach().cpu())
        else:
            layer.check_temperature(temperature)
        temperature = _as_tensor(temperature)
        if isinstance(temperature, float | nn.Parameter):
            self.temperature = temperature
        else:
            self.register_buffer("temperature", temperature)

    def forward(
        self,
        theta: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return the smoothed solution of each instance of ``theta``."""
        rows = self.rows(theta, context, temperature)
        with full_precision(rows.theta):
            if torch.compiler.is_compiling():
                mean, out_shape = self._compiled(rows, generator)
            else:
                mean, out_shape = self._eager(rows, generator)
        return rows.restore(mean, out_shape)

    def maximum(
        self,
        theta: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return the perturbed maximum of each instance, of the batch's shape."""
        self.settings.require_linear("maximum")
        rows = self.rows(theta, context, temperature)
        with full_precision(rows.theta):
            return rows.restore(self.smoothed_maximum(rows, None, generator), ())

    def jacobian(
        self,
        theta: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return the Jacobian of the smoothed solution, (*batch, *out, *event).

        It has derivatives itself.
        """
        rows = self.rows(theta, context, temperature)
        call = self._call(rows, generator, keep=True)
        call.least = 2
        with full_precision(rows.theta):
            _, *draws = self._sampler(rows).apply(call, *rows.drawn_at, *rows.context)
            tau = self.settings.perturbation.coordinates(rows.theta)
            point = (tau, rows.temperature)
            matrix = jacobian(self._rule(rows), point, three(draws))
            if self.settings.perturbation.name == "multiplicative":
                matrix = matrix / rows.theta[:, None, :]
        return rows.restore(matrix, call.out_shape + rows.event_shape)

    def sample(
        self,
        theta: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        r"""Draw solutions from :math:`p_\theta`, (num_samples, *batch, *event)."""
        rows, y, out_shape = self._solutions(theta, context, generator, temperature)
        shape = (self.settings.num_samples, *rows.batch_shape, *out_shape)
        return y.movedim(1, 0).reshape(shape).to(rows.dtype)

    def distribution(
        self,
        theta: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> list[Distribution]:
        r"""Return the distinct solutions drawn from :math:`p_\theta`, by frequency.

        One :class:`Distribution` for each instance, in the order of the flattened
        batch, most frequent solutions first.
        """
        rows, y, out_shape = self._solutions(theta, context, generator, temperature)
        found = []
        for drawn in y:
            samples = drawn[~drawn.isnan().any(dim=1)]  # those dropped are NaN
            solutions, counts = torch.unique(samples, dim=0, return_counts=True)
            order = torch.argsort(counts, descending=True, stable=True)
            shaped = solutions[order].reshape(-1, *out_shape).to(rows.dtype)
            found.append(Distribution(shaped, counts[order] / len(samples)))
        return found

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        temperature = self.temperature
        if isinstance(temperature, torch.Tensor):
            kind = "learned" if isinstance(temperature, nn.Parameter) else "tensor"
            temperature = f"<{kind}, shape {tuple(temperature.shape)}>"
        on_cpu = getattr(self.temperature, "device", torch.device("cpu")).type == "cpu"
        route = usual_route(self.settings, on_cpu=on_cpu)
        return self.settings.describe(temperature, route)

    # What the methods, and the losses of this package, are made of.

    def rows(
        self,
        theta: Tensor,
        context: tuple[Tensor, ...],
        temperature: Temperature | None,
    ) -> Rows:
        """Check a call's arguments and lay them out as rows."""
        layer.check_type(theta, torch.Tensor, "theta", "Use torch.as_tensor.")
        if not theta.is_floating_point():
            layer.raise_integer_theta(theta.dtype)
        batch_shape, event_shape = self.settings.split_shape(tuple(theta.shape))
        half = theta.dtype in (torch.float16, torch.bfloat16)
        work = torch.float32 if half else theta.dtype
        count, size = math.prod(batch_shape), math.prod(event_shape)
        # Views cost as much as small solvers, in the backward pass once more.
        flat = theta.to(work) if half else theta
        if flat.shape != (count, size):
            flat = flat.reshape(count, size)
        temperature = self.temperature if temperature is None else temperature
        if not isinstance(temperature, torch.Tensor):
            layer.check_temperature(temperature)
            temperature = _as_tensor(temperature)
        if isinstance(temperature, torch.Tensor):
            temperature = temperature.to(device=theta.device, dtype=work)
            spread = layer.spread_temperature(temperature, batch_shape)
        else:
            spread = torch.full((count,), temperature, dtype=work, device=theta.device)
        contexts = layer.flatten_context(
            batch_shape,
            tuple(torch.as_tensor(array, device=theta.device) for array in context),
        )
        self.settings.check_instances(event_shape, contexts)
        return Rows(flat, spread, contexts, batch_shape, event_shape, theta.dtype)

    def smoothed_maximum(
        self,
        rows: Rows,
        target: Tensor | None,
        generator: torch.Generator | None,
        *,
        difference: bool = False,
    ) -> Tensor:
        """Return the maximum (B,) relative to a target (B, d), with derivatives.

        With ``difference``, its gradient is that of a solver that does not clip costs.
        """
        tau = self.settings.perturbation.coordinates(rows.theta)
        if torch.compiler.is_compiling():
            return self._compiled_maximum(rows, tau, target, generator, difference)
        if self._fused(rows, maximum=True):
            call = self._call(rows, generator, keep=False)
            call.difference = difference
            result = SampleFusedMaxima.apply(
                call, *rows.drawn_at, target, *rows.context
            )
            draws = result[3:] or (None, None, None)
            again = FusedRule(self.settings, rows.event_shape, again=True)
            return AttachMaximum.apply(
                *result[:3], tau, rows.temperature, *draws, again
            )
        call = self._call(rows, generator, keep=self._samples_fit(rows))
        call.difference = difference
        result = SampleMaxima.apply(call, *rows.drawn_at, target, *rows.context)
        draws = (*result[3:], None) if call.keep else (None, None, None)
        rule = ArrayRule(self.settings, rows.event_shape)
        return AttachMaximum.apply(*result[:3], tau, rows.temperature, *draws, rule)

    def _call(
        self, rows: Rows, generator: torch.Generator | None, *, keep: bool
    ) -> Call:
        if generator is not None:
            advice = "Pass torch.Generator().manual_seed(0), or call torch.manual_seed."
            layer.check_type(generator, torch.Generator, "generator", advice)
        generator = own_generator(generator, rows.theta.device)
        return Call(self.settings, rows.event_shape, generator, keep)

    def _fused(self, rows: Rows, *, maximum: bool = False) -> bool:
        on_cpu = rows.theta.device.type == "cpu"
        return takes_fused_route(
            self.settings, on_cpu=on_cpu, maximum=maximum, clips_values=True
        )

    def _sampler(self, rows: Rows) -> Any:
        return SampleFused if self._fused(rows) else SampleSolutions

    def _rule(self, rows: Rows) -> Rule:
        kind = FusedRule if self._fused(rows) else ArrayRule
        return kind(self.settings, rows.event_shape)

    def _samples_fit(self, rows: Rows) -> bool:
        size = rows.theta.numel() * self.settings.num_samples
        bytes_needed = 2 * size * rows.theta.element_size()
        if self.settings.drops or not torch.is_grad_enabled():
            return False
        return bytes_needed <= self.settings.memory_budget

    def _eager(
        self, rows: Rows, generator: torch.Generator | None
    ) -> tuple[Tensor, tuple[int, ...]]:
        settings = self.settings
        call = self._call(rows, generator, keep=self._may_differentiate())
        if rows.theta.requires_grad or rows.temperature.requires_grad:
            call.least = 2
        sampler = self._sampler(rows)
        mean, *draws = sampler.apply(call, *rows.drawn_at, *rows.context)
        if not call.keep:
            return mean, call.out_shape
        if settings.independent_backward:
            _, *draws = sampler.apply(call, *rows.drawn_at, *rows.context)
        tau = settings.perturbation.coordinates(rows.theta)
        attached = self._attach(rows, mean, draws, tau, rows.temperature)
        return attached, call.out_shape

    def _may_differentiate(self) -> bool:
        return torch.is_grad_enabled() or self.settings.form == "maximum"

    def _attach(
        self,
        rows: Rows,
        mean: Tensor,
        draws: list[Tensor],
        tau: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        kept, rule = three(draws), self._rule(rows)
        if self.settings.form == "maximum":
            ones = torch.ones_like(mean)[..., None]
            in_tau, _ = Vjp.apply(tau, temperature, ones, *kept, rule)
            return in_tau[..., 0]
        return Attach.apply(mean, tau, temperature, *kept, rule)

    def _solutions(
        self,
        theta: Tensor,
        context: tuple[Tensor, ...],
        generator: torch.Generator | None,
        temperature: Temperature | None,
    ) -> tuple[Rows, Tensor, tuple[int, ...]]:
        rows = self.rows(theta.detach(), context, temperature)
        call = self._call(rows, generator, keep=True)
        call.settings, call.least = self.settings.with_form("solution"), 0
        with torch.no_grad(), full_precision(rows.theta):
            sampler = self._sampler(rows)
            _, _, y, *_ = sampler.apply(call, *rows.drawn_at, *rows.context)
            if sampler is SampleFused:
                (y,) = Decode.apply(call, y, rows.theta.dtype)
        return rows, y, call.out_shape

    # Under torch.compile, where autograd functions with a jvp cannot be traced:
    # plain operations whose derivatives, of any order, are those of the surrogate.

    def _surrogate(self, rows: Rows, tau: Tensor, z: Tensor) -> Surrogate:
        if not self.settings.noise.smooth:
            msg = (
                f"noise {self.settings.noise.name!r} cannot be compiled: ν has no "
                "second derivative, and compiled code would not notice. Call the layer "
                "outside of torch.compile, or use a smooth noise."
            )
            raise ValueError(msg)
        return Surrogate(
            self.settings.perturbation,
            z,
            (tau, rows.temperature),
            nu=self.settings.noise.nu,
            stop_gradient=torch.Tensor.detach,
        )

    def _compiled(
        self, rows: Rows, generator: torch.Generator | None
    ) -> tuple[Tensor, tuple[int, ...]]:
        settings = self.settings
        call = self._call(rows, generator, keep=True)
        tau = settings.perturbation.coordinates(rows.theta)
        theta, temperature = checked_point(*rows.fixed, call.multiplicative)
        z = call.noise(theta, settings.num_samples)
        values = call.samples(call.perturb(theta, temperature, z), rows.context)
        mean = values.mean(dim=1)
        if settings.independent_backward:
            z = call.noise(theta, settings.num_samples)
            values = call.samples(call.perturb(theta, temperature, z), rows.context)
        at_point = None
        if settings.baseline == "point":
            at_point = call.at_point(theta, rows.context)
        samples = Samples(values, settings.baseline, at_point)
        surrogate = self._surrogate(rows, tau, z)
        if settings.form == "solution":
            return mean + surrogate.expectation(samples), call.out_shape
        return surrogate.gradient(settings.noise, samples), call.out_shape

    def _compiled_maximum(
        self,
        rows: Rows,
        tau: Tensor,
        target: Tensor | None,
        generator: torch.Generator | None,
        difference: bool,
    ) -> Tensor:
        call = self._call(rows, generator, keep=True)
        call.difference = difference
        theta, temperature = checked_point(*rows.fixed, call.multiplicative)
        if target is not None:
            target = checked_target(target)
        z = call.noise(theta, self.settings.num_samples)
        values, gradients, moment = sampled_maxima(
            call, theta, temperature, target, rows.context, z
        )
        baseline = best_baseline(self.settings.num_samples)
        higher = self._surrogate(rows, tau, z).maximum(
            Samples(values[..., None], baseline),
            call.derivatives(temperature, z),
            (gradients.mean(dim=1), moment),
        )
        return values.mean(dim=1) + higher
