"""The four losses that the paper compares on rankings, for many settings at once."""

from typing import Literal, Protocol

import torch

from softsolve.solvers import Ranking
from softsolve.torch import BlackBox, FenchelYoungLoss, Perturbed

Tensor = torch.Tensor
LossName = Literal["fenchel-young", "perturbed-squared", "squared", "blackbox"]

TITLES: dict[str, str] = {
    "fenchel-young": "Perturbed FY",
    "perturbed-squared": "Perturbed + Squared",
    "squared": "Squared",
    "blackbox": "Blackbox",
}
LOSSES = tuple(TITLES)
PERTURBED = ("fenchel-young", "perturbed-squared")


class RankingLoss(Protocol):
    """A loss of scores (..., k) against rankings (..., k), one value a row."""

    def __call__(
        self, theta: Tensor, y: Tensor, generator: torch.Generator, /
    ) -> Tensor:
        """Return the losses, (...)."""


def ranking_loss(
    name: str, *, temperatures: Tensor, num_samples: int, interpolation: float
) -> RankingLoss:
    r"""Return a loss of the paper's label-ranking experiment.

    ===================== =========================================================
    ``fenchel-young``     :math:`L_\varepsilon(\theta; y)`
    ``perturbed-squared`` :math:`\frac12\|y - y_\varepsilon(\theta)\|^2`
    ``squared``           :math:`\frac12\|y - \theta\|^2`
    ``blackbox``          :math:`\frac12\|y - y^*(\theta)\|^2`, with the gradient proxy
    ===================== =========================================================

    ``temperatures`` (G,) are those of the settings, the last batch axis of the scores.
    """
    perturbed = Perturbed(Ranking(), temperature=1.0, num_samples=num_samples)
    young = FenchelYoungLoss(perturbed, reduction="none")
    blackbox = BlackBox(Ranking(), interpolation=interpolation)

    def half_square(difference: Tensor) -> Tensor:
        return difference.square().sum(dim=-1) / 2

    def fenchel_young(theta: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        target = y.expand_as(theta)
        return young(theta, target, generator=generator, temperature=temperatures)

    def perturbed_squared(
        theta: Tensor, y: Tensor, generator: torch.Generator
    ) -> Tensor:
        soft = perturbed(theta, generator=generator, temperature=temperatures)
        return half_square(y - soft)

    def squared(theta: Tensor, y: Tensor, _: torch.Generator) -> Tensor:
        return half_square(y - theta)

    def interpolated(theta: Tensor, y: Tensor, _: torch.Generator) -> Tensor:
        return half_square(y - blackbox(theta))

    losses: dict[str, RankingLoss] = {
        "fenchel-young": fenchel_young,
        "perturbed-squared": perturbed_squared,
        "squared": squared,
        "blackbox": interpolated,
    }
    return losses[name]
