"""Drawing noise and solving, outside of differentiation."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from softsolve import estimators, layer
from softsolve._arrays import inner
from softsolve.array_route import (
    RunningSum,
    Starts,
    join_draws,
    must_look_at_solutions,
    noise_chunks,
    prime,
    solve_draws,
)
from softsolve.perturbation import DensityDerivatives
from softsolve.retained import Retained
from softsolve.settings import Settings
from softsolve.torch.host import (
    arrays_on_host,
    check_point,
    check_target,
    check_values,
    solve_on_host,
)
from softsolve.torch.operators import (
    check_compiled_gaps,
    check_compiled_values,
    solve_compiled,
)
from softsolve.torch.precision import full_precision
from softsolve.torch.random import draw
from softsolve.torch.transforms import Function, transforms_active

Tensor = torch.Tensor


@dataclass
class Call:
    """What one call of a layer asks of its draws, besides tensors.

    ``out_shape`` is found by solving, and ``starts`` by :meth:`prime`. With
    ``winners``, sums by who wins are enough of the solutions.
    """

    settings: Settings
    event_shape: tuple[int, ...]
    generator: torch.Generator | None
    keep: bool
    difference: bool = False
    winners: bool = False
    out_shape: tuple[int, ...] = field(default=())
    # How many draws of a row must be left where failed ones are dropped; 0 where it is
    # the draws that are wanted.
    least: int = 1
    starts: Starts = None
    # The axes that vmap folded into the rows, outermost first: how long they are, and
    # whether noise is the same along them.
    mapped: tuple[tuple[int, bool], ...] = ()

    @property
    def multiplicative(self) -> bool:
        """Whether noise multiplies the scores, which must not be zero then."""
        return self.settings.perturbation.name == "multiplicative"

    def noise(self, theta: Tensor, count: int) -> Tensor:
        """Draw noise for so many samples of each row, (B, count, d)."""
        rows, size = theta.shape

        def draw_rows(rows: int) -> Tensor:
            shape = (rows, count, size)
            return draw(self.settings.noise, shape, theta, self.generator)

        return self.draw_rows(draw_rows, rows)

    def noise_chunks(self, theta: Tensor) -> Iterator[Tensor]:
        """Yield the noise of as many draws as are solved at a time."""
        return noise_chunks(
            self.settings, theta, lambda count: self.noise(theta, count)
        )

    def draw_rows(self, draw: Callable[[int], Tensor], rows: int) -> Tensor:
        """Draw something for each row, once where vmap wants it to be the same."""
        if not any(same for _, same in self.mapped):
            return draw(rows)
        sizes = [size for size, _ in self.mapped]
        drawn = [1 if same else size for size, same in self.mapped]
        own = rows // math.prod(sizes)
        few = draw(math.prod(drawn) * own)
        rest = few.shape[1:]
        spread = few.reshape(*drawn, own, *rest).expand(*sizes, own, *rest)
        return spread.flatten(end_dim=len(sizes)).contiguous()

    def prime(self, theta: Tensor, context: tuple[Tensor, ...]) -> None:
        """Solve the unperturbed scores for where to start, if the solver can."""
        if hasattr(self.settings.solver, "prime"):
            arrays = arrays_on_host((theta, *context))
            self.starts = prime(self.settings, arrays[0], self.event_shape, arrays[1:])

    def solve(self, x: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        """Solve perturbed scores (B, M, d); return solutions (B, M, k)."""
        if self.settings.drops and torch.compiler.is_compiling():
            msg = (
                f"{self.settings.name} drops failed draws, which cannot be compiled. "
                "Call the layer outside of torch.compile."
            )
            raise RuntimeError(msg)
        y, self.out_shape = solve_draws(
            self.settings, self._solve_rows, x, self.event_shape, context, self.starts
        )
        return y

    def samples(self, x: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        """Return what the form of the layer averages: solutions or their values."""
        y = self.solve(x, context)
        return self.values(y, x)[..., None] if self.settings.form == "maximum" else y

    def at_point(self, theta: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        """Return a sample at the unperturbed scores, (B, k)."""
        return self.samples(theta[:, None, :], context)[:, 0]

    def values(self, y: Tensor, x: Tensor) -> Tensor:
        """Return what solutions are worth (B, M)."""
        reached = estimators.scores_reached(x, clips=self.settings.clips)
        return inner(y, reached)

    def derivatives(self, temperature: Tensor, z: Tensor) -> DensityDerivatives:
        """Return the derivatives of the density at the draws."""
        return DensityDerivatives(
            self.settings.noise, self.settings.perturbation, temperature, z
        )

    def perturb(self, theta: Tensor, temperature: Tensor, z: Tensor) -> Tensor:
        """Return the perturbed scores (B, M, d)."""
        return self.settings.perturbation.perturb(theta, temperature, z)

    def _solve_rows(
        self, theta: Tensor, *context: Tensor, starts: Starts = None
    ) -> Any:
        if self.settings.host:
            if torch.compiler.is_compiling():
                return solve_compiled(self.settings, theta, context)
            return solve_on_host(self.settings, theta, context, starts)
        y = self.settings.solver(theta, *context)
        if not isinstance(y, torch.Tensor) or y.is_complex():
            found = y.dtype if isinstance(y, torch.Tensor) else type(y)
            msg = (
                f"{self.settings.name} must return a torch.Tensor of booleans, "
                f"integers or real numbers; got {found}. Functions of NumPy arrays are "
                "made into solvers by softsolve.solver."
            )
            raise TypeError(msg)
        y = y.detach()
        if must_look_at_solutions(self.settings):
            if torch.compiler.is_compiling():
                return check_compiled_values(self.settings, y, len(theta))
            check_values(self.settings, y, len(theta))
        return y


def fold_rows(
    function: Any, info: Any, in_dims: tuple[Any, ...], operands: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Call a function of rows on a mapped axis folded into the rows.

    The rule for :func:`torch.vmap`: solvers and noise see plain rows.
    """
    size = info.batch_size
    mapped = [
        mapped_first(operand, dim, size) if isinstance(operand, torch.Tensor) else None
        for operand, dim in zip(operands, in_dims, strict=True)
    ]
    folded = [
        operand if tensor is None else tensor.flatten(end_dim=1)
        for operand, tensor in zip(operands, mapped, strict=True)
    ]
    sizes = next(tensor.shape[:2] for tensor in mapped if tensor is not None)
    outputs = function.apply(*folded)
    return tuple(output.unflatten(0, sizes) for output in outputs), (0,) * len(outputs)


