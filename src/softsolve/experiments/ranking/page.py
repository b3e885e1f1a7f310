"""The label-ranking tables beside the paper's, and what follows from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.ranking import figures, paper
from softsolve.experiments.ranking.losses import PERTURBED, TITLES
from softsolve.experiments.records import Record, RunDirectory

FOLDS = 10
ALLOWED = 0.03
ROUNDING = 0.005  # of the numbers that the paper prints
SIMILAR = 0.05  # the paper's "within a 5% range"
TITLE = "Label ranking"
NOTE = (
    "Spearman's correlation, mean and standard deviation over 10 folds. A cell is "
    "marked + or − where it is further above or below the paper's than both standard "
    "errors added and the rounding of the paper's number, and ↓ where it is further "
    "below than both standard errors and than 0.03."
)

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


def standard_errors(ours: Record, theirs: paper.Cell) -> float:
    """Return both standard errors of means over folds, added."""
    return float((ours["deviation"] + theirs[1]) / np.sqrt(FOLDS))


def shortfall(ours: Record, theirs: paper.Cell) -> float:
    """Return how much further below the paper a cell is than errors and 0.03 allow."""
    allowed = max(standard_errors(ours, theirs), ALLOWED)
    return theirs[0] - ours["spearman"] - allowed


def verdict(ours: Record, theirs: paper.Cell) -> str:
    """Return the mark of a cell beside the paper's: +, −, ↓ or none."""
    if shortfall(ours, theirs) > 0:
        return "↓"
    difference = ours["spearman"] - theirs[0]
    if abs(difference) <= standard_errors(ours, theirs) + ROUNDING:
        return ""
    return "+" if difference > 0 else "−"


def at_least_similar(ours: dict[str, float], other: dict[str, float]) -> float:
    """Return the share of data sets where ours is better or within 5% of the other."""
    both = [name for name in ours if name in other]
    return float(np.mean([ours[name] >= (1 - SIMILAR) * other[name] for name in both]))


def ranking_page(losses: Sequence[str], run: RunDirectory) -> Page:
    """Return the page of a run, finished or not."""
    lines = run.read_metrics()
    records = [line for line in lines if "result" in line]
    if not records:
        return Page(TITLE, [Text("No trial has come to its end yet.")])
    tables = ranking_results(records)["tables"]
    present = [loss for loss in losses if loss in tables["table 2"]]
    blocks: list[Block] = [Text(NOTE), _summary(present, tables)]
    if "fenchel-young" in present and len(present) > 1:
        blocks += [_shares(present, tables), _scatter(present, tables["table 2"])]
    for title, found in tables.items():
        second = title == "table 2"
        chosen = "learning rate and temperature" if second else "learning rate"
        heading = f"Table {title.removeprefix('table ')}: {chosen} chosen"
        printed = paper.TABLE_2 if second else paper.TABLE_1
        blocks.append(_comparison(heading, present, found, printed))
    blocks += _predictions(records, run)
    caption = "Training loss, a line a data set, mean over folds and settings."
    rounds = [line for line in lines if "round" in line]
    blocks.append(Picture("curves", caption, figures.curves(losses, rounds)))
    return Page(TITLE, blocks)


def _summary(losses: Sequence[str], tables: dict[str, Results]) -> Table:
    """Return the means over data sets, and how many cells are above and below."""
    rows = []
    seen = set()
    for title, found in tables.items():
        printed = paper.TABLE_2 if title == "table 2" else paper.TABLE_1
        for loss in losses:
            label = title if loss in PERTURBED else title.partition(",")[0]
            if (label, loss) in seen:
                continue  # without noise, a loss is the same at every ε
            seen.add((label, loss))
            column = paper.COLUMNS.index(loss)
            cells = [
                (cell, printed[name][column])
                for name, cell in found[loss].items()
                if name in printed
            ]
            if not cells:
                continue
            ours = float(np.mean([cell["spearman"] for cell, _ in cells]))
            theirs = float(np.mean([cell[0] for _, cell in cells]))
            marks = [verdict(*cell) for cell in cells]
            counts = [str(marks.count(mark)) for mark in ("+", "", "−", "↓")]
            numbers = [f"{ours:.3f}", f"{theirs:.3f}", f"{ours - theirs:+.3f}"]
            rows.append([label, TITLES[loss], str(len(cells)), *numbers, *counts])
    columns = ["loss", "sets", "mean", "paper", "difference", "+", "level", "−", "↓"]
    return Table("Means, and cells beside the paper's", ["", *columns], rows)


