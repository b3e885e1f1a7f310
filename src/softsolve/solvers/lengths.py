"""Sequences shorter than their padded arrays: the lengths of each row, as context."""

from typing import Any

import numpy as np

from softsolve.solvers.base import Array, Shape


def check_lengths_given(
    solver: object, wanted: bool, context: tuple[Array, ...]
) -> None:
    """Raise unless lengths are given just where the solver is to expect them."""
    if len(context) != wanted:
        takes = "the lengths as its only" if wanted else "no"
        msg = (
            f"{solver!r} takes {takes} context, but got {len(context)} context "
            "argument(s). Construct it with lengths=True to pass lengths, and without "
            "to pass theta alone."
        )
        raise TypeError(msg)


def pack_lengths(
    solver: object, rows: int, longest: Shape, lengths: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Check ``lengths`` (rows,) or (rows, k); return them as float64 (rows, k).

    ``longest`` holds the k lengths of the padded arrays.
    """
    given = np.asarray(lengths)
    shape = (rows,) if len(longest) == 1 else (rows, len(longest))
    if given.shape != shape:
        msg = f"lengths for {solver!r} must have shape {shape}; got {given.shape}."
        raise ValueError(msg)
    packed = np.ascontiguousarray(given.reshape(rows, len(longest)), dtype=np.float64)
    wrong = ~((packed >= 1) & (packed <= longest) & (packed == np.floor(packed)))
    bad = np.flatnonzero(wrong.any(axis=1))
    if bad.size:
        limit = longest[0] if len(longest) == 1 else longest
        msg = (
            f"lengths for {solver!r} must be whole numbers from 1 to {limit}, the size "
            f"of theta; got {given[bad[0]]} in row {bad[0]}."
        )
        raise ValueError(msg)
    return packed
