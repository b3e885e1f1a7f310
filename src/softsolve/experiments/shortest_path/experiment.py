"""Learning costs from shortest paths on terrain maps (Figures 5 and 6)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.settings import require, require_some
from softsolve.experiments.shortest_path import maps, terrain
from softsolve.experiments.shortest_path.losses import LOSSES, TITLES
from softsolve.experiments.shortest_path.page import shortest_path_page
from softsolve.experiments.shortest_path.training import PICTURES, PathTraining

PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class ShortestPathConfig:
    """Settings of the shortest-path experiment.

    Attributes
    ----------
    milestones
        Epochs after which the learning rate falls to a tenth.
    temperature, num_samples
        ε and M of the Fenchel-Young loss.
    squared_samples
        M of the perturbed squared loss, whose gradient needs more draws.
    interpolation
        λ of the blackbox loss.
    channels
        Of the network's layers; ResNet18 has 64.
    precision
        Of the network's convolutions; ``bfloat16`` is faster on CPUs that have it.
    """

    losses: tuple[str, ...] = LOSSES
    train_size: int = 10_000
    test_size: int = 1000
    epochs: int = 50
    batch_size: int = 70
    learning_rate: float = 5e-4
    milestones: tuple[int, ...] = (30, 40)
    temperature: float = 1.0
    num_samples: int = 1
    squared_samples: int = 10
    interpolation: float = 20.0
    channels: int = 64
    precision: str = "float32"

    def __post_init__(self) -> None:
        require_some("losses", self.losses)
        unknown = [loss for loss in self.losses if loss not in LOSSES]
        require(not unknown, "losses", f"among {', '.join(LOSSES)}", self.losses)
        for key in ("train_size", "batch_size", "epochs", "num_samples", "channels"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        enough = f"at least {PICTURES}"
        require(self.test_size >= PICTURES, "test_size", enough, self.test_size)
        two = self.squared_samples >= 2
        require(two, "squared_samples", "at least 2", self.squared_samples)
        for key in ("learning_rate", "temperature", "interpolation"):
            require(getattr(self, key) > 0, key, "positive", getattr(self, key))
        known = self.precision in PRECISIONS
        require(known, "precision", " or ".join(PRECISIONS), self.precision)


class ShortestPath(Experiment[ShortestPathConfig]):
    """The shortest-path experiment."""

    name = "shortest-path"
    summary = "costs of terrain maps learned from shortest paths (Figures 5 and 6)"
    presets: Mapping[str, ShortestPathConfig] = {
        "quick": ShortestPathConfig(
            losses=("fenchel-young", "blackbox", "perturbed-squared", "squared"),
            train_size=2800,
            test_size=500,
            epochs=12,
            # In few steps, costs grow large beside the noise only at a high rate.
            learning_rate=1e-2,
            milestones=(10,),
            channels=16,
        ),
        "paper": ShortestPathConfig(),
    }
    needs_data = ("warcraft-maps",)
    stated: ClassVar[Mapping[str, str]] = {
        "losses": "Fenchel-Young, blackbox, and squared without a solver",
        "train_size": "10,000",
        "epochs": "50",
        "batch_size": "70",
        "learning_rate": "as Vlastelica et al., whose code has 0.0005",
        "milestones": "30, 40",
        "temperature": "1",
        "num_samples": "1",
        "interpolation": "as Vlastelica et al., whose code has 20",
        "channels": "as ResNet18, which has 64",
    }

    def trials(self, config: ShortestPathConfig, data: Path | None) -> Sequence[Trial]:
        """Return a trial for each loss, once all data is read."""
        for split, size in (("train", config.train_size), ("test", config.test_size)):
            _load(split, size, data)
        return [Trial({"loss": loss}, config.epochs) for loss in config.losses]

    def start(
        self, trial: Trial, config: ShortestPathConfig, data: Path | None, seed: int
    ) -> Training:
        """Return the training of a network under a loss."""
        train = _load("train", config.train_size, data)
        test = _load("test", config.test_size, data)
        return PathTraining(trial.key["loss"], config, train, test, seed)

    def substitutes(self, config: ShortestPathConfig, data: str | None) -> str:
        """Return that maps are generated, if they are."""
        if data is not None:
            return ""
        return "The maps are generated: the paper's are those of a game."

    def results(self, config: ShortestPathConfig, records: Sequence[Record]) -> Values:
        """Return what each loss came to."""
        return {record["trial"]["loss"]: record["result"] for record in records}

    def headline(self, results: Values) -> dict[str, str]:
        """Return the shares of optimal paths on the test maps."""
        return {
            TITLES[loss]: f"{result['test_optimal']:.1%} of the test paths optimal"
            for loss, result in results.items()
        }

    def page(self, config: ShortestPathConfig, run: RunDirectory) -> Page:
        """Return the curves, and maps with true and predicted costs and paths."""
        return shortest_path_page(config, run)


@functools.cache
def _load(split: str, size: int, data: Path | None) -> terrain.Maps:
    if data is None:
        return terrain.generate(size, seed=("train", "test").index(split))
    return maps.load(data, split, size)
