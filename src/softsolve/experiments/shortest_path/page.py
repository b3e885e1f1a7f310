"""What the shortest-path experiment shows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.shortest_path.losses import TITLES, WITHOUT_SOLVER
from softsolve.experiments.shortest_path.metrics import are_lines
from softsolve.experiments.shortest_path.terrain import CELL

if TYPE_CHECKING:
    from softsolve.experiments.shortest_path.experiment import ShortestPathConfig

Pictures = Mapping[str, dict[str, np.ndarray]]  # by loss

COLOURS = {
    "fenchel-young": "#4477AA",
    "fenchel-young-exact": "#66CCEE",
    "blackbox": "#EE6677",
    "perturbed-squared": "#228833",
    "squared": "#CCBB44",
}
RIGHT, WRONG = "#FFFFFF", "#FF3355"
SHARES = "Share of optimal paths"
RATIOS = "Cost ratio to the optimum"
ABOUT = (
    "A network sees the picture of a map and predicts what each cell costs; it is "
    "trained on nothing but a cheapest path of each map. A predicted path is optimal "
    "if, at the true costs, it is as cheap as the cheapest, be it the same or not. The "
    "cost ratio is the mean over maps of what it costs to what the cheapest one does."
)
NO_SOLVER = (
    "The baseline without a solver regresses the path's matrix. Its prediction is the "
    "cells above one half, which are seldom a path, so that it has no cost ratio; it "
    "counts as optimal if these cells are an optimal path with none to spare."
)
SPLITS = (
    "Numbers on training maps are of the predictions that networks were trained on in "
    "the course of the epoch, those on test maps of its end."
)
CLIPPED = (
    "Where noise makes a cost negative, the solver takes it as zero. The Fenchel-Young "
    "loss has the paper's gradient, the difference of the two paths, wherever that "
    "happens; with the “exact gradient” it has that of the clipped costs, which is "
    "zero at such cells."
)
PAPER = (
    "The paper prints no number for this experiment: its Figure 6 draws the share of "
    "optimal paths and the cost ratio on test maps over 50 epochs, for Fenchel-Young, "
    "blackbox and squared losses."
)
FEW = 5


def _curves(losses: Sequence[str], rounds: list[Record]) -> Figure:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    shares, ratios = figure.subplots(1, 2)
    for loss in losses:
        mine = [line for line in rounds if line["trial"]["loss"] == loss]
        for axes, key in ((shares, "optimal"), (ratios, "ratio")):
            for split, style in (("test", "-"), ("train", ":")):
                values = [line[f"{split}_{key}"] for line in mine]
                if not values or None in values:
                    continue
                axes.plot(
                    np.arange(1, len(values) + 1),
                    values,
                    style,
                    color=COLOURS[loss],
                    label=TITLES[loss] if split == "test" else None,
                )
    shares.set(title=SHARES, ylim=(-0.02, 1.02))
    # The first epochs may be far off; what the curves come to is to be seen.
    lines = [line.get_ydata() for line in ratios.get_lines()]
    highest = max((max(values) for values in lines), default=1.0)
    top = max([min(1.3, highest), *(1.05 * values[-1] for values in lines)])
    ratios.set(title=RATIOS, ylim=(0.99, top + 0.01))
    for axes in (shares, ratios):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch (solid: test maps, dotted: training maps)")
        axes.spines[["top", "right"]].set_visible(False)
    shares.legend(frameon=False, fontsize=9)
    return figure


def draw_path(
    axes: Axes, path: np.ndarray, colour: str, scale: float = 1.0, joined: bool = True
) -> None:
    """Draw the cells (h, w) that are marked, ``joined`` where they touch.

    A cheapest path passes a neighbour only along itself, so that it becomes a line.
    """
    cells = np.argwhere(path > 0.5)
    near = np.abs(cells[:, None] - cells[None]).max(axis=-1) == 1
    near &= joined
    first, second = np.nonzero(np.triu(near))
    points = (cells[:, ::-1] + 0.5) * scale - 0.5
    lines = np.stack([points[first], points[second]], axis=1)
    axes.add_collection(LineCollection(list(lines), colors=colour, linewidths=1.8))
    axes.plot(points[:, 0], points[:, 1], "o", ms=3, color=colour)


def _maps(found: Pictures) -> Figure:
    first = next(iter(found.values()))
    count, columns = len(first["images"]), 2 + len(found)
    figure = Figure(figsize=(2.2 * columns, 2.3 * count), layout="constrained")
    axes = figure.subplots(count, columns, squeeze=False)
    for row, line in enumerate(axes):
        costs, path = first["true_costs"][row], first["true_paths"][row]
        line[0].imshow(first["images"][row])
        draw_path(line[0], path, RIGHT, CELL)
        line[1].imshow(costs, cmap="viridis")
        draw_path(line[1], path, RIGHT)
        for place, (loss, arrays) in enumerate(found.items()):
            colour = RIGHT if arrays["optimal"][row] else WRONG
            line[2 + place].imshow(arrays["costs"][row], cmap="viridis")
            path = arrays["paths"][row]
            joined = loss != WITHOUT_SOLVER or bool(are_lines(path[None])[0])
            draw_path(line[2 + place], path, colour, joined=joined)
    titles = [
        "map",
        "true costs",
        *(TITLES[loss].replace(", ", ",\n") for loss in found),
    ]
    for place, title in enumerate(titles):
        axes[0][place].set_title(title, fontsize=10)
    for each in axes.flat:
        each.set_axis_off()
    return figure


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _final(finals: list[Record]) -> Table:
    rows = []
    for line in finals:
        result = line["result"]
        row = [TITLES[line["trial"]["loss"]]]
        for split in ("train", "test"):
            ratio = result[f"{split}_ratio"]
            row.append(_percent(result[f"{split}_optimal"]))
            row.append("–" if ratio is None else f"{ratio:.4f}")
        rows.append([*row, _percent(result["test_valid"])])
    header = [
        "loss",
        "train: optimal",
        "cost ratio",
        "test: optimal",
        "cost ratio",
        "are paths",
    ]
    return Table("At the end", header, rows)


def _claims(finals: list[Record], rounds: list[Record]) -> list[list[str]]:
    """Return what the paper says, and what the run shows of it."""
    claims = []
    ends = {line["trial"]["loss"]: line["result"] for line in finals}
    found = {(line["trial"]["loss"], line["round"]): line for line in rounds}
    if (early := found.get(("fenchel-young", FEW))) is not None:
        claims.append(
            [
                "“only after a few epochs, to generalize very well”",
                f"after {FEW} epochs: {_percent(early['test_optimal'])} optimal",
            ]
        )
    young = ends.pop("fenchel-young", None)
    if young is not None and ends:
        optimal = young["test_optimal"]
        points = [
            f"{TITLES[loss]}: {100 * (result['test_optimal'] - optimal):+.1f}"
            for loss, result in ends.items()
        ]
        points[-1] += f" points beside Fenchel-Young's {_percent(optimal)}"
        claims.append(["“We compare our method to two baselines”", "; ".join(points)])
    if WITHOUT_SOLVER in ends:
        valid = _percent(ends[WITHOUT_SOLVER]["test_valid"])
        claims.append(
            ["the squared loss “does not yield valid paths”", f"{valid} are paths"]
        )
    return claims


def _scales(found: Pictures) -> Table:
    """Return what networks predict for cells of each cost, on the maps shown."""
    true = next(iter(found.values()))["true_costs"]
    levels = np.unique(true)
    rows = [
        [
            TITLES[loss],
            *(f"{arrays['costs'][true == level].mean():.2f}" for level in levels),
        ]
        for loss, arrays in found.items()
    ]
    header = ["true cost", *(f"{level:.1f}" for level in levels)]
    return Table("Mean predicted cost on the maps above", header, rows)


def _by_epoch(losses: Sequence[str], rounds: list[Record]) -> Table:
    epochs = max(line["round"] for line in rounds)
    found = {(line["trial"]["loss"], line["round"]): line for line in rounds}
    losses = [loss for loss in losses if (loss, 1) in found]
    rows = [
        [
            str(epoch),
            *(
                _percent(found[loss, epoch]["test_optimal"])
                if (loss, epoch) in found
                else ""
                for loss in losses
            ),
        ]
        for epoch in range(1, epochs + 1)
    ]
    header = ["epoch", *(TITLES[loss] for loss in losses)]
    return Table("Optimal paths on the test maps, by epoch", header, rows)


def shortest_path_page(config: "ShortestPathConfig", run: RunDirectory) -> Page:
    """Return the page of a run."""
    lines = run.read_metrics()
    finals = [line for line in lines if "result" in line]
    rounds = [line for line in lines if "round" in line]
    blocks: list[Block] = [Text(ABOUT), Text(PAPER)]
    if finals:
        blocks.append(_final(finals))
    if claims := _claims(finals, rounds):
        heading = "Beside the paper"
        header = ["the paper, of test maps", "here"]
        blocks.append(Table(heading, header, claims, words=True))
    if rounds:
        caption = f"{SHARES} and {RATIOS.lower()}, by epoch."
        figure = _curves(config.losses, rounds)
        blocks.append(Picture("curves", caption, figure))
    done = [line["trial"]["loss"] for line in finals]
    found = {loss: run.read_artifacts(loss) for loss in done}
    found = {loss: arrays for loss, arrays in found.items() if arrays}
    if found:
        caption = (
            "Test maps, their true costs and cheapest paths, and the costs that "
            "networks predict, each in its own scale, with the paths that follow: "
            "white if optimal, red if not; cells that are no path are not joined."
        )
        blocks.append(Picture("maps", caption, _maps(found)))
    blocks += [Text(NO_SOLVER), Text(SPLITS), Text(CLIPPED)]
    if found:
        blocks.append(_scales(found))
    if rounds:
        blocks.append(_by_epoch(config.losses, rounds))
    return Page("Shortest paths on terrain maps", blocks)
