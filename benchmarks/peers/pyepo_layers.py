"""PyEPO's perturbed layers over its own shortest-path model, solved by OR-Tools."""

import contextlib
import io
from typing import Any

import numpy as np
import torch

with contextlib.redirect_stdout(io.StringIO()):
    from pyepo.func import perturbedFenchelYoung, perturbedOpt
    from pyepo.model.ort import shortestPathModel

Tensor = torch.Tensor


class PyepoLayer:
    """What is timed of it. PyEPO minimises, so that scores are costs turned around."""

    def __init__(
        self, side: int, data: Any, temperature: float, samples: int, processes: int
    ) -> None:
        self.name = f"PyEPO, {processes} processes" if processes > 1 else "PyEPO"
        theta, self.g, self.y = (torch.from_numpy(array) for array in data)
        self.costs = (-theta).requires_grad_()
        self.model = shortestPathModel((side, side))
        options = {
            "n_samples": samples,
            "sigma": temperature,
            "processes": processes,
        }
        self.smoothed = perturbedOpt(self.model, **options)
        self.loss = perturbedFenchelYoung(self.model, reduction="sum", **options)

    def maximiser(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed solutions and the gradient of their product with g."""
        self.costs.grad = None
        mean = self.smoothed(self.costs)
        mean.backward(self.g)
        return mean.detach(), -self.costs.grad

    def loss_gradient(self) -> Tensor:
        """Return the gradient of the Fenchel-Young loss."""
        self.costs.grad = None
        self.loss(self.costs, self.y).backward()
        return -self.costs.grad

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Solve perturbed scores (n, d)."""
        solutions = []
        for scores in x:
            self.model.setObj(-scores)
            solutions.append(self.model.solve()[0])
        return np.asarray(solutions, dtype=x.dtype)
