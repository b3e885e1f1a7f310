"""Bring a solver of your own: any function of scores, in NumPy or in torch.

The solver here picks items that are not next to each other, the best such set (a
maximum-weight independent set of a path), by a dynamic program that takes one instance.
``softsolve.solver`` makes it a solver, ``check_solver`` tells whether it keeps the
contract, and then it is a layer like any other.
"""

import itertools

import numpy as np
import torch

import softsolve as ss
from softsolve.testing import check_solver
from softsolve.torch import FenchelYoungLoss, Perturbed


@ss.solver(batched=False, linear=True)
def no_neighbours(theta: np.ndarray) -> np.ndarray:
    """Return the 0/1 vector with no two ones in a row of the largest total score."""
    size = len(theta)
    best = np.zeros(size + 2)  # of the items from i on
    for i in reversed(range(size)):
        best[i] = max(best[i + 1], theta[i] + best[i + 2])
    y = np.zeros(size, dtype=theta.dtype)
    i = 0
    while i < size:
        if best[i] > best[i + 1]:
            y[i] = 1
            i += 1
        i += 1
    return y


def feasible(y: np.ndarray) -> np.ndarray:
    """Tell which rows have no two ones next to each other."""
    return np.all(y[:, 1:] * y[:, :-1] == 0, axis=1)


def by_trying_all(theta: np.ndarray) -> float:
    """Return the largest total score, the slow way."""
    sets = np.array(list(itertools.product([0, 1], repeat=len(theta))))
    return float((sets[feasible(sets)] @ theta).max())


def train(steps: int) -> tuple[float, float]:
    """Train a model through the solver; return its losses before and after."""
    torch.manual_seed(0)
    layer = Perturbed(no_neighbours, temperature=0.5, num_samples=10)
    loss_function = FenchelYoungLoss(layer)
    weights = torch.randn(6, 8)
    x = torch.randn(200, 6)
    y = torch.as_tensor(no_neighbours((x @ weights).numpy()))
    model = torch.nn.Linear(6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(x), (16,))
        loss = loss_function(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[0], losses[-1]


if __name__ == "__main__":
    scores = np.random.default_rng(0).normal(size=(20, 8))
    print(check_solver(no_neighbours, scores, feasible=feasible))
    reached = np.vecdot(no_neighbours(scores), scores)
    print(
        "equal to the best of all sets:",
        np.allclose(reached, list(map(by_trying_all, scores))),
    )
    print("loss: {:.2f} before, {:.2f} after".format(*train(100)))
