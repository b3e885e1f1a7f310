"""What the shortest-path experiment shows."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.shortest_path.losses import TITLES

COLOURS = {
    "fenchel-young": "#4477AA",
    "fenchel-young-exact": "#66CCEE",
    "blackbox": "#EE6677",
    "perturbed-squared": "#228833",
    "squared": "#CCBB44",
}
NOTE = (
    "A path counts as optimal if it costs as little as the cheapest; the cost ratio is "
    "the mean over maps, and the baseline without a solver does not predict paths. "
    "Where noise makes costs negative they are clipped at zero: the Fenchel-Young loss "
    "then takes the paper's gradient, the difference of the paths, or the exact "
    "gradient of the clipped costs. The paper prints figures only."
)


def _curves(losses: Sequence[str], rounds: list[Record]) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for place, (key, title) in enumerate(
        (("optimal", "share of optimal paths"), ("ratio", "cost ratio to the optimum"))
    ):
        axes = figure.add_subplot(1, 2, place + 1)
        for loss in losses:
            mine = [line for line in rounds if line["trial"]["loss"] == loss]
            for split, style in (("test", "-"), ("train", ":")):
                values = [line[split][key] for line in mine]
                if not values or None in values:
                    continue
                axes.plot(
                    np.arange(1, len(values) + 1),
                    values,
                    style,
                    color=COLOURS[loss],
                    label=TITLES[loss] if split == "test" else None,
                )
        axes.set(xlabel="epoch", title=f"{title} (dotted: train)")
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0.99, 2)
    figure.axes[0].set_ylim(-0.02, 1.02)
    axes.legend(frameon=False)
    return figure


def _draw_path(axes: Axes, path: np.ndarray, colour: str) -> None:
    row, column = np.nonzero(path > 0.5)
    axes.scatter(column, row, s=14, color=colour, edgecolor="black", lw=0.4)


def _maps(losses: Sequence[str], run: RunDirectory) -> Figure | None:
    found = {loss: run.read_artifacts(loss) for loss in losses}
    found = {loss: arrays for loss, arrays in found.items() if arrays}
    if not found:
        return None
    first = next(iter(found.values()))
    count, columns = len(first["images"]), 2 + len(found)
    figure = Figure(figsize=(2.3 * columns, 2.5 * count), layout="constrained")
    axes = figure.subplots(count, columns)
    for row, line in enumerate(axes):
        line[0].imshow(first["images"][row])
        line[1].imshow(first["true_costs"][row], cmap="viridis")
        _draw_path(line[1], first["true_paths"][row], "white")
        for place, arrays in enumerate(found.values()):
            line[2 + place].imshow(arrays["costs"][row], cmap="viridis")
            _draw_path(line[2 + place], arrays["paths"][row], "white")
    titles = [
        "map",
        "true costs",
        *(TITLES[loss].replace(", ", ",\n") for loss in found),
    ]
    for place, title in enumerate(titles):
        axes[0][place].set_title(title, fontsize=9)
    for each in axes.flat:
        each.set_axis_off()
    return figure


def shortest_path_page(losses: Sequence[str], run: RunDirectory) -> Page:
    """Return the page of a run."""
    lines = run.read_metrics()
    finals = [line for line in lines if "result" in line]
    rows = []
    for line in finals:
        result = line["result"]
        row = [TITLES[line["trial"]["loss"]]]
        for split in ("train", "test"):
            ratio = result[split]["ratio"]
            row.append(f"{result[split]['optimal']:.1%}")
            row.append("–" if ratio is None else f"{ratio:.3f}")
        rows.append(row)
    header = ["loss", "train optimal", "train ratio", "test optimal", "test ratio"]
    rounds = [line for line in lines if "round" in line]
    blocks: list[Block] = [
        Text(NOTE),
        Table("At the end", header, rows),
        Picture("path-curves", "Metrics by epoch.", _curves(losses, rounds)),
    ]
    pictures = _maps([line["trial"]["loss"] for line in finals], run)
    if pictures is not None:
        caption = "Test maps: true costs and cheapest path, and what networks predict."
        blocks.append(Picture("path-maps", caption, pictures))
    return Page("Shortest paths on terrain maps", blocks)
