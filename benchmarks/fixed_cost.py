"""What a call costs that does nearly nothing, and what the first call costs.

Run as a command, ``python benchmarks/fixed_cost.py onehot`` prints the seconds of the
imports and of a first call in a process of its own.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 100.0
FIRST = ("onehot", "ranking", "grid", "own")


def overheads(rounds: int, advance) -> list[str]:
    """Return the table of small calls, in Markdown."""
    import torch
    from timing import interleaved

    from softsolve import solvers
    from softsolve.torch import FenchelYoungLoss, Perturbed

    torch.manual_seed(0)
    lines = [
        (
            "| M=1 | bare solver, µs | forward + backward, µs | overhead, µs | "
            "loss forward + backward, µs | overhead, µs | limit | met |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for solver in (solvers.OneHot(), solvers.Ranking()):
        for rows in (1, 8):
            theta = torch.randn(rows, 10, requires_grad=True)
            plain, g = theta.detach(), torch.randn(rows, 10)
            y = solver(plain)
            layer = Perturbed(solver, num_samples=1)
            loss = FenchelYoungLoss(layer)

            def maximiser(layer=layer, theta=theta, g=g) -> None:
                theta.grad = None
                layer(theta).backward(g)

            def loss_gradient(loss=loss, theta=theta, y=y) -> None:
                theta.grad = None
                loss(theta, y).backward()

            calls = {
                "solver": lambda solver=solver, plain=plain: solver(plain),
                "maximiser": maximiser,
                "loss": loss_gradient,
            }
            # Nothing else has threads here: the calls of a training run come in a row.
            times = interleaved(
                calls, rounds=rounds, budget=4, advance=advance, shortest=0.02, pause=0
            )
            bare, both, whole = (1e6 * times[name].median for name in calls)
            met = "yes" if max(both, whole) - bare < LIMIT else "**no**"
            lines.append(
                f"| {solver!r}, d=10, B={rows} | {bare:.0f} | {both:.0f} | "
                f"{both - bare:.0f} | {whole:.0f} | {whole - bare:.0f} | "
                f"< {LIMIT:.0f} | {met} |"
            )
    return lines


def _first(name: str) -> tuple[float, float]:
    """Return seconds of the imports and of the first call after them."""
    began = time.perf_counter()
    import torch

    from softsolve import solvers
    from softsolve.torch import Perturbed

    imported = time.perf_counter()
    shape: tuple[int, ...] = (4, 10)
    if name == "own":
        from own_solver import no_neighbours

        from softsolve.compiled.user import compiled

        solver = compiled(solution="binary")(no_neighbours)
    elif name == "grid":
        solver, shape = solvers.GridPath(), (4, 8, 8)
    else:
        solver = {"onehot": solvers.OneHot, "ranking": solvers.Ranking}[name]()
    theta = torch.randn(shape, requires_grad=True)
    Perturbed(solver, num_samples=100)(theta).sum().backward()
    return imported - began, time.perf_counter() - imported


def first_calls(advance) -> list[str]:
    """Return the table of first calls, in Markdown."""
    lines = [
        (
            "| first forward + backward of a process | imports, s | nothing compiled "
            "yet, s | compiled before, s |"
        ),
        "| --- | --- | --- | --- |",
    ]
    for name in FIRST:
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"NUMBA_CACHE_DIR": cache}
            seconds = []
            for state in ("cold", "warm", "warm", "warm"):
                advance(f"{name}, {state}")
                result = subprocess.run(
                    [sys.executable, __file__, name],
                    check=True,
                    capture_output=True,
                    text=True,
                    env=environment,
                )
                seconds.append([float(word) for word in result.stdout.split()])
        (_, cold), *warm = seconds
        imports, call = (
            statistics.median(column) for column in zip(*warm, strict=True)
        )
        lines.append(f"| {name} | {imports:.2f} | {cold:.1f} | {call:.2f} |")
    return lines


if __name__ == "__main__":
    print(*_first(sys.argv[1]))
