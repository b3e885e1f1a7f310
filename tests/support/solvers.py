"""Solvers for tests."""

import math

import numpy as np

from softsolve.compiled.rows import solve_rows
from softsolve.solvers import OneHot, Solver


def kernel_status(solver, theta, *context):
    """Return the codes that a solver's kernel gives to rows, whatever their scores."""
    rows, *event = theta.shape
    states = np.zeros((rows, solver.state_size(tuple(event))))
    packed = solver.pack_context(rows, tuple(event), *context)
    structure = solver.structure(tuple(event))
    flat = theta.reshape(rows, math.prod(event))
    return solve_rows(solver.kernel, flat, *structure, packed, states)[1].tolist()


class CheapestOption(Solver):
    """The option with the lowest cost, costs below zero counting as zero.

    With θ = −costs it maximises ⟨y, min(θ, 0)⟩ over one-hot vectors.
    """

    clips_scores = True

    def __call__(self, theta, *context):
        if isinstance(theta, np.ndarray):
            return OneHot()(np.minimum(theta, 0))
        return OneHot()(theta.clip(max=0))
