"""How the cost of a forward and backward pass grows with samples, rows and size."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import timed

from softsolve import solvers
from softsolve.torch import Perturbed


@dataclass(frozen=True)
class Point:
    """Samples, rows and entries of an instance."""

    samples: int = 200
    rows: int = 32
    size: int = 256


AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "samples": ("samples M", (25, 50, 100, 200, 400, 800, 1600, 3200)),
    "rows": ("rows B", (4, 8, 16, 32, 64, 128, 256, 512)),
    "size": ("size d", (64, 256, 1024, 4096, 16384)),
}


def _square(size: int) -> tuple[int, ...]:
    side = round(size**0.5)
    return (side, side)


FAMILIES: dict[str, tuple[Any, Any]] = {
    "argmax": (solvers.OneHot(), lambda size: (size,)),
    "top-10": (solvers.TopK(10), lambda size: (size,)),
    "grid path (DagGrid)": (solvers.DagGrid(), _square),
}


def seconds(family: str, point: Point, repeats: int) -> float:
    """Return the median seconds of a forward and backward pass."""
    solver, shape = FAMILIES[family]
    layer = Perturbed(solver, num_samples=point.samples)
    torch.manual_seed(0)
    theta = torch.randn(point.rows, *shape(point.size), requires_grad=True)
    g = torch.randn_like(theta)

    def call() -> None:
        theta.grad = None
        layer(theta).backward(g)

    call()
    return statistics.median(timed(call) for _ in range(repeats))


def measure(repeats: int, advance) -> dict[str, dict[str, list[float]]]:
    """Return seconds by axis and family."""
    found: dict[str, dict[str, list[float]]] = {}
    for axis, (label, values) in AXES.items():
        found[axis] = {}
        for family in FAMILIES:
            advance(f"{label}, {family}")
            points = [replace(Point(), **{axis: value}) for value in values]
            found[axis][family] = [seconds(family, each, repeats) for each in points]
    return found


def slope(values: tuple[int, ...], times: list[float]) -> float:
    """Return the growth's exponent over the larger half of the values."""
    half = len(values) // 2
    return float(np.polyfit(np.log(values[half:]), np.log(times[half:]), 1)[0])


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw the times over each axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, 3, figsize=(10, 3.6), sharey=True, layout="constrained"
    )
    markers = "os^"
    for panel, (axis, (label, values)) in zip(panels, AXES.items(), strict=True):
        for marker, (family, times) in zip(markers, found[axis].items(), strict=True):
            panel.loglog(
                values,
                1e3 * np.array(times),
                marker=marker,
                markersize=4,
                label=family,
            )
        lowest = 0.4e3 * min(min(times) for times in found[axis].values())
        guide = lowest * np.array(values) / values[0]
        panel.loglog(values, guide, "--", color="0.6", label="linear")
        panel.set_xlabel(label)
        panel.set_xticks(values[:: 1 + len(values) // 6])
        panel.set_xticklabels(
            [f"{value:,}" for value in values[:: 1 + len(values) // 6]]
        )
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("forward + backward, ms")
    panels[0].legend(frameon=False, fontsize=8)
    point = Point()
    figure.suptitle(
        f"Cost is linear in M, B and d (others at M={point.samples}, "
        f"B={point.rows}, d={point.size})",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the exponents, in Markdown."""
    labels = " | ".join(label for label, _ in AXES.values())
    lines = [f"| growth like (…)^p, p in | {labels} |", "| --- | --- | --- | --- |"]
    for family in FAMILIES:
        powers = [
            f"{slope(values, found[axis][family]):.2f}"
            for axis, (_, values) in AXES.items()
        ]
        lines.append(f"| {family} | {' | '.join(powers)} |")
    return lines
