"""The same draws give the same numbers on every route of every frontend.

The compiled passes export the noise that they draw for given keys; the other routes are
handed that noise. All of it is compared with NumPy's array route.
"""

import contextlib
from unittest import mock

import jax
import numpy as np
import pytest
import torch

import softsolve.jax.fused
import softsolve.numpy.layers
import softsolve.torch.fused
from softsolve import solver
from softsolve.fused_products import FusedCall
from softsolve.solvers import Assignment, Knapsack, OneHot, Ranking, TopK
from support.frontends import FRONTENDS

ROWS, SAMPLES, SIZE = 3, 40, 6

SOLVERS = {
    "one-hot": OneHot(),
    "top-k": TopK(2),
    "ranking": Ranking(),
    "knapsack": Knapsack([1, 2, 3, 1, 2, 3], 6),
    "assignment": Assignment(),
}
NOISE = {
    "one-hot": "gumbel",
    "top-k": "normal",
    "ranking": "normal",
    "knapsack": "logistic",
    "assignment": "laplace",
}
BASELINES = {"top-k": "point", "knapsack": "none"}


@contextlib.contextmanager
def given_keys(keys):
    """Let the compiled passes of every frontend draw by these keys, int32 (B, 2)."""
    with contextlib.ExitStack() as patches:
        for module, made in (
            (softsolve.numpy.layers, lambda rows, rng: keys),
            (softsolve.torch.fused, lambda rows, rng: torch.tensor(keys)),
            (softsolve.jax.fused, lambda key, rows: jax.numpy.asarray(keys.view("u4"))),
        ):
            patches.enter_context(mock.patch.object(module, "draw_keys", made))
        yield


class Problem:
    """Scores, directions, keys and the noise that they stand for."""

    def __init__(self, name, dtype, *, scale=1.0, temperature=0.7):
        self.name, self.solver = name, SOLVERS[name]
        event = (2, 3) if name == "assignment" else (SIZE,)
        rng = np.random.default_rng(0)
        shape = (ROWS, *event)
        theta = scale * (0.5 + rng.random(shape))
        self.theta = theta.astype(dtype)
        self.g, self.v = rng.normal(size=(2, *shape)).astype(dtype)
        self.eps = (temperature * rng.uniform(0.5, 1.0, ROWS)).astype(dtype)
        self.target = self.solver(rng.normal(size=shape).astype(dtype))
        self.keys = rng.integers(-(2**31), 2**31, (ROWS, 2), dtype=np.int32)
        self.options = {
            "num_samples": SAMPLES,
            "noise": NOISE[name],
            "baseline": BASELINES.get(name, "leave_one_out"),
        }
        layer = FRONTENDS["numpy"].layer(self.solver, **self.options)
        passes = FusedCall(layer.settings, event).work(np.dtype(dtype))
        self.z = passes.draws(self.keys)

    def on(self, frontend, route, measure):
        """Return what a function of frontend and layer measures on a route."""
        # A user's function of one instance takes the host route.
        alone = solver(
            lambda theta: self.solver(theta[None])[0],
            batched=False,
            linear=True,
            event_ndim=self.solver.event_ndim,
        )
        made_of, asked = {
            "fused": (self.solver, "fused"),
            "array": (self.solver, "array"),
            "host": (alone, "auto"),
        }[route]
        layer = frontend.layer(made_of, route=asked, **self.options)
        with given_keys(self.keys), frontend.given_noise(self.z):
            return measure(frontend, layer)

    def everything(self, frontend, layer):
        """Return all numbers that a layer computes, by name."""
        theta, eps = self.theta, self.eps
        at = {"temperature": eps}
        found = {
            "value": frontend.value(layer, theta, **at),
            "jvp": frontend.jvp(layer, theta, self.v, drift=0.4, **at),
            "jacobian": frontend.jacobian(layer, theta, **at),
            "maximum": frontend.maximum(layer, theta, **at),
            "sample": frontend.sample(layer, theta, **at),
        }
        found["vjp"], found["vjp in ε"] = frontend.vjp(layer, theta, self.g, **at)
        loss = frontend.loss_of(layer, reduction="none")
        parts = frontend.loss(loss, theta, self.target, **at)
        return found | dict(zip(("loss", "loss in θ", "loss in ε"), parts, strict=True))

    def draws(self, frontend, layer):
        """Return the solutions drawn."""
        return frontend.sample(layer, self.theta, temperature=self.eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SOLVERS)
def test_every_route_of_every_frontend(name, dtype):
    problem = Problem(name, dtype)
    expected = problem.on(FRONTENDS["numpy"], "array", problem.everything)
    tolerance = 400 * np.finfo(dtype).eps
    for frontend in FRONTENDS.values():
        for route in ("fused", "array", "host"):
            found = problem.on(frontend, route, problem.everything)
            assert found.keys() == expected.keys()
            for what, wanted in expected.items():
                got, where = found[what], (what, frontend.name, route)
                assert got.shape == wanted.shape, where
                assert got.dtype == wanted.dtype == dtype, where
                assert np.abs(wanted).max() > 0, where
                error = np.abs(got - wanted).max()
                assert error <= tolerance * (1 + np.abs(wanted).max()), where


class Close(Problem):
    """Scores so large that noise is mostly rounded away: most draws tie, or nearly."""

    def __init__(self, name):
        super().__init__(name, "float32", scale=0.0, temperature=1e-3)
        self.theta += 1000.0
        z = np.moveaxis(self.z.astype(np.float64), 1, 0)
        eps = self.eps.reshape(ROWS, 1)
        self.scores = self.theta.reshape(ROWS, SIZE) + eps * z

    def count_ties(self, y, reference):
        """Count the draws where solutions differ, which must be worth the same."""
        y, reference = (part.reshape(SAMPLES, ROWS, SIZE) for part in (y, reference))
        size = np.abs(y) + np.abs(reference)
        rounding = 2 * np.finfo(np.float32).eps * (size * self.scores).sum(axis=2)
        gap = np.abs(((y - reference) * self.scores).sum(axis=2))
        assert (gap <= rounding).all()
        return (y != reference).any(axis=2).sum()


@pytest.mark.parametrize("name", SOLVERS)
def test_solutions_differ_only_where_objectives_tie(name):
    """A compiler may fuse θ + εz, and round it otherwise."""
    problem = Close(name)
    reference = problem.on(FRONTENDS["numpy"], "array", problem.draws)
    for frontend in FRONTENDS.values():
        for route in ("fused", "array", "host"):
            y = problem.on(frontend, route, problem.draws)
            assert problem.count_ties(y, reference) <= 0.05 * SAMPLES * ROWS


def test_what_ties_is_counted_and_what_does_not_is_noticed():
    problem = Close("one-hot")
    drawn = [problem.solver(x.astype(np.float32)) for x in problem.scores]
    reference = np.stack(drawn)
    problem.count_ties(reference, reference)
    flipped = [problem.solver(x[:, ::-1].astype(np.float32)) for x in problem.scores]
    assert problem.count_ties(np.stack(flipped)[..., ::-1], reference) > 0
    best = problem.scores.argmax(axis=2)
    worst = np.eye(SIZE)[problem.scores.argmin(axis=2)]
    assert (best != problem.scores.argmin(axis=2)).any()
    with pytest.raises(AssertionError):
        problem.count_ties(worst, reference)
