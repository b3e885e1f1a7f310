"""Alignments, against enumeration and shortest paths, and lanes against instances."""

import numpy as np
import pytest

from softsolve.compiled.fused import FusedPass
from softsolve.compiled.kernel import OK
from softsolve.compiled.lanes import LANES
from softsolve.solvers.alignment import Alignment
from softsolve.solvers.sequence_alignment import SequenceAlignment
from support import optima
from support.vertices import sequence_alignments, warping_paths

DTYPES = [np.float32, np.float64]


FAMILIES = [(Alignment, warping_paths, 0), (SequenceAlignment, sequence_alignments, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("solver", "enumerate_all", "border"), FAMILIES)
def test_enumeration_with_ties(solver, enumerate_all, border, dtype):
    rng = np.random.default_rng(0)
    for n in range(1, 5):
        for m in range(1, 5):
            vertices = enumerate_all(n, m)
            # Small whole scores are exact in both types, and tie often.
            shape = (8, n + border, m + border)
            theta = rng.integers(-2, 3, shape).astype(dtype)
            y = solver()(theta)
            assert y.dtype == dtype
            values = np.einsum("bij,vij->bv", theta, vertices)
            np.testing.assert_array_equal(y, vertices[np.argmax(values, axis=1)])
            assert solver().feasible(y).all()


def test_numbers_of_solutions():
    # Delannoy numbers and binomial coefficients: the enumeration misses none.
    assert len(warping_paths(4, 4)) == 63
    assert len({y.tobytes() for y in sequence_alignments(3, 4)}) == 35


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("solver", "enumerate_all", "border"), FAMILIES)
def test_lengths_of_each_row(solver, enumerate_all, border, dtype):
    rng = np.random.default_rng(1)
    theta = rng.integers(-3, 4, (60, 5 + border, 4 + border)).astype(dtype)
    lengths = np.stack([rng.integers(1, 6, 60), rng.integers(1, 5, 60)], axis=1)
    y = solver(lengths=True)(theta, lengths)
    assert solver(lengths=True).feasible(y, lengths).all()
    full = solver(lengths=True)(theta, np.full((60, 2), (5, 4)))
    np.testing.assert_array_equal(full, solver()(theta))
    for scores, solution, (n, m) in zip(theta, y, lengths, strict=True):
        rows = [*range(n), 5][: n + border]
        columns = [*range(m), 4][: m + border]
        cut = np.ix_(rows, columns)
        np.testing.assert_array_equal(solution[cut], solver()(scores[cut][None])[0])
        assert solution.sum() == solution[cut].sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(1, 9), (9, 1), (7, 13), (20, 20)])
def test_warping_against_shortest_paths(n, m, dtype):
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(5, n, m)).astype(dtype)
    y = Alignment()(theta)
    assert Alignment().feasible(y).all()
    for scores, solution in zip(theta, y, strict=True):
        best = optima.warping(scores)
        assert np.sum(scores * solution) == pytest.approx(best, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(1, 9), (9, 1), (7, 13), (20, 20)])
def test_sequences_against_shortest_paths(n, m, dtype):
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(5, n + 1, m + 1)).astype(dtype)
    y = SequenceAlignment()(theta)
    assert SequenceAlignment().feasible(y).all()
    for scores, solution in zip(theta, y, strict=True):
        best = optima.sequence_alignment(scores)
        assert np.sum(scores * solution) == pytest.approx(best, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (5, 8), (30, 20)])
def test_lanes_agree_with_instances(shape, ties, dtype):
    rng = np.random.default_rng(4)
    solver = Alignment(lengths=True)
    lanes = solver.block.lanes
    assert lanes == LANES
    size = (lanes, *shape)
    theta = (rng.integers(-1, 2, size) if ties else rng.normal(size=size)).astype(dtype)
    ints, reals = solver.structure(shape)
    lengths = rng.integers(1, np.array(shape) + 1, (lanes, 2))
    for context, expected in [
        (np.zeros((lanes, 0)), Alignment()(theta)),
        (lengths.astype(np.float64), solver(theta, lengths)),
    ]:
        y = np.full((theta[0].size, lanes), 7, np.uint8)
        status = np.full(lanes, 7)
        scores = np.ascontiguousarray(theta.reshape(lanes, -1).T)
        solver.block.compiled(np.dtype(dtype))(scores, ints, reals, context, y, status)
        np.testing.assert_array_equal(y.T.reshape(theta.shape), expected)
        np.testing.assert_array_equal(status, OK)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", [Alignment, SequenceAlignment])
