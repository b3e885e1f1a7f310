"""The experiments by name."""

from typing import Any

from softsolve.experiments.classification.experiment import Classification
from softsolve.experiments.errors import SettingError
from softsolve.experiments.experiment import Experiment
from softsolve.experiments.ranking.experiment import Ranking
from softsolve.experiments.ranking.synthetic import SyntheticRanking
from softsolve.experiments.shortest_path.experiment import ShortestPath

EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment
    for experiment in (
        Ranking(),
        SyntheticRanking(),
        ShortestPath(),
        Classification(),
    )
}


def get_experiment(name: str) -> Experiment[Any]:
    """Return the experiment of that name."""
    if name not in EXPERIMENTS:
        msg = f"no experiment {name!r}. There are {', '.join(EXPERIMENTS)}."
        raise SettingError(msg)
    return EXPERIMENTS[name]
