"""Chains, against enumeration and shortest paths."""

import itertools

import numpy as np
import pytest

from softsolve.solvers.chain import LONG_LOOP, Chain
from support import optima, vertices

DTYPES = [np.float32, np.float64]


def sequences(length, states):
    """Return all sequences as events."""
    return Chain.pack(*vertices.sequences(length, states))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("length", "states"), [(1, 1), (1, 4), (4, 1), (2, 2), (3, 3), (4, 3), (6, 2)]
)
def test_enumeration_with_ties(length, states, dtype):
    events = sequences(length, states)
    rng = np.random.default_rng(length * states)
    # Small whole scores are exact in both types, and tie often.
    theta = rng.integers(-2, 3, (40, events.shape[1])).astype(dtype)
    solver = Chain(states)
    y = solver(theta)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, events[np.argmax(theta @ events.T, axis=1)])
    assert solver.feasible(y).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("states", [3, 8, LONG_LOOP - 1, LONG_LOOP, LONG_LOOP + 9])
def test_against_shortest_paths(states, dtype):
    rng = np.random.default_rng(states)
    length = 6
    unary = rng.normal(size=(2, length, states)).astype(dtype)
    pairwise = rng.normal(size=(2, length - 1, states, states)).astype(dtype)
    theta = Chain.pack(unary, pairwise)
    y = Chain(states)(theta)
    assert Chain(states).feasible(y).all()
    for row in range(2):
        best = optima.chain(unary[row], pairwise[row])
        assert y[row] @ theta[row] == pytest.approx(best, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("states", [2, LONG_LOOP + 1])
def test_all_scores_equal(states, dtype):
    d = sequences(1, states).shape[1] * 3 + 2 * states**2
    unary, _ = Chain(states).unpack(Chain(states)(np.zeros((2, d), dtype)))
    np.testing.assert_array_equal(np.argmax(unary, axis=2), np.zeros((2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_of_each_row(dtype):
    rng = np.random.default_rng(0)
    unary = rng.integers(-3, 4, (50, 5, 3)).astype(dtype)
    pairwise = rng.integers(-3, 4, (50, 4, 3, 3)).astype(dtype)
    theta = Chain.pack(unary, pairwise)
    lengths = rng.integers(1, 6, 50)
    solver = Chain(3, lengths=True)
    y = solver(theta, lengths)
    assert solver.feasible(y, lengths).all()
    assert not solver.feasible(y, 6 - lengths)[lengths != 3].any()
    states, transitions = solver.unpack(y)
    for row, length in enumerate(lengths):
        short = Chain.pack(unary[row, :length], pairwise[row, : length - 1])
        expected = Chain(3).unpack(Chain(3)(short[None])[0])
        np.testing.assert_array_equal(states[row, :length], expected[0])
        np.testing.assert_array_equal(transitions[row, : length - 1], expected[1])
        assert states[row].sum() == length
        assert transitions[row].sum() == length - 1


def test_one_transition_matrix_for_all_positions():
    rng = np.random.default_rng(1)
    unary, pairwise = rng.normal(size=(2, 4, 3)), rng.normal(size=(3, 3))
    theta = Chain.pack(unary, pairwise)
    unary_again, repeated = Chain(3).unpack(theta)
    np.testing.assert_array_equal(unary_again, unary)
    np.testing.assert_array_equal(repeated, np.tile(pairwise, (2, 3, 1, 1)))
    assert Chain.pack(unary[:, :1], pairwise).shape == (2, 3)


@pytest.mark.parametrize(
    ("length", "states"), [(1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (4, 2), (3, 3)]
)
def test_projection_is_on_the_span_of_differences(length, states):
    events = sequences(length, states)
    directions = events - events[0]
    projector = np.linalg.pinv(directions) @ directions
    rank = np.linalg.matrix_rank(directions)
    assert rank == length * (states - 1) + (length - 1) * (states - 1) ** 2
    x = np.random.default_rng(0).normal(size=(2, 5, events.shape[1]))
    np.testing.assert_allclose(Chain(states).project(x), x @ projector, atol=1e-12)


def test_projection_with_lengths_is_on_the_span_for_all_lengths():
    directions = []
    for length in range(1, 5):
        unary, pairwise = Chain(2).unpack(sequences(length, 2))
        padded = Chain.pack(
            np.pad(unary, [(0, 0), (0, 4 - length), (0, 0)]),
            np.pad(pairwise, [(0, 0), (0, 4 - length), (0, 0), (0, 0)]),
        )
        directions.append(padded - padded[0])
    directions = np.concatenate(directions)
    projector = np.linalg.pinv(directions) @ directions
    x = np.random.default_rng(0).normal(size=(5, directions.shape[1]))
    projected = Chain(2, lengths=True).project(x)
    np.testing.assert_allclose(projected, x @ projector, atol=1e-12)


def test_feasible_accepts_sequences_only():
    every = np.array(list(itertools.product((0.0, 1.0), repeat=14)))
    accepted = every[Chain(2).feasible(every)]
    assert len(every[0]) == sequences(3, 2).shape[1]
    assert {y.tobytes() for y in accepted} == {y.tobytes() for y in sequences(3, 2)}
    assert not Chain(2).feasible(0.5 * accepted).any()


def test_errors():
    with pytest.raises(ValueError, match=r"states=\.\.\.\) must be at least 1; got 0"):
        Chain(0)
    solver, ragged = Chain(2), Chain(2, lengths=True)
    theta = np.zeros((2, 8))
    with pytest.raises(ValueError, match=r"S² scores.*got 7.*Chain\.pack"):
        solver(theta[:, :7])
    with pytest.raises(ValueError, match=r"vector of scores.*shape \(4, 2\)"):
        solver(theta.reshape(2, 4, 2))
    with pytest.raises(TypeError, match=r"no context, but got 1"):
        solver(theta, np.ones(2))
    with pytest.raises(TypeError, match=r"its only context, but got 0"):
        ragged(theta)
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        ragged(theta, np.ones(3))
    with pytest.raises(ValueError, match=r"from 1 to 2.*got 3 in row 1"):
        ragged(theta, np.array([1, 3]))