def mapped_first(operand: Tensor, dim: int | None, size: int) -> Tensor:
    """Return a tensor with the mapped axis, given or not, as its first."""
    if dim is None:
        return operand.expand(size, *operand.shape)
    return operand.movedim(dim, 0)


def fold_draws(
    function: Any, info: Any, in_dims: tuple[Any, ...], operands: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Do so for a function that draws noise, with the randomness vmap was asked for."""
    if info.randomness == "error":
        msg = (
            "a perturbed solver draws noise, so torch.vmap must be told about it: pass "
            'randomness="different" for other noise in each entry of the mapped axis, '
            'or randomness="same" for one noise along it.'
        )
        raise RuntimeError(msg)
    call: Call = operands[0]
    outer = call.mapped
    call.mapped = ((info.batch_size, info.randomness == "same"), *outer)
    try:
        return fold_rows(function, info, in_dims, operands)
    finally:
        call.mapped = outer


class Constant(Function):
    """What the sampling functions share: their outputs have no derivatives."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function, without autograd where it has nothing to do."""
        if transforms_active():
            return super().apply(*args)
        with torch.no_grad():
            return cls.forward(*args)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]
    ) -> None:
        """Tell autograd that the outputs are constants."""
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return nothing: the inputs are detached."""
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        """Return nothing: the inputs are detached."""
        return None


class SampleSolutions(Constant):
    """Mean sample (B, k); noise, samples and baseline if they are kept."""

    @staticmethod
    def forward(
        call: Call, theta: Tensor, temperature: Tensor, *context: Tensor
    ) -> tuple[Tensor, ...]:
        """Draw and solve, a chunk of samples at a time."""
        check_point(theta, temperature, multiplicative=call.multiplicative)
        call.prime(theta, context)
        total, kept = RunningSum(), []
        with full_precision(theta):
            for z in call.noise_chunks(theta):
                y = call.samples(call.perturb(theta, temperature, z), context)
                retained = Retained(call.settings, y)
                retained.require(call.least)
                total.add(retained.weigh(y).sum(dim=1))
                if call.keep:
                    kept.append((z, retained.fill(y) if call.least else y))
            mean = total.total / call.settings.num_samples
            if not call.keep:
                return (mean,)
            z, y = _join(kept)
            if call.settings.baseline == "point":
                return mean, z, y, call.at_point(theta, context)
            return mean, z, y

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_draws(SampleSolutions, info, in_dims, operands)


class SampleMaxima(Constant):
    """The maximum (B,), its gradient (B, d) and moment (B,), relative to a target.

    With ``target`` None, of the perturbed maximum itself. Then, if they are kept, the
    noise and the gradients of each sample, (B, M, d).
    """

    @staticmethod
    def forward(
        call: Call,
        theta: Tensor,
        temperature: Tensor,
        target: Tensor | None,
        *context: Tensor,
    ) -> tuple[Tensor, ...]:
        """Draw and solve, a chunk of samples at a time."""
        check_point(theta, temperature, multiplicative=call.multiplicative)
        check_target(target)
        call.prime(theta, context)
        sums, kept = (RunningSum(), RunningSum(), RunningSum()), []
        with full_precision(theta):
            for z in call.noise_chunks(theta):
                values, gradients, moment = sampled_maxima(
                    call, theta, temperature, target, context, z
                )
                share = z.shape[1] / call.settings.num_samples
                means = (values.mean(dim=1), gradients.mean(dim=1), moment)
                for total, mean in zip(sums, means, strict=True):
                    total.add(mean * share)
                if call.keep:
                    kept.append((z, gradients))
        found = tuple(total.total for total in sums)
        return (*found, *_join(kept)) if call.keep else found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_draws(SampleMaxima, info, in_dims, operands)


def sampled_maxima(
    call: Call,
    theta: Tensor,
    temperature: Tensor,
    target: Tensor | None,
    context: tuple[Tensor, ...],
    z: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each sample's maximum and gradient, and their moment; see above."""
    x = call.perturb(theta, temperature, z)
    y = call.solve(x, context)
    retained = Retained(call.settings, y)
    retained.require(call.least)
    y = retained.replace(y, target)
    difference = y if target is None else y - target[:, None, :]
    values = call.values(difference, x)
    if target is not None and torch.compiler.is_compiling():
        values = check_compiled_gaps(call.settings, values, y, target, x)
    elif target is not None:
        layer.check_gaps(call.settings, values, y, target, x)
    values, difference = retained.weigh(values), retained.weigh(difference)
    gradients = estimators.maximum_gradients(
        call.settings.perturbation, difference, x, clips=call.settings.clips
    )
    moment = estimators.moment(call.derivatives(temperature, z), gradients)
    return values, difference if call.difference else gradients, moment


def _join(kept: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    z, y = zip(*kept, strict=True)
    return join_draws(list(z)), join_draws(list(y))
