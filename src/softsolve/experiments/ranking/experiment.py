"""Label ranking on 21 data sets (Tables 1 and 2, the left of the figures)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from sklearn.model_selection import KFold

from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.ranking import data as ranking_data
from softsolve.experiments.ranking.losses import (
    LOSSES,
    PERTURBED,
    TITLES,
    ranking_loss,
)
from softsolve.experiments.ranking.page import ranking_page, ranking_results
from softsolve.experiments.ranking.paper import TABLE_2
from softsolve.experiments.ranking.training import AffineModels
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.settings import require, require_some

FOLDS, INNER_FOLDS = 10, 5
SHOWN = 12  # rows whose predictions are kept for pictures
COSTS = {
    "fenchel-young": 5.0,
    "perturbed-squared": 10.0,
    "squared": 1.0,
    "blackbox": 7.0,
}


@dataclasses.dataclass(frozen=True)
class RankingConfig:
    """Settings of the label-ranking experiment.

    Learning rates (Table 1) and temperatures too (Table 2) are chosen from grids by
    5-fold cross-validation within the training part of each of the 10 folds.

    Attributes
    ----------
    num_samples
        M, for the losses with noise.
    interpolation
        λ of the blackbox loss. Only its ratio to the learning rate matters, and ten
        times as much ranks some data sets hardly at all.
    """

    data_sets: tuple[str, ...] = tuple(TABLE_2)
    losses: tuple[str, ...] = LOSSES
    learning_rates: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    temperatures: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    steps: int = 2000
    rounds: int = 20
    batch_size: int = 32
    num_samples: int = 2
    interpolation: float = 0.01

    def __post_init__(self) -> None:
        for key in ("data_sets", "losses", "learning_rates", "temperatures"):
            require_some(key, getattr(self, key))
        unknown = [loss for loss in self.losses if loss not in LOSSES]
        require(not unknown, "losses", f"among {', '.join(LOSSES)}", self.losses)
        for key in ("learning_rates", "temperatures"):
            values = getattr(self, key)
            require(all(value > 0 for value in values), key, "positive", values)
        require(self.interpolation > 0, "interpolation", "positive", self.interpolation)
        for key in ("rounds", "batch_size"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        at_least = "at least 2, for leave-one-out"
        require(self.num_samples >= 2, "num_samples", at_least, self.num_samples)
        whole = "a multiple of rounds"
        is_whole = self.steps >= 1 and self.steps % self.rounds == 0
        require(is_whole, "steps", whole, self.steps)

    def grid(self, loss: str) -> list[tuple[float, float | None]]:
        """Return the (learning rate, temperature) that a loss is trained with."""
        temperatures = self.temperatures if loss in PERTURBED else (None,)
        return [
            (rate, epsilon) for rate in self.learning_rates for epsilon in temperatures
        ]


class Ranking(Experiment[RankingConfig]):
    """The label-ranking experiment."""

    name = "ranking"
    summary = "label ranking on 21 data sets, four losses (Tables 1 and 2)"
    presets: Mapping[str, RankingConfig] = {
        "quick": RankingConfig(
            data_sets=("iris", "wine", "diabetes", "digits"), steps=600, rounds=10
        ),
        "paper": RankingConfig(),
    }
    needs_data = ("label-ranking",)
    stated: ClassVar[Mapping[str, str]] = {
        "data_sets": "21 data sets",
        "losses": "these four",
        "learning_rates": "0.001, 0.01, 0.1",
        "temperatures": "chosen in Table 2; which, it does not say",
    }

    def trials(self, config: RankingConfig, data: Path | None) -> Sequence[Trial]:
        """Return a trial for each data set and loss, once all data is read."""
        for name in config.data_sets:
            _load(name, data)
        return [
            Trial({"data": name, "loss": loss}, config.rounds, COSTS[loss])
            for name in config.data_sets
            for loss in config.losses
        ]

    def start(
        self, trial: Trial, config: RankingConfig, data: Path | None, seed: int
    ) -> Training:
        """Return the training of all folds and settings of a data set and a loss."""
        return CrossValidation(trial, config, data, seed)

    def substitutes(self, config: RankingConfig, data: str | None) -> str:
        """Return which data sets are not the published ones."""
        folder = None if data is None else Path(data)
        built = [name for name in config.data_sets if ranking_data.built(name, folder)]
        if not built:
            return ""
        return (
            f"Of scikit-learn's data, by the construction of Cheng et al. (2009): "
            f"{', '.join(built)}. The paper's numbers are of other files, even where "
            "these have the same name."
        )

    def results(self, config: RankingConfig, records: Sequence[Record]) -> Values:
        """Return the tables' numbers."""
        return ranking_results(records)

    def headline(self, results: Values) -> dict[str, str]:
        """Return the mean correlations of each table."""
        return {
            table: ", ".join(
                f"{TITLES[loss]} {mean:.3f}" for loss, mean in means.items()
            )
            for table, means in results["means"].items()
        }

    def page(self, config: RankingConfig, run: RunDirectory) -> Page:
        """Return the tables beside the paper's, and the figure."""
        return ranking_page(config.losses, run)


