"""The pictures of the label-ranking experiment."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from softsolve.experiments.ranking.losses import TITLES
from softsolve.experiments.records import Record

WRONG = "#FFC9C9"
POINT, OTHER, DIAGONAL = "#4477AA", "#EE6677", "#999999"
Predictions = Mapping[str, Mapping[str, np.ndarray]]


def scatter(
    ours: Mapping[str, float],
    others: Mapping[str, Mapping[str, float]],
    similar: float,
    printed: Mapping[str, str],
) -> Figure:
    """Draw our loss against each other, a point a data set.

    Points are filled where ours is better, or within ``similar`` of the other: above
    the shaded line. ``printed`` says how many these are in the paper.
    """
    figure = Figure(figsize=(4 * len(others), 4.4), layout="constrained")
    for place, (loss, values) in enumerate(others.items()):
        axes = figure.add_subplot(1, len(others), place + 1)
        names = [name for name in ours if name in values]
        x = np.array([values[name] for name in names])
        y = np.array([ours[name] for name in names])
        good = y >= (1 - similar) * x
        axes.plot([0, 1], [0, 1], color=DIAGONAL, lw=1)
        axes.fill_between([0, 1], [0, 1 - similar], [0, 1], color=DIAGONAL, alpha=0.25)
        axes.scatter(x[good], y[good], s=26, color=POINT, zorder=3)
        axes.scatter(x[~good], y[~good], s=26, facecolor="white", color=OTHER, zorder=3)
        for name, across, up in zip(names, x, y, strict=True):
            if abs(up - across) > similar:
                side = "right" if up > across else "left"
                gap = 5 if side == "left" else -5
                axes.annotate(
                    name,
                    (across, up),
                    (gap, 0),
                    textcoords="offset points",
                    ha=side,
                    va="center",
                    fontsize=7,
                )
        axes.set(xlabel=f"{TITLES[loss]} loss", ylabel="Fenchel-Young loss")
        axes.set(aspect="equal", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        share = f"{good.mean():.0%} ({good.sum()} of {len(good)})"
        title = f"better or within {similar:.0%}: {share}\nthe paper: {printed[loss]}"
        axes.set_title(title, fontsize=10)
        _unframe(axes)
    return figure


def curves(losses: Sequence[str], rounds: Sequence[Record]) -> Figure:
    """Draw the training loss, a line a data set."""
    figure = Figure(figsize=(4 * len(losses), 3), layout="constrained")
    for place, loss in enumerate(losses):
        axes = figure.add_subplot(1, len(losses), place + 1)
        chosen = [line for line in rounds if line["trial"]["loss"] == loss]
        for name in dict.fromkeys(line["trial"]["data"] for line in chosen):
            values = [line["loss"] for line in chosen if line["trial"]["data"] == name]
            curve = np.array(values, dtype=float)
            axes.plot(np.arange(1, len(curve) + 1), curve / curve[0], lw=0.8)
        axes.set(title=TITLES[loss], xlabel="round", yscale="log")
        _unframe(axes)
        if place == 0:
            axes.set_ylabel("training loss / first")
    return figure


def predictions(data_sets: Mapping[str, Predictions]) -> Figure:
    """Draw true and predicted ranks of some test rows, a row of pictures a data set.

    ``data_sets`` has, for each loss, the arrays ``true`` and ``predicted`` (rows, k).
    """
    columns = 1 + max(len(losses) for losses in data_sets.values())
    figure = Figure(figsize=(2.3 * columns, 3 * len(data_sets)), layout="constrained")
    grid = figure.subplots(len(data_sets), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for row, (name, losses) in zip(grid, data_sets.items(), strict=True):
        truth = next(iter(losses.values()))["true"]
        _ranks(row[0], truth, truth)
        row[0].set_title(f"{name}: true ranks", fontsize=9)
        for axes, (loss, arrays) in zip(row[1:], losses.items(), strict=False):
            _ranks(axes, arrays["predicted"], arrays["true"])
            axes.set_title(TITLES[loss], fontsize=9)
    return figure


def _ranks(axes: Axes, ranks: np.ndarray, truth: np.ndarray) -> None:
    """Draw ranks as a table of cells, dark for the best, with the wrong ones red."""
    depth = 0.55 * (1 - ranks / (ranks.shape[1] + 1))
    colours = colormaps["Blues"](depth)
    colours[ranks != truth] = to_rgba(WRONG)
    axes.imshow(colours, aspect="auto")
    for row, column in np.ndindex(*ranks.shape):
        wrong = ranks[row, column] != truth[row, column]
        axes.text(
            column,
            row,
            f"{ranks[row, column]:.0f}",
            ha="center",
            va="center",
            fontsize=7,
            color="#990011" if wrong else "black",
            weight="bold" if wrong else "normal",
        )


def _unframe(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
