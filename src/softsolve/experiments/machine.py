"""On what a run ran: versions and hardware, for its manifest."""

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

import softsolve
from softsolve.parallel import get_num_threads

PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on."""
    found = {"softsolve": softsolve.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        found[package] = importlib.metadata.version(package)
    return found


def hardware() -> dict[str, str | int]:
    """Return the processor and how many threads are used."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count() or 1,
        "torch threads": torch.get_num_threads(),
        "softsolve threads": get_num_threads(),
        "system": platform.platform(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
