"""The fused route in torch: compiled passes that read tensors as NumPy arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from softsolve import layer
from softsolve.compiled.fused import FusedPass
from softsolve.fused_route import baseline_scale, fused_pass, pack_context
from softsolve.settings import Settings
from softsolve.torch.host import check_point, check_target
from softsolve.torch.rules import Draws, Pair
from softsolve.torch.sampling import (
    Call,
    Constant,
    fold_draws,
    fold_rows,
    mapped_first,
)
from softsolve.torch.transforms import copied

Tensor = torch.Tensor
Outputs = tuple[Tensor, ...]


def draw_keys(rows: int, generator: torch.Generator | None) -> Tensor:
    """Draw the key of each row's noise, int32 (B, 2)."""
    return torch.randint(
        -(2**31), 2**31, (rows, 2), dtype=torch.int32, generator=generator
    )


def compiled_pass(
    settings: Settings, event_shape: tuple[int, ...], dtype: torch.dtype
) -> FusedPass:
    """Return the compiled pass for tensors of a type."""
    name = "float64" if dtype == torch.float64 else "float32"
    return fused_pass(settings, event_shape, name)


class SampleFused(Constant):
    """Mean solution (B, d); keys, what is kept of solutions, and their baseline.

    Kept are the codes of the solutions or, where the call wants only these, the sums of
    the noise's scores by who wins.
    """

    @staticmethod
    def forward(
        call: Call, theta: Tensor, temperature: Tensor, *context: Tensor
    ) -> Outputs:
        """Draw, solve and average in one pass."""
        point = _point(theta, temperature)
        rows = len(theta)
        work = compiled_pass(call.settings, call.event_shape, theta.dtype)
        packed = _packed(call, rows, context)  # checked before anything is drawn
        keys = call.draw_rows(lambda n: draw_keys(n, call.generator), rows)
        keep, winners = call.keep and not call.winners, call.keep and call.winners
        result = work.forward(*point, keys.numpy(), packed, keep=keep, winners=winners)
        call.out_shape = call.event_shape
        mean = torch.from_numpy(result.mean)
        if not call.keep:
            return (mean,)
        kept = torch.from_numpy(result.winners if winners else result.samples[0])
        center = _center(call, mean, theta, context)
        return (mean, keys, kept) if center is None else (mean, keys, kept, center)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_draws(SampleFused, info, in_dims, operands)


