"""Training a network on images, an epoch at a time."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch

from softsolve.experiments.classification.images import Images
from softsolve.experiments.classification.losses import Objective
from softsolve.experiments.classification.network import VanillaCNN
from softsolve.experiments.experiment import Training, Values

Tensor = torch.Tensor

JUDGED_AT_ONCE = 500
PICTURES = 8


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long, how fast and in what precision a network is trained.

    The learning rate of Adam falls along a half cosine to zero, step by step.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    half_precision: bool


class ImageTraining(Training):
    """A network trained by an objective."""

    def __init__(
        self,
        objective: Objective,
        schedule: Schedule,
        train: Images,
        test: Images,
        *,
        width: int,
        hidden: int,
        seed: int,
    ) -> None:
        self.objective, self.schedule = objective, schedule
        self.train = _tensors(train)
        # As many as there are test images: enough to see what is fitted.
        self.judged = {
            "train": tuple(part[: len(test)] for part in self.train),
            "test": _tensors(test),
        }
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = VanillaCNN(
                self.train[0], len(train.classes), width=width, hidden=hidden
            )
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), schedule.learning_rate, fused=True
        )
        steps = math.ceil(len(train) / schedule.batch_size) * schedule.epochs
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, steps
        )
        self.latest: Values = {}

    def advance(self) -> Values:
        """Train for an epoch; return the loss and the metrics on train and test."""
        images, labels = self.train
        self.network.train()
        total = 0.0
        order = torch.randperm(len(labels), generator=self.generator)
        for rows in torch.split(order, self.schedule.batch_size):
            scores = self._scores(images[rows])
            loss = self.objective.loss(scores, labels[rows], self.generator)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.scheduler.step()
            total += float(loss.detach()) * len(rows)
        self.latest = {
            f"{split}_{metric}": value
            for split, part in self.judged.items()
            for metric, value in self._judge(*part).items()
        }
        return {"loss": total / len(labels), **self.latest}

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted labels (n,) and the probabilities (n, classes)."""
        self.network.eval()
        with torch.inference_mode():
            scores = torch.cat(
                [self._scores(part) for part in torch.split(images, JUDGED_AT_ONCE)]
            )
            probabilities = self.objective.probabilities(scores, self.generator)
        return scores.argmax(dim=-1), probabilities

    def _scores(self, images: Tensor) -> Tensor:
        half = self.schedule.half_precision
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return self.network(images)

    def _judge(self, images: Tensor, labels: Tensor) -> Values:
        """Return the accuracy, and the mean of |y - y_ε(θ)|²."""
        predicted, probabilities = self.predict(images)
        y = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
        return {
            "accuracy": float((predicted == labels).double().mean()),
            "squared": float((probabilities - y).double().square().sum(dim=-1).mean()),
        }

    def result(self) -> Values:
        """Return the metrics at the end."""
        return self.latest

    def artifacts(self) -> Mapping[str, np.ndarray]:
        """Return some test images, their labels and the probabilities predicted."""
        images, labels = (part[:PICTURES] for part in self.judged["test"])
        _, probabilities = self.predict(images)
        return {
            "images": images.numpy(),
            "labels": labels.numpy(),
            "probabilities": probabilities.numpy(),
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


def _tensors(images: Images) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(images.images), torch.from_numpy(images.labels)
