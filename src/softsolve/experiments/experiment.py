"""What an experiment is: trials, each trained a round at a time."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from softsolve.experiments.page import Page
from softsolve.experiments.records import Record, RunDirectory

Config = TypeVar("Config")
Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One thing to train, named by what sets it apart.

    Attributes
    ----------
    key
        For example ``{"data": "iris", "loss": "squared"}``.
    rounds
        How many rounds its training takes.
    cost
        Of a round, relative to other trials', for the time that is left.
    """

    key: dict[str, str]
    rounds: int
    cost: float = 1.0

    @property
    def name(self) -> str:
        """The key in a line, fit for a file name."""
        return "-".join(self.key.values())


class Training(abc.ABC):
    """A trial in the making. All of its randomness is part of its state."""

    @abc.abstractmethod
    def advance(self) -> Values:
        """Train for one round; return its metrics, with the ``loss``."""

    @abc.abstractmethod
    def result(self) -> Values:
        """Return what the finished trial is judged by."""

    def artifacts(self) -> Mapping[str, np.ndarray]:
        """Return arrays for pictures."""
        return {}

    @abc.abstractmethod
    def state_dict(self) -> Values:
        """Return all that training changes, random states included."""

    @abc.abstractmethod
    def load_state_dict(self, state: Values) -> None:
        """Go back to what :meth:`state_dict` returned."""


class Experiment(abc.ABC, Generic[Config]):
    """An experiment of the paper.

    Attributes
    ----------
    name
        What the command calls it.
    summary
        What it shows, in a line.
    presets
        Configurations: frozen dataclasses.
    needs_data
        The data sets it reads from a directory, as named in the catalogue.
    stated
        What the paper says of settings, for those it says something of.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    presets: Mapping[str, Config]
    needs_data: ClassVar[tuple[str, ...]] = ()
    stated: ClassVar[Mapping[str, str]] = {}

    @abc.abstractmethod
    def trials(self, config: Config, data: Path | None) -> Sequence[Trial]:
        """Return the trials, or raise where a setting or the data is wrong."""

    @abc.abstractmethod
    def start(
        self, trial: Trial, config: Config, data: Path | None, seed: int
    ) -> Training:
        """Return the training of a trial, at its start."""

    def substitutes(self, config: Config, data: str | None) -> str:
        """Return what is used for the paper's data, as a sentence; empty if nothing.

        ``data`` is the directory of data sets.
        """
        return ""

    @abc.abstractmethod
    def results(self, config: Config, records: Sequence[Record]) -> Values:
        """Return the run's results from the records of its finished trials."""

    @abc.abstractmethod
    def headline(self, results: Values) -> dict[str, str]:
        """Return what to print of the results, line by line."""

    @abc.abstractmethod
    def page(self, config: Config, run: RunDirectory) -> Page:
        """Return the report's page."""
