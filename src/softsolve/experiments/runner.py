"""Running an experiment, from the start or from where it was."""

import contextlib
import dataclasses
import datetime as dt
import math
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from softsolve.experiments.errors import OutputError
from softsolve.experiments.experiment import Experiment, Trial, Values
from softsolve.experiments.machine import hardware, versions
from softsolve.experiments.records import Record, RunDirectory, writing

SECONDS_BETWEEN_CHECKPOINTS = 5.0


class Watcher(Protocol):
    """What sees a run go on."""

    def begin(self, trials: Sequence[Trial], finished: int) -> None:
        """See the trials, the first of which may be finished already."""

    def round(self, trial: Trial, done: int, metrics: Values) -> None:
        """See a round of training."""

    def finish(self, trial: Trial, result: Values) -> None:
        """See a trial's result."""


@dataclasses.dataclass(frozen=True)
class Order:
    """A run to make: what the command line says."""

    experiment: Experiment[Any]
    preset: str
    config: Any
    data: Path | None
    out: Path
    seed: int
    command: str

    def identity(self) -> Record:
        """Return what must be the same to continue a run."""
        return {
            "experiment": self.experiment.name,
            "config": _plain(dataclasses.asdict(self.config)),
            "data": None if self.data is None else str(self.data.resolve()),
            "seed": self.seed,
        }


def execute(order: Order, watcher: Watcher) -> Values:
    """Run an experiment to its end and return its results.

    Where ``order.out`` holds an interrupted run of the same order, continue it; where
    it holds a finished one, return its results.
    """
    trials = order.experiment.trials(order.config, order.data)
    directory = RunDirectory(order.out)
    with writing(order.out / "manifest.json"):
        order.out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(directory):
        directory.lock()
        manifest = _open_manifest(order, directory)
        if manifest["status"] != "finished":
            _train(order, trials, directory, watcher, manifest)
        return manifest["results"]


def _open_manifest(order: Order, directory: RunDirectory) -> Record:
    manifest = directory.read_manifest()
    identity = order.identity()
    if manifest is not None:
        for key, value in identity.items():
            if manifest.get(key) != value:
                msg = (
                    f"{order.out} holds another run: its {key} is "
                    f"{manifest.get(key)!r}, not {value!r}. Pass another --out, or the "
                    "options of that run to continue it."
                )
                raise OutputError(msg)
        return manifest
    manifest = {
        **identity,
        "preset": order.preset,
        "command": order.command,
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
        "status": "running",
    }
    directory.write_manifest(manifest)
    return manifest


def _train(
    order: Order,
    trials: Sequence[Trial],
    directory: RunDirectory,
    watcher: Watcher,
    manifest: Record,
) -> None:
    checkpoint = directory.read_checkpoint() or {
        "finished": 0,
        "rounds": 0,
        "training": None,
        "seconds": 0.0,
        "metrics_size": 0,
    }
    directory.open_metrics(checkpoint["metrics_size"])
    clock = _Clock(checkpoint["seconds"])
    finished = checkpoint["finished"]
    watcher.begin(trials, finished)
    for index in range(finished, len(trials)):
        trial = trials[index]
        seed = _trial_seed(order.seed, trial)
        training = order.experiment.start(trial, order.config, order.data, seed)
        rounds = 0
        if index == finished and checkpoint["training"] is not None:
            training.load_state_dict(checkpoint["training"])
            rounds = checkpoint["rounds"]
        for done in range(rounds + 1, trial.rounds + 1):
            metrics = training.advance()
            directory.append({"trial": trial.key, "round": done, **_plain(metrics)})
            watcher.round(trial, done, metrics)
            if clock.due():
                directory.write_checkpoint(
                    {
                        "finished": index,
                        "rounds": done,
                        "training": training.state_dict(),
                        "seconds": clock.seconds(),
                    }
                )
        result = _plain(training.result())
        artifacts = training.artifacts()
        if artifacts:
            directory.write_artifacts(trial.name, artifacts)
        directory.append(
            {"trial": trial.key, "result": result, "seconds": clock.seconds()}
        )
        directory.write_checkpoint(
            {
                "finished": index + 1,
                "rounds": 0,
                "training": None,
                "seconds": clock.seconds(),
            }
        )
        watcher.finish(trial, result)
    records = [line for line in directory.read_metrics() if "result" in line]
    manifest["results"] = _plain(order.experiment.results(order.config, records))
    manifest["seconds"] = clock.seconds()
    manifest["status"] = "finished"
    directory.write_manifest(manifest)


class _Clock:
    """Seconds of training, over all sessions, and when to write a checkpoint."""

    def __init__(self, before: float) -> None:
        self._start = time.monotonic() - before
        self._last = time.monotonic()

    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)

    def due(self) -> bool:
        if time.monotonic() - self._last < SECONDS_BETWEEN_CHECKPOINTS:
            return False
        self._last = time.monotonic()
        return True


def _trial_seed(seed: int, trial: Trial) -> int:
    """Return a seed that depends on the trial's name and not on its place."""
    entropy = [seed, zlib.crc32(trial.name.encode())]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is not finite as None."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
