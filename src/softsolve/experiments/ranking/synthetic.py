r"""Label ranking on artificial data, against the noise of the labels.

Labels are the rankings of noisy scores,

.. math::

    y_i = \operatorname{argmax}_y \langle x_i^\top w_0 + \sigma Z_i, y\rangle,

with entries of :math:`w_0` uniform in {-1, 1} and normal :math:`x_i` and :math:`Z_i`.

Learning rates are chosen for each model, on validation rows with its noise. With Adam
this is a choice of temperature as well: the perturbed losses depend on θ/ε only, up to
a factor, and the blackbox proxy on θ/λ, so that a tenth of ε is ten times the rate.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.ranking.losses import LOSSES, TITLES, ranking_loss
from softsolve.experiments.ranking.synthetic_page import mean_over_runs, synthetic_page
from softsolve.experiments.ranking.training import AffineModels
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.settings import require, require_some
from softsolve.solvers import Ranking

Tensor = torch.Tensor

# The paper draws its curves over epochs at 0.1334 and 0.7449.
NOISE_LEVELS = (1e-2, 3e-2, 1e-1, 0.1334, 3e-1, 0.7449, 3.0, 10.0, 1e2, 1e3)
COUNTS = ("epochs", "rounds", "batch_size")
COSTS = {
    "fenchel-young": 1.7,
    "perturbed-squared": 2.3,
    "squared": 1.0,
    "blackbox": 2.1,
}


@dataclasses.dataclass(frozen=True)
class SyntheticConfig:
    """Settings of the ranking experiment on artificial data.

    Attributes
    ----------
    noise_levels
        σ. All are trained side by side, as are the runs.
    rounds
        How often, over the epochs, the models are judged.
    learning_rates
        What to choose from.
    temperature, num_samples
        ε and M, of the losses with noise.
    interpolation
        λ of the blackbox loss.
    """

    losses: tuple[str, ...] = LOSSES
    noise_levels: tuple[float, ...] = NOISE_LEVELS
    runs: int = 3
    labels: int = 100
    dimension: int = 50
    train_size: int = 16_000
    validation_size: int = 500
    test_size: int = 1000
    epochs: int = 2000
    rounds: int = 20
    batch_size: int = 32
    learning_rates: tuple[float, ...] = (1e-2, 1e-1, 1.0)
    temperature: float = 1.0
    num_samples: int = 2
    interpolation: float = 0.003

    def __post_init__(self) -> None:
        unknown = [loss for loss in self.losses if loss not in LOSSES]
        require(not unknown, "losses", f"among {', '.join(LOSSES)}", self.losses)
        for key in ("losses", "noise_levels", "learning_rates"):
            require_some(key, getattr(self, key))
        rates = self.learning_rates
        require(min(rates) > 0, "learning_rates", "positive", rates)
        for key in ("runs", "dimension", "validation_size", "test_size", *COUNTS):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        for key in ("labels", "num_samples"):
            require(getattr(self, key) >= 2, key, "at least 2", getattr(self, key))
        for key in ("temperature", "interpolation"):
            require(getattr(self, key) > 0, key, "positive", getattr(self, key))
        enough = f"at least the batch size, {self.batch_size}"
        is_enough = self.train_size >= self.batch_size
        require(is_enough, "train_size", enough, self.train_size)
        whole = self.epochs % self.rounds == 0
        require(whole, "epochs", "a multiple of rounds", self.epochs)


class SyntheticRanking(Experiment[SyntheticConfig]):
    """The ranking experiment on artificial data."""

    name = "synthetic-ranking"
    summary = "ranking 100 labels against their noise, four losses (Figure 4)"
    stated: ClassVar[Mapping[str, str]] = {
        "losses": "these four",
        "noise_levels": "0.01 to 1000, 0.1334 and 0.7449 among them",
        "runs": "3",
        "labels": "100",
        "dimension": "50",
        "epochs": "2000",
        "batch_size": "32",
    }
    presets: Mapping[str, SyntheticConfig] = {
        "quick": SyntheticConfig(
            labels=20,
            dimension=10,
            train_size=512,
            validation_size=200,
            test_size=500,
            epochs=50,
            rounds=10,
        ),
        "paper": SyntheticConfig(),
    }

    def trials(self, config: SyntheticConfig, data: Path | None) -> Sequence[Trial]:
        """Return a trial for each loss."""
        return [
            Trial({"loss": loss}, config.rounds, COSTS[loss]) for loss in config.losses
        ]

    def start(
        self, trial: Trial, config: SyntheticConfig, data: Path | None, seed: int
    ) -> Training:
        """Return the training of a loss, at all noise levels."""
        return NoiseLevels(trial.key["loss"], config, seed)

    def results(self, config: SyntheticConfig, records: Sequence[Record]) -> Values:
        """Return the accuracies against σ, averaged over the runs."""
        return {
            record["trial"]["loss"]: {
                "noise": list(config.noise_levels),
                **mean_over_runs(record["result"], config.runs),
            }
            for record in records
        }

    def headline(self, results: Values) -> dict[str, str]:
        """Return the accuracies at the lowest noise."""
        return {
            TITLES[loss]: (
                f"at σ = {numbers['noise'][0]:g}, {numbers['exact'][0]:.1%} of the "
                f"rankings right, {numbers['partial'][0]:.1%} of the ranks"
            )
            for loss, numbers in results.items()
        }

    def page(self, config: SyntheticConfig, run: RunDirectory) -> Page:
        """Return the accuracies against σ, and against epochs."""
        return synthetic_page(config, run)


def make_data(config: SyntheticConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (S, n, p), labels (S, n, k) and labels without noise.

    S goes over the runs, and for each over the noise levels, which share the features
    and the noise of a run. Data is the same for all losses and seeds.
    """
    features, noisy, clean = [], [], []
    size = config.train_size + config.validation_size + config.test_size
    rank = Ranking()
    for run in range(config.runs):
        generator = torch.Generator().manual_seed(run)
        shape = (config.dimension, config.labels)
        weights = 2.0 * torch.randint(2, shape, generator=generator) - 1
        x = torch.randn(size, config.dimension, generator=generator)
        z = torch.randn(size, config.labels, generator=generator)
        scores = x @ weights
        truth = rank(scores)
        for sigma in config.noise_levels:
            features.append(x)
            noisy.append(rank(scores + sigma * z))
            clean.append(truth)
    return torch.stack(features), torch.stack(noisy), torch.stack(clean)


