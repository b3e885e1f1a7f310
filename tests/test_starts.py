"""Solves on the host that start from the unperturbed solution."""

import numpy as np
import pytest

import softsolve as ss
from softsolve import solvers
from support.frontends import FRONTENDS

ALL = pytest.mark.parametrize("frontend", FRONTENDS.values(), ids=FRONTENDS.keys())


def transport(size=4):
    matrix = np.zeros((2 * size, size * size))
    for index in range(size):
        matrix[index, index * size : (index + 1) * size] = 1
        matrix[size + index, index::size] = 1
    return solvers.LinearProgram(matrix, row_lower=1, row_upper=1)


PROGRAMS = {
    "linear": transport,
    "mixed": lambda: solvers.MixedIntegerProgram(
        np.arange(1, 17)[None], row_upper=[60], upper=1
    ),
}


class Watched:
    """A program that counts its solves."""

    def __init__(self, program):
        self.program = program
        self.primed = []
        self.started = []
        for name in ("host", "linear", "event_ndim"):
            setattr(self, name, getattr(program, name))

    def __call__(self, theta, *context, starts=None):
        self.started.append((len(theta), None if starts is None else len(starts)))
        return self.program(theta, starts=starts)

    def prime(self, theta, *context):
        self.primed.append(theta.copy())
        return self.program.prime(theta)


@ALL
@pytest.mark.parametrize("kind", PROGRAMS)
def test_solves_start_from_the_unperturbed_solution(frontend, kind):
    program = PROGRAMS[kind]()
    theta = np.random.default_rng(5).normal(size=(3, 16))
    watched = Watched(program)
    plain = ss.solver(program, linear=True)  # a function that has no starts
    values = {}
    for name, solver in {"warm": watched, "cold": plain}.items():
        layer = frontend.layer(solver, num_samples=6, temperature=0.1)
        values[name] = (
            frontend.value(layer, theta),
            frontend.vjp(layer, theta, np.ones_like(theta), temperature=0.1)[0],
            frontend.maximum(layer, theta),
        )
    for warm, cold in zip(values["warm"], values["cold"], strict=True):
        np.testing.assert_allclose(warm, cold, rtol=1e-6, atol=1e-6)
    assert len(watched.primed) == 3
    for primed in watched.primed:
        np.testing.assert_allclose(primed, theta)
    assert watched.started == [(18, 18)] * 3


@ALL
def test_few_draws_are_not_worth_a_start(frontend):
    watched = Watched(transport())
    layer = frontend.layer(watched, num_samples=3, temperature=0.1)
    frontend.value(layer, np.zeros((2, 16)))
    assert watched.primed == []
    assert watched.started == [(6, None)]


@ALL
def test_each_chunk_starts_from_the_same_solution(frontend):
    watched = Watched(transport())
    options = {"num_samples": 12, "temperature": 0.1}
    theta = np.random.default_rng(6).normal(size=(2, 16))
    # Room for the six draws of a chunk.
    budget = 6 * 4 * theta.size * 8
    layer = frontend.layer(watched, memory_budget=budget, **options)
    frontend.value(layer, theta)
    assert watched.started == [(12, 12)] * 2
    assert all(np.allclose(primed, theta) for primed in watched.primed)
