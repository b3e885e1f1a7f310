"""What a person sees of a run: a bar with the loss and the time left."""

import math
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from softsolve.experiments.experiment import Trial, Values


class ProgressBar:
    """A watcher of runs that draws a bar, and a line for each finished trial."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = TaskID(0)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress.tasks:
            self._progress.stop()

    def begin(self, trials: Sequence[Trial], finished: int) -> None:
        """See the trials, the first of which may be finished already."""
        self._progress.start()
        if finished:
            self._console.print(f"Continuing: {finished} of {len(trials)} done before.")
        self._task = self._progress.add_task(
            "starting",
            total=_work(trials),
            completed=int(_work(trials[:finished])),
            loss="-",
        )

    def round(self, trial: Trial, done: int, metrics: Values) -> None:
        """See a round of training."""
        self._progress.update(
            self._task,
            description=f"{' '.join(trial.key.values())} {done}/{trial.rounds}",
            advance=trial.cost,
            loss=f"{metrics['loss']:.4g}",
        )

    def finish(self, trial: Trial, result: Values) -> None:
        """See a trial's result."""
        shown = ", ".join(
            f"{key.replace('_', ' ')} {value:.3f}"
            for key, value in result.items()
            if isinstance(value, float)
        )
        line = f"{' '.join(trial.key.values())}: {shown or 'done'}"
        self._console.print(line, soft_wrap=True)


def _work(trials: Sequence[Trial]) -> float:
    return math.fsum(trial.rounds * trial.cost for trial in trials)
