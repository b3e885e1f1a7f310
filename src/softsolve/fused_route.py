"""The fused route: which layers can take it, and with which compiled pass."""

import functools
from typing import Any

import numpy as np

from softsolve.compiled.fused import FusedPass, leave_one_out
from softsolve.compiled.plan import supports
from softsolve.compiled.random import FILL_ROWS
from softsolve.noise import NOISES
from softsolve.settings import Route, Settings
from softsolve.solvers.base import KernelSolver, Shape

DTYPES = ("float32", "float64")


@functools.lru_cache(maxsize=256)
def reason_against(settings: Settings) -> str | None:
    """Say why a layer cannot take the fused route, or return None if it can."""
    if not supports(settings.solver):
        return f"{settings.name} has no compiled kernel"
    if settings.perturbation.name != "additive":
        return "it draws additive noise only"
    noise = settings.noise
    if noise not in NOISES.values() or noise.name not in FILL_ROWS:
        return f"it cannot draw {noise!r}"
    if settings.form != "solution":
        return 'it averages solutions, form="solution"'
    return None


def takes_fused_route(
    settings: Settings, *, on_cpu: bool, maximum: bool, clips_values: bool = False
) -> bool:
    """Decide whether a call takes the fused route; raise if asked for in vain.

    ``maximum`` tells whether the call is for the perturbed maximum or a loss, and
    ``clips_values`` whether the caller then handles solvers that clip their scores.
    """
    if settings.route not in (None, "fused"):
        return False
    reason = reason_against(settings)
    if reason is None and not on_cpu:
        reason = "it runs on the CPU only"
    clipped_maximum = maximum and settings.clips and not clips_values
    if reason is None and clipped_maximum:
        reason = f"{settings.name} clips its scores, and this is a maximum or loss"
    if reason is None:
        return True
    if settings.route == "fused" and not clipped_maximum:
        msg = (
            f'route="fused" is not possible: {reason}. Use route="auto", which takes '
            "the fastest route there is."
        )
        raise ValueError(msg)
    return False


def usual_route(settings: Settings, *, on_cpu: bool) -> Route:
    """Return the route that calls of a layer take, to be shown."""
    if settings.route is not None:
        return settings.route
    if on_cpu and reason_against(settings) is None:
        return "fused"
    return "host" if settings.host else "array"


@functools.lru_cache(maxsize=256)
def fused_pass(settings: Settings, event_shape: Shape, dtype: str) -> FusedPass:
    """Return the compiled pass of a layer for instances of a shape and type."""
    return FusedPass(
        settings.solver,  # type: ignore[arg-type]
        event_shape,
        settings.noise.name,
        settings.num_samples,
        dtype=np.dtype(dtype),
    )


def pack_context(
    settings: Settings, rows: int, event_shape: Shape, context: tuple[Any, ...]
) -> np.ndarray:
    """Return the per-row context as the kernels take it, float64 (B, c)."""
    solver = settings.solver
    if isinstance(solver, KernelSolver):
        return solver.pack_context(rows, event_shape, *context)
    return np.zeros((rows, 0))


def baseline_scale(settings: Settings) -> float:
    """Return the factor of samples less their baseline."""
    if settings.baseline == "leave_one_out":
        return leave_one_out(settings.num_samples).scale
    return 1.0
