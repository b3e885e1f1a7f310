"""Learning costs from shortest paths on terrain maps (Figures 5 and 6)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.settings import require
from softsolve.experiments.shortest_path import maps, terrain
from softsolve.experiments.shortest_path.losses import (
    LOSSES,
    TITLES,
    WITHOUT_SOLVER,
    path_loss,
)
from softsolve.experiments.shortest_path.network import CostNetwork
from softsolve.experiments.shortest_path.page import shortest_path_page
from softsolve.solvers import GridPath

Tensor = torch.Tensor

PICTURES = 3
PREDICTED_AT_ONCE = 100
DECAY = 0.1


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

    def __post_init__(self) -> None:
        unknown = [loss for loss in self.losses if loss not in LOSSES]
        require(not unknown, "losses", f"among {', '.join(LOSSES)}", self.losses)
        for key in ("train_size", "batch_size", "epochs", "num_samples"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        enough = f"at least {PICTURES}"
        require(self.test_size >= PICTURES, "test_size", enough, self.test_size)
        two = self.squared_samples >= 2
        require(two, "squared_samples", "at least 2", self.squared_samples)
        for key in ("learning_rate", "temperature", "interpolation"):
            require(getattr(self, key) > 0, key, "positive", getattr(self, key))


class ShortestPath(Experiment[ShortestPathConfig]):
    """The shortest-path experiment."""

    name = "shortest-path"
    summary = "costs of terrain maps learned from shortest paths (Figures 5 and 6)"
    presets: Mapping[str, ShortestPathConfig] = {
        "quick": ShortestPathConfig(
            train_size=1050,
            test_size=300,
            epochs=6,
            milestones=(5,),
        ),
        "paper": ShortestPathConfig(),
    }
    needs_data = ("warcraft-maps",)

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

    def results(self, config: ShortestPathConfig, records: Sequence[Record]) -> Values:
        """Return what each loss came to."""
        return {record["trial"]["loss"]: record["result"] for record in records}

    def headline(self, results: Values) -> dict[str, str]:
        """Return the shares of optimal paths on the test maps."""
        return {
            TITLES[loss]: f"{result['test']['optimal']:.1%} of the test paths optimal"
            for loss, result in results.items()
        }

    def page(self, config: ShortestPathConfig, run: RunDirectory) -> Page:
        """Return the curves, and maps with true and predicted costs and paths."""
        return shortest_path_page(config.losses, run)


@functools.cache
def _load(split: str, size: int, data: Path | None) -> terrain.Maps:
    if data is None:
        return terrain.generate(size, seed=("train", "test").index(split))
    return maps.load(data, split, size)


def as_input(images: np.ndarray) -> Tensor:
    """Return images (n, h, w, 3) as the network takes them, (n, 3, h, w)."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2)
    return x.to(torch.float32).div(255).contiguous(memory_format=torch.channels_last)


class PathTraining(Training):
    """A network trained under a loss."""

    def __init__(
        self,
        loss: str,
        config: ShortestPathConfig,
        train: terrain.Maps,
        test: terrain.Maps,
        seed: int,
    ) -> None:
        self.config, self.train, self.test = config, train, test
        self.has_solver = loss != WITHOUT_SOLVER
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = CostNetwork(terrain.CELLS)
        # Twice as fast on a CPU.
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), config.learning_rate
        )
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(
            self.optimizer, list(config.milestones), DECAY
        )
        self.loss = path_loss(
            loss,
            temperature=config.temperature,
            num_samples=config.num_samples,
            squared_samples=config.squared_samples,
            interpolation=config.interpolation,
        )
        self.latest: Values = {}

    def advance(self) -> Values:
        """Train for an epoch; return the loss and the metrics on train and test."""
        self.network.train()
        order = torch.randperm(len(self.train), generator=self.generator).numpy()
        losses = []
        for start in range(0, len(order), self.config.batch_size):
            rows = np.sort(order[start : start + self.config.batch_size])
            costs = self.network(as_input(self.train.images[rows]))
            paths = torch.from_numpy(self.train.paths[rows]).to(costs.dtype)
            loss = self.loss(costs, paths, self.generator)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses.append(float(loss.detach()))
        self.scheduler.step()
        self.latest = {
            "train": self._judge(self.train, min(len(self.train), len(self.test))),
            "test": self._judge(self.test, len(self.test)),
        }
        return {"loss": float(np.mean(losses)), **self.latest}

    def predict(self, given: terrain.Maps, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the costs and the paths predicted for the first maps."""
        self.network.eval()
        with torch.inference_mode():
            parts = [
                self.network(as_input(given.images[start:count][:PREDICTED_AT_ONCE]))
                for start in range(0, count, PREDICTED_AT_ONCE)
            ]
        costs = torch.cat(parts).numpy()
        if self.has_solver:
            return costs, GridPath()(-costs)
        return costs, (costs > 0.5).astype(costs.dtype)

    def _judge(self, given: terrain.Maps, count: int) -> Values:
        _, paths = self.predict(given, count)
        return judge(paths, given.costs[:count], given.paths[:count])

    def result(self) -> Values:
        """Return the metrics at the end."""
        return self.latest

    def artifacts(self) -> Mapping[str, np.ndarray]:
        """Return some test maps with true and predicted costs and paths."""
        costs, paths = self.predict(self.test, PICTURES)
        return {
            "images": self.test.images[:PICTURES],
            "true_costs": self.test.costs[:PICTURES],
            "true_paths": self.test.paths[:PICTURES],
            "costs": costs,
            "paths": paths,
        }

    def state_dict(self) -> Values:
        """Return the network's, the optimizer's and the generator's state."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
            "latest": self.latest,
        }

    def load_state_dict(self, state: Values) -> None:
        """Set the network's, the optimizer's and the generator's state."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.generator.set_state(state["generator"])
        self.latest = state["latest"]


def judge(paths: np.ndarray, costs: np.ndarray, cheapest: np.ndarray) -> Values:
    """Return the share of optimal paths, and the ratio of costs to the optimum.

    A path is optimal if it costs what a cheapest one does, whichever it is. The ratio
    is the mean over maps, or None where some prediction is not a path.
    """
    valid = GridPath().feasible(paths)
    cost = (paths * costs).sum(axis=(1, 2), dtype=np.float64)
    least = (cheapest * costs).sum(axis=(1, 2), dtype=np.float64)
    optimal = valid & (cost <= least * (1 + 1e-5))
    ratio = float((cost / least).mean()) if valid.all() else None
    return {"optimal": float(optimal.mean()), "ratio": ratio}
