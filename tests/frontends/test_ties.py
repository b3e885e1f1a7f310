"""Ties go to the lowest index, in every framework, on every route.

Noise far below the scores' rounding leaves them as they are, so that what is averaged
are solutions of tied scores, on the route at hand and in its number of samples.
"""

import jax
import numpy as np
import pytest
import torch

import softsolve.torch
from softsolve import solver
from softsolve.solvers import FiniteSet, L1Ball, OneHot, Ranking, ScoredSet, TopK
from support.frontends import FRONTENDS

ROWS, FAINT = 24, 1e-30


def first_best(theta):
    return np.eye(len(theta))[np.flatnonzero(theta == theta.max())[0]]


def ranked(reference):
    def place(theta):
        """Give the largest entries to the largest scores, the first of equals first."""
        y = np.zeros(len(theta))
        decided = sorted(range(len(theta)), key=lambda index: (-theta[index], index))
        y[decided] = np.sort(reference)[::-1]
        return y

    return place


def first_point(points):
    return lambda theta: points[
        np.flatnonzero(points @ theta == max(points @ theta))[0]
    ]


def first_largest(theta):
    index = np.flatnonzero(np.abs(theta) == np.abs(theta).max())[0]
    return np.eye(len(theta))[index] * np.sign(theta[index])


def of_size(size):
    """Return solvers of so many scores, with what they must return for a row."""
    points = np.random.default_rng(1).integers(-2, 3, (9, size)).astype(float)
    some = np.arange(size) % 3.0
    half = (np.arange(size) < size // 2).astype(float)
    return {
        "one-hot": (OneHot(), first_best),
        "scored": (ScoredSet(range(size)), first_best),
        "top-k": (TopK(size // 2), ranked(half)),
        "ranking": (Ranking(), ranked(1.0 + np.arange(size))),
        "reference of ties": (Ranking(some), ranked(some)),
        "ball": (L1Ball(), first_largest),
        "points": (FiniteSet(points), first_point(points)),
    }


def tied(size, dtype, values):
    """Return whole numbers, none of them zero, of so many values."""
    rng = np.random.default_rng(size)
    theta = rng.integers(1, values + 1, (ROWS, size)) * rng.choice([-1, 1], (ROWS, 1))
    theta[0] = 1  # all equal
    return theta.astype(dtype)


def on_host(array_solver):
    return solver(array_solver.__call__, linear=True)


@pytest.mark.parametrize("name", of_size(4))
@pytest.mark.parametrize("size", [4, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_lowest_index(frontend, name, size, dtype):
    frontend = FRONTENDS[frontend]
    chosen, rule = of_size(size)[name]
    theta = tied(size, dtype, values=3)
    expected = np.stack([rule(row) for row in theta.astype(np.float64)])
    for samples in (1, 40):
        for made_of, route in (
            (chosen, "auto"),
            (chosen, "array"),
            (on_host(chosen), "auto"),
        ):
            layer = frontend.layer(made_of, num_samples=samples, route=route)
            drawn = frontend.sample(layer, theta, temperature=np.full(ROWS, FAINT))
            assert drawn.shape == (samples, ROWS, size)
            np.testing.assert_array_equal(drawn, np.broadcast_to(expected, drawn.shape))
            y = frontend.value(layer, theta, temperature=np.full(ROWS, FAINT))
            np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["one-hot", "top-k", "ranking", "reference of ties"])
@pytest.mark.parametrize("size", [2, 17, 64, 200])
def test_lowest_index_in_compiled_passes(name, size):
    """For what is solved in several ways, by size and number of samples."""
    frontend = FRONTENDS["numpy"]
    chosen, rule = of_size(size)[name]
    for dtype in (np.float32, np.float64):
        for values in (1, 2, size):
            theta = tied(size, dtype, values)
            expected = np.stack([rule(row) for row in theta])
            for samples in (1, 7, 64):
                layer = frontend.layer(chosen, num_samples=samples, route="fused")
                faint = np.full(ROWS, FAINT, dtype)
                drawn = frontend.sample(layer, theta, temperature=faint)
                assert (drawn == expected).all()


def test_the_highest_index_would_be_noticed():
    theta = tied(4, np.float32, values=3)
    last = np.stack([np.eye(4)[np.flatnonzero(row == row.max())[-1]] for row in theta])
    first = np.stack([first_best(row) for row in theta])
    assert (last != first).any(axis=1).sum() > ROWS // 4


@pytest.mark.parametrize("name", of_size(4))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_lowest_index_where_code_is_compiled(name):
    chosen, rule = of_size(4)[name]
    theta = tied(4, np.float32, values=3)
    expected = np.stack([rule(row) for row in theta])
    for route in ("auto", "array"):
        layer = softsolve.jax.Perturbed(
            chosen, temperature=FAINT, num_samples=5, route=route
        )
        y = jax.jit(lambda at, layer=layer: layer(at, key=jax.random.key(0)))(theta)
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    torch.compiler.reset()
    layer = softsolve.torch.Perturbed(chosen, temperature=FAINT, num_samples=5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    np.testing.assert_allclose(compiled(torch.tensor(theta)), expected, rtol=1e-6)
