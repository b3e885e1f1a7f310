"""Runs that are stopped, and what is left of them."""

import dataclasses
import json
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softsolve.experiments import runner
from softsolve.experiments.errors import OutputError
from softsolve.experiments.experiment import Experiment, Training, Trial, Values
from softsolve.experiments.page import Page
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.runner import Order, execute


@dataclasses.dataclass(frozen=True)
class WalkConfig:
    rounds: int = 6


class Walk(Training):
    """A random walk, which ends elsewhere if a draw is missed or made twice."""

    def __init__(self, seed: int, stop: "Stop | None") -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.place = torch.zeros(())
        self.stop = stop

    def advance(self) -> Values:
        if self.stop is not None:
            self.stop.count_down()
        self.place = self.place + torch.randn((), generator=self.generator)
        return {"loss": float(self.place)}

    def result(self) -> Values:
        return {"place": self.place}

    def artifacts(self) -> Mapping[str, np.ndarray]:
        return {"place": self.place.numpy()}

    def state_dict(self) -> Values:
        return {"place": self.place, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Values) -> None:
        self.place = state["place"]
        self.generator.set_state(state["generator"])


class Stop:
    def __init__(self, after: int) -> None:
        self.left = after

    def count_down(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1


class Walks(Experiment[WalkConfig]):
    name = "walks"
    summary = "random walks"
    presets: Mapping[str, WalkConfig] = {"quick": WalkConfig()}

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop

    def trials(self, config: WalkConfig, data: Path | None) -> Sequence[Trial]:
        return [Trial({"walk": str(walk)}, config.rounds) for walk in range(3)]

    def start(
        self, trial: Trial, config: WalkConfig, data: Path | None, seed: int
    ) -> Training:
        return Walk(seed, self.stop)

    def results(self, config: WalkConfig, records: Sequence[Record]) -> Values:
        return {x["trial"]["walk"]: x["result"]["place"] for x in records}

    def headline(self, results: Values) -> dict[str, str]:
        return {}

    def page(self, config: WalkConfig, run: RunDirectory) -> Page:
        return Page("Walks", [])


class Silent:
    def begin(self, trials: Sequence[Trial], finished: int) -> None:
        pass

    def round(self, trial: Trial, done: int, metrics: Values) -> None:
        pass

    def finish(self, trial: Trial, result: Values) -> None:
        pass


def order(out: Path, stop: Stop | None = None, **changed: Any) -> Order:
    values: dict[str, Any] = {
        "experiment": Walks(stop),
        "preset": "quick",
        "config": WalkConfig(),
        "data": None,
        "out": out,
        "seed": 0,
        "command": "softsolve run walks",
    }
    return Order(**{**values, **changed})


def lines(out: Path) -> list[Record]:
    records = RunDirectory(out).read_metrics()
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


@pytest.mark.parametrize("every", [0.0, 1000.0])
@pytest.mark.parametrize("after", [0, 1, 6, 8, 17])
def test_an_interrupted_run_ends_as_if_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, every: float
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_CHECKPOINTS", every)
    whole = execute(order(tmp_path / "whole"), Silent())
    with pytest.raises(KeyboardInterrupt):
        execute(order(tmp_path / "parts", Stop(after)), Silent())
    assert len(lines(tmp_path / "parts")) <= after + 2
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"trial": {"walk"')  # a line that a kill cut off
    assert execute(order(tmp_path / "parts"), Silent()) == whole
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert len(lines(tmp_path / "whole")) == 3 * (6 + 1)
    assert len(set(whole.values())) == 3


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    results = execute(order(tmp_path), Silent())
    assert execute(order(tmp_path, Stop(0)), Silent()) == results


def test_another_order_does_not_continue_a_run(tmp_path: Path) -> None:
    execute(order(tmp_path), Silent())
    with pytest.raises(OutputError, match="holds another run: its seed is 0, not 1"):
        execute(order(tmp_path, seed=1), Silent())
    with pytest.raises(OutputError, match="its config is"):
        execute(order(tmp_path, config=WalkConfig(7)), Silent())


def test_the_manifest_says_what_ran(tmp_path: Path) -> None:
    execute(order(tmp_path), Silent())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["command"] == "softsolve run walks"
    assert manifest["status"] == "finished"
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["hardware"]["cpus"] >= 1
    assert manifest["seconds"] >= 0


def test_a_full_disk_leaves_a_run_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    whole = execute(order(tmp_path / "whole"), Silent())
    with pytest.raises(KeyboardInterrupt):
        execute(order(tmp_path / "full", Stop(4)), Silent())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "full" / "metrics.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # no file grows further
    try:
        with pytest.raises(OutputError, match=r"cannot write .*make room"):
            execute(order(tmp_path / "full"), Silent())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "full").glob(".*"))  # no half-written file
    assert execute(order(tmp_path / "full"), Silent()) == whole


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        execute(order(tmp_path / "file" / "run"), Silent())


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    other = RunDirectory(tmp_path)
    other.lock()
    with pytest.raises(OutputError, match=r"another process is running in .*pass"):
        execute(order(tmp_path), Silent())
    assert not (tmp_path / "manifest.json").exists()
    other.close()
    assert execute(order(tmp_path), Silent())


def test_a_broken_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(order(tmp_path, Stop(8)), Silent())
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(OutputError, match="cannot be read"):
        execute(order(tmp_path), Silent())
