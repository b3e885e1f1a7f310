"""The fused route, checked: draws, solutions, threads; writes docs/results/fused.md.

    python benchmarks/fused_checks.py [--rows N] [--seed N] [--output FILE]

The battery on the generator is that of the tests, on more draws. Ends with an error if
something is wrong.
"""

import argparse
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy import stats

import softsolve.numpy as ssn
from softsolve import parallel, solvers
from softsolve.compiled.fused import FusedPass, leave_one_out
from softsolve.compiled.random import export_draws

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import battery

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "fused.md"
Array = np.ndarray[Any, Any]
# A correct generator fails one of the battery's tests once in 10,000 runs of it.
ALLOWED = 1e-4
# Roundings of the sum of the scores' sizes that two solutions may differ by in value.
ROUNDINGS = 32

DAG = [[0, 1], [0, 3], [1, 2], [1, 4], [2, 5], [3, 4], [4, 5]]
CYCLES = [*DAG, [2, 1], [4, 3], [4, 1]]
PAIRS = [[0, 0], [0, 1], [1, 1], [1, 3], [2, 0], [2, 2], [3, 2], [3, 3]]
SOLVERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "OneHot": (solvers.OneHot(), (10,)),
    "ScoredSet": (solvers.ScoredSet("abc"), (3,)),
    "TopK, 10 of 1000": (solvers.TopK(10), (1000,)),
    "TopK, 10 of 30": (solvers.TopK(10), (30,)),
    "Ranking, 50": (solvers.Ranking(), (50,)),
    "Ranking, 400": (solvers.Ranking(), (400,)),
    "GridPath": (solvers.GridPath(), (9, 9)),
    "GridPath, 4 neighbours": (solvers.GridPath(neighbours=4), (7, 12)),
    "DagGrid": (solvers.DagGrid(diagonal=True), (9, 9)),
    "GraphPath": (solvers.GraphPath(6, DAG, source=0, target=5), (len(DAG),)),
    "GraphPath, cycles": (
        solvers.GraphPath(6, CYCLES, source=0, target=5),
        (len(CYCLES),),
    ),
    "SpanningTree": (solvers.SpanningTree(6, DAG), (len(DAG),)),
    "SpanningForest": (
        solvers.SpanningForest(6, DAG, num_components=3),
        (len(DAG),),
    ),
    "Flow": (solvers.Flow(6, DAG, 0, 5, [2, 1, 1, 2, 2, 1, 2]), (len(DAG),)),
    "BipartiteMatching": (solvers.BipartiteMatching(4, 4, PAIRS), (len(PAIRS),)),
    "Assignment": (solvers.Assignment(), (9, 9)),
    "Assignment, partial": (solvers.Assignment(partial=True), (5, 8)),
    "OptimalTransport": (
        solvers.OptimalTransport(np.ones(4), np.full(6, 2 / 3)),
        (4, 6),
    ),
    "Knapsack": (solvers.Knapsack(np.arange(1, 16), 40), (15,)),
    "FractionalKnapsack": (solvers.FractionalKnapsack(np.arange(1, 16), 40), (15,)),
    "Chain": (solvers.Chain(4), (5 * 4 + 4 * 16,)),
    "Alignment": (solvers.Alignment(), (7, 8)),
    "SequenceAlignment": (solvers.SequenceAlignment(), (6, 7)),
    "SalesmanExact": (solvers.SalesmanExact(), (7, 7)),
}
SAMPLES = 64
# No power of two: its product with a draw is rounded.
TEMPERATURE = np.float32(0.7)
CALLS, FORKS = 20, 4


class WrongError(AssertionError):
    """What was found to be wrong."""


