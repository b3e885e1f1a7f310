"""Solvers for tests."""

import numpy as np

from softsolve.solvers import OneHot, Solver


class CheapestOption(Solver):
    """The option with the lowest cost, costs below zero counting as zero.

    With θ = −costs it maximises ⟨y, min(θ, 0)⟩ over one-hot vectors.
    """

    clips_scores = True

    def __call__(self, theta, *context):
        if isinstance(theta, np.ndarray):
            return OneHot()(np.minimum(theta, 0))
        return OneHot()(theta.clip(max=0))