class CrossValidation(Training):
    """All folds, inner folds and settings of a data set and a loss.

    Split 6f of the models is the whole training part of fold f, judged on the fold;
    splits 6f + 1 to 6f + 5 are its inner folds. Folds are the same for all losses.
    """

    def __init__(
        self, trial: Trial, config: RankingConfig, data: Path | None, seed: int
    ) -> None:
        loss = trial.key["loss"]
        table = _load(trial.key["data"], data)
        size, labels = table.ranks.shape
        self.grid = config.grid(loss)
        self.steps_per_round = config.steps // config.rounds
        self.temperatures = config.temperatures if loss in PERTURBED else ()
        train, self.held_out = nested_folds(size)
        features = np.concatenate([table.features, np.ones((size, 1))], axis=1)
        self.models = AffineModels(
            torch.tensor(features, dtype=torch.float32),
            # Rank 1 is the best, and the solver gives the best the largest entry.
            torch.tensor(labels + 1 - table.ranks, dtype=torch.float32),
            train,
            learning_rates=torch.tensor([rate for rate, _ in self.grid]),
            loss=ranking_loss(
                loss,
                temperatures=torch.tensor([epsilon or 1.0 for _, epsilon in self.grid]),
                num_samples=config.num_samples,
                interpolation=config.interpolation,
            ),
            batch_size=config.batch_size,
            total_steps=config.steps,
            seed=seed,
        )

    def advance(self) -> Values:
        """Take a round's steps; return the mean loss, over all and of each setting."""
        total = sum(self.models.step() for _ in range(self.steps_per_round))
        mean = torch.as_tensor(total) / self.steps_per_round
        return {"loss": float(mean.mean()), "losses": mean}

    def result(self) -> Values:
        """Return the correlations on the folds, of the settings chosen without them.

        ``spearman``, ``deviation`` and ``folds`` are those of Table 2; ``fixed`` has
        what Table 1 has, for each temperature: only the learning rate chosen.
        """
        outer, inner = self._correlations()
        count = max(len(self.temperatures), 1)
        fixed = {
            f"{epsilon:g}": _chosen(outer[:, place::count], inner[:, place::count])
            for place, epsilon in enumerate(self.temperatures)
        }
        return {
            **_chosen(outer, inner),
            "settings": self.grid,
            "on_folds": outer.mean(axis=0),
            "fixed": fixed,
        }

    def artifacts(self) -> dict[str, np.ndarray]:
        """Return ranks of some rows of the first fold: the true and the predicted."""
        _, inner = self._correlations()
        rows = self.held_out[0][:SHOWN]
        predicted = self.models.ranks(0, rows)[:, int(inner[0].argmax())]
        best_first = self.models.labels + 1
        return {
            "true": (best_first - self.models.y[rows]).numpy(),
            "predicted": (best_first - predicted).numpy(),
        }

    def _correlations(self) -> tuple[np.ndarray, np.ndarray]:
        """Return Spearman's on the folds, and the mean on the inner folds, (10, G)."""
        correlations = self.models.correlations(self.held_out).numpy().astype(float)
        correlations = correlations.reshape(FOLDS, 1 + INNER_FOLDS, -1)
        return correlations[:, 0], correlations[:, 1:].mean(axis=1)

    def state_dict(self) -> Values:
        """Return the models' state."""
        return self.models.state_dict()

    def load_state_dict(self, state: Values) -> None:
        """Set the models' state."""
        self.models.load_state_dict(state)


@functools.cache
def _load(name: str, data: Path | None) -> ranking_data.LabelRankingData:
    return ranking_data.load(name, data)


def nested_folds(size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the rows that each split trains on, and those it is judged on."""
    train, held_out = [], []
    outer = KFold(FOLDS, shuffle=True, random_state=0)
    inner = KFold(INNER_FOLDS, shuffle=True, random_state=0)
    for kept, fold in outer.split(np.arange(size)):
        train.append(torch.as_tensor(kept))
        held_out.append(torch.as_tensor(fold))
        for inner_kept, inner_fold in inner.split(kept):
            train.append(torch.as_tensor(kept[inner_kept]))
            held_out.append(torch.as_tensor(kept[inner_fold]))
    return train, held_out


def _chosen(outer: np.ndarray, inner: np.ndarray) -> Values:
    """Return the folds' correlations (10, G), each of its best setting within."""
    chosen = inner.argmax(axis=1)
    folds = outer[np.arange(FOLDS), chosen]
    return {
        "spearman": float(folds.mean()),
        "deviation": float(folds.std(ddof=1)),
        "folds": folds,
        "chosen": chosen,
    }