class SolveFused(Constant):
    """The solution of each row (B, d), without noise: a sample at temperature 0."""

    @staticmethod
    def forward(call: Call, theta: Tensor, *context: Tensor) -> Outputs:
        """Solve in one pass."""
        scores, rows = _array(theta), len(theta)
        if not _surely_finite(scores):
            check_point(theta, torch.ones_like(theta[:, 0]))
        work = compiled_pass(call.settings, call.event_shape, theta.dtype)
        packed = _packed(call, rows, context)
        cold, keys = np.zeros(rows, scores.dtype), np.zeros((rows, 2), np.int32)
        call.out_shape = call.event_shape
        return (
            torch.from_numpy(work.forward(scores, cold, keys, packed, keep=False).mean),
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_rows(SolveFused, info, in_dims, operands)


class SampleFusedMaxima(Constant):
    """The maximum (B,), its gradient (B, d) and moment (B,), relative to a target.

    Then what draws them again: keys, packed context and the baseline. Nothing of the
    size of the samples is kept. For a solver that clips its scores, the gradient is the
    only derivative there is.
    """

    @staticmethod
    def forward(
        call: Call,
        theta: Tensor,
        temperature: Tensor,
        target: Tensor | None,
        *context: Tensor,
    ) -> Outputs:
        """Draw, solve and average in one pass."""
        point = _point(theta, temperature)
        if target is not None and not _surely_finite(_array(target)):
            check_target(target)
        settings, rows = call.settings, len(theta)
        work = compiled_pass(settings, call.event_shape, theta.dtype)
        packed = _packed(call, rows, context)  # checked before anything is drawn
        keys = call.draw_rows(lambda n: draw_keys(n, call.generator), rows)
        goal = np.zeros_like(point[0]) if target is None else _array(target)
        clip = settings.clips
        result = work.forward(
            *point, keys.numpy(), packed, keep=False, target=goal, clip=clip
        )
        assert result.loss is not None
        assert result.lowest is not None
        assert result.gap_moment is not None
        if target is not None:
            layer.check_lowest(settings, result.lowest, theta, temperature, target)
        gradient = result.mean if target is None else result.mean - goal
        if clip:
            assert result.slope is not None
            shown = gradient if call.difference else result.slope
            maximum = (result.loss, shown, result.gap_moment)
            return tuple(torch.from_numpy(array) for array in maximum)
        mean = torch.from_numpy(result.mean)
        center = _center(call, mean, theta, context)
        return (
            torch.from_numpy(result.loss),
            torch.from_numpy(gradient),
            torch.from_numpy(result.gap_moment),
            keys,
            torch.from_numpy(packed),
            torch.from_numpy(goal) if center is None else center,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_draws(SampleFusedMaxima, info, in_dims, operands)


@dataclass(frozen=True)
class FusedRule:
    """Products from keys (B, 2), what was kept of solutions, and their baseline (B, d).

    Kept are their ``"codes"``; or the packed ``"context"``, to solve once more for
    second derivatives of a maximum; or sums by ``"winners"``, enough for the first
    derivatives in the scores, which those of other kinds solve once more for.
    """

    settings: Settings
    event_shape: tuple[int, ...]
    kept: Literal["codes", "context", "winners"] = "codes"

    def pull(
        self, point: Pair, g: Tensor, draws: Draws, *, in_temperature: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the vector-Jacobian product of one vector."""
        vectors = _array(g)[:, None]
        if self.kept == "winners" and not in_temperature:
            return self._pull_winners(point[1], vectors, draws), None
        name = "vjp" if in_temperature else "vjp_in_theta"
        pulled = self.product(name, point, (vectors,), draws)
        along = torch.from_numpy(pulled[1][:, 0]) if in_temperature else None
        return torch.from_numpy(pulled[0][:, 0]), along

    def vjp(self, point: Pair, g: Tensor, draws: Draws) -> Pair:
        """Return vector-Jacobian products."""
        pulled = self._run("vjp", point, (_rows(g),), draws)
        return _columns(pulled[0]), pulled[1]

    def jvp(self, point: Pair, direction: Pair, draws: Draws) -> Tensor:
        """Return Jacobian-vector products."""
        v, e = direction
        (pushed,) = self._run("jvp", point, (_rows(v), e), draws)
        return _columns(pushed)

    def hvp(self, point: Pair, g: Tensor, direction: Pair, draws: Draws) -> Pair:
        """Return derivatives of vector-Jacobian products."""
        v, e = direction
        pulled = self._run("hvp", point, (_rows(g), _rows(v), e), draws)
        return _columns(pulled[0]), pulled[1]

    def jjvp(self, point: Pair, direction: Pair, other: Pair, draws: Draws) -> Tensor:
        """Return derivatives of Jacobian-vector products."""
        (v, e), (w, f) = direction, other
        (pushed,) = self._run("jjvp", point, (_rows(v), e, _rows(w), f), draws)
        return _columns(pushed)

    def moment_gradient(self, point: Pair, draws: Draws) -> Pair:
        r"""Return the gradient of the maximum's derivative in the temperature.

        In :math:`\theta`, :math:`\partial y_\varepsilon/\partial\varepsilon`; in
        :math:`\varepsilon`, what follows from :math:`F_\varepsilon(\theta)` being
        1-homogeneous in :math:`(\theta, \varepsilon)`.
        """
        tau, temperature = point
        still = torch.zeros_like(tau)[..., None]
        ones = torch.ones_like(temperature)[:, None]
        in_tau = self.jvp(point, (still, ones), draws)[..., 0]
        return in_tau, -(tau * in_tau).sum(-1) / temperature

    def raise_not_kept(self, entries: int) -> NoReturn:
        """Say how to have second derivatives of a clipped maximum."""
        layer.raise_clipped_second_order(self.settings)

    def _run(
        self, name: str, point: Pair, vectors: tuple[Tensor, ...], draws: Draws
    ) -> Outputs:
        tensors = (*point, *vectors, *draws)
        return ProductOfFused.apply(self, name, len(vectors), *tensors)

    def product(
        self, name: str, point: Pair, vectors: tuple[np.ndarray, ...], draws: Draws
    ) -> tuple[np.ndarray, ...]:
        """Return a product of vectors as rows, outside of differentiation."""
        keys, kept, center = draws
        temperature = _array(point[1])
        work = compiled_pass(self.settings, self.event_shape, point[1].dtype)
        samples: tuple[np.ndarray, ...] = (_array(kept),)
        if self.kept != "codes":
            context = samples if self.kept == "context" else ()
            scores = _array(point[0])
            samples = work.forward(scores, temperature, _array(keys), *context).samples
        product: Callable[..., Any] = getattr(work, name)
        outputs = product(
            samples,
            _array(keys),
            temperature,
            *vectors,
            center=None if center is None else _array(center),
            scale=self.scale,
        )
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _pull_winners(
        self, temperature: Tensor, vectors: np.ndarray, draws: Draws
    ) -> Tensor:
        _, winners, center = draws
        work = compiled_pass(self.settings, self.event_shape, temperature.dtype)
        pulled = work.vjp_of_winners(
            _array(winners),
            _array(temperature),
            vectors,
            center=None if center is None else _array(center),
            scale=self.scale,
        )
        return torch.from_numpy(pulled[:, 0])

    @cached_property
    def scale(self) -> float:
        """Factor of samples less their baseline."""
        return baseline_scale(self.settings)


class ProductOfFused(Constant):
    """A product of a :class:`FusedRule`, by its name."""

    @staticmethod
    def forward(rule: FusedRule, name: str, count: int, *tensors: Any) -> Outputs:
        """Return the product."""
        tau, temperature, *rest = tensors
        keys, codes, center = rest[count:]
        vectors = tuple(_array(vector) for vector in rest[:count])
        products = rule.product(
            name, (tau, temperature), vectors, (keys, codes, center)
        )
        return tuple(torch.from_numpy(array) for array in products)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Run mapped vectors as further columns where only they are mapped."""
        count = operands[2]
        others = (*in_dims[3:5], *in_dims[5 + count :])
        if any(dim is not None for dim in others):
            return fold_rows(ProductOfFused, info, in_dims, operands)
        return _map_columns(info.batch_size, in_dims, operands)


def _map_columns(
    size: int, in_dims: tuple[Any, ...], operands: tuple[Any, ...]
) -> tuple[Outputs, tuple[int, ...]]:
    """Fold the mapped axis of the vectors (B, K, ·) into their K."""
    rule, name, count, *tensors = operands

    vectors = [
        mapped_first(*pair, size).movedim(0, 1)
        for pair in zip(tensors[2 : 2 + count], in_dims[5:], strict=False)
    ]
    folded = [vector.flatten(1, 2) for vector in vectors]
    outputs = ProductOfFused.apply(
        rule, name, count, *tensors[:2], *folded, *tensors[2 + count :]
    )
    sizes = (size, vectors[0].shape[2])
    return tuple(output.unflatten(1, sizes) for output in outputs), (1,) * len(outputs)


class Decode(Constant):
    """The solutions (B, M, d) that codes stand for."""

    @staticmethod
    def forward(call: Call, codes: Tensor, dtype: torch.dtype) -> Outputs:
        """Return the solutions."""
        work = compiled_pass(call.settings, call.event_shape, dtype)
        return (torch.from_numpy(work.solutions((_array(codes),))),)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        """Fold the mapped axis into the rows."""
        return fold_rows(Decode, info, in_dims, operands)


def _point(theta: Tensor, temperature: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and temperatures as arrays, or raise if they cannot be used."""
    scores, temperatures = _array(theta), _array(temperature)
    positive = np.count_nonzero(temperatures > 0) == len(temperatures)
    if not (positive and _surely_finite(scores) and _surely_finite(temperatures)):
        check_point(theta, temperature)
    return scores, temperatures


def _surely_finite(values: np.ndarray) -> bool:
    """Tell quickly whether numbers are finite: no if they are not, or only large.

    What is not finite shows in a sum of squares.
    """
    flat = values.reshape(-1)
    return math.isfinite(flat.dot(flat))


def _packed(call: Call, rows: int, context: Outputs) -> np.ndarray:
    arrays = tuple(_array(array) for array in context)
    return pack_context(call.settings, rows, call.event_shape, arrays)


def _center(call: Call, mean: Tensor, theta: Tensor, context: Outputs) -> Tensor | None:
    if call.settings.baseline == "leave_one_out":
        return copied(mean)
    if call.settings.baseline == "point":
        return call.at_point(theta, context)
    return None


def _array(tensor: Tensor) -> np.ndarray:
    plain = tensor.detach() if tensor.requires_grad else tensor
    plain = plain.contiguous()
    if plain._is_zerotensor():  # what autograd passes for a tangent that is not there
        plain = plain.clone()
    return plain.numpy()


def _rows(columns: Tensor) -> Tensor:
    """Turn vectors as columns (B, d, K) into rows (B, K, d)."""
    return columns.transpose(1, 2)


def _columns(rows: Tensor) -> Tensor:
    """Turn vectors as rows (B, K, d) into columns (B, d, K)."""
    return rows.transpose(1, 2)
