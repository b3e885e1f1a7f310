"""A layer to compile, whose values and derivatives are known."""

import torch

from softsolve.solvers import OneHot
from softsolve.torch import Perturbed

# What autograd and the compiler make of each other, without generating code.
QUICK = {"backend": "aot_eager", "fullgraph": True}

THETA = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
G = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
EPS, ROWS = 0.5, 400


def softmax_layer(**options):
    return Perturbed(
        OneHot(), temperature=EPS, num_samples=100, noise="gumbel", **options
    )


def closed(theta):
    return torch.softmax(theta / EPS, -1)


def rows(vector):
    return vector.expand(ROWS, 3).clone()
