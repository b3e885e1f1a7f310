"""What the classification experiment shows."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softsolve.experiments.classification.losses import CROSS_ENTROPY
from softsolve.experiments.experiment import Values
from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.records import Record, RunDirectory

CURVES, SWEEP = "curves", "sweep"
SPLITS = ("train", "test")
COLOURS = ("#222222", "#EE6677", "#4477AA", "#228833", "#AA3377", "#CCBB44")
SPLIT_COLOURS = {"train": "#66CCEE", "test": "#AA3377"}
PICTURES = 6
CROSS_ENTROPY_TITLE = "Cross entropy"


def loss_title(key: Record) -> str:
    """Return what a loss is called in tables and figures."""
    if key["loss"] == CROSS_ENTROPY:
        return CROSS_ENTROPY_TITLE
    return f"FY, M = {key['samples']}"


def classification_results(records: Sequence[Record]) -> Values:
    """Return the metrics at the end, by loss and by ε."""
    results: Values = {CURVES: {}, SWEEP: {}}
    for record in records:
        key = record["trial"]
        name = loss_title(key) if key["part"] == CURVES else key["temperature"]
        results[key["part"]][name] = record["result"]
    return results


def classification_page(
    run: RunDirectory, classes: Sequence[str], sweep_samples: int
) -> Page:
    """Return the page of a run."""
    lines = run.read_metrics()
    finals = [line for line in lines if "result" in line]
    results = classification_results(finals)
    note = (
        "A network of 4 convolutional and 2 fully connected layers, as in the paper. "
        "Accuracies are of the largest score, on the test images and on as many "
        "training images. The squared loss is the mean of |y − y_ε(θ)|² over the same "
        "images, with softmax(θ/ε) for cross entropy. The paper prints a figure only; "
        "optimiser, learning rate and the values of ε are ours."
    )
    figure = _figure(lines, results[SWEEP], sweep_samples)
    caption = "Accuracy in training, test accuracy, and the impact of ε."
    blocks: list[Block] = [Text(note), Picture("accuracy", caption, figure)]
    seconds = _seconds(finals)
    if results[CURVES]:
        header = ["loss", *_columns(), "seconds"]
        rows = _rows(results[CURVES])
        for row in rows:
            row.append(f"{seconds[row[0]]:.0f}")
        blocks.append(Table("At the end", header, rows))
    if results[SWEEP]:
        heading = f"Against ε, M = {sweep_samples}"
        blocks.append(Table(heading, ["ε", *_columns()], _rows(results[SWEEP])))
    if claims := _claims(results):
        blocks.append(Table("Beside the paper", ["test accuracy", "here"], claims))
    pictures = _predictions(run, finals, classes)
    if pictures is not None:
        caption = "Test images, and the probability of each class, the true one green."
        blocks.append(Picture("images", caption, pictures))
    return Page("Classifying images", blocks)


def _claims(results: Values) -> list[list[str]]:
    """Return what the paper says of test accuracy, and what the run shows of it."""
    percent = {
        part: {name: 100 * result["test_accuracy"] for name, result in found.items()}
        for part, found in results.items()
    }
    compared, sweep = percent[CURVES], percent[SWEEP]
    claims = []
    baseline = compared.pop(CROSS_ENTROPY_TITLE, None)
    if baseline is not None and compared:
        points = [f"{name}: {mine - baseline:+.1f}" for name, mine in compared.items()]
        claims.append(
            ["“competitive” with cross entropy", f"{'; '.join(points)} points"]
        )
    if sweep:
        names = sorted(sweep, key=float)
        best = max(sweep.values())
        points = [f"ε = {name}: {sweep[name] - best:+.1f}" for name in names]
        claims.append(
            [
                "“very high or low temperatures degrade” it",
                f"{points[0]}; {points[-1]} points",
            ]
        )
        near = [name for name in names if sweep[name] > best - 2]
        claims.append(
            [
                "“very robust to the choice of ε”",
                f"within 2 points of the best at ε = {', '.join(near)}",
            ]
        )
    return claims


def _columns() -> list[str]:
    return [
        f"{split} {metric}"
        for metric in ("accuracy", "squared loss")
        for split in SPLITS
    ]


def _rows(results: Values) -> list[list[str]]:
    return [
        [
            name,
            *(f"{result[f'{split}_accuracy']:.1%}" for split in SPLITS),
            *(f"{result[f'{split}_squared']:.3f}" for split in SPLITS),
        ]
        for name, result in results.items()
    ]


def _seconds(finals: Sequence[Record]) -> dict[str, float]:
    """Return how long the training of each loss took."""
    ends = [line["seconds"] for line in finals]
    lengths = np.diff(ends, prepend=0.0)
    return {
        loss_title(line["trial"]): float(length)
        for line, length in zip(finals, lengths, strict=True)
        if line["trial"]["part"] == CURVES
    }


def _figure(lines: Sequence[Record], sweep: Values, samples: int) -> Figure:
    """Draw the paper's three panels, or those of them that the run has."""
    curves: dict[str, list[Record]] = {}
    for line in lines:
        if "round" in line and line["trial"]["part"] == CURVES:
            curves.setdefault(loss_title(line["trial"]), []).append(line)
    count = (2 if curves else 0) + (1 if sweep else 0)
    figure = Figure(figsize=(4.4 * max(count, 1), 4), layout="constrained")
    panels = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    if curves:
        for axes, split in zip(panels[:2], SPLITS, strict=True):
            _draw_curves(axes, curves, split)
        panels[1].sharey(panels[0])
        panels[0].legend(frameon=False)
    if sweep:
        _draw_sweep(panels[-1], sweep, samples)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curves(axes: Axes, curves: dict[str, list[Record]], split: str) -> None:
    for place, (name, rounds) in enumerate(curves.items()):
        axes.plot(
            [line["round"] for line in rounds],
            [line[f"{split}_accuracy"] for line in rounds],
            color=COLOURS[place % len(COLOURS)],
            label=name,
        )
    axes.set(xlabel="epoch", title=f"{split} accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_sweep(axes: Axes, sweep: Values, samples: int) -> None:
    temperatures = [float(name) for name in sweep]
    order = np.argsort(temperatures)
    results = [list(sweep.values())[place] for place in order]
    for split, colour in SPLIT_COLOURS.items():
        for metric, style in (("squared", "o-"), ("accuracy", "s:")):
            axes.plot(
                np.sort(temperatures),
                [result[f"{split}_{metric}"] for result in results],
                style,
                ms=4,
                color=colour,
                label=f"{split}, {'squared loss' if metric == 'squared' else metric}",
            )
    axes.set(
        xscale="log",
        xlabel="ε",
        title=f"impact of ε, M = {samples}",
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _predictions(
    run: RunDirectory, finals: Sequence[Record], classes: Sequence[str]
) -> Figure | None:
    """Draw test images, and below each what the networks make of it."""
    found = {}
    for line in finals:
        if line["trial"]["part"] == CURVES:
            arrays = run.read_artifacts("-".join(line["trial"].values()))
            if arrays:
                found[loss_title(line["trial"])] = arrays
    if not found:
        return None
    first = next(iter(found.values()))
    count = min(PICTURES, len(first["labels"]))
    figure = Figure(figsize=(2.2 * count, 2 + 1.7 * len(found)), layout="constrained")
    grid = figure.subplots(1 + len(found), count, squeeze=False)
    for column in range(count):
        label = int(first["labels"][column])
        grid[0][column].imshow(first["images"][column].squeeze(), cmap="gray")
        grid[0][column].set_title(classes[label], fontsize=10)
        grid[0][column].set_axis_off()
        for row, (name, arrays) in enumerate(found.items(), start=1):
            axes = grid[row][column]
            colours = ["#BBBBBB"] * len(classes)
            colours[label] = "#228833"
            axes.barh(
                range(len(classes)), arrays["probabilities"][column], color=colours
            )
            axes.set(xlim=(0, 1), xticks=(0, 1))
            axes.invert_yaxis()
            axes.set_yticks([])
            if column == 0:
                axes.set_yticks(range(len(classes)), classes, fontsize=6)
                axes.set_ylabel(name, fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    return figure
