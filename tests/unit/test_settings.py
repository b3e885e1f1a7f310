"""Hyperparameters are checked when a layer is made, whatever the frontend."""

import numpy as np
import pytest

from softsolve.numpy import Perturbed
from softsolve.solvers import Ranking


@pytest.mark.parametrize("name", ["num_samples", "memory_budget"])
class TestWholeNumbers:
    @pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(7)])
    def test_are_taken(self, name, value):
        made = getattr(Perturbed(Ranking(), **{name: value}).settings, name)
        assert type(made) is int
        assert made == value

    @pytest.mark.parametrize("value", [2.0, "1GB", None, True, np.ones(2)])
    def test_of_other_types(self, name, value):
        with pytest.raises(TypeError, match=f"{name} must be a whole number ≥ 1; got "):
            Perturbed(Ranking(), **{name: value})

    @pytest.mark.parametrize("value", [0, -3, np.int64(-1)])
    def test_below_one(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must be at least 1; got "):
            Perturbed(Ranking(), **{name: value})


def test_symmetric_is_true_or_false():
    with pytest.raises(TypeError, match="symmetric must be True or False; got 'no'"):
        Perturbed(Ranking(), symmetric="no")
