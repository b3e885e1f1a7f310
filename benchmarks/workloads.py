"""What is timed: the same instances for softsolve's layers and for those of others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import torch
from peers import torch_layers
from scipy.sparse import csr_array
from scipy.sparse.csgraph import bellman_ford, dijkstra

from softsolve import solvers
from softsolve.fused_route import fused_pass
from softsolve.solvers.graph import grid_graph
from softsolve.torch import FenchelYoungLoss, Perturbed

Array = np.ndarray[Any, Any]


@dataclass
class Workload:
    """A solver with instances, and what to set it against.

    ``best(x)`` is the largest value of ⟨y, x⟩ for each instance of flat scores (n, d),
    by a reference; ``values(y, x)`` what solutions are worth. ``peers`` are made when
    they are wanted, since some take long.
    """

    name: str
    text: str
    solver: Any
    theta: Array
    temperature: float
    samples: int
    target: float
    best: Callable[[Array], Array]
    peers: list[Callable[["Workload"], Any]] = field(default_factory=list)
    values: Callable[[Array, Array], Array] = np.vecdot

    def __post_init__(self) -> None:
        """Draw the cotangents and solve for the targets."""
        self.theta = self.theta.astype(np.float32)
        rng = np.random.default_rng(1)
        self.g = rng.standard_normal(self.theta.shape, dtype=np.float32)
        tensor = torch.from_numpy(self.theta)
        given = self.theta if self.solver.host else tensor
        self.y = np.asarray(self.solver(given), dtype=np.float32)

    @property
    def data(self) -> tuple[Array, Array, Array]:
        """Scores, cotangents and targets, (B, *event)."""
        return self.theta, self.g, self.y

    @property
    def options(self) -> tuple[Any, float, int]:
        """What every layer takes."""
        return self.data, self.temperature, self.samples


class Ours:
    """The layer of softsolve.torch."""

    name = "softsolve"

    def __init__(self, workload: Workload) -> None:
        theta, self.g, self.y = map(torch.from_numpy, workload.data)
        self.theta = theta.clone().requires_grad_()
        self.perturbed = Perturbed(
            workload.solver,
            temperature=workload.temperature,
            num_samples=workload.samples,
        )
        clips = self.perturbed.settings.clips
        # Where scores are clipped, others take the difference for the gradient.
        gradient = "difference" if clips else "exact"
        self.loss = FenchelYoungLoss(self.perturbed, reduction="sum", gradient=gradient)

    def maximiser(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smoothed solutions and the gradient of their product with g."""
        self.theta.grad = None
        mean = self.perturbed(self.theta)
        mean.backward(self.g)
        return mean.detach(), self.theta.grad

    def loss_gradient(self) -> torch.Tensor:
        """Return the gradient of the Fenchel-Young loss."""
        self.theta.grad = None
        self.loss(self.theta, self.y).backward()
        return self.theta.grad

    def draws(self, count: int) -> tuple[Array, Array]:
        """Return perturbed scores (n, d) and their solutions, of the pass that runs."""
        perturbed = self.perturbed
        shape = tuple(self.theta.shape)
        _, event_shape = perturbed.settings.split_shape(shape)
        work = fused_pass(perturbed.settings, event_shape, "float32")
        theta = self.theta.detach().numpy().reshape(shape[0], -1)
        temperature = np.full(shape[0], perturbed.temperature, np.float32)
        keys = np.random.default_rng(2).integers(
            -(2**31), 2**31, (shape[0], 2), dtype=np.int32
        )
        kept = work.forward(theta, temperature, keys).samples
        x = theta[:, None] + temperature[:, None, None] * work.draws(keys)
        size = theta.shape[1]
        chosen = np.random.default_rng(3).permutation(shape[0] * work.num_samples)
        y = work.solutions(kept)
        rows = chosen[:count]
        return x.reshape(-1, size)[rows], y.reshape(-1, size)[rows]


# Peers are imported when they are made: their own workload's only.


def _jax(solver: str, *arguments: int) -> list[Callable[[Workload], Any]]:
    """Return JAX's layers over the solver of that name."""

    def make(library: str, workload: Workload) -> Any:
        from peers import jax_layers, jax_solvers

        solve = getattr(jax_solvers, solver)
        layer = getattr(jax_layers, f"{library}_layer")
        return layer(solve(*arguments) if arguments else solve, *workload.options)

    return [partial(make, "optax"), partial(make, "jaxopt")]


def _torch(name: str, solver: str, *arguments: int) -> Callable[[Workload], Any]:
    """Return torch's layer over the solver of that name."""

    def make(workload: Workload) -> Any:
        solve = getattr(torch_layers, solver)
        solve = solve(*arguments) if arguments else solve
        return torch_layers.TorchLayer(name, solve, *workload.options)

    return make