def _comparison(
    title: str, losses: Sequence[str], found: Results, printed: Any
) -> Table:
    names = list(dict.fromkeys(name for loss in losses for name in found[loss]))
    rows = [
        [name, *(text for loss in losses for text in _cell(found, printed, loss, name))]
        for name in names
    ]
    means = ["mean"]
    for loss in losses:
        ours = [cell["spearman"] for cell in found[loss].values()]
        column = paper.COLUMNS.index(loss)
        theirs = [printed[name][column][0] for name in found[loss] if name in printed]
        means += [f"{np.mean(ours):.3f}", f"{np.mean(theirs):.3f}" if theirs else "–"]
    header = ["data set"]
    for loss in losses:
        header += [TITLES[loss], "paper"]
    return Table(title, header, [*rows, means])


def _cell(found: Results, printed: Any, loss: str, name: str) -> tuple[str, str]:
    """Return our number with its mark, and the paper's."""
    cell = found[loss].get(name)
    theirs = printed[name][paper.COLUMNS.index(loss)] if name in printed else None
    shown = "–" if theirs is None else f"{theirs[0]:.2f} ± {theirs[1]:.2f}"
    if cell is None:
        return "–", shown
    mark = "" if theirs is None else verdict(cell, theirs)
    text = f"{cell['spearman']:.3f} ± {cell['deviation']:.3f} {mark}"
    return text.strip(), shown


def _shares(losses: Sequence[str], tables: dict[str, Results]) -> Table:
    def percentages(numbers: dict[str, dict[str, float]]) -> list[str]:
        ours = numbers["fenchel-young"]
        return [f"{at_least_similar(ours, numbers[loss]):.0%}" for loss in others]

    def printed(table: Any) -> dict[str, dict[str, float]]:
        return {loss: _printed(table, loss) for loss in paper.COLUMNS}

    others = [loss for loss in losses if loss != "fenchel-young"]
    rows = [
        [title, *percentages({loss: _means(found, loss) for loss in losses})]
        for title, found in tables.items()
    ]
    rows.append(["the paper's table 1", *percentages(printed(paper.TABLE_1))])
    rows.append(["the paper's table 2", *percentages(printed(paper.TABLE_2))])
    title = "Data sets where our loss is better, or within 5%"
    return Table(title, ["", *(f"than {TITLES[loss]}" for loss in others)], rows)


def _printed(table: Any, loss: str) -> dict[str, float]:
    column = paper.COLUMNS.index(loss)
    return {name: cells[column][0] for name, cells in table.items()}


def _means(found: Results, loss: str) -> dict[str, float]:
    return {name: cell["spearman"] for name, cell in found[loss].items()}


def _scatter(losses: Sequence[str], found: Results) -> Picture:
    others = [loss for loss in losses if loss != "fenchel-young"]
    caption = (
        "Our loss against each other, by the numbers of our Table 2: a point a data "
        "set, above the diagonal where ours is better; the shade is 5%. The paper "
        "says 76% (squared) and 90% (blackbox), which are those of its Table 1."
    )
    shares = {
        loss: ", ".join(
            f"{at_least_similar(ours, theirs):.0%} in Table {number}"
            for number, table in ((1, paper.TABLE_1), (2, paper.TABLE_2))
            for ours, theirs in [
                (_printed(table, "fenchel-young"), _printed(table, loss))
            ]
        )
        for loss in others
    }
    figure = figures.scatter(
        _means(found, "fenchel-young"),
        {loss: _means(found, loss) for loss in others},
        SIMILAR,
        shares,
    )
    return Picture("scatter", caption, figure)


def _predictions(records: Sequence[Record], run: RunDirectory) -> list[Block]:
    """Return a picture of ranks, of the smallest, median and largest correlation."""
    shown: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    order = sorted(records, key=lambda record: record["result"]["spearman"])
    names = list(dict.fromkeys(record["trial"]["data"] for record in order))
    kept = {names[0], names[len(names) // 2], names[-1]}
    for record in records:
        name, loss = record["trial"]["data"], record["trial"]["loss"]
        arrays = run.read_artifacts("-".join(record["trial"].values()))
        if name in kept and arrays:
            shown.setdefault(name, {})[loss] = arrays
    if not shown:
        return []
    caption = (
        "Ranks of the labels (columns, 1 the best) of some test rows; wrong ones are "
        "red. Data sets of the smallest, the median and the largest correlation."
    )
    return [Picture("predictions", caption, figures.predictions(shown))]