class NoiseLevels(Training):
    """Linear models of all runs, noise levels and learning rates, under one loss."""

    def __init__(self, loss: str, config: SyntheticConfig, seed: int) -> None:
        x, noisy, clean = make_data(config)
        splits, size = x.shape[:2]
        rows = torch.arange(splits * size).view(splits, size)
        train, self.validation, self.test = torch.split(
            rows, [config.train_size, config.validation_size, config.test_size], dim=1
        )
        self.clean = clean.flatten(end_dim=1)
        batches = config.train_size // config.batch_size
        self.steps_per_round = batches * config.epochs // config.rounds
        self.rates = torch.tensor(config.learning_rates, dtype=torch.float64)
        self.models = AffineModels(
            x.flatten(end_dim=1),
            noisy.flatten(end_dim=1),
            list(train),
            learning_rates=self.rates.float(),
            loss=ranking_loss(
                loss,
                temperatures=torch.full((len(self.rates),), config.temperature),
                num_samples=config.num_samples,
                interpolation=config.interpolation,
            ),
            batch_size=config.batch_size,
            total_steps=batches * config.epochs,
            seed=seed,
        )
        self.latest: Values = {}

    def advance(self) -> Values:
        """Train for a round; return the loss and the accuracies, (S, G)."""
        total = sum(self.models.step() for _ in range(self.steps_per_round))
        right = [
            self.models.ranks(split, rows) == self.clean[rows][:, None]
            for split, rows in enumerate(self.test)
        ]
        self.latest = {
            "exact": torch.stack([x.all(dim=2).double().mean(dim=0) for x in right]),
            "partial": torch.stack([x.double().mean(dim=(0, 2)) for x in right]),
        }
        loss = float(torch.as_tensor(total).mean()) / self.steps_per_round
        return {"loss": loss, **self.latest}

    def result(self) -> Values:
        """Return the accuracies of the chosen learning rates, and which these are."""
        validation = self.models.correlations(list(self.validation))
        chosen = validation.argmax(dim=1, keepdim=True)
        values = {key: x.gather(1, chosen)[:, 0] for key, x in self.latest.items()}
        return {**values, "chosen": chosen[:, 0], "rates": self.rates[chosen[:, 0]]}

    def state_dict(self) -> Values:
        """Return the models' state and the latest accuracies."""
        return {"models": self.models.state_dict(), "latest": self.latest}

    def load_state_dict(self, state: Values) -> None:
        """Set the models' state."""
        self.models.load_state_dict(state["models"])
        self.latest = state["latest"]
