"""The perturbed solver as a torch module."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from softsolve import layer
from softsolve.fused_route import takes_fused_route, usual_route
from softsolve.noise import Noise
from softsolve.settings import DEFAULT_MEMORY_BUDGET, Settings
from softsolve.torch import compiled
from softsolve.torch.attached import Attach
from softsolve.torch.fused import (
    Decode,
    FusedRule,
    SampleFused,
    SampleFusedMaxima,
    compiled_pass,
)
from softsolve.torch.maximum import AttachMaximum
from softsolve.torch.precision import full_precision
from softsolve.torch.products import Vjp, jacobian
from softsolve.torch.random import own_generator
from softsolve.torch.rows import Rows, Temperature, as_tensor, lay_out
from softsolve.torch.rules import ArrayRule, Pair, Rule, three
from softsolve.torch.sampling import Call, SampleMaxima, SampleSolutions
from softsolve.torch.transforms import in_reverse_only

Tensor = torch.Tensor


class Distribution(NamedTuple):
    """Distinct solutions (n, *event) of one row and how often each was drawn (n,)."""

    solutions: Tensor
    frequencies: Tensor


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
        temperature = as_tensor(temperature)
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
                call = self._call(rows, generator, keep=True)
                mean = compiled.smoothed_solution(call, rows)
                out_shape = call.out_shape
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
        compiled.refuse_compilation("Perturbed.jacobian")
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
        compiled.refuse_compilation("Perturbed.sample")
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
        compiled.refuse_compilation("Perturbed.distribution")
        rows, y, out_shape = self._solutions(theta, context, generator, temperature)
        found = []
        for drawn in y:
            samples = drawn[~drawn.isnan().any(dim=1)]  # those dropped are NaN
            solutions, counts = torch.unique(samples, dim=0, return_counts=True)
            order = torch.argsort(counts, descending=True, stable=True)
            shaped = solutions[order].reshape(-1, *out_shape).to(rows.dtype)
            frequencies = counts[order].to(rows.theta.dtype) / len(samples)
            found.append(Distribution(shaped, frequencies))
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
        temperature = self.temperature if temperature is None else temperature
        return lay_out(self.settings, theta, context, temperature)

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
        if torch.compiler.is_compiling():
            call = self._call(rows, generator, keep=True)
            call.difference = difference
            return compiled.smoothed_maximum(call, rows, target)
        tau = self.settings.perturbation.coordinates(rows.theta)
        if self._fused(rows, maximum=True):
            call = self._call(rows, generator, keep=False)
            call.difference = difference
            result = SampleFusedMaxima.apply(
                call, *rows.drawn_at, target, *rows.context
            )
            draws = result[3:] or (None, None, None)
            again = FusedRule(self.settings, rows.event_shape, "context")
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

    def _winners_do(self, rows: Rows) -> bool:
        """Tell whether sums by who wins are all that a backward pass will need."""
        work = compiled_pass(self.settings, rows.event_shape, rows.theta.dtype)
        if not work.sums_winners or self.settings.symmetric:
            return False
        in_theta = rows.theta.requires_grad and not rows.temperature.requires_grad
        return in_theta and in_reverse_only()

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
        fused = self._fused(rows)
        sampler: Any = SampleFused if fused else SampleSolutions
        call.winners = fused and call.keep and self._winners_do(rows)
        mean, *draws = sampler.apply(call, *rows.drawn_at, *rows.context)
        if not call.keep:
            return mean, call.out_shape
        if settings.independent_backward:
            _, *draws = sampler.apply(call, *rows.drawn_at, *rows.context)
        tau = settings.perturbation.coordinates(rows.theta)
        at: tuple[Settings, tuple[int, ...]] = (settings, rows.event_shape)
        kept: Literal["codes", "winners"] = "winners" if call.winners else "codes"
        rule = FusedRule(*at, kept) if fused else ArrayRule(*at)
        attached = self._attach(mean, draws, (tau, rows.temperature), rule)
        return attached, call.out_shape

    def _may_differentiate(self) -> bool:
        return torch.is_grad_enabled() or self.settings.form == "maximum"

    def _attach(
        self, mean: Tensor, draws: list[Tensor], point: Pair, rule: Rule
    ) -> Tensor:
        kept = three(draws)
        if self.settings.form == "maximum":
            ones = torch.ones_like(mean)[..., None]
            in_tau, _ = Vjp.apply(*point, ones, *kept, rule)
            return in_tau[..., 0]
        return Attach.apply(mean, *point, *kept, rule)

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
