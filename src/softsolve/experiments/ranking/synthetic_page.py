"""What the ranking experiment on artificial data shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from softsolve.experiments.page import Block, Page, Picture, Table, Text
from softsolve.experiments.ranking.losses import TITLES
from softsolve.experiments.records import Record, RunDirectory

if TYPE_CHECKING:
    from softsolve.experiments.ranking.synthetic import SyntheticConfig

METRICS = {"exact": "rankings all right", "partial": "ranks right"}
COLOURS = {
    "fenchel-young": "#4477AA",
    "perturbed-squared": "#228833",
    "squared": "#CCBB44",
    "blackbox": "#EE6677",
}
CURVES_AT = (0.1334, 0.7449)
OURS, SUBJECT = "fenchel-young", "the paper says of Fenchel-Young"
TITLE = "Ranking artificial data"


def mean_over_runs(metrics: Record, runs: int) -> dict[str, list[float]]:
    """Return accuracies of models (runs * levels,) as means (levels,)."""
    return {
        key: np.reshape(metrics[key], (runs, -1)).mean(axis=0).tolist()
        for key in METRICS
    }


def _curves(
    lines: Sequence[Record], finals: dict[str, Record], runs: int
) -> dict[str, dict[str, np.ndarray]]:
    """Return, for each loss, accuracies (rounds, levels) at the chosen rates."""
    curves = {}
    for loss, result in finals.items():
        chosen = np.array(result["chosen"])
        rounds = [
            {
                key: np.take_along_axis(np.array(line[key]), chosen[:, None], axis=1)
                for key in METRICS
            }
            for line in lines
            if "round" in line and line["trial"]["loss"] == loss
        ]
        means = [mean_over_runs(values, runs) for values in rounds]
        curves[loss] = {key: np.array([x[key] for x in means]) for key in METRICS}
    return curves


def _against_noise(results: dict[str, Record], levels: tuple[float, ...]) -> Figure:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for place, (key, title) in enumerate(METRICS.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        for loss, numbers in results.items():
            axes.plot(
                levels,
                numbers[key],
                "o-",
                ms=3,
                color=COLOURS[loss],
                label=TITLES[loss],
            )
        axes.set(xscale="log", xlabel="σ", title=f"{title}, test", ylim=(-0.02, 1.02))
        _finish(axes)
    _name_losses(figure, axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.spines[["top", "right"]].set_visible(False)


def _name_losses(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False
    )


def _against_epochs(
    config: "SyntheticConfig",
    curves: dict[str, dict[str, np.ndarray]],
    sigmas: list[float],
) -> Figure:
    figure = Figure(figsize=(5 * len(sigmas), 7), layout="constrained")
    grid = figure.subplots(2, len(sigmas), squeeze=False, sharex=True, sharey="row")
    for row, (key, title) in enumerate(METRICS.items()):
        for axes, sigma in zip(grid[row], sigmas, strict=True):
            place = config.noise_levels.index(sigma)
            for loss, values in curves.items():
                heights = values[key][:, place]
                epochs = config.epochs // config.rounds * np.arange(1, len(heights) + 1)
                axes.plot(epochs, heights, color=COLOURS[loss], label=TITLES[loss])
            axes.set(title=f"{title}, σ = {sigma:g}", xlim=(0, None))
            _finish(axes)
            if row:
                axes.set_xlabel("epoch")
    highest = max(axes.dataLim.ymax for axes in grid[0])
    grid[0, 0].set_ylim(0, max(0.02, 1.05 * highest))  # rankings all right may be few
    grid[1, 0].set_ylim(-0.02, 1.02)
    _name_losses(figure, axes)
    return figure


def _claims(config: "SyntheticConfig", results: dict[str, Record]) -> Table:
    """Return what the paper says of its figures, and what the run shows of it."""
    sigmas = config.noise_levels
    ours, others = results[OURS], [x for loss, x in results.items() if loss != OURS]
    lowest = int(np.argmin(sigmas))
    says = f"“accurately generalizes” where σ ≈ 0: at σ = {sigmas[lowest]:g}"
    rows = [[says, *(f"{ours[key][lowest]:.1%}" for key in METRICS)]]
    if not others:
        return Table("Beside the paper", [SUBJECT, *METRICS.values()], rows)
    ahead = {
        key: 100 * (np.array(ours[key]) - np.max([x[key] for x in others], axis=0))
        for key in METRICS
    }
    says = "“as well or better than” others: within 1 point of the best at σ ="
    rows.append(
        [
            says,
            *(
                ", ".join(f"{sigmas[place]:g}" for place in np.flatnonzero(by > -1))
                for by in ahead.values()
            ),
        ]
    )
    for sigma in CURVES_AT:
        if sigma in sigmas:
            says = f"“robustness to the noise”: ahead of the next at σ = {sigma:g} by"
            points = [by[sigmas.index(sigma)] for by in ahead.values()]
            rows.append([says, *(f"{value:+.1f} points" for value in points)])
    return Table("Beside the paper", [SUBJECT, *METRICS.values()], rows)


def _rates(config: "SyntheticConfig", finals: dict[str, Record]) -> Table:
    rows = []
    for place, sigma in enumerate(config.noise_levels):
        rates = [
            np.reshape(result["rates"], (config.runs, -1))[:, place]
            for result in finals.values()
        ]
        rows.append([f"{sigma:g}", *(", ".join(f"{x:g}" for x in r) for r in rates)])
    header = ["σ", *(TITLES[loss] for loss in finals)]
    return Table("Learning rates chosen, run by run", header, rows)


def synthetic_page(config: "SyntheticConfig", run: RunDirectory) -> Page:
    """Return the page of a run."""
    lines = run.read_metrics()
    finals = {
        line["trial"]["loss"]: line["result"] for line in lines if "result" in line
    }
    results = {
        loss: mean_over_runs(result, config.runs) for loss, result in finals.items()
    }
    note = (
        f"{config.labels} labels, dimension {config.dimension}, {config.train_size} "
        f"training rows with noise σ, {config.epochs} epochs of batches of "
        f"{config.batch_size}, mean of {config.runs} runs. Accuracies are against the "
        "ranking without noise, on test rows. The paper prints figures only; sizes, "
        "learning rates (chosen on validation rows with noise), ε, M and λ are ours."
    )
    blocks: list[Block] = [Text(note)]
    if not finals:
        return Page(TITLE, [*blocks, Text("No loss has been trained to its end yet.")])
    caption = "Accuracy against the noise of the labels."
    figure = _against_noise(results, config.noise_levels)
    blocks.append(Picture("noise", caption, figure))
    if OURS in finals:
        blocks.append(_claims(config, results))
    sigmas = [sigma for sigma in CURVES_AT if sigma in config.noise_levels]
    if sigmas:
        figure = _against_epochs(config, _curves(lines, finals, config.runs), sigmas)
        caption = "Accuracy in training, while learning rates fall linearly to zero."
        blocks.append(Picture("epochs", caption, figure))
    for key, title in METRICS.items():
        rows = [
            [
                f"{sigma:g}",
                *(f"{numbers[key][place]:.1%}" for numbers in results.values()),
            ]
            for place, sigma in enumerate(config.noise_levels)
        ]
        heading = title[0].upper() + title[1:]
        header = ["σ", *(TITLES[loss] for loss in results)]
        blocks.append(Table(f"{heading}, test", header, rows))
    return Page(TITLE, [*blocks, _rates(config, finals)])
