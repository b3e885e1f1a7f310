"""How much memory a forward and backward pass takes at its peak.

Run as a command, it measures one case in a process of its own:
``python benchmarks/memory.py maximiser 1000`` prints megabytes.
"""

import subprocess
import sys
from pathlib import Path

ROWS, SIZE, COUNT = 32, 10_000, 10
LIMIT = 200.0
CASES = (("maximiser", 1000), ("loss", 1000), ("loss", 10_000))


def resident(which: str) -> float:
    """Return megabytes of memory: those held now, ``"VmRSS"``, or at most, ``"VmHWM"``.

    Of this program alone: ``getrusage`` counts what the parent of a process held, too.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == which:
            return int(value.split()[0]) / 2**10
    msg = f"/proc/self/status does not tell {which}"
    raise RuntimeError(msg)


def growth(what: str, samples: int) -> float:
    """Return the megabytes by which this process grew at most, from now on."""
    import torch

    from softsolve.solvers import TopK
    from softsolve.torch import FenchelYoungLoss, Perturbed

    torch.set_num_threads(2)

    def run(rows: int, num_samples: int) -> None:
        layer = Perturbed(TopK(COUNT), num_samples=num_samples)
        theta = torch.randn(rows, SIZE, requires_grad=True)
        if what == "maximiser":
            layer(theta).backward(torch.randn(rows, SIZE))
        else:
            y = torch.zeros(rows, SIZE)
            y[:, :COUNT] = 1
            FenchelYoungLoss(layer)(theta, y).backward()

    run(2, 16)  # imports and compiles
    before = resident("VmRSS")
    run(ROWS, samples)
    return resident("VmHWM") - before


def measure(what: str, samples: int) -> float:
    """Return the growth of a fresh process."""
    command = [sys.executable, __file__, what, str(samples)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(result.stdout)


def table(advance) -> list[str]:
    """Return the table, in Markdown."""
    lines = [
        "| top-10 of 10,000, B=32 | samples | peak growth, MB | limit | met |",
        "| --- | --- | --- | --- | --- |",
    ]
    for what, samples in CASES:
        advance(f"{what}, M={samples:,}")
        megabytes = measure(what, samples)
        met = "yes" if megabytes < LIMIT else "**no**"
        name = "maximiser" if what == "maximiser" else "Fenchel-Young loss"
        lines.append(
            f"| {name}, forward and backward | {samples:,} | {megabytes:.0f} | "
            f"< {LIMIT:.0f} | {met} |"
        )
    return lines


if __name__ == "__main__":
    print(growth(sys.argv[1], int(sys.argv[2])))