def test_fused_pass_solves_its_own_draws(solver, dtype):
    # More samples than lanes, and a block that is not full.
    rng = np.random.default_rng(7)
    rows, samples, shape = 3, LANES + 5, (4, 5)
    solver = solver(lengths=True)
    lengths = np.stack([rng.integers(1, 4, rows), rng.integers(1, 5, rows)], axis=1)
    theta = rng.normal(size=(rows, 20)).astype(dtype)
    keys = rng.integers(0, 2**31, (rows, 2)).astype(np.int32)
    fused = FusedPass(solver, shape, "normal", samples, dtype=dtype)
    context = solver.pack_context(rows, shape, lengths)
    forward = fused.forward(theta, np.full(rows, 0.5, dtype), keys, context)
    perturbed = theta[:, None] + dtype(0.5) * fused.draws(keys)
    y = solver(perturbed.reshape(-1, *shape), np.repeat(lengths, samples, axis=0))
    y = y.reshape(rows, samples, -1)
    np.testing.assert_array_equal(fused.solutions(forward.samples), y)
    np.testing.assert_allclose(forward.mean, y.mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("solver", [Alignment(), SequenceAlignment()])
def test_sums_that_overflow_still_give_a_solution(solver, sign):
    theta = np.full((2, 5, 4), sign * 3e38, np.float32)
    theta[1, ::2] *= -1
    assert solver.feasible(solver(theta)).all()


@pytest.mark.parametrize(
    ("solver", "vertices"),
    [
        (Alignment(), warping_paths(3, 4)),
        (Alignment(), warping_paths(2, 2)),
        (Alignment(), warping_paths(1, 4)),
        (Alignment(), warping_paths(3, 1)),
        (Alignment(), warping_paths(1, 1)),
        (SequenceAlignment(), sequence_alignments(3, 4)),
        (SequenceAlignment(), sequence_alignments(1, 3)),
        (SequenceAlignment(), sequence_alignments(1, 1)),
    ],
)
def test_projection_is_on_the_span_of_differences(solver, vertices):
    flat = vertices.reshape(len(vertices), -1)
    directions = flat - flat[0]
    projector = np.linalg.pinv(directions) @ directions
    x = np.random.default_rng(0).normal(size=(2, 3, *vertices.shape[1:]))
    expected = (x.reshape(6, -1) @ projector).reshape(x.shape)
    np.testing.assert_allclose(solver.project(x), expected, atol=1e-12)


@pytest.mark.parametrize(("solver", "enumerate_all", "border"), FAMILIES)
def test_projection_keeps_differences_of_shorter_rows(solver, enumerate_all, border):
    rng = np.random.default_rng(5)
    theta = rng.normal(size=(2, 40, 5 + border, 4 + border))
    lengths = np.stack([rng.integers(1, 6, 40), rng.integers(1, 5, 40)], axis=1)
    ragged = solver(lengths=True)
    difference = ragged(theta[0], lengths) - ragged(theta[1], lengths)
    np.testing.assert_allclose(ragged.project(difference), difference, atol=1e-12)


@pytest.mark.parametrize(("solver", "enumerate_all", "border"), FAMILIES)
def test_feasible_accepts_solutions_only(solver, enumerate_all, border):
    shape = (3, 2 + border)
    every = np.stack(np.meshgrid(*[(0.0, 1.0)] * np.prod(shape)), -1)
    every = every.reshape(-1, *shape)
    solutions = {y.tobytes() for y in enumerate_all(3 - border, 2)}
    accepted = every[solver().feasible(every)]
    assert {y.tobytes() for y in accepted} == solutions
    assert not solver().feasible(0.5 * accepted).any()


def test_pack_and_unpack():
    rng = np.random.default_rng(6)
    match = rng.normal(size=(2, 3, 4)).astype(np.float32)
    row_gap, column_gap = np.arange(3.0, dtype=np.float32), np.float32(-2)
    theta = SequenceAlignment.pack(match, row_gap, column_gap)
    assert theta.shape == (2, 4, 5)
    assert theta.dtype == np.float32
    matches, rows, columns = SequenceAlignment.unpack(theta)
    np.testing.assert_array_equal(matches, match)
    np.testing.assert_array_equal(rows, np.tile(row_gap, (2, 1)))
    np.testing.assert_array_equal(columns, np.full((2, 4), -2))


def test_errors():
    theta = np.zeros((2, 3, 4))
    with pytest.raises(ValueError, match=r"matrix of scores .* shape \(3, 4, 1\)"):
        Alignment()(theta[..., None])
    with pytest.raises(ValueError, match=r"shape \(n \+ 1, m \+ 1\).* got \(1, 4\)"):
        SequenceAlignment()(theta[:, :1])
    for solver in (Alignment, SequenceAlignment):
        with pytest.raises(TypeError, match=r"no context, but got 1.*lengths=True"):
            solver()(theta, np.ones((2, 2)))
        with pytest.raises(TypeError, match=r"lengths as its only context, but got 0"):
            solver(lengths=True)(theta)
        with pytest.raises(ValueError, match=r"shape \(2, 2\); got \(2,\)"):
            solver(lengths=True)(theta, np.ones(2))
        for wrong in ([2, 0], [4, 1], [1, 5], [1.5, 1], [np.nan, 1]):
            with pytest.raises(ValueError, match=r"whole numbers from 1 to.*in row 1"):
                solver(lengths=True)(theta, np.array([[1, 1], wrong]))
