"""The label-ranking tables beside the paper's, and what follows from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.ranking import paper
from softsolve.experiments.ranking.losses import TITLES
from softsolve.experiments.records import Record, RunDirectory

FOLDS = 10
ALLOWED = 0.03
SIMILAR = 0.05  # the paper's "within a 5% range"

Results = dict[str, dict[str, Any]]


def ranking_results(records: Sequence[Record]) -> Record:
    """Return, for each table, loss and data set, the mean and deviation over folds."""
    tables: dict[str, Results] = {"table 2": {}}
    for record in records:
        name, loss = record["trial"]["data"], record["trial"]["loss"]
        result = record["result"]
        found = {"table 2": result}
        found |= {f"table 1, ε = {e}": cell for e, cell in result["fixed"].items()}
        for table, cell in found.items():
            numbers = {key: cell[key] for key in ("spearman", "deviation")}
            tables.setdefault(table, {}).setdefault(loss, {})[name] = numbers
    # Only losses with noise have a temperature; the others are the same in all tables.
    for found_losses in tables.values():
        for loss, numbers in tables["table 2"].items():
            found_losses.setdefault(loss, numbers)
    means = {
        table: {
            loss: float(np.mean([cell["spearman"] for cell in numbers.values()]))
            for loss, numbers in losses.items()
        }
        for table, losses in tables.items()
    }
    return {"means": means, "tables": tables}


def shortfall(ours: Record, theirs: paper.Cell) -> float:
    """Return how much further below the paper a cell is than errors and 0.03 allow."""
    errors = (ours["deviation"] + theirs[1]) / np.sqrt(FOLDS)
    return theirs[0] - ours["spearman"] - max(errors, ALLOWED)


def at_least_similar(ours: dict[str, float], other: dict[str, float]) -> float:
    """Return the share of data sets where ours is better or within 5% of the other."""
    good = [ours[name] >= (1 - SIMILAR) * other[name] for name in ours]
    return float(np.mean(good))


def _comparison(
    title: str, losses: Sequence[str], found: Results, printed: Any
) -> Table:
    rows = []
    names = list(found[losses[0]])
    for name in names:
        row = [name]
        for loss in losses:
            cell = found[loss][name]
            row.append(f"{cell['spearman']:.3f} ± {cell['deviation']:.3f}")
            if name not in printed:
                row.append("–")
                continue
            theirs = printed[name][paper.COLUMNS.index(loss)]
            below = " ↓" if shortfall(cell, theirs) > 0 else ""
            row.append(f"{theirs[0]:.2f} ± {theirs[1]:.2f}{below}")
        rows.append(row)
    means = ["mean"]
    for loss in losses:
        means.append(
            f"{np.mean([found[loss][name]['spearman'] for name in names]):.3f}"
        )
        column = paper.COLUMNS.index(loss)
        theirs_all = [printed[name][column][0] for name in names if name in printed]
        means.append(f"{np.mean(theirs_all):.3f}" if theirs_all else "–")
    header = ["data set"]
    for loss in losses:
        header += [TITLES[loss], "paper"]
    return Table(title, header, [*rows, means])


def _scatter(losses: Sequence[str], found: Results) -> Figure:
    others = [loss for loss in losses if loss != "fenchel-young"]
    figure = Figure(figsize=(4 * len(others), 4), layout="constrained")
    ours = found["fenchel-young"]
    for place, loss in enumerate(others):
        axes = figure.add_subplot(1, len(others), place + 1)
        x = [found[loss][name]["spearman"] for name in ours]
        y = [ours[name]["spearman"] for name in ours]
        axes.plot([0, 1], [0, 1], color="#999999", lw=1)
        axes.scatter(x, y, s=22, color="#4477AA", zorder=3)
        axes.set(xlabel=f"{TITLES[loss]} loss", ylabel="Fenchel-Young loss")
        axes.set(aspect="equal", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curves(losses: Sequence[str], run: RunDirectory) -> Figure:
    figure = Figure(figsize=(4 * len(losses), 3), layout="constrained")
    lines = [line for line in run.read_metrics() if "round" in line]
    for place, loss in enumerate(losses):
        axes = figure.add_subplot(1, len(losses), place + 1)
        chosen = [line for line in lines if line["trial"]["loss"] == loss]
        for name in dict.fromkeys(line["trial"]["data"] for line in chosen):
            values = [line["loss"] for line in chosen if line["trial"]["data"] == name]
            curve = np.array(values, dtype=float)
            axes.plot(np.arange(1, len(curve) + 1), curve / curve[0], lw=0.8)
        axes.set(title=TITLES[loss], xlabel="round", yscale="log")
        axes.spines[["top", "right"]].set_visible(False)
        if place == 0:
            axes.set_ylabel("training loss / first")
    return figure


def ranking_page(losses: Sequence[str], run: RunDirectory) -> Page:
    """Return the page of a run."""
    results = ranking_results([x for x in run.read_metrics() if "result" in x])
    tables = results["tables"]
    blocks: list[Block] = []
    second = tables["table 2"]
    note = (
        "Spearman's correlation, mean and standard deviation over 10 folds. ↓ marks a "
        "cell further below the paper than 0.03 and both standard errors added."
    )
    blocks.append(Text(note))
    blocks.append(
        _comparison(
            "Table 2: learning rate and temperature chosen",
            losses,
            second,
            paper.TABLE_2,
        )
    )
    for title, found in tables.items():
        if title.startswith("table 1"):
            heading = f"Table 1: learning rate chosen{title.removeprefix('table 1')}"
            blocks.append(_comparison(heading, losses, found, paper.TABLE_1))
    if "fenchel-young" in losses and len(losses) > 1:
        blocks.append(_shares(losses, tables))
        blocks.append(
            Picture(
                "ranking-scatter",
                "Our loss against each other: a point a data set, above the diagonal "
                "where ours is better (Table 2).",
                _scatter(losses, second),
            )
        )
    caption = "Training loss, a line a data set, mean over folds and settings."
    blocks.append(Picture("ranking-curves", caption, _curves(losses, run)))
    return Page("Label ranking", blocks)


def _shares(losses: Sequence[str], tables: dict[str, Results]) -> Table:
    def percentages(found: Results) -> list[str]:
        numbers = {
            loss: {name: cell["spearman"] for name, cell in found[loss].items()}
            for loss in losses
        }
        ours = numbers["fenchel-young"]
        return [f"{at_least_similar(ours, numbers[loss]):.0%}" for loss in others]

    def printed(table: Any) -> list[str]:
        columns = {
            loss: {name: cells[place][0] for name, cells in table.items()}
            for place, loss in enumerate(paper.COLUMNS)
        }
        ours = columns["fenchel-young"]
        return [f"{at_least_similar(ours, columns[loss]):.0%}" for loss in others]

    others = [loss for loss in losses if loss != "fenchel-young"]
    rows = [[title, *percentages(found)] for title, found in tables.items()]
    rows.append(["the paper's table 1", *printed(paper.TABLE_1)])
    rows.append(["the paper's table 2", *printed(paper.TABLE_2)])
    title = "Data sets where our loss is better, or within 5%"
    return Table(title, ["", *(TITLES[loss] for loss in others)], rows)
