"""What the ranking experiment on artificial data shows."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

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


def mean_over_runs(metrics: Record, runs: int) -> dict[str, list[float]]:
    """Return accuracies of models (runs * levels,) as means (levels,)."""
    return {
        key: np.reshape(metrics[key], (runs, -1)).mean(axis=0).tolist()
        for key in METRICS
    }


def _against_noise(results: dict[str, Record], levels: tuple[float, ...]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
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
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _against_epochs(
    config: "SyntheticConfig", rounds: list[Record], sigmas: list[float]
) -> Figure:
    figure = Figure(figsize=(5 * len(sigmas), 7), layout="constrained")
    for row, (key, title) in enumerate(METRICS.items()):
        for column, sigma in enumerate(sigmas):
            axes = figure.add_subplot(2, len(sigmas), row * len(sigmas) + column + 1)
            place = config.noise_levels.index(sigma)
            for loss in config.losses:
                mine = [line for line in rounds if line["trial"]["loss"] == loss]
                values = [
                    mean_over_runs(line, config.runs)[key][place] for line in mine
                ]
                epochs = config.epochs // config.rounds * np.arange(1, len(values) + 1)
                axes.plot(epochs, values, color=COLOURS[loss], label=TITLES[loss])
            axes.set(xlabel="epoch", title=f"{title}, σ = {sigma:g}")
            axes.set_ylim(-0.02, 1.02)
            axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def synthetic_page(config: "SyntheticConfig", run: RunDirectory) -> Page:
    """Return the page of a run."""
    lines = run.read_metrics()
    results = {
        line["trial"]["loss"]: mean_over_runs(line["result"], config.runs)
        for line in lines
        if "result" in line
    }
    note = (
        f"{config.labels} labels, dimension {config.dimension}, {config.train_size} "
        f"training rows with noise σ, mean of {config.runs} runs. Accuracies are "
        "against the ranking without noise, on test rows. The paper prints figures "
        "only; sizes, learning rate, ε and M are ours."
    )
    blocks: list[Block] = [Text(note)]
    caption = "Accuracy against the noise of the labels."
    figure = _against_noise(results, config.noise_levels)
    blocks.append(Picture("synthetic-noise", caption, figure))
    sigmas = [sigma for sigma in CURVES_AT if sigma in config.noise_levels]
    if sigmas:
        rounds = [line for line in lines if "round" in line]
        figure = _against_epochs(config, rounds, sigmas)
        blocks.append(Picture("synthetic-epochs", "Accuracy in training.", figure))
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
    return Page("Ranking artificial data", blocks)
