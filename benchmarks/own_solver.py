"""What a user's own function gains from being compiled into the fused pass."""

import numba
import numpy as np
import torch
from timing import interleaved

import softsolve as ss
from softsolve.compiled.user import compiled
from softsolve.torch import Perturbed

ROWS, SIZE, SAMPLES = 32, 50, 100


def no_neighbours(theta, y):
    """Mark the items of the largest total score, no two next to each other."""
    size = theta.size
    best = np.zeros(size + 2)
    for i in range(size - 1, -1, -1):
        best[i] = max(best[i + 1], theta[i] + best[i + 2])
    i = 0
    while i < size:
        if best[i] > best[i + 1]:
            y[i] = 1
            i += 1
        i += 1


def _one_instance(function):
    def solve(theta: np.ndarray) -> np.ndarray:
        y = np.zeros_like(theta)
        function(theta, y)
        return y

    return ss.solver(solve, batched=False, linear=True)


def solvers() -> dict[str, object]:
    """Return the same function, given in three ways."""
    return {
        "`@ss.compiled`": compiled(solution="binary")(no_neighbours),
        "`ss.solver`, one instance at a time, compiled by Numba": _one_instance(
            numba.njit(no_neighbours)
        ),
        "`ss.solver`, one instance at a time, in Python": _one_instance(no_neighbours),
    }


def table(rounds: int, advance) -> list[str]:
    """Return the table, in Markdown; raise unless all find the same solutions."""
    torch.manual_seed(0)
    theta = torch.randn(ROWS, SIZE, requires_grad=True)
    g = torch.randn(ROWS, SIZE)
    instances = np.random.default_rng(0).normal(size=(200, SIZE)).astype(np.float32)
    calls, found = {}, {}
    for name, solver in solvers().items():
        layer = Perturbed(solver, num_samples=SAMPLES)
        found[name] = np.asarray(solver(instances))

        def call(layer=layer) -> None:
            theta.grad = None
            layer(theta).backward(g)

        calls[name] = call
    first = next(iter(found.values()))
    for name, y in found.items():
        np.testing.assert_array_equal(y, first, err_msg=name)
    times = interleaved(calls, rounds=rounds, budget=4, advance=advance)
    quickest = next(iter(times.values())).median
    lines = [
        f"| dynamic program, d={SIZE}, B={ROWS}, M={SAMPLES} | ms | × |",
        "| --- | --- | --- |",
    ]
    for name, each in times.items():
        lines.append(
            f"| {name} | {1e3 * each.median:.3g} | {each.median / quickest:.0f} |"
        )
    return lines
