"""What the machine is, for pages with timings."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    *("numpy", "scipy", "numba", "torch", "jax", "optax", "jaxopt"),
    *("pyepo", "ortools", "lap", "highspy"),
)


def processor() -> str:
    """Return the model of the processor."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def vectors() -> str:
    """Return the widest vector instructions that the processor says it has."""
    information = Path("/proc/cpuinfo")
    flags = information.read_text().split() if information.exists() else []
    for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
        if flag in flags:
            return name
    return "no known vector instructions"


def versions() -> str:
    """Return the versions of the packages that are installed."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def description() -> str:
    """Return the machine in a sentence."""
    return (
        f"{processor()} ({vectors()}), {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}; {versions()}."
    )


def load() -> float:
    """Return how many processes wanted to run in the last minute, on average."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
