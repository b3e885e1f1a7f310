"""Every solver against a reference, counted: writes docs/results/solvers.md.

    python benchmarks/solver_checks.py [--instances N] [--seed N] [--output FILE]

Each instance is solved in float32 or float64, in turn; a solution is right if it is
feasible and worth what the reference says, up to rounding. Where there is none, the
solver must say so. Ends with an error if anything is wrong.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import machine
import numpy as np
from rich.console import Console
from rich.progress import track
from solver_instances import FAMILIES, KINDS, Family, Instance

from softsolve.errors import SolverError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "solvers.md"
# Rounding errors, in units of the sum of the scores' sizes, that a value may have.
ROUNDINGS = 32


@dataclass
class Count:
    """What came out for one family."""

    family: Family
    checked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    error: float = 0.0
    below: list[float] = field(default_factory=list)
    seconds: float = 0.0


def judge(count: Count, instance: Instance, dtype: type) -> None:
    """Solve an instance, compare, and add it to the count."""
    theta = instance.theta.astype(dtype)
    exact = theta.astype(np.float64)
    best = instance.best(exact)
    context = [np.asarray(given)[None] for given in instance.context]
    count.checked[instance.kind if best is not None else "no solution"] += 1
    where = f"{instance.solver!r}, {instance.kind}, scores {theta.tolist()}"
    try:
        y = np.asarray(instance.solver(theta[None], *context))
    except SolverError as error:
        if best is not None:
            count.wrong.append(f"{where}: {error}")
        return
    if best is None:
        count.wrong.append(f"{where}: a solution, where there is none")
        return
    if not np.all(instance.solver.feasible(y, *context)):
        count.wrong.append(f"{where}: not feasible")
        return
    clips = getattr(instance.solver, "clips_scores", False)
    value = np.sum((np.minimum(exact, 0) if clips else exact) * y[0], dtype=np.float64)
    most = max(1.0, float(np.abs(y).max(initial=0)))
    scale = 1 + most * np.abs(exact).sum()
    short = float(best - value)
    if not count.family.exact:
        count.below.append(short / abs(best) if best else 0.0)
        short = min(short, 0.0)
    count.error = max(count.error, abs(short) / scale)
    if abs(short) > ROUNDINGS * np.finfo(dtype).eps * scale:
        count.wrong.append(f"{where}: worth {value:.9g}, and {best:.9g} at best")


def check(family: Family, instances: int, seed: int) -> Count:
    """Check so many instances of a family."""
    count = Count(family)
    began = time.perf_counter()
    made = family.instances(np.random.default_rng(seed))
    for number, instance in enumerate(islice(made, instances)):
        judge(count, instance, (np.float32, np.float64)[number // 4 % 2])
    count.seconds = time.perf_counter() - began
    return count


def table(counts: Iterable[Count]) -> list[str]:
    """Return the table, in Markdown."""
    lines = [
        f"| solver | reference | {' | '.join(KINDS)} | wrong |",
        f"| --- | --- | {' | '.join('---' for _ in KINDS)} | --- |",
    ]
    for count in counts:
        numbers = " | ".join(f"{count.checked[kind]:,}" for kind in KINDS)
        family = count.family
        lines.append(
            f"| {family.name} | {family.reference} | {numbers} | {len(count.wrong)} |"
        )
    return lines


def heuristics(counts: Iterable[Count]) -> list[str]:
    """Say how close heuristics come, in Markdown."""
    lines = []
    for count in counts:
        if not count.family.exact:
            short = np.array(count.below)
            lines += [
                (
                    f"{count.family.name.split(',')[0]} is a heuristic: it finds the "
                    f"best tour of {100 * np.mean(short <= 1e-9):.0f}% of its "
                    f"instances, and tours {100 * short.mean():.1f}% longer than the "
                    f"best on average, {100 * short.max():.1f}% at worst. (Lengths "
                    "are random numbers, without geometry: harder than maps.)"
                ),
                "",
            ]
    return lines


def page(counts: list[Count], command: str, seconds: float) -> list[str]:
    """Return the page, in Markdown."""
    total = sum(count.checked.total() for count in counts)
    wrong = sum(len(count.wrong) for count in counts)
    raised = sum(count.checked["no solution"] for count in counts)
    error = max(count.error for count in counts if count.family.exact)
    return [
        "# Solvers, checked",
        "",
        (
            f"{total:,} instances, half of them in float32, against references that "
            f"share no code with softsolve: {wrong} wrong. “Ties” have small whole "
            "scores, or all the same. “Degenerate” ones are of size 1, or nothing or "
            f"everything is allowed, or nothing connected. The {raised:,} without "
            "solution – ends that no path joins, constraints that exclude one "
            "another, scores that grow without bound – must raise `SolverError`."
        ),
        "",
        *table(counts),
        "",
        (
            "A solution is right if it is feasible and its value is the reference's, "
            f"up to {ROUNDINGS} roundings of the sum of the scores' sizes; the "
            f"largest difference was {error:.1e} of that sum."
        ),
        "",
        *heuristics(counts),
        (
            "The tests check more of each: the rule for ties, blocks of instances "
            "against single ones bit by bit, projections on the polytope's "
            "directions, errors."
        ),
        "",
        f"Made by `{command}` in {seconds:.0f} s on {machine.description()}",
        "",
    ]


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--instances", type=int, default=1000, help="of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args()
    console = Console()
    began = time.perf_counter()
    counts = [
        check(family, options.instances, options.seed)
        for family in track(FAMILIES, "Checking solvers", console=console)
    ]
    command = " ".join(["python", "benchmarks/solver_checks.py", *sys.argv[1:]])
    lines = page(counts, command, time.perf_counter() - began)
    wrong = [text for count in counts for text in count.wrong]
    if wrong:
        console.print("\n".join(wrong[:10]), style="red")
        console.print(f"{len(wrong)} of the instances are wrong; no page is written.")
        return 1
    options.output.write_text("\n".join(lines))
    console.print(f"Wrote {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
