r"""Affine models of many folds and settings, trained side by side.

A data set's cross-validation trains hundreds of small affine models
:math:`\theta = W^\top x + b`. Here they are one tensor: S *splits*, each with the rows
that it trains on, times G *settings* (learning rates and temperatures), which see the
same minibatches of their split. A step is two batched matrix products, one call of the
loss on all (S, b, G, k) scores, and Adam with a learning rate for each setting.
"""

from collections.abc import Sequence
from typing import Any

import torch

from softsolve.experiments.ranking.losses import RankingLoss
from softsolve.solvers import Ranking

Tensor = torch.Tensor

FIRST_DECAY, SECOND_DECAY, STABILISER = 0.9, 0.999, 1e-8


class AffineModels:
    r"""S times G affine models and what it takes to train them.

    Parameters
    ----------
    x, y
        Features (n, p), with a column of ones where models have an intercept, and
        target rankings (n, k), the largest entry for the best label.
    splits
        For each split, the rows that it trains on.
    learning_rates
        One for each setting, (G,).
    loss
        The loss, with a temperature for each setting.
    batch_size
        Rows of a minibatch, drawn uniformly with replacement.
    total_steps
        Steps until the end of training: learning rates fall linearly to zero.
    seed
        Of minibatches and noise.

    Notes
    -----
    Weights start at zero, where every label has the same score.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        splits: Sequence[Tensor],
        *,
        learning_rates: Tensor,
        loss: RankingLoss,
        batch_size: int,
        total_steps: int,
        seed: int,
    ) -> None:
        self.x, self.y = x, y
        self.loss = loss
        self.batch_size, self.total_steps = batch_size, total_steps
        self.generator = torch.Generator().manual_seed(seed)
        self.sizes = torch.tensor([len(rows) for rows in splits])
        self.rows = torch.nn.utils.rnn.pad_sequence(list(splits), batch_first=True)
        self.settings, self.labels = len(learning_rates), y.shape[1]
        self.rates = learning_rates.repeat_interleave(self.labels)
        shape = (len(splits), x.shape[1], self.settings * self.labels)
        self.weights = torch.zeros(shape)
        self.first, self.second = torch.zeros(shape), torch.zeros(shape)
        self._change, self._scale = torch.empty(shape), torch.empty(shape)
        self.steps = 0

    def step(self) -> Tensor:
        """Take one step of Adam; return the mean loss of each setting, (G,)."""
        splits, size = len(self.sizes), self.batch_size
        uniform = torch.rand(splits, size, generator=self.generator)
        places = (uniform * self.sizes[:, None]).long()
        places = torch.minimum(
            places, self.sizes[:, None] - 1
        )  # where 0.999… rounds up
        rows = torch.gather(self.rows, 1, places)
        x = self.x[rows]
        theta = torch.bmm(x, self.weights)
        theta = theta.view(splits, size, self.settings, -1).requires_grad_()
        losses = self.loss(theta, self.y[rows][:, :, None], self.generator)
        (slope,) = torch.autograd.grad(losses.sum(), theta)
        self._update(torch.bmm(x.mT, slope.view(splits, size, -1)).div_(size))
        return losses.detach().mean(dim=(0, 1))

    def _update(self, gradient: Tensor) -> None:
        rates = self.rates * (1 - self.steps / self.total_steps)
        self.steps += 1
        self.first.lerp_(gradient, 1 - FIRST_DECAY)
        self.second.mul_(SECOND_DECAY)
        self.second.addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
        first_mass = 1 - FIRST_DECAY**self.steps
        second_mass = 1 - SECOND_DECAY**self.steps
        scale = torch.div(self.second, second_mass, out=self._scale)
        scale.sqrt_().add_(STABILISER)
        change = torch.mul(self.first, rates / first_mass, out=self._change)
        self.weights -= change.div_(scale)

    def ranks(self, split: int, rows: Tensor) -> Tensor:
        """Return the ranks that a split's models predict for rows, (rows, G, k)."""
        theta = self.x[rows] @ self.weights[split]
        flat = theta.view(-1, self.labels)
        return Ranking()(flat).view(len(rows), self.settings, self.labels)

    def correlations(self, held_out: Sequence[Tensor]) -> Tensor:
        """Return Spearman's correlation on each split's held-out rows, (S, G)."""
        return torch.stack(
            [
                spearman(self.ranks(split, rows), self.y[rows][:, None]).mean(dim=0)
                for split, rows in enumerate(held_out)
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes with training."""
        return {
            "weights": self.weights,
            "first": self.first,
            "second": self.second,
            "steps": self.steps,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what :meth:`state_dict` returned."""
        self.steps = state["steps"]
        self.weights = state["weights"].clone()
        self.first, self.second = state["first"].clone(), state["second"].clone()
        self.generator.set_state(state["generator"])


def spearman(ranks: Tensor, y: Tensor) -> Tensor:
    r"""Return Spearman's correlation of rankings 1, …, k without ties, row by row.

    .. math:: 1 - \frac{6 \sum_j (r_j - y_j)^2}{k(k^2-1)}
    """
    k = y.shape[-1]
    return 1 - 6 * (ranks - y).square().sum(dim=-1) / (k * (k**2 - 1))
