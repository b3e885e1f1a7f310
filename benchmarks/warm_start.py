"""What a start from the unperturbed solution saves, at low and high temperature.

For each problem, scores are drawn from the standard normal distribution (or as costs)
and perturbed by Gaussian noise of the given temperature, in spreads of the scores. The
perturbed instances are solved from scratch and from the start; both are timed on one
thread, in turns, and must agree in value, except for a local search.

To add a problem, add a function to ``PROBLEMS`` that returns its ``Case``.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array, kron, vstack

from softsolve import parallel
from softsolve.compiled.rows import solve_rows
from softsolve.solvers.assignment import Assignment
from softsolve.solvers.base import KernelSolver
from softsolve.solvers.program import LinearProgram, MixedIntegerProgram
from softsolve.solvers.salesman import Salesman

Array = np.ndarray[Any, Any]


@dataclass
class Case:
    """A batch of scores, (rows, *event), and how to solve from scratch or a start.

    ``prime(theta)`` returns one start per row; ``solve(theta, starts)`` returns the
    solutions, from scratch where ``starts`` is None. A solver that need not find the
    maximum is ``exact=False``: then values are compared, not required to be equal.
    """

    theta: Array
    prime: Callable[[Array], Any]
    solve: Callable[[Array, Any], Array]
    exact: bool = True


def kernel_case(solver: KernelSolver, theta: Array, *, exact: bool = True) -> Case:
    """Return the case of a solver whose kernel keeps a state."""
    event_shape = theta.shape[1:]
    ints, reals = solver.structure(event_shape)
    size = solver.state_size(event_shape)

    def solve(scores: Array, states: Array | None) -> Array:
        rows = len(scores)
        if states is None:
            states = np.zeros((rows, 0 if exact else size))
        context = np.zeros((rows, 0))
        flat = scores.reshape(rows, -1)
        y, _ = solve_rows(solver.kernel, flat, ints, reals, context, states)
        return y.reshape(scores.shape)

    def prime(scores: Array) -> Array:
        states = np.zeros((len(scores), size))
        solve(scores, states)
        return states

    return Case(theta, prime, solve, exact)


def program_case(solver: LinearProgram | MixedIntegerProgram, theta: Array) -> Case:
    """Return the case of a program in matrix form."""
    return Case(
        theta,
        prime=lambda scores: solver.prime(scores)[1],
        solve=lambda scores, starts: solver(scores, starts=starts),
    )


def assignment(size: int) -> Case:
    """Return a square assignment."""
    rng = np.random.default_rng(0)
    return kernel_case(Assignment(), rng.normal(size=(8, size, size)))


def transport_program() -> Case:
    """Return a transport problem as a sparse linear program with equations."""
    rng = np.random.default_rng(1)
    size = 20
    rows = kron(eye_array(size), csr_array(np.ones((1, size))))
    columns = kron(csr_array(np.ones((1, size))), eye_array(size))
    a, b = rng.random((2, size))
    marginals = np.concatenate([a, b * a.sum() / b.sum()])
    solver = LinearProgram(
        vstack([rows, columns]), row_lower=marginals, row_upper=marginals
    )
    return program_case(solver, rng.normal(size=(4, size**2)))


def path_program() -> Case:
    """Return the shortest path through a 4-connected grid as a linear program."""
    rng = np.random.default_rng(2)
    size = 12
    vertices = np.arange(size**2).reshape(size, size)
    right = np.column_stack([vertices[:, :-1].ravel(), vertices[:, 1:].ravel()])
    down = np.column_stack([vertices[:-1].ravel(), vertices[1:].ravel()])
    edges = np.vstack([right, down, right[:, ::-1], down[:, ::-1]])
    matrix = np.zeros((size**2, len(edges)))
    matrix[edges[:, 0], np.arange(len(edges))] = 1
    matrix[edges[:, 1], np.arange(len(edges))] = -1
    supply = np.zeros(size**2)
    supply[[0, -1]] = 1, -1
    solver = LinearProgram(
        csr_array(matrix), row_lower=supply, row_upper=supply, upper=1.0
    )
    return program_case(solver, -rng.uniform(0.2, 1.2, (4, len(edges))))


def dense_program() -> Case:
    """Return a linear program whose every constraint holds every variable."""
    rng = np.random.default_rng(3)
    matrix = rng.random((80, 200))
    solver = LinearProgram(matrix, row_upper=0.3 * matrix.sum(axis=1), upper=1.0)
    return program_case(solver, rng.normal(size=(4, 200)))


def knapsack_program() -> Case:
    """Return a knapsack of several dimensions in whole numbers."""
    rng = np.random.default_rng(4)
    matrix = rng.integers(1, 60, (3, 25)).astype(np.float64)
    solver = MixedIntegerProgram(matrix, row_upper=0.4 * matrix.sum(axis=1), upper=1.0)
    return program_case(solver, 1 + 0.3 * rng.normal(size=(2, 25)))


def tour(cities: int) -> Case:
    """Return tours through random points of the unit square, by local search."""
    points = np.random.default_rng(6).uniform(size=(4, cities, 2))
    between = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
    return kernel_case(Salesman(), -between, exact=False)


PROBLEMS: dict[str, Callable[[], Case]] = {
    "assignment, n = 20": lambda: assignment(20),
    "assignment, n = 100": lambda: assignment(100),
    "LP: transport, 20 x 20": transport_program,
    "LP: path, 12 x 12 grid": path_program,
    "LP: dense, 80 x 200": dense_program,
    "MIP: knapsack, 3 x 25": knapsack_program,
    "tour, 50 cities": lambda: tour(50),
    "tour, 100 cities": lambda: tour(100),
}

TEMPERATURES = (0.01, 0.1, 1.0)


def measure(case: Case, temperature: float, samples: int, repeats: int) -> list[float]:
    """Return microseconds a solve from scratch and from the start, and the gain."""
    rng = np.random.default_rng(5)
    rows = len(case.theta)
    theta = np.repeat(case.theta, samples, axis=0)
    perturbed = theta + temperature * case.theta.std() * rng.normal(size=theta.shape)
    primed = case.prime(case.theta)
    index = np.repeat(np.arange(rows), samples)
    starts = (
        primed[index] if isinstance(primed, np.ndarray) else [primed[i] for i in index]
    )
    times: dict[str, list[float]] = {"scratch": [], "start": []}
    values = {}
    for _ in range(repeats):
        for name, given in (("scratch", None), ("start", starts)):
            began = time.perf_counter()
            y = case.solve(perturbed, given)
            times[name].append((time.perf_counter() - began) / len(theta) * 1e6)
            values[name] = np.sum(perturbed * y, axis=tuple(range(1, y.ndim)))
    gain = float(np.mean(values["start"] / values["scratch"]) - 1)
    if case.exact:
        np.testing.assert_allclose(values["start"], values["scratch"], atol=1e-6)
    return [*(statistics.median(each) for each in times.values()), gain]


def table(samples: int, repeats: int, advance) -> list[str]:
    """Return the table, in Markdown."""
    lines = [
        (
            "| problem | temperature / spread of θ | from scratch, µs a solve | "
            "from the start, µs | ratio | value |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    threads = parallel.get_num_threads()
    parallel.set_num_threads(1)
    try:
        for name, build in PROBLEMS.items():
            advance(name)
            case = build()
            case.solve(case.theta, None)
            for temperature in TEMPERATURES:
                scratch, start, gain = measure(case, temperature, samples, repeats)
                value = "equal" if case.exact else f"{100 * gain:+.2g}%"
                lines.append(
                    f"| {name} | {temperature} | {scratch:.0f} | {start:.0f} | "
                    f"**{scratch / start:.2f}** | {value} |"
                )
    finally:
        parallel.set_num_threads(threads)
    return lines
