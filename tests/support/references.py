"""Exact values of perturbed solvers, by quadrature, that torch differentiates.

Functions of scores (d,) and a temperature (), in float64, for any noise with
independent coordinates.
"""

import math

import numpy as np
import torch
from scipy import stats

from softsolve.noise import EULER_GAMMA

NODES = 6001
# SciPy describes the noises apart from softsolve.
SCIPY = {
    "normal": stats.norm,
    "gumbel": stats.gumbel_r,
    "logistic": stats.logistic,
    "laplace": stats.laplace,
}


class Quadrature:
    """A noise's density on nodes, and its distribution function anywhere."""

    def __init__(self, noise):
        self.noise = noise
        distribution = SCIPY[noise]()
        self.lower, self.upper = distribution.ppf(1e-13), distribution.isf(1e-13)
        nodes = np.linspace(self.lower, self.upper, NODES)
        self.nodes = torch.tensor(nodes)
        self.weights = torch.tensor(distribution.pdf(nodes) * (nodes[1] - nodes[0]))
        self.weights = self.weights / self.weights.sum()
        self.mean = float(distribution.mean())

    def cdf(self, z):
        if self.noise == "normal":
            return torch.special.ndtr(z)
        if self.noise == "gumbel":
            return torch.exp(-torch.exp(-z))
        if self.noise == "logistic":
            return torch.sigmoid(z)
        half = 0.5 * torch.exp(-z.abs())
        return torch.where(z < 0, half, 1 - half)

    def won(self, theta, eps):
        """Return the chance that each entry is the largest at each node, (d, n)."""
        ahead = (theta[:, None] - theta[None, :]) / eps
        chances = self.cdf(ahead[:, :, None] + self.nodes)
        others = 1 - torch.eye(len(theta), dtype=theta.dtype)[..., None]
        return (chances * others + (1 - others)).prod(dim=1)


class SimplexReference:
    """One-hot argmax."""

    def __init__(self, noise):
        self.quadrature = Quadrature(noise)

    def solution(self, theta, eps):
        return self.quadrature.won(theta, eps) @ self.quadrature.weights

    def maximum(self, theta, eps):
        scores = theta[:, None] + eps * self.quadrature.nodes
        won = self.quadrature.won(theta, eps)
        return ((scores * won) @ self.quadrature.weights).sum()


class PermutahedronReference:
    """Ascending ranks: 1 plus the number of entries that are smaller."""

    def __init__(self, noise):
        self.pair = SimplexReference(noise)

    def _pairs(self, theta):
        size = len(theta)
        return [(i, j) for i in range(size) for j in range(i)]

    def solution(self, theta, eps):
        ranks = [torch.ones((), dtype=theta.dtype) for _ in theta]
        for i, j in self._pairs(theta):
            chances = self.pair.solution(theta[[i, j]], eps)
            ranks[i] = ranks[i] + chances[0]
            ranks[j] = ranks[j] + chances[1]
        return torch.stack(ranks)

    def maximum(self, theta, eps):
        total = (theta + eps * self.pair.quadrature.mean).sum()
        for i, j in self._pairs(theta):
            total = total + self.pair.maximum(theta[[i, j]], eps)
        return total


class CubeReference:
    """The indicator of positive entries."""

    def __init__(self, noise):
        self.quadrature = Quadrature(noise)

    def solution(self, theta, eps):
        return 1 - self.quadrature.cdf(-theta / eps)

    def maximum(self, theta, eps):
        # The solution is the derivative of the maximum, which vanishes at −∞.
        start = eps.detach() * min(self.quadrature.lower, -self.quadrature.upper) - 1
        steps = torch.linspace(0, 1, 20_001, dtype=theta.dtype)
        width = (theta - start)[:, None]
        return torch.trapezoid(
            self.solution(start + width * steps, eps) * width, steps
        ).sum()


class SoftmaxReference:
    """One-hot argmax with Gumbel noise, in closed form."""

    def solution(self, theta, eps):
        return torch.softmax(theta / eps, dim=0)

    def maximum(self, theta, eps):
        return eps * torch.logsumexp(theta / eps, dim=0) + eps * EULER_GAMMA


class PlaneReference:
    r"""Any function of two scores: the integral of f(x) p(x; θ, ε) on a grid of x.

    The grid stands still, so that all derivatives are those of the density.
    """

    NODES = 2000

    def __init__(self, function, noise, perturbation, theta, eps):
        self.noise, self.perturbation = noise, perturbation
        theta = np.asarray(theta, dtype=float)
        distribution = SCIPY[noise]()
        tails = np.linspace(
            distribution.ppf(1e-10), distribution.isf(1e-10), self.NODES
        )
        if perturbation == "additive":
            axes = [t + eps * tails for t in theta]
        else:
            axes = [t * np.exp(eps * tails - eps**2 / 2) for t in theta]
        self.axes = [torch.tensor(axis) for axis in axes]
        self.widths = [torch.tensor(np.abs(np.gradient(axis))) for axis in axes]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        values = np.asarray(function(grid), dtype=float)
        shape = (self.NODES, self.NODES, *values.shape[1:])
        self.values = torch.tensor(values.reshape(shape))

    def expectation(self, theta, eps):
        factors = []
        for t, x, width in zip(theta, self.axes, self.widths, strict=True):
            if self.perturbation == "additive":
                z, jacobian = (x - t) / eps, eps * torch.ones_like(x)
            else:
                z = torch.log(x / t) / eps + eps / 2
                jacobian = eps * x.abs()
            factors.append(self._density(z) / jacobian * width)
        return torch.einsum("i,j,ij...->...", *factors, self.values)

    def _density(self, z):
        if self.noise == "normal":
            return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        if self.noise == "gumbel":
            return torch.exp(-z - torch.exp(-z))
        if self.noise == "logistic":
            return torch.sigmoid(z) * torch.sigmoid(-z)
        return 0.5 * torch.exp(-z.abs())


class Exact:
    """What a reference and its derivatives come to at a point, as NumPy arrays."""

    def __init__(self, function, theta, eps):
        self.function = function
        self.point = (
            torch.tensor(np.asarray(theta, dtype=float)),
            torch.tensor(float(eps), dtype=torch.float64),
        )

    @property
    def value(self):
        return self.function(*self.point).numpy()

    @property
    def jacobian(self):
        """Derivatives in θ, (*out, d)."""
        return torch.func.jacrev(self.function, 0)(*self.point).numpy()

    @property
    def in_temperature(self):
        """Derivatives in ε, (*out)."""
        return torch.func.jacfwd(self.function, 1)(*self.point).numpy()

    def point_hessian(self, g=None):
        """Second derivatives of ⟨function, g⟩ in (θ, ε), (d + 1, d + 1)."""
        size = len(self.point[0])

        def product(point):
            value = self.function(point[:size], point[size])
            return value if g is None else (value * torch.tensor(g)).sum()

        point = torch.cat([self.point[0], self.point[1][None]])
        return torch.func.hessian(product)(point).numpy()
