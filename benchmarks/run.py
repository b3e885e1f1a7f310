"""Speed, against the peers: all measurements in one run, as one page.

    python benchmarks/run.py [--quick] [--only NAME ...] [--output FILE]

Medians of interleaved repeats on two threads, in float32. What is timed is checked in
the same run. A full run writes ``docs/results/speed.md``; one of a part, or a quick
one, prints its tables, and writes them where ``--output`` says.
"""

import os

THREADS = 2
# Before anything that starts threads is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SOFTSOLVE_NUM_THREADS"):
    os.environ.setdefault(variable, str(THREADS))

import argparse  # noqa: E402
import shlex  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import fixed_cost  # noqa: E402
import large_grid  # noqa: E402
import machine  # noqa: E402
import memory  # noqa: E402
import own_solver  # noqa: E402
import scaling  # noqa: E402
import torch  # noqa: E402
import warm_start  # noqa: E402
from checks import check  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.markdown import Markdown  # noqa: E402
from rich.progress import (  # noqa: E402
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from timing import Times, interleaved  # noqa: E402
from workloads import WORKLOADS, Ours  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PLOT = "speed-scaling.png"
KINDS = {
    "maximiser": "maximiser, forward + backward",
    "loss_gradient": "Fenchel-Young gradient",
}
Advance = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much to repeat."""

    rounds: int
    budget: float
    calls: int
    quick: bool


FULL = Effort(rounds=15, budget=3.0, calls=6, quick=False)
QUICK = Effort(rounds=3, budget=0.2, calls=4, quick=True)


@dataclass
class Comparison:
    """The times of one workload, for one kind of pass."""

    text: str
    kind: str
    target: float
    times: dict[str, Times]
    wrong: dict[str, str]

    @property
    def best(self) -> str:
        """The quickest of the peers whose results are right."""
        peers = [name for name in self.times if name not in (Ours.name, *self.wrong)]
        return min(peers, key=lambda name: self.times[name].median)

    @property
    def ratio(self) -> float:
        """How many times quicker than the best of the peers."""
        return self.times[self.best].median / self.times[Ours.name].median


def compare(name: str, effort: Effort, advance: Advance) -> list[Comparison]:
    """Check and time one workload."""
    advance(f"{name}: preparing")
    workload = WORKLOADS[name]()
    ours = Ours(workload)
    peers = [make(workload) for make in workload.peers]
    advance(f"{name}: checking")
    wrong = check(workload, ours, peers, effort.calls)
    found = []
    for kind, label in KINDS.items():
        calls = {layer.name: getattr(layer, kind) for layer in (ours, *peers)}
        times = interleaved(
            calls,
            rounds=effort.rounds,
            budget=effort.budget,
            advance=lambda layer, label=label: advance(f"{name}: {label}, {layer}"),
        )
        found.append(Comparison(workload.text, label, workload.target, times, wrong))
    return found


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds, three digits."""
    value = 1e3 * seconds
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def summary(comparisons: list[Comparison]) -> list[str]:
    """Return the table of ratios, in Markdown."""
    lines = [
        (
            "| workload | what | softsolve, ms | best peer, ms | which | ratio | "
            "target | met |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in comparisons:
        best, mine = each.times[each.best], each.times[Ours.name]
        met = "yes" if each.ratio >= each.target else "**no**"
        lines.append(
            f"| {each.text} | {each.kind} | {milliseconds(mine.median)} | "
            f"{milliseconds(best.median)} | {each.best} | **{each.ratio:.1f}** | "
            f"{each.target:.0f} | {met} |"
        )
    return lines


def details(comparisons: list[Comparison]) -> list[str]:
    """Return the table of all times, in Markdown."""
    lines = [
        (
            "| workload | what | library | median, ms | quartiles, ms | timings | "
            "first call, s |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in comparisons:
        for name, times in each.times.items():
            low, high = times.spread
            shown = f"{name} (wrong, see below)" if name in each.wrong else name
            lines.append(
                f"| {each.text} | {each.kind} | {shown} | "
                f"{milliseconds(times.median)} | {milliseconds(low)} to "
                f"{milliseconds(high)} | {len(times.seconds)} | {times.first:.2f} |"
            )
    notes = {
        f"{each.text}: {reason}"
        for each in comparisons
        for reason in each.wrong.values()
    }
    return [*lines, *(f"\n{note}" for note in sorted(notes))]


SECTIONS: dict[str, tuple[str, str]] = {
    "large-grid": ("A large grid", "Costs are equal to SciPy's."),
    "overhead": (
        "Small calls",
        (
            "What a layer adds to its solver in calls one after the other: a fixed "
            "cost, autograd's own included."
        ),
    ),
    "memory": (
        "Memory",
        (
            "Peak growth of a fresh process in a forward and backward pass. The noise "
            "alone of 1,000 samples would take 1,221 MB."
        ),
    ),
    "scaling": ("Growth", f"![Times over samples, rows and size]({PLOT})"),
    "own-solver": (
        "A solver of one's own",
        "The same function of one instance, forward and backward.",
    ),
    "warm-starts": (
        "Warm starts",
        (
            "Perturbed instances solved from scratch, and from the unperturbed "
            "solution; one thread. “Value” compares the lengths of tours found by "
            "local search: below zero, those from the start are shorter."
        ),
    ),
    "first-call": (
        "First calls",
        "Compiled code is kept on disk. Imports and first calls of new processes.",
    ),
}


def section(name: str, effort: Effort, output: Path, advance: Advance) -> list[str]:
    """Measure one of the other sections; return its table, in Markdown."""
    if name == "large-grid":
        return large_grid.table(effort.rounds, advance)
    if name == "overhead":
        return fixed_cost.overheads(effort.rounds, advance)
    if name == "memory":
        return memory.table(advance)
    if name == "scaling":
        found = scaling.measure(1 if effort.quick else 5, advance)
        scaling.draw(found, output / PLOT)
        return scaling.table(found)
    if name == "own-solver":
        return own_solver.table(effort.rounds, advance)
    if name == "warm-starts":
        samples, repeats = (2, 1) if effort.quick else (5, 5)
        return warm_start.table(samples, repeats, advance)
    return fixed_cost.first_calls(advance)


def page(
    comparisons: list[Comparison], sections: dict[str, list[str]], ending: str
) -> list[str]:
    """Return the page, in Markdown."""
    lines = ["# Speed", ""]
    if comparisons:
        lines += [
            (
                "Medians of interleaved repeats in one process, two threads, float32, "
                "`softsolve.torch` against other libraries with the fastest solvers "
                "there are for them. JAX is compiled, and waited for; first calls are "
                "kept apart. The ratio is to the best of the peers."
            ),
            "",
            *summary(comparisons),
            "",
            (
                "Checked in the same run: solutions of every library, on scores "
                "perturbed by softsolve's own pass, are worth what SciPy's or NumPy's "
                "are; estimates and gradients agree within their standard errors."
            ),
            "",
            "## All times",
            "",
            *details(comparisons),
            "",
        ]
    for name, table in sections.items():
        title, text = SECTIONS[name]
        lines += [f"## {title}", "", text, "", *table, ""]
    return [*lines, ending, ""]


def run(names: list[str], effort: Effort, output: Path, console: Console) -> list[str]:
    """Measure and return the page."""
    began, load = time.perf_counter(), machine.load()
    comparisons: list[Comparison] = []
    sections: dict[str, list[str]] = {}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task: Any = progress.add_task("", total=len(names))

        def advance(what: str) -> None:
            progress.update(task, description=what)

        for name in names:
            if name in WORKLOADS:
                found = compare(name, effort, advance)
                comparisons += found
                shown = summary(found)
            else:
                shown = section(name, effort, output, lambda what: advance(str(what)))
                sections[name] = shown
            console.print(Markdown("\n".join(shown)))
            progress.advance(task)
    seconds = time.perf_counter() - began
    command = shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]])
    ending = (
        f"Made by `{command}` in {seconds:.0f} s on {machine.description()} "
        f"Load average when it began: {load:.1f}; when it ended: {machine.load():.1f}."
    )
    return page(comparisons, sections, ending)


def main() -> None:
    """Run what is asked for."""
    every = [*WORKLOADS, *SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=every,
        metavar="NAME",
        help=f"of {', '.join(every)}",
    )
    parser.add_argument("--output", type=Path, help="the page to write")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    names = [name for name in every if name in (options.only or every)]
    output = options.output
    if output is None and not (options.quick or options.only):
        output = RESULTS / "speed.md"
    effort = QUICK if options.quick else FULL
    console = Console()
    lines = run(names, effort, output.parent if output else Path.cwd(), console)
    if output:
        output.write_text("\n".join(lines))
        console.print(f"Wrote {output}")


if __name__ == "__main__":
    main()
