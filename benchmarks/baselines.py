r"""Which baseline for how many samples? Mean squared errors of the vjp, measured.

    python benchmarks/baselines.py [--markdown docs/results/baselines.md]

For random scores and cotangents, the error of the vector-Jacobian product under each
baseline, relative to that without baseline at the same number of *solves*: the baseline
"point" spends one solve on y*(theta), so it has one draw less. Medians over instances.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from softsolve.numpy import Perturbed
from softsolve.solvers import OneHot, Ranking, TopK

PROBLEMS = {
    "argmax, d=10": OneHot(),
    "ranking, d=10": Ranking(),
    "top-3 of 10": TopK(3),
}
TEMPERATURES = (0.1, 0.5, 2.0)
SOLVES = (1, 2, 3, 4, 8, 16, 64)
INSTANCES, REPLICATES = 20, 4000


def errors(solver, temperature, solves, baseline, theta, g, truth, rng):
    """Return the mean squared error of the vjp for each instance."""
    num_samples = solves - 1 if baseline == "point" else solves
    if num_samples < 1 or (baseline == "leave_one_out" and num_samples < 2):
        return None
    layer = Perturbed(
        solver, temperature=temperature, num_samples=num_samples, baseline=baseline
    )
    count = max(100, REPLICATES // solves)
    rows = np.repeat(theta[:, None], count, axis=1)
    estimates = layer.vjp(rows, np.repeat(g[:, None], count, axis=1), rng=rng).theta
    return ((estimates - truth[:, None]) ** 2).sum(axis=-1).mean(axis=1)


def table(rng):
    """Return lines of a Markdown table."""
    lines = [
        "| problem | ε | solves | none | point | leave-one-out |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, solver in PROBLEMS.items():
        for temperature in TEMPERATURES:
            theta = rng.standard_normal((INSTANCES, 10))
            g = rng.standard_normal((INSTANCES, 10))
            exact = Perturbed(solver, temperature=temperature, num_samples=20_000)
            truth = exact.vjp(theta, g, rng=rng).theta
            for solves in SOLVES:
                plain, *others = (
                    errors(solver, temperature, solves, kind, theta, g, truth, rng)
                    for kind in ("none", "point", "leave_one_out")
                )
                ratios = [
                    "–" if other is None else f"{np.median(other / plain):.3g}"
                    for other in others
                ]
                lines.append(
                    f"| {name} | {temperature} | {solves} | 1 | {' | '.join(ratios)} |"
                )
    return lines


def main():
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    lines = table(np.random.default_rng(options.seed))
    print("\n".join(lines))
    if options.markdown:
        seconds = time.perf_counter() - start
        text = [
            "# Baselines of the Jacobian, by number of solves",
            "",
            (
                "Mean squared error of the vector-Jacobian product relative to no "
                "baseline at the same number of solves (the baseline “point” spends "
                "one of them on y*(θ)). Gaussian noise, standard normal scores and "
                f"cotangents, medians over {INSTANCES} instances."
            ),
            "",
            *lines,
            "",
            (
                'Hence `baseline="auto"`: leave-one-out from two samples on, and none '
                "for one sample, where the only alternative doubles the number of "
                "solves."
            ),
            "",
            (
                f"Made by `python benchmarks/baselines.py --seed {options.seed} "
                f"--markdown docs/results/baselines.md` in {seconds:.0f} s."
            ),
            "",
        ]
        options.markdown.write_text("\n".join(text))


if __name__ == "__main__":
    main()
