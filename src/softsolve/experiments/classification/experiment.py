"""Classifying images by the perturbed argmax (Section 5.1, Figure 2)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from softsolve.experiments.classification import images
from softsolve.experiments.classification.losses import (
    CROSS_ENTROPY,
    FENCHEL_YOUNG,
    LOSSES,
    cross_entropy,
    fenchel_young,
)
from softsolve.experiments.classification.page import (
    CURVES,
    SWEEP,
    classification_page,
    classification_results,
)
from softsolve.experiments.classification.training import (
    PICTURES,
    ImageTraining,
    Schedule,
)
from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.settings import require

PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class ClassificationConfig:
    """Settings of the classification experiment.

    Attributes
    ----------
    losses, num_samples, temperature
        What is compared: cross entropy, and Fenchel-Young for each M; ε of all.
    sweep_temperatures, sweep_samples
        ε and M of the Fenchel-Young losses that are compared with each other.
    sweep_epochs, sweep_train_size
        As ``epochs`` and ``train_size``, of the sweep.
    learning_rate
        Of Adam, at the start; it falls along a half cosine to zero.
    width, hidden
        Channels of the first convolutions, and of the hidden layer.
    precision
        Of the network's products; losses and weights are float32 either way.
    """

    data_set: str = "cifar-10"
    train_size: int = 50_000
    test_size: int = 10_000
    epochs: int = 600
    losses: tuple[str, ...] = LOSSES
    num_samples: tuple[int, ...] = (1, 1000)
    temperature: float = 1.0
    sweep_temperatures: tuple[float, ...] = (1e-3, 1e-2, 0.1, 1.0, 10.0, 1e2, 1e3)
    sweep_samples: int = 1000
    sweep_epochs: int = 600
    sweep_train_size: int = 50_000
    batch_size: int = 32
    learning_rate: float = 1e-3
    width: int = 32
    hidden: int = 512
    precision: str = "float32"

    def __post_init__(self) -> None:
        known = f"one of {', '.join(images.CLASSES)}"
        require(self.data_set in images.CLASSES, "data_set", known, self.data_set)
        unknown = [loss for loss in self.losses if loss not in LOSSES]
        require(not unknown, "losses", f"among {', '.join(LOSSES)}", self.losses)
        something = bool(self.losses or self.sweep_temperatures)
        require(something, "losses", "given where sweep_temperatures is empty", ())
        kinds = f"one of {', '.join(PRECISIONS)}"
        require(self.precision in PRECISIONS, "precision", kinds, self.precision)
        for key in ("sweep_samples", "batch_size", "width", "hidden"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        for key in ("epochs", "sweep_epochs", "train_size", "sweep_train_size"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        counts = self.num_samples
        require(all(count >= 1 for count in counts), "num_samples", "≥ 1", counts)
        epsilons = self.sweep_temperatures
        positive = all(epsilon > 0 for epsilon in epsilons)
        require(positive, "sweep_temperatures", "positive", epsilons)
        for key in ("temperature", "learning_rate"):
            require(getattr(self, key) > 0, key, "positive", getattr(self, key))
        enough = f"at least {PICTURES}"
        require(self.test_size >= PICTURES, "test_size", enough, self.test_size)
        for key in ("losses", "num_samples", "sweep_temperatures"):
            values = getattr(self, key)
            distinct = len(set(values)) == len(values)
            require(distinct, key, "different from each other", values)


class Classification(Experiment[ClassificationConfig]):
    """The classification experiment."""

    name = "classification"
    summary = "images classified by Fenchel-Young and cross entropy (Figure 2)"
    presets: Mapping[str, ClassificationConfig] = {
        "quick": ClassificationConfig(
            data_set="digits",
            train_size=images.DIGITS_TRAIN,
            test_size=360,
            epochs=40,
            sweep_epochs=20,
            sweep_train_size=images.DIGITS_TRAIN,
            width=8,
            hidden=64,
        ),
        "paper": ClassificationConfig(),
    }
    needs_data = ("cifar-10",)
    stated: ClassVar[Mapping[str, str]] = {
        "data_set": "CIFAR-10",
        "train_size": "50,000: all",
        "test_size": "10,000: all",
        "epochs": "600",
        "losses": "these two",
        "num_samples": "1 and 1000",
        "sweep_epochs": "600",
        "sweep_train_size": "50,000: all",
        "batch_size": "32",
    }

    def trials(
        self, config: ClassificationConfig, data: Path | None
    ) -> Sequence[Trial]:
        """Return a trial for each loss and each ε, once all data is read."""
        train_size = max(config.train_size, config.sweep_train_size)
        for split, size in (("train", train_size), ("test", config.test_size)):
            images.check_size(_load(config.data_set, split, data), split, size)
        keys = {
            CROSS_ENTROPY: [{"loss": CROSS_ENTROPY}],
            FENCHEL_YOUNG: [
                {"loss": FENCHEL_YOUNG, "samples": str(count)}
                for count in config.num_samples
            ],
        }
        curves = [
            Trial({"part": CURVES, **key}, config.epochs, cost=config.train_size)
            for loss in config.losses
            for key in keys[loss]
        ]
        sweep = [
            Trial(
                {"part": SWEEP, "temperature": f"{epsilon:g}"},
                config.sweep_epochs,
                cost=config.sweep_train_size,
            )
            for epsilon in config.sweep_temperatures
        ]
        return [*curves, *sweep]

    def start(
        self, trial: Trial, config: ClassificationConfig, data: Path | None, seed: int
    ) -> Training:
        """Return the training of a network under a loss."""
        key = trial.key
        if key["part"] == SWEEP:
            size = config.sweep_train_size
            objective = fenchel_young(float(key["temperature"]), config.sweep_samples)
        else:
            size = config.train_size
            if key["loss"] == CROSS_ENTROPY:
                objective = cross_entropy(config.temperature)
            else:
                objective = fenchel_young(config.temperature, int(key["samples"]))
        schedule = Schedule(
            trial.rounds,
            config.batch_size,
            config.learning_rate,
            half_precision=config.precision == "bfloat16",
        )
        return ImageTraining(
            objective,
            schedule,
            _load(config.data_set, "train", data).first(size),
            _load(config.data_set, "test", data).first(config.test_size),
            width=config.width,
            hidden=config.hidden,
            seed=seed,
        )

    def results(
        self, config: ClassificationConfig, records: Sequence[Record]
    ) -> Values:
        """Return the metrics at the end, of each loss and of each ε."""
        return classification_results(records)

    def headline(self, results: Values) -> dict[str, str]:
        """Return the test accuracies, and what extreme temperatures cost."""
        lines = {
            name: f"{result['test_accuracy']:.1%} of the test images right"
            for name, result in results[CURVES].items()
        }
        if results[SWEEP]:
            accuracies = {
                epsilon: result["test_accuracy"]
                for epsilon, result in results[SWEEP].items()
            }
            lines["Test accuracy against ε"] = ", ".join(
                f"{accuracy:.1%} at {epsilon}"
                for epsilon, accuracy in accuracies.items()
            )
        return lines

    def page(self, config: ClassificationConfig, run: RunDirectory) -> Page:
        """Return the curves, the sweep over ε and pictures with predictions."""
        classes = images.CLASSES[config.data_set]
        return classification_page(run, classes, config.sweep_samples)


@functools.cache
def _load(name: str, split: str, data: Path | None) -> images.Images:
    return images.load(name, split, data)
