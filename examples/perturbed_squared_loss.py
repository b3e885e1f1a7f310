"""Train through a solver with a loss on its smoothed solution.

The smoothed solution is differentiable, so any loss may follow: here half the squared
distance to the target, which the paper calls "Perturbed + Squared loss". Unlike the
Fenchel-Young loss it needs the solver's Jacobian, which the layer estimates, and it
also takes targets for which no score is best.

The output and its Jacobian share their draws, which biases the gradient of a loss that
is not linear by O(1/M). ``backward="independent"`` draws afresh and has no bias; this
example runs both.
"""

import torch

from softsolve.solvers import TopK
from softsolve.torch import Perturbed


def make_data(rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and which three of eight items a hidden model chooses."""
    weights = torch.randn(features, 8)
    x = torch.randn(rows, features)
    return x, TopK(3)(x @ weights)


def train(steps: int, backward: str = "shared") -> tuple[float, float]:
    """Train a model; return the share of new instances right before and after."""
    torch.manual_seed(0)
    x, y = make_data(rows=1500, features=10)
    train_x, train_y, new_x, new_y = x[:1000], y[:1000], x[1000:], y[1000:]
    model = torch.nn.Linear(10, 8)
    layer = Perturbed(TopK(3), temperature=0.5, num_samples=20, backward=backward)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def share_right() -> float:
        with torch.no_grad():
            right = (TopK(3)(model(new_x)) == new_y).all(dim=1)
        return float(right.float().mean())

    before = share_right()
    for _ in range(steps):
        batch = torch.randint(len(train_x), (32,))
        y_soft = layer(model(train_x[batch]))
        loss = 0.5 * (y_soft - train_y[batch]).square().sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before, share_right()


if __name__ == "__main__":
    for choice in ("shared", "independent"):
        before, after = train(200, choice)
        print(f"{choice:>12} draws: {before:.0%} right before, {after:.0%} after")
