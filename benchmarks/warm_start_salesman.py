"""What starting from the unperturbed tour saves the local search, and what it costs.

Solves the same perturbed distances from nearest neighbours and from the tour of the
unperturbed ones, and prints medians of the time a solve takes, with the mean length of
the tours in units of the cold ones (below 1: the warm start also finds better tours).
"""

import statistics
import time

import numpy as np

from softsolve.compiled.rows import solve_rows
from softsolve.solvers.salesman import Salesman

SAMPLES = 100
REPEATS = 7


def distances(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return the distances between n random points of the unit square."""
    points = rng.uniform(size=(n, 2))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def compare(n: int, temperature: float, seed: int = 0) -> tuple[float, float, float]:
    """Return microseconds a solve, cold and warm, and the ratio of the lengths."""
    rng = np.random.default_rng(seed)
    solver = Salesman()
    ints, reals = solver.structure((n, n))
    theta = -distances(rng, n).astype(np.float32).reshape(1, -1)
    spacing = n**-0.5
    noise = rng.normal(size=(SAMPLES, n * n)).astype(np.float32)
    perturbed = theta + np.float32(temperature * spacing) * noise

    primed = np.zeros((1, solver.state_size((n, n))))
    solve_rows(solver.kernel, theta, ints, reals, np.zeros((1, 0)), primed)
    context = np.zeros((SAMPLES, 0))
    states = {
        "cold": lambda: np.zeros((SAMPLES, primed.size)),
        "warm": lambda: np.repeat(primed, SAMPLES, axis=0),
    }
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    value: dict[str, float] = {}
    for _ in range(REPEATS):
        for start, make_states in states.items():
            arguments = (perturbed, ints, reals, context, make_states())
            begin = time.perf_counter()
            y, _ = solve_rows(solver.kernel, *arguments)
            times[start].append(time.perf_counter() - begin)
            assert solver.feasible(y.reshape(SAMPLES, n, n)).all()
            value[start] = -float(np.mean(np.sum(perturbed * y, axis=1)))
    cold, warm = (statistics.median(times[s]) * 1e6 / SAMPLES for s in states)
    return cold, warm, value["warm"] / value["cold"]


def main() -> None:
    """Print the table."""
    print("| cities | temperature / spacing | cold µs | warm µs | faster | length |")
    print("| --- | --- | --- | --- | --- | --- |")
    for n in (20, 50, 100, 200):
        for temperature in (0.01, 0.1, 0.5):
            cold, warm, length = compare(n, temperature)
            print(
                f"| {n} | {temperature} | {cold:.0f} | {warm:.0f} | "
                f"{cold / warm:.1f}× | {length:.3f} |"
            )


if __name__ == "__main__":
    main()
