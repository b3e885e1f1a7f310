"""The solvers that are functions of arrays, in every framework."""

import itertools

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from softsolve.solvers import (
    FiniteSet,
    Hypercube,
    L1Ball,
    OneHot,
    Ranking,
    ScoredSet,
    TopK,
)

SIZE = 4
REFERENCE = [0.0, 0.0, 1.5, 4.0]
POINTS = np.random.default_rng(1).integers(-3, 4, (9, SIZE)).astype(float)


def ones_at(*places):
    vector = np.zeros(SIZE)
    vector[list(places)] = 1
    return vector


PERMUTATIONS = list(itertools.permutations(range(SIZE)))
# Each solver with all its solutions, in the order in which ties are decided.
SOLVERS = {
    "one-hot": (OneHot(), [ones_at(i) for i in range(SIZE)]),
    "scored": (ScoredSet("abcd"), [ones_at(i) for i in range(SIZE)]),
    "top-k": (
        TopK(2),
        [ones_at(*places) for places in itertools.combinations(range(SIZE), 2)],
    ),
    "top-0": (TopK(0), [np.zeros(SIZE)]),
    "top-all": (TopK(SIZE), [np.ones(SIZE)]),
    "ranking": (
        Ranking(),
        [np.array(order, float) + 1 for order in reversed(PERMUTATIONS)],
    ),
    "reference": (
        Ranking(REFERENCE),
        [np.array(REFERENCE)[list(order)] for order in reversed(PERMUTATIONS)],
    ),
    "signs": (
        Hypercube(),
        [np.array(signs) for signs in itertools.product([-1.0, 1.0], repeat=SIZE)],
    ),
    "subsets": (
        Hypercube(signed=False),
        [np.array(marks) for marks in itertools.product([0.0, 1.0], repeat=SIZE)],
    ),
    "ball": (
        L1Ball(1.5),
        [1.5 * sign * ones_at(i) for i in range(SIZE) for sign in (1, -1)],
    ),
    "points": (FiniteSet(POINTS), list(POINTS)),
}

solvers = pytest.mark.parametrize(("solver", "vertices"), SOLVERS.values(), ids=SOLVERS)
# Small whole numbers are exact in every type, and tie often.
scores = arrays(np.float64, (6, SIZE), elements=st.integers(-2, 2).map(float)) | arrays(
    np.float64, (6, SIZE), elements=st.integers(-999, 999).map(lambda i: i / 64)
)


@solvers
@given(theta=scores)
def test_against_enumeration_with_ties(solver, vertices, theta):
    best = np.array(vertices)[np.argmax(theta @ np.array(vertices).T, axis=1)]
    for dtype in (np.float64, np.float32):
        at = theta.astype(dtype)
        y = solver(at)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, best)
        in_torch = solver(torch.tensor(at))
        assert in_torch.dtype == torch.from_numpy(at).dtype
        np.testing.assert_array_equal(in_torch.numpy(), best)
    in_jax = solver(jax.numpy.asarray(theta, np.float32))
    assert in_jax.dtype == np.float32
    np.testing.assert_array_equal(in_jax, best)
    assert np.asarray(solver.feasible(y)).all()


@solvers
def test_feasibility(solver, vertices):
    vertices = np.array(vertices)
    assert solver.feasible(vertices).all()
    assert not solver.feasible(vertices + 0.25).any()
    assert solver.feasible(torch.tensor(vertices)).all()


@solvers
@given(x=arrays(np.float64, (5, SIZE), elements=st.floats(-5, 5, width=32)))
def test_projection_on_the_directions_of_the_polytope(solver, vertices, x):
    directions = np.array(vertices) - vertices[0]
    _, sizes, basis = np.linalg.svd(directions)
    basis = basis[: int((sizes > 1e-9).sum())]
    expected = x @ basis.T @ basis
    np.testing.assert_allclose(solver.project(x), expected, atol=1e-9)
    in_torch = solver.project(torch.tensor(x))
    np.testing.assert_allclose(in_torch.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_score_and_no_rows(dtype):
    for solver, value in (
        (OneHot(), 1),
        (TopK(1), 1),
        (Ranking(), 1),
        (Hypercube(), 1),
        (L1Ball(), 1),
    ):
        y = solver(np.array([[0.5]], dtype))
        np.testing.assert_array_equal(y, [[value]])
        assert solver(np.zeros((0, 3), dtype)).shape == (0, 3)


def test_choices_of_a_scored_set():
    solver = ScoredSet(["red", "green", "blue"])
    theta = np.array([[0.0, 2.0, 1.0], [5.0, 5.0, 1.0]])
    assert solver.choices(solver(theta)) == ["green", "red"]
    assert solver.choices(solver(torch.tensor(theta))) == ["green", "red"]