def generator(rows: int, seed: int) -> Iterator[str]:
    """Yield lines of the battery's table."""
    yield (
        "| noise | type | draws | moments 1 to 4, largest error in standard errors | "
        "Kolmogorov-Smirnov, least p (of) | correlations, largest in standard errors "
        "(of) | below / above the 1e-6 quantiles (expected) |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for noise in battery.LAWS:
        for dtype in (np.float32, np.float64):
            keys = battery.keys_of(rows, seed)
            z = export_draws(noise, keys, 500, 500, dtype)
            moments = np.abs(battery.moment_scores(noise, z))
            close = export_draws(noise, battery.adjacent_keys(64), 64, 97, dtype)
            p = battery.kolmogorov_smirnov(noise, close)
            scores = battery.correlation_scores(noise, close)
            largest = max(abs(score) for score in scores.values())
            low, high = battery.tail_counts(noise, z)[1e-6]
            bounds = stats.binom.interval(1 - ALLOWED, z.size, 1e-6)
            chances = (
                2 * len(moments) * stats.norm.sf(moments.max()),
                len(p) * p.min(),
                2 * len(scores) * stats.norm.sf(largest),
            )
            inside = all(bounds[0] <= count <= bounds[1] for count in (low, high))
            if min(chances) < ALLOWED or not inside:
                msg = f"the draws of {noise} in {np.dtype(dtype)} fail the battery"
                raise WrongError(msg)
            yield (
                f"| {noise} | {np.dtype(dtype)} | {z.size:,} | {moments.max():.2f} | "
                f"{p.min():.3g} ({len(p)}) | {largest:.2f} ({len(scores)}) | {low} / "
                f"{high} ({z.size * 1e-6:.0f}) |"
            )


def results(work: FusedPass, theta: Array, keys: Array) -> list[Array]:
    """Return everything that a forward and a backward pass return."""
    epsilon = np.full(len(theta), TEMPERATURE)
    out = work.forward(theta, epsilon, keys, target=np.zeros_like(theta))
    how = leave_one_out(work.num_samples, antithetic=work.antithetic)
    products = work.vjp(out.samples, keys, epsilon, theta[:, None], out.mean, *how)
    values = (out.mean, out.moment, out.loss, out.lowest, out.gap_moment)
    return [value for value in (*values, *out.samples, *products) if value is not None]


def routes(rows: int, seed: int) -> Iterator[str]:
    """Yield lines of the table of solutions and bits."""
    yield (
        "| solver | solutions | differ from the solver's own on the same scores | "
        "differ where scores are rounded once | of these, worse than by rounding | "
        "largest difference of means | numbers that differ with 2 or 4 threads |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in SOLVERS:
        yield compared(name, rows, seed)


def compared(name: str, rows: int, seed: int) -> str:
    """Return a solver's line: independent draws and antithetic ones."""
    solver, shape = SOLVERS[name]
    clips = getattr(solver, "clips_scores", False)
    rng = np.random.default_rng(seed)
    differing, worse, off, changed, numbers = [0, 0], 0, 0.0, 0, 0
    for antithetic in (False, True):
        work = FusedPass(solver, shape, "normal", SAMPLES, antithetic=antithetic)
        work.inline = 0  # several threads, however little there is to do
        theta = rng.normal(size=(rows, work.size)).astype(np.float32)
        theta = -np.abs(theta) if clips else theta
        keys = battery.keys_of(rows, seed)
        parallel.set_num_threads(1)
        expected = results(work, theta, keys)
        for threads in (2, 4):
            parallel.set_num_threads(threads)
            for one, other in zip(results(work, theta, keys), expected, strict=True):
                changed += int(np.sum(one != other))
                numbers += one.size
        epsilon = np.full(rows, TEMPERATURE)
        out = work.forward(theta, epsilon, keys)
        y = work.solutions(out.samples)
        noise = TEMPERATURE * work.draws(keys)
        exact = theta[:, None].astype(np.float64) + noise
        same = solved(solver, theta[:, None] + noise, shape)
        once = solved(solver, once_rounded(theta, work.draws(keys)), shape)
        differing[0] += int((same != y).any(axis=-1).sum())
        differing[1] += int((once != y).any(axis=-1).sum())
        scores = np.minimum(exact, 0) if clips else exact
        gap = np.abs(np.vecdot(y - once.astype(np.float64), scores))
        sizes = np.abs(theta[:, None]) + np.abs(noise)
        scale = np.abs(y).max() * sizes.sum(axis=-1, dtype=np.float64)
        worse += int((gap > ROUNDINGS * np.finfo(np.float32).eps * scale).sum())
        mean = same.mean(axis=1, dtype=np.float64)
        off = max(off, float(np.abs(out.mean - mean).max()))
        if off > np.finfo(np.float32).eps * np.abs(same).max():
            msg = f"{name}: a mean is off by {off:.1e}"
            raise WrongError(msg)
    if differing[0] or worse or changed:
        msg = (
            f"{name}: {differing[0]} solutions differ on the same scores, {worse} are "
            f"worse than by rounding, {changed} numbers depend on the threads"
        )
        raise WrongError(msg)
    return (
        f"| {name} | {2 * rows * SAMPLES:,} | {differing[0]} | {differing[1]} | "
        f"{worse} | {off:.1e} | {changed} of {numbers:,} |"
    )


def once_rounded(theta: Array, z: Array) -> Array:
    """Return θ + εz (B, M, d) with a single rounding, as a fused operation has it."""
    exact = theta[:, None].astype(np.float64) + TEMPERATURE.astype(np.float64) * z
    return exact.astype(np.float32)


def solved(solver: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Solve scores (B, M, d) by the solver itself: in torch, if it takes tensors."""
    instances = np.ascontiguousarray(x.reshape(-1, *shape))
    given = instances if solver.host else torch.from_numpy(instances)
    return np.asarray(solver(given), dtype=x.dtype).reshape(x.shape)


def together(rows: int, seed: int) -> Iterator[str]:
    """Yield lines of the table of threads and processes at once."""
    yield "| at the same time | calls | wrong |"
    yield "| --- | --- | --- |"
    parallel.set_num_threads(3)
    theta = np.random.default_rng(seed).normal(size=(rows, 50)).astype(np.float32)
    layer = ssn.Perturbed(solvers.Ranking(), num_samples=400)

    def call() -> list[Array]:
        return [layer(theta, rng=seed), layer.vjp(theta, theta, rng=seed).theta]

    expected = call()

    def right() -> bool:
        return all(map(np.array_equal, call(), expected))

    found: dict[str, list[bool]] = {"a Python thread": [], "another": []}

    def work(name: str) -> None:
        found[name].extend(right() for _ in range(CALLS))

    threads = [threading.Thread(target=partial(work, name)) for name in found]
    for thread in threads:
        thread.start()
    forked = [in_a_fork(right) for _ in range(FORKS)]
    for thread in threads:
        thread.join()
    for name, each in {**found, "forked processes, one after another": forked}.items():
        wrong = each.count(False)
        if wrong or len(each) != (FORKS if each is forked else CALLS):
            msg = f"{wrong} of {len(each)} calls of {name} are wrong, or some ended"
            raise WrongError(msg)
        yield f"| {name} | {len(each)} | {wrong} |"


def in_a_fork(right: Any) -> bool:
    """Tell whether a forked process finds what this one does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12 about threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if right() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args()
    console = Console()
    began, threads = time.perf_counter(), parallel.get_num_threads()
    parts = {
        "draws": (generator, 2 * len(battery.LAWS) + 2),
        "solvers": (routes, len(SOLVERS) + 2),
        "threads and processes": (together, 5),
    }
    tables = []
    try:
        for name, (part, total) in parts.items():
            lines = part(options.rows, options.seed)
            named = f"Checking {name}"
            tables.append(list(track(lines, named, total=total, console=console)))
    except WrongError as error:
        console.print(f"{error}; no page is written.", style="red")
        return 1
    finally:
        parallel.set_num_threads(threads)
    command = " ".join(["python", "benchmarks/fused_checks.py", *sys.argv[1:]])
    seconds = time.perf_counter() - began
    options.output.write_text("\n".join(page(tables, command, seconds)))
    console.print(f"Wrote {options.output}")
    return 0


def page(tables: list[list[str]], command: str, seconds: float) -> list[str]:
    """Return the page, in Markdown."""
    return [
        "# The fused route, checked",
        "",
        "## Draws",
        "",
        (
            "A draw is a function of (key of the row, sample, coordinate). Moments and "
            "tails are those of random keys; Kolmogorov-Smirnov tests (of all draws, "
            "of single coordinates, samples and rows) and correlations (along rows, "
            "samples and coordinates at eight lags, of u and of u², with u the uniform "
            "number that a draw stands for) those of keys that differ by 1. A test "
            "that a correct generator fails once in 10,000 times would have stopped "
            "this page."
        ),
        "",
        *tables[0],
        "",
        "## Solutions and threads",
        "",
        (
            f"{SAMPLES} perturbed instances of each row in float32, from independent "
            "draws and from antithetic ones. From the draws that the fused pass "
            "exports, θ + εz is computed anew and solved by the solver itself, in "
            "torch for those that take tensors. With two roundings, of the product and "
            "of the sum, as the fused pass has them, solutions must be the same; with "
            "one, as a compiler may choose, they may differ where values tie up to "
            "rounding. Means, losses, kept solutions and gradients must have the same "
            "bits with 1, 2 and 4 threads. (`Salesman`, a heuristic, starts from the "
            "unperturbed tour on the fused route, so that its tours are others.)"
        ),
        "",
        *tables[1],
        "",
        (
            "The tests compare all numbers of a layer – values, gradients, Jacobians, "
            "losses – across routes and frontends on exported draws: "
            "`tests/frontends/test_same_draws_of_routes.py`."
        ),
        "",
        "## At once",
        "",
        (
            "One layer, value and gradient, in two Python threads and in forked "
            "processes at the same time, each on up to three threads of the pool. "
            "`tests/compiled/test_concurrency.py` has the same in torch."
        ),
        "",
        *tables[2],
        "",
        f"Made by `{command}` in {seconds:.0f} s on {machine.description()}",
        "",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
