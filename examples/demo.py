"""What smoothing does, in a picture: ``make demo``.

Two things in one figure. A maximiser over a polygon, whose solution jumps from vertex
to vertex, becomes smooth as the temperature grows: the distribution over the vertices
spreads and its mean moves from a vertex to the middle. And a linear model learns to
rank through such a layer, by the Fenchel-Young loss and by a squared error.
"""

import argparse
import math
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from rich.console import Console
from rich.progress import track

import softsolve as ss
import softsolve.numpy as ssn
from softsolve.torch import FenchelYoungLoss, Perturbed

INK = "#222222"
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
POLYGON = np.array(
    [[1.45, 0.35], [0.95, 1.15], [-0.35, 1.1], [-0.95, 0.2], [-0.5, -0.9], [0.9, -0.75]]
)
THETA = np.array([0.25, 0.85])


def draw_polygon(axes: Axes) -> None:
    """Draw the feasible set, its vertices and the scores as an arrow."""
    axes.fill(*POLYGON.T, facecolor="#f2f2f2", edgecolor="#999999", zorder=0)
    axes.annotate(
        "", THETA, (0, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5}
    )
    axes.text(
        *(0.45 * THETA - np.array([0.17, 0])), r"$\theta$", fontsize=13, color=INK
    )
    axes.set(xlim=(-1.35, 1.85), ylim=(-1.4, 1.6), aspect="equal")
    axes.axis("off")


def draw_path(axes: Axes, num_samples: int) -> None:
    """Draw the smoothed maximiser for temperatures from 0 to infinity."""
    draw_polygon(axes)
    temperatures = np.geomspace(0.03, 100, 120)
    soft = ssn.Perturbed(ss.solvers.FiniteSet(POLYGON), num_samples=num_samples)
    # The same noise at every temperature makes a smooth path.
    path = np.stack([soft(THETA, rng=0, temperature=t) for t in temperatures])
    points = axes.scatter(
        *path.T, c=temperatures, norm=LogNorm(), cmap="plasma", s=22, zorder=3
    )
    axes.scatter(*POLYGON.T, color=COLOURS, s=40, zorder=2)
    vertex = POLYGON[np.argmax(POLYGON @ THETA)]
    axes.annotate(
        r"$y^*(\theta)$",
        vertex,
        vertex + np.array([0.3, 0.25]),
        fontsize=12,
        arrowprops={"arrowstyle": "-", "color": "#999999"},
    )
    axes.annotate(
        r"$\varepsilon \to \infty$",
        path[-1],
        path[-1] + np.array([0.15, -0.5]),
        fontsize=12,
        arrowprops={"arrowstyle": "-", "color": "#999999"},
    )
    bar = axes.figure.colorbar(points, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label(r"temperature $\varepsilon$")
    bar.outline.set_visible(False)
    axes.set_title(r"$y_\varepsilon(\theta)$, from the vertex to the middle")


def draw_distribution(axes: Axes, temperature: float) -> None:
    """Draw perturbed scores, coloured by their solution, and how often each is one."""
    draw_polygon(axes)
    solver = ss.solvers.FiniteSet(POLYGON)
    rng = np.random.default_rng(0)
    cloud = THETA + temperature * rng.normal(size=(600, 2))
    chosen = np.argmax(cloud @ POLYGON.T, axis=1)
    axes.scatter(
        *cloud.T, c=np.array(COLOURS)[chosen], s=4, alpha=0.35, lw=0, clip_on=True
    )
    soft = ssn.Perturbed(solver, temperature=temperature, num_samples=20_000)
    (found,) = soft.distribution(THETA, rng=0)
    for y, frequency in zip(found.solutions, found.frequencies, strict=True):
        vertex = int(np.argmin(np.abs(POLYGON - y).sum(axis=1)))
        axes.scatter(
            *POLYGON[vertex], s=40 + 900 * frequency, color=COLOURS[vertex], zorder=2
        )
        if frequency >= 0.005:
            middle = POLYGON.mean(axis=0)
            at = middle + 1.27 * (POLYGON[vertex] - middle)
            axes.text(*at, f"{frequency:.0%}", ha="center", va="center", fontsize=9)
    mean = found.frequencies @ found.solutions
    axes.plot(*mean, marker="D", ms=8, color="black", mec="white", zorder=4)
    axes.set_title(rf"$\varepsilon = {temperature:g}$")


def make_data(
    rows: int, features: int, labels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and the noisy ranks that a hidden linear model gives labels."""
    weights = torch.randn(features, labels)
    x = torch.randn(rows, features)
    scores = x @ weights + 0.2 * math.sqrt(features) * torch.randn(rows, labels)
    return x, ss.solvers.Ranking()(scores)


def train(what: str, steps: int, console: Console) -> list[float]:
    """Train a linear model to rank; return the share of correctly ordered pairs."""
    torch.manual_seed(0)
    x, y = make_data(rows=2000, features=20, labels=10)
    held_out = slice(1500, None)
    model = torch.nn.Linear(20, 10)
    layer = Perturbed(ss.solvers.Ranking(), temperature=1.0, num_samples=20)
    fenchel_young = FenchelYoungLoss(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    curve = []
    for _ in track(range(steps), f"{what:>13}", console=console):
        batch = torch.randint(1500, (32,))
        theta = model(x[batch])
        if what == "Fenchel-Young":
            loss = fenchel_young(theta, y[batch])
        else:
            loss = (layer(theta) - y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            curve.append(ordered_pairs(model(x[held_out]), y[held_out]))
    return curve


def ordered_pairs(theta: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of pairs of labels that the scores put in the right order."""
    first, second = torch.triu_indices(y.shape[1], y.shape[1], offset=1)
    agree = (theta[:, first] > theta[:, second]) == (y[:, first] > y[:, second])
    return float(agree.float().mean())


def draw_training(axes: Axes, curves: dict[str, list[float]]) -> None:
    """Draw how the models learn."""
    for colour, (what, curve) in zip(COLOURS, curves.items(), strict=False):
        axes.plot(np.arange(1, len(curve) + 1), curve, color=colour, label=what)
    axes.axhline(0.5, color="#999999", ls=":", lw=1)
    axes.text(len(curve), 0.505, "chance", ha="right", va="bottom", color="#777777")
    axes.set(xlabel="step", ylabel="pairs in the right order", ylim=(0.45, 1.0))
    axes.set_title("Learning to rank through the layer (held-out data)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.12))


def main() -> None:
    """Train, draw and say where the picture is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    console = Console()
    curves = {
        what: train(what, options.steps, console)
        for what in ("Fenchel-Young", "squared error")
    }
    figure = plt.figure(figsize=(12, 8), layout="constrained")
    top, bottom = figure.subfigures(2, 1)
    left, right = top.subplots(1, 2)
    draw_path(left, num_samples=20_000)
    draw_training(right, curves)
    for axes, temperature in zip(bottom.subplots(1, 3), (0.2, 0.7, 2.5), strict=True):
        draw_distribution(axes, temperature)
    bottom.suptitle(
        r"Perturbed scores $\theta + \varepsilon Z$ (dots) choose vertices (discs, by "
        r"frequency); $y_\varepsilon(\theta)$ is their mean (diamond)"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=120)
    for what, curve in curves.items():
        console.print(f"{what}: {curve[-1]:.1%} of held-out pairs in the right order")
    console.print(f"Picture: {options.out.resolve()}")


if __name__ == "__main__":
    main()
