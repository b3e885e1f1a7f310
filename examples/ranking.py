"""Learn to rank labels, as in the paper's experiment on label ranking.

Each instance has features x and a ranking of ten labels. A linear model gives each
label a score, and the Fenchel-Young loss compares the smoothed ranks of the scores with
the ranking. Its gradient is the difference of the two: no Jacobian is needed.
"""

import math

import torch

from softsolve.solvers import Ranking
from softsolve.torch import FenchelYoungLoss, Perturbed


def make_data(rows: int, features: int, labels: int) -> tuple[torch.Tensor, ...]:
    """Return features and the ranks that a hidden linear model gives the labels."""
    weights = torch.randn(features, labels)
    x = torch.randn(rows, features)
    scores = x @ weights + 0.2 * math.sqrt(features) * torch.randn(rows, labels)
    return x, Ranking()(scores)


def spearman(y: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean rank correlation of rankings 1, …, d."""
    size = y.shape[1]
    squares = (y - other).square().sum(dim=1)
    return float((1 - 6 * squares / (size * (size**2 - 1))).mean())


def train(steps: int) -> tuple[float, float]:
    """Train the model; return its rank correlation on new data before and after."""
    torch.manual_seed(0)
    x, y = make_data(rows=1500, features=20, labels=10)
    train_x, train_y, new_x, new_y = x[:1000], y[:1000], x[1000:], y[1000:]
    model = torch.nn.Linear(20, 10)
    soft_rank = Perturbed(Ranking(), temperature=1.0, num_samples=10)
    loss_function = FenchelYoungLoss(soft_rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    before = spearman(Ranking()(model(new_x)), new_y)
    for _ in range(steps):
        batch = torch.randint(len(train_x), (32,))
        loss = loss_function(model(train_x[batch]), train_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before, spearman(Ranking()(model(new_x)), new_y)


if __name__ == "__main__":
    print(
        "rank correlation on new data: {:.2f} before, {:.2f} after".format(*train(200))
    )
