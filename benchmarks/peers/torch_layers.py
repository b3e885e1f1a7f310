"""A perturbed layer as one writes it in torch, all samples as one batch of rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

Tensor = torch.Tensor
Solve = Callable[[Tensor], Tensor]


class Smoothed(torch.autograd.Function):
    """The mean solution and its vector-Jacobian product, leave-one-out."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, solve: Solve, temperature: float, samples: int
    ) -> Tensor:
        """Solve all samples at once."""
        rows, size = theta.shape
        z = torch.randn(rows, samples, size)
        x = theta[:, None, :] + temperature * z
        y = solve(x.reshape(-1, size)).reshape(z.shape)
        mean = y.mean(dim=1)
        ctx.save_for_backward(z, y, mean)
        ctx.scale = 1 / (temperature * (samples - 1))
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the vector-Jacobian product."""
        z, y, mean = ctx.saved_tensors
        g = gradients[0][:, :, None]
        weights = torch.bmm(y, g) - mean[:, None, :] @ g
        pulled = torch.bmm(weights.transpose(1, 2), z)[:, 0] * ctx.scale
        return pulled, None, None, None


class TorchLayer:
    """What is timed of it, for flat instances (B, d)."""

    def __init__(
        self, name: str, solve: Solve, data: Any, temperature: float, samples: int
    ) -> None:
        self.name = name
        theta, self.g, self.y = (
            torch.from_numpy(array.reshape(len(array), -1)) for array in data
        )
        self.theta = theta.clone().requires_grad_()
        self.options = (solve, temperature, samples)

    def maximiser(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed solutions and the gradient of their product with g."""
        self.theta.grad = None
        mean = Smoothed.apply(self.theta, *self.options)
        mean.backward(self.g)
        return mean.detach(), self.theta.grad

    def loss_gradient(self) -> Tensor:
        """Return the gradient of the Fenchel-Young loss."""
        with torch.no_grad():
            return Smoothed.apply(self.theta, *self.options) - self.y

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Solve perturbed scores (n, d)."""
        return self.options[0](torch.from_numpy(x)).numpy()


def one_hot(x: Tensor) -> Tensor:
    """Mark the largest score."""
    return torch.zeros_like(x).scatter_(1, x.argmax(dim=1, keepdim=True), 1.0)


def ranks(x: Tensor) -> Tensor:
    """Rank by one sort and a scatter."""
    values = torch.arange(1.0, x.shape[1] + 1).expand(x.shape)
    return torch.empty_like(x).scatter_(1, x.argsort(dim=1), values)


def top(count: int) -> Solve:
    """Return the solver that marks so many of the largest scores."""

    def solve(x: Tensor) -> Tensor:
        places = torch.topk(x, count, dim=1, sorted=False).indices
        return torch.zeros_like(x).scatter_(1, places, 1.0)

    return solve


def _assignments(columns_of: Callable[[np.ndarray], np.ndarray], size: int) -> Solve:
    def solve(x: Tensor) -> Tensor:
        costs = -x.numpy().reshape(-1, size, size)
        # On two threads this takes longer: both libraries hold the lock mostly.
        columns = np.stack([columns_of(each) for each in costs])
        y = torch.zeros(len(costs), size, size)
        return y.scatter_(2, torch.from_numpy(columns)[..., None].long(), 1.0).flatten(
            1
        )

    return solve


def assignment_lap(size: int) -> Solve:
    """Return the solver of square assignments by lap."""
    import lap

    return _assignments(lambda costs: lap.lapjv(costs)[1], size)


def assignment_scipy(size: int) -> Solve:
    """Return the solver of square assignments by SciPy."""
    return _assignments(
        lambda costs: scipy.optimize.linear_sum_assignment(costs)[1], size
    )


def grid_edges(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows' bounds and heads of the moves to 8 neighbours, as in CSR."""
    i, j = np.divmod(np.arange(side * side), side)
    near = np.abs(i[:, None] - i) <= 1
    near &= np.abs(j[:, None] - j) <= 1
    np.fill_diagonal(near, val=False)
    return np.r_[0, near.sum(axis=1).cumsum()], np.nonzero(near)[1]


def grid_path(side: int) -> Solve:
    """Return the solver of paths on a square grid: all instances as one graph.

    SciPy's Dijkstra then starts at all first cells at once, several times quicker
    than a call for each instance.
    """
    size = side * side
    bounds, heads = grid_edges(side)

    def solve(x: Tensor) -> Tensor:
        costs = np.maximum(-x.numpy(), 1e-7).astype(np.float64)
        count = len(costs)
        offsets = size * np.arange(count)
        all_heads = (heads + offsets[:, None]).reshape(-1)
        all_bounds = np.r_[
            0, (bounds[1:] + len(heads) * np.arange(count)[:, None]).ravel()
        ]
        graph = csr_array(
            (costs[:, heads].reshape(-1), all_heads, all_bounds),
            shape=(count * size, count * size),
        )
        _, came, _ = dijkstra(
            graph, indices=offsets, min_only=True, return_predecessors=True
        )
        y = np.zeros(count * size, dtype=np.float32)
        here = offsets + size - 1
        y[here] = 1
        while len(here := here[~np.isin(here, offsets)]):
            here = came[here]
            y[here] = 1
        return torch.from_numpy(y.reshape(count, size))

    return solve
