"""Learn the costs of a terrain from shortest paths across it.

Each cell of a grid has features and an unknown cost. Seen are only cheapest paths; a
model of the costs is trained so that its cheapest paths are those seen. Costs are
positive and solvers maximise, so scores are ``-cost``. Noise makes some costs negative,
which the solver takes as zero.
"""

import torch

from softsolve.solvers.grid import GridPath
from softsolve.torch import FenchelYoungLoss, Perturbed

SIDE, KINDS = 8, 5


def make_data(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return kinds of ground, one-hot (rows, side, side, kinds), costs and paths."""
    prices = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    kinds = torch.randint(KINDS, (rows, SIDE, SIDE))
    costs = prices[kinds]
    paths = torch.as_tensor(GridPath()(-costs.numpy()))
    return torch.nn.functional.one_hot(kinds, KINDS).float(), costs, paths


def train(steps: int) -> tuple[float, float]:
    """Train the model; return its paths' cost before and after, over the best."""
    torch.manual_seed(0)
    x, costs, y = make_data(300)
    train_x, train_y, new_x, new_costs, new_y = (
        x[:200],
        y[:200],
        x[200:],
        costs[200:],
        y[200:],
    )
    log_prices = torch.zeros(KINDS, requires_grad=True)
    layer = Perturbed(GridPath(), temperature=0.5, num_samples=5)
    loss_function = FenchelYoungLoss(layer)
    optimizer = torch.optim.Adam([log_prices], lr=0.1)

    def relative_cost() -> float:
        with torch.no_grad():
            found = torch.as_tensor(GridPath()(-(new_x @ log_prices.exp()).numpy()))
        return float((found * new_costs).sum() / (new_y * new_costs).sum())

    before = relative_cost()
    for _ in range(steps):
        batch = torch.randint(len(train_x), (16,))
        loss = loss_function(-(train_x[batch] @ log_prices.exp()), train_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before, relative_cost()


if __name__ == "__main__":
    print(
        "cost of paths relative to the best: {:.3f} before, {:.3f} after".format(
            *train(100)
        )
    )