def _pyepo(side: int, processes: int) -> Callable[[Workload], Any]:
    """Return PyEPO's layer."""

    def make(workload: Workload) -> Any:
        from peers import pyepo_layers

        return pyepo_layers.PyepoLayer(side, *workload.options, processes)

    return make


def argmax() -> Workload:
    """Return the choice of one of ten."""
    return Workload(
        "argmax",
        "argmax, d=10, B=128, M=1000",
        solvers.OneHot(),
        np.random.default_rng(0).normal(size=(128, 10)),
        *(0.5, 1000, 10.0),
        best=lambda x: x.max(axis=1),
        peers=[*_jax("one_hot"), _torch("torch", "one_hot")],
    )


def ranking() -> Workload:
    """Return the ranking of a hundred."""
    return Workload(
        "ranking",
        "ranking, d=100, B=32, M=1000",
        solvers.Ranking(),
        np.random.default_rng(0).normal(size=(32, 100)),
        *(0.5, 1000, 10.0),
        best=lambda x: np.sort(x, axis=1) @ np.arange(1.0, x.shape[1] + 1),
        peers=[*_jax("ranks"), _torch("torch, sort", "ranks")],
    )


def top() -> Workload:
    """Return the ten largest of a thousand."""
    return Workload(
        "topk",
        "top-10 of 1000, B=64, M=100",
        solvers.TopK(10),
        np.random.default_rng(0).normal(size=(64, 1000)),
        *(0.5, 100, 5.0),
        best=lambda x: np.partition(x, -10, axis=1)[:, -10:].sum(axis=1),
        peers=[*_jax("top", 10), _torch("torch.topk", "top", 10)],
    )


def _clipped(y: Array, x: Array) -> Array:
    return np.vecdot(y, np.minimum(x, 0))


def cheapest_paths(x: Array, side: int) -> Array:
    """Return what the best paths through grids are worth, by SciPy, one at a time."""
    bounds, heads = torch_layers.grid_edges(side)
    size = side * side
    worth = []
    for scores in x.astype(np.float64):
        costs = np.maximum(-scores, 0)
        graph = csr_array((costs[heads], heads, bounds), shape=(size, size))
        worth.append(-costs[0] - dijkstra(graph, indices=0)[-1])
    return np.array(worth)


def grid() -> Workload:
    """Return paths through terrain, as in the experiment on maps."""
    return Workload(
        "grid",
        "12×12 grid path, 8-connected, B=70, M=100",
        solvers.GridPath(),
        -np.random.default_rng(0).uniform(0.5, 9, size=(70, 12, 12)),
        *(1.0, 100, 10.0),
        best=lambda x: cheapest_paths(x, 12),
        values=_clipped,
        peers=[
            *_jax("grid_path", 12),
            _torch("torch, SciPy", "grid_path", 12),
        ],
    )


def _dag_best(x: Array) -> Array:
    vertices, edges = grid_graph(12, 12)
    worth = []
    for scores in x.astype(np.float64):
        graph = csr_array((-scores, edges.T), shape=(vertices, vertices))
        worth.append(-bellman_ford(graph, indices=0)[-1])
    return np.array(worth)


def dag() -> Workload:
    """Return PyEPO's shortest path: costs on the 264 arcs of a grid without cycles."""
    vertices, edges = grid_graph(12, 12)
    return Workload(
        "dag",
        "12×12 DAG grid of PyEPO, B=70, M=100",
        solvers.GraphPath(vertices, edges, source=0, target=vertices - 1),
        -np.random.default_rng(0).uniform(0.5, 9, size=(70, len(edges))),
        *(1.0, 100, 400.0),
        best=_dag_best,
        peers=[
            _pyepo(12, processes=1),
            _pyepo(12, processes=2),
        ],
    )


def _assignment_best(x: Array, size: int) -> Array:
    worth = []
    for scores in x.astype(np.float64).reshape(-1, size, size):
        rows, columns = scipy.optimize.linear_sum_assignment(scores, maximize=True)
        worth.append(scores[rows, columns].sum())
    return np.array(worth)


def assignment(size: int, target: float) -> Workload:
    """Return square assignments."""
    return Workload(
        f"assignment{size}",
        f"assignment, n={size}, B=16, M=20",
        solvers.Assignment(),
        np.random.default_rng(0).normal(size=(16, size, size)),
        *(0.1, 20, target),
        best=lambda x: _assignment_best(x, size),
        peers=[
            *_jax("assignment", size),
            _torch("torch, lap", "assignment_lap", size),
            _torch("torch, SciPy", "assignment_scipy", size),
        ],
    )


# First the one whose peer forks processes: JAX, once imported, must not be forked.
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "dag": dag,
    "argmax": argmax,
    "ranking": ranking,
    "topk": top,
    "grid": grid,
    "assignment20": lambda: assignment(20, 5.0),
    "assignment100": lambda: assignment(100, 6.0),
}
