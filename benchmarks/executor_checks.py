"""Users' executors, the real ones: writes docs/results/executors.md.

    python benchmarks/executor_checks.py [--only NAME ...] [--output FILE]

Needs what it tries: `pip install joblib "dask[distributed]" ray`, which softsolve
itself does not. The tests have stand-ins for Dask and Ray. Ends with an error if
anything differs from what a loop does.
"""

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import machine
import numpy as np
from rich.console import Console

import softsolve as ss
import softsolve.numpy

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "executors.md"
ROWS, SIZE, TOO_LARGE = 200, 6, 100.0

Array = np.ndarray[Any, Any]


def largest(theta: Array) -> Array:
    """Solve an instance."""
    if theta[0] >= TOO_LARGE:
        msg = f"{theta[0]:.0f} is too large"
        raise ValueError(msg)
    return np.eye(theta.size, dtype=theta.dtype)[theta.argmax()]


def largest_allowed(theta: Array, mask: Array) -> Array:
    """Solve an instance with a context."""
    return largest(np.where(mask, theta, -1e6).astype(theta.dtype))


def largest_rows(theta: Array) -> Array:
    """Solve a batch."""
    return np.stack([largest(row) for row in theta])


def options(executor: Any) -> dict[str, Any]:
    """Return how a solver of single instances is made; without executor, a loop."""
    return {"batched": False, "linear": True, "executor": executor}


def batches(executor: Any, theta: Array) -> Array:
    """Solve pieces of a batch."""
    return ss.solver(largest_rows, executor=executor)(theta)


def instances(executor: Any, theta: Array) -> Array:
    """Solve single instances, with context."""
    mask = np.roll(theta, 1, axis=1) > -0.5
    return ss.solver(largest_allowed, **options(executor))(theta, mask)


def nothing(executor: Any, theta: Array) -> Array:
    """Solve a batch without rows."""
    return ss.solver(largest, **options(executor))(theta[:0])


def dropped(executor: Any, theta: Array) -> Array:
    """Leave out what fails."""
    theta = theta.copy()
    theta[::7, 0] = TOO_LARGE
    solver = ss.solver(largest, on_failure="drop", **options(executor))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        y = solver(theta)
    return np.append(y.ravel(), solver.dropped)


def failures(executor: Any, theta: Array) -> list[str]:
    """Return the errors of what fails."""
    theta = theta.copy()
    theta[[30, 90], 0] = TOO_LARGE + 1, TOO_LARGE
    told = []
    for function, batched in ((largest, False), (largest_rows, True)):
        solver = ss.solver(function, batched=batched, executor=executor)
        try:
            solver(theta)
        except (ss.SolverError, ValueError) as error:
            text = str(error).split("failed on", 1)[-1]
            told.append(f"{type(error).__name__}: {text}")
    return told


def smoothed(executor: Any, theta: Array) -> Array:
    """Return the gradient of a layer."""
    solver = ss.solver(largest, **options(executor))
    layer = softsolve.numpy.Perturbed(solver, num_samples=5)
    return np.asarray(layer.vjp(theta[:40], theta[40:80], rng=0).theta)


CHECKS: tuple[Callable[..., Any], ...] = (
    *(batches, instances, nothing),
    *(dropped, failures, smoothed),
)


@contextlib.contextmanager
def threads() -> Iterator[Any]:
    """Run on threads of the standard library."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """Run on processes of the standard library."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        yield pool


@contextlib.contextmanager
def joblib_parallel() -> Iterator[Any]:
    """Run on joblib's processes."""
    import joblib

    with joblib.Parallel(2) as parallel:
        yield parallel


@contextlib.contextmanager
def joblib_executor() -> Iterator[Any]:
    """Run on the executor behind joblib."""
    from joblib.externals import loky

    yield loky.get_reusable_executor(max_workers=2)


@contextlib.contextmanager
def dask_client() -> Iterator[Any]:
    """Run on processes of Dask."""
    from dask.distributed import Client, LocalCluster

    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        yield client


@contextlib.contextmanager
def dask_executor() -> Iterator[Any]:
    """Run on processes of Dask, by the interface of the standard library."""
    with dask_client() as client:
        yield client.get_executor()


@contextlib.contextmanager
def ray_module() -> Iterator[Any]:
    """Run on processes of Ray."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def ray_pool() -> Iterator[Any]:
    """Run on Ray, by the interface of multiprocessing."""
    from ray.util.multiprocessing import Pool

    with ray_module(), Pool(2) as pool:
        yield pool


EXECUTORS = {
    "concurrent.futures.ThreadPoolExecutor": (threads, None),
    "concurrent.futures.ProcessPoolExecutor": (processes, None),
    "joblib.Parallel": (joblib_parallel, "joblib"),
    "joblib.externals.loky.get_reusable_executor()": (joblib_executor, "joblib"),
    "dask.distributed.Client": (dask_client, "distributed"),
    "dask.distributed.Client.get_executor()": (dask_executor, "distributed"),
    "ray": (ray_module, "ray"),
    "ray.util.multiprocessing.Pool": (ray_pool, "ray"),
}


def differing(executor: Any, theta: Array) -> list[str]:
    """Return the names of what is not as a loop has it."""
    wrong = []
    for check in CHECKS:
        expected, got = check(None, theta), check(executor, theta)
        same = (
            got == expected
            if isinstance(expected, list)
            else got.dtype == expected.dtype
            and np.array_equal(got, expected, equal_nan=True)
        )
        if not same:
            wrong.append(check.__name__)
    return wrong


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", default=list(EXECUTORS), metavar="NAME")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    chosen = parser.parse_args()
    console = Console()
    began = time.perf_counter()
    rng = np.random.default_rng(0)
    cases = [
        np.round(rng.normal(size=(ROWS, SIZE)), 1).astype(dtype)
        for dtype in (np.float32, np.float64)
    ]
    lines, wrong = [], []
    for name in chosen.only:
        console.print(f"Trying {name}")
        made, package = EXECUTORS[name]
        with made() as executor:
            found = [text for theta in cases for text in differing(executor, theta)]
        wrong += [f"{name}: {text}" for text in found]
        release = "standard library" if package is None else version(package)
        lines.append(
            f"| `{name}` | {release} | {len(cases) * len(CHECKS)} | {len(found)} |"
        )
    if wrong:
        console.print("\n".join(wrong), style="red")
        return 1
    command = " ".join(["python", "benchmarks/executor_checks.py", *sys.argv[1:]])
    seconds = time.perf_counter() - began
    page = [
        "# Executors, checked",
        "",
        (
            f"`ss.solver(..., executor=...)` on {ROWS} rows in float32 and float64, on "
            "two workers: batches, single instances with context, no rows at all, "
            "dropped draws with their count, the first failure and its exception, the "
            "gradient of a layer. All must be what a loop gives, bit by bit."
        ),
        "",
        "| executor | version | checks | differ |",
        "| --- | --- | --- | --- |",
        *lines,
        "",
        f"Made by `{command}` in {seconds:.0f} s on {machine.description()}",
        "",
    ]
    chosen.output.write_text("\n".join(page))
    console.print(f"Wrote {chosen.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
