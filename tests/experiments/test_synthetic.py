from pathlib import Path

import numpy as np
import pytest
import torch

from softsolve.experiments.errors import SettingError
from softsolve.experiments.ranking.synthetic import (
    NoiseLevels,
    SyntheticConfig,
    SyntheticRanking,
    make_data,
)
from softsolve.experiments.ranking.synthetic_page import _claims, mean_over_runs

SMALL = SyntheticConfig(
    noise_levels=(1e-6, 1e3),
    runs=2,
    labels=5,
    dimension=8,
    train_size=64,
    validation_size=40,
    test_size=50,
    epochs=40,
    rounds=2,
    learning_rates=(1e-9, 0.1),
    temperature=0.1,
    num_samples=50,  # with 2, which rate is better is a matter of chance
    interpolation=0.1,
)


def test_labels_are_rankings_that_noise_takes_from_the_truth() -> None:
    x, noisy, clean = make_data(SMALL)
    assert x.shape == (4, 154, 8)
    ordered = clean.sort(dim=-1).values
    assert torch.equal(ordered, torch.arange(1.0, 6).expand_as(ordered))
    agree = (noisy == clean).double().mean(dim=(1, 2))
    assert agree[[0, 2]].min() > 0.99
    assert agree[[1, 3]].max() < 0.35
    assert torch.equal(x[0], x[1])
    assert not torch.equal(x[0], x[2])


@pytest.mark.parametrize("loss", SMALL.losses)
def test_models_learn_from_clean_labels_and_not_from_noise(loss: str) -> None:
    training = NoiseLevels(loss, SMALL, seed=0)
    for _ in range(SMALL.rounds):
        metrics = training.advance()
    result = {key: value.tolist() for key, value in training.result().items()}
    assert [result["chosen"][place] for place in (0, 2)] == [1, 1]
    low, high = mean_over_runs(result, SMALL.runs)["partial"]
    assert low > 0.55
    assert high < 0.45
    assert np.isfinite(metrics["loss"])


def test_training_continues_from_its_state() -> None:
    training = NoiseLevels("fenchel-young", SMALL, seed=0)
    training.advance()
    other = NoiseLevels("fenchel-young", SMALL, seed=1)
    other.load_state_dict(training.state_dict())
    first, second = training.advance(), other.advance()
    assert first["loss"] == second["loss"]
    assert torch.equal(first["partial"], second["partial"])


def test_claims_are_of_our_loss_beside_the_best_of_the_others() -> None:
    config = SyntheticConfig(noise_levels=(0.01, 0.7449), epochs=4, rounds=2)
    results = {
        "fenchel-young": {"exact": [0.9, 0.1], "partial": [0.95, 0.5]},
        "squared": {"exact": [0.5, 0.2], "partial": [0.96, 0.4]},
        "blackbox": {"exact": [0.6, 0.1], "partial": [0.9, 0.505]},
    }
    rows = [row[1:] for row in _claims(config, results).rows]
    assert rows == [
        ["90.0%", "95.0%"],
        ["0.01", "0.7449"],
        ["-10.0 points", "-0.5 points"],
    ]
    alone = {"fenchel-young": results["fenchel-young"]}
    assert len(_claims(config, alone).rows) == 1


def test_every_loss_is_a_trial() -> None:
    trials = SyntheticRanking().trials(SMALL, Path())
    assert [trial.key["loss"] for trial in trials] == list(SMALL.losses)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epochs": 7, "rounds": 2}, "epochs must be a multiple of rounds"),
        ({"train_size": 8}, "train_size must be at least the batch size"),
        ({"learning_rates": (0.0,)}, "learning_rates must be positive"),
        ({"noise_levels": ()}, "noise_levels must be one or more"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_settings_that_are_wrong(changed: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        SyntheticConfig(**changed)  # type: ignore[arg-type]
