"""Losses of predicted costs against a cheapest path."""

from typing import Literal, Protocol

import torch

from softsolve.solvers import GridPath
from softsolve.torch import BlackBox, FenchelYoungLoss, Perturbed

Tensor = torch.Tensor

TITLES = {
    "fenchel-young": "Fenchel-Young",
    "fenchel-young-exact": "Fenchel-Young, exact gradient",
    "blackbox": "Blackbox",
    "perturbed-squared": "Perturbed + Squared",
    "squared": "Squared, no solver",
}
LOSSES = tuple(TITLES)
WITHOUT_SOLVER = "squared"


class PathLoss(Protocol):
    """A loss of costs (n, h, w) against paths (n, h, w), the mean over maps."""

    def __call__(
        self, costs: Tensor, paths: Tensor, generator: torch.Generator, /
    ) -> Tensor:
        """Return the loss."""


def path_loss(
    name: str,
    *,
    temperature: float,
    num_samples: int,
    squared_samples: int,
    interpolation: float,
) -> PathLoss:
    r"""Return a loss of the shortest-path experiment.

    ======================= =======================================================
    ``fenchel-young``       :math:`L_\varepsilon`, with the paper's gradient,
                            :math:`\bar y - y`, wherever noise makes costs negative
    ``fenchel-young-exact`` the same, with the gradient of the clipped costs
    ``blackbox``            Hamming distance of the path, with the gradient proxy
    ``perturbed-squared``   :math:`\frac12\|y - y_\varepsilon(\theta)\|^2`
    ``squared``             :math:`\frac12\|y - g_w(x)\|^2`: no solver
    ======================= =======================================================
    """

    def fenchel_young(gradient: Literal["exact", "difference"]) -> PathLoss:
        layer = Perturbed(GridPath(), temperature=temperature, num_samples=num_samples)
        young = FenchelYoungLoss(layer, gradient=gradient)
        return lambda costs, y, generator: young(-costs, y, generator=generator)

    soft = Perturbed(GridPath(), temperature=temperature, num_samples=squared_samples)
    hard = BlackBox(GridPath(), interpolation=interpolation)

    def half_square(difference: Tensor) -> Tensor:
        return difference.square().sum(dim=(1, 2)).mean() / 2

    def perturbed_squared(
        costs: Tensor, y: Tensor, generator: torch.Generator
    ) -> Tensor:
        return half_square(soft(-costs, generator=generator) - y)

    def squared(costs: Tensor, y: Tensor, _: torch.Generator) -> Tensor:
        return half_square(costs - y)

    def hamming(costs: Tensor, y: Tensor, _: torch.Generator) -> Tensor:
        found = hard(-costs)
        return (found * (1 - y) + (1 - found) * y).sum(dim=(1, 2)).mean()

    losses: dict[str, PathLoss] = {
        "fenchel-young": fenchel_young("difference"),
        "fenchel-young-exact": fenchel_young("exact"),
        "blackbox": hamming,
        "perturbed-squared": perturbed_squared,
        "squared": squared,
    }
    return losses[name]
