"""The losses of scores against labels, and the probabilities that go with each."""

from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from softsolve.solvers import OneHot
from softsolve.torch import FenchelYoungLoss, Perturbed

Tensor = torch.Tensor

CROSS_ENTROPY = "cross-entropy"
FENCHEL_YOUNG = "fenchel-young"
LOSSES = (CROSS_ENTROPY, FENCHEL_YOUNG)
# Draws for the probabilities that a model is judged by.
JUDGING_SAMPLES = 1000


class LabelLoss(Protocol):
    """The mean loss of scores (n, d) against labels (n,)."""

    def __call__(
        self, theta: Tensor, labels: Tensor, generator: torch.Generator, /
    ) -> Tensor:
        """Return the loss."""


class Probabilities(Protocol):
    """The smoothed argmax (n, d) of scores (n, d)."""

    def __call__(self, theta: Tensor, generator: torch.Generator, /) -> Tensor:
        """Return the probabilities of the classes."""


class Objective(NamedTuple):
    """A loss, and the probabilities that it fits to the labels."""

    loss: LabelLoss
    probabilities: Probabilities


def cross_entropy(temperature: float) -> Objective:
    r"""Return :math:`-\langle y, \log \mathrm{softmax}(\theta/\varepsilon)\rangle`."""
    return Objective(
        lambda theta, labels, _: functional.cross_entropy(theta / temperature, labels),
        lambda theta, _: torch.softmax(theta / temperature, dim=-1),
    )


def fenchel_young(temperature: float, num_samples: int) -> Objective:
    r"""Return :math:`L_\varepsilon(\theta; y)` with Gaussian noise, M draws a step."""
    young = FenchelYoungLoss(
        Perturbed(OneHot(), temperature=temperature, num_samples=num_samples)
    )
    soft = Perturbed(OneHot(), temperature=temperature, num_samples=JUDGING_SAMPLES)

    def loss(theta: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        y = functional.one_hot(labels, theta.shape[-1])
        return young(theta, y, generator=generator)

    return Objective(loss, lambda theta, generator: soft(theta, generator=generator))
