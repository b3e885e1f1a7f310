"""How derivatives are computed from draws, on the array route."""

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from softsolve import estimators
from softsolve.layer import check_second_derivatives, raise_samples_not_kept
from softsolve.perturbation import DensityDerivatives
from softsolve.settings import Settings
from softsolve.torch.precision import full_precision

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

    def pull(
        self, point: Pair, g: Tensor, draws: Draws, *, in_temperature: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the vector-Jacobian product of one vector (B, k), (B, d) and (B,).

        The second may be None unless it is wanted, ``in_temperature``.
        """

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

    def pull(
        self, point: Pair, g: Tensor, draws: Draws, *, in_temperature: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the vector-Jacobian product of one vector."""
        in_tau, along = self.vjp(point, g[..., None], draws)
        return in_tau[..., 0], along[..., 0]

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


def three(draws: list[Tensor]) -> Draws:
    """Return the tensors of the draws, None for a baseline that there is not."""
    z, values, *at_point = draws
    return z, values, at_point[0] if at_point else None
