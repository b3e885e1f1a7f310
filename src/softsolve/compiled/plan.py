"""What the fused route does with a solver."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from softsolve.compiled.codecs import (
    Codec,
    codec_for,
    evenly_spaced,
    positions_codec,
    ranks_codec,
)
from softsolve.compiled.families import (
    KEPT_SORTED,
    k_largest,
    largest,
    largest_lanes,
    ranking,
    ranking_lanes,
)
from softsolve.compiled.kernel import BlockKernel, Kernel
from softsolve.solvers.base import KernelSolver, Solver

Array = np.ndarray[Any, Any]

FAMILIES = ("argmax", "topk", "ranking")

# Entries of an instance up to which blocks of instances side by side fit the caches.
LARGEST_BLOCK_SIZE = 200 * 200


@dataclass(frozen=True)
class Plan:
    """Kernels and their parameters for instances of one shape.

    Attributes
    ----------
    kernel, ints, reals, state_size
        The instance kernel and what all instances share.
    block
        The block kernel, where there is one for instances of this size.
    codec
        How solutions are kept.
    table
        What the bytes that a block kernel writes stand for, if not themselves.
    light
        Whether a solve costs little more than drawing its noise.
    top
        How many of the largest scores to mark, where that is all and they are few; 0
        for other problems.
    """

    kernel: Kernel
    ints: Array
    reals: Array
    codec: Codec
    block: BlockKernel | None = None
    state_size: int = 0
    table: Array | None = None
    light: bool = False
    top: int = 0

    @property
    def values(self) -> Array:
        """The table; 0 and 1 where there is none."""
        return np.array([0.0, 1.0]) if self.table is None else self.table


def supports(solver: Any) -> bool:
    """Tell whether the fused route has kernels for a solver."""
    return isinstance(solver, KernelSolver) or getattr(solver, "family", "") in FAMILIES


def plan_for(
    solver: Solver, event_shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Plan:
    """Return what to run for a solver, for instances of a shape."""
    size = prod(event_shape)
    if isinstance(solver, KernelSolver):
        ints, reals = solver.structure(event_shape)
        return Plan(
            solver.kernel,
            ints,
            reals,
            codec_for(solver.solution, size, dtype),
            block=solver.block if 0 < size <= LARGEST_BLOCK_SIZE else None,
            state_size=solver.state_size(event_shape),
        )
    family = getattr(solver, "family", None)
    if family not in FAMILIES:
        msg = (
            f"the fused route needs a solver with a kernel or a family; got "
            f"{solver!r}. Use the array or the host route."
        )
        raise TypeError(msg)
    none = np.zeros(0)
    if family == "argmax":
        no_ints = np.zeros(0, np.int64)
        codec = positions_codec(1)
        return Plan(largest, no_ints, none, codec, block=largest_lanes, light=True)
    parameters = np.asarray(solver.family_parameters(event_shape), dtype=np.float64)  # type: ignore[attr-defined]
    if family == "topk":
        count = int(parameters[0])
        short = 4 * count < size // 8
        codec = positions_codec(count) if short else codec_for("binary", size, dtype)
        top = count if short and count <= KEPT_SORTED else 0
        return Plan(k_largest, np.array([count]), none, codec, light=True, top=top)
    # In the precision of the solutions, so that a value is found in the table.
    reference = parameters.astype(dtype).astype(np.float64)
    kept_whole = size > 1 << 16
    codec = codec_for("real", size, dtype) if kept_whole else ranks_codec(size)
    return Plan(
        ranking,
        np.zeros(0, np.int64),
        reference,
        codec,
        block=ranking_lanes if size and codec.encode_lanes is not None else None,
        table=reference,
        light=True,
    )


def steps_evenly(plan: Plan) -> bool:
    """Tell whether a plan's table is one of equal steps."""
    return bool(evenly_spaced(plan.values))
