"""Training a network that predicts costs, under a loss of the paths that follow."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from softsolve.experiments.experiment import Training, Values
from softsolve.experiments.shortest_path.losses import WITHOUT_SOLVER, path_loss
from softsolve.experiments.shortest_path.metrics import Judgement, are_lines
from softsolve.experiments.shortest_path.network import CostNetwork
from softsolve.experiments.shortest_path.terrain import CELLS, Maps
from softsolve.solvers import GridPath

if TYPE_CHECKING:
    from softsolve.experiments.shortest_path.experiment import ShortestPathConfig

Tensor = torch.Tensor

PICTURES = 4
PREDICTED_AT_ONCE = 100
DECAY = 0.1


class PathTraining(Training):
    """A network trained under a loss."""

    def __init__(
        self,
        loss: str,
        config: "ShortestPathConfig",
        train: Maps,
        test: Maps,
        seed: int,
    ) -> None:
        self.config, self.train, self.test = config, train, test
        self.has_solver = loss != WITHOUT_SOLVER
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = CostNetwork(CELLS, config.channels)
        # Colours next to each other are 1.5 times as fast on a CPU.
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.measure_colours(as_input(train.images[:PREDICTED_AT_ONCE]))
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
        """Train for an epoch; return the loss and the metrics on train and test.

        Those on the training maps are of the predictions that it was trained on.
        """
        self.network.train()
        order = torch.randperm(len(self.train), generator=self.generator).numpy()
        predicted = np.empty_like(self.train.costs)
        total = 0.0
        for start in range(0, len(order), self.config.batch_size):
            rows = np.sort(order[start : start + self.config.batch_size])
            costs = self._costs(self.train.images[rows])
            paths = torch.from_numpy(self.train.paths[rows]).to(costs.dtype)
            loss = self.loss(costs, paths, self.generator)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += float(loss.detach()) * len(rows)
            predicted[rows] = costs.detach().numpy()
        self.scheduler.step()
        found = {
            "train": self._judge(self.train, self.paths(predicted)),
            "test": self._judge(self.test, self.paths(self.predict(self.test.images))),
        }
        self.latest = {
            f"{split}_{key}": value
            for split, judgement in found.items()
            for key, value in judgement.summary().items()
        }
        return {"loss": total / len(order), **self.latest}

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the costs (n, 12, 12) predicted for maps."""
        self.network.eval()
        with torch.inference_mode():
            parts = [
                self._costs(images[start : start + PREDICTED_AT_ONCE])
                for start in range(0, len(images), PREDICTED_AT_ONCE)
            ]
        return torch.cat(parts).numpy()

    def paths(self, costs: np.ndarray) -> np.ndarray:
        """Return the paths of predicted costs; without a solver, costs above 0.5."""
        if self.has_solver:
            return GridPath()(-costs)
        return (costs > 0.5).astype(costs.dtype)

    def _costs(self, images: np.ndarray) -> Tensor:
        half = self.config.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return self.network(as_input(images))

    def _judge(self, given: Maps, paths: np.ndarray) -> Judgement:
        trusted = np.ones(len(paths), dtype=bool)
        valid = trusted if self.has_solver else are_lines(paths)
        return Judgement(paths, valid, given.costs, given.paths)

    def result(self) -> Values:
        """Return the metrics at the end."""
        return self.latest

    def artifacts(self) -> Mapping[str, np.ndarray]:
        """Return some test maps with true and predicted costs and paths."""
        some = Maps(*(array[:PICTURES] for array in vars(self.test).values()))
        costs = self.predict(some.images)
        paths = self.paths(costs)
        return {
            "images": some.images,
            "true_costs": some.costs,
            "true_paths": some.paths,
            "costs": costs,
            "paths": paths,
            "optimal": self._judge(some, paths).optimal,
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


def as_input(images: np.ndarray) -> Tensor:
    """Return images (n, h, w, 3) as networks take them, (n, 3, h, w) in float32."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32)
