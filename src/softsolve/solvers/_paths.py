"""What path solvers share: endpoints, and what they do with negative costs."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from softsolve.compiled.kernel import INFEASIBLE

Array = Any
Negative = Literal["clip", "raise"]

NEGATIVE_COST = 2

PATH_FAILURES = {
    INFEASIBLE: (
        "no path joins the start to the end. Check the endpoints and what lies between "
        "them."
    ),
    NEGATIVE_COST: (
        "a cost is negative (a score is positive), and shortest paths need costs of at "
        'least zero. Pass negative="clip" to take such costs as zero, or perturb '
        "multiplicatively."
    ),
}


def check_negative(solver: str, negative: str) -> None:
    """Raise unless ``negative`` is one of the two choices."""
    if negative not in ("clip", "raise"):
        msg = (
            f'{solver}(negative=...) must be "clip" or "raise"; got {negative!r}. '
            '"clip" takes negative costs as zero, "raise" fails on them.'
        )
        raise ValueError(msg)


def check_count(
    solver: object, names: Sequence[str], context: tuple[Array, ...]
) -> None:
    """Raise unless there is one context argument for each of ``names``."""
    if len(context) != len(names):
        call = ", ".join(("theta", *names))
        msg = (
            f"{solver!r} must be called as solver({call}); got {len(context)} context "
            f"argument(s) where it takes {len(names)}."
        )
        raise TypeError(msg)


def pack_endpoints(
    solver: object,
    endpoints: Array,
    rows: int,
    names: Sequence[str],
    limits: Sequence[int],
) -> np.ndarray[Any, Any]:
    """Check endpoints (rows, len(names)), column k within ``limits[k]``; as float64."""
    values = np.asarray(endpoints)
    wanted = (rows, len(names))
    columns = ", ".join(names)
    if values.shape != wanted:
        msg = (
            f"endpoints for {solver!r} must have shape {wanted}, one row ({columns}) "
            f"per instance; got shape {values.shape}."
        )
        raise ValueError(msg)
    if values.dtype.kind not in "iu":
        msg = (
            f"endpoints for {solver!r} must be integers; got dtype {values.dtype}. "
            "Round and convert them first."
        )
        raise TypeError(msg)
    outside = np.argwhere((values < 0) | (values >= np.asarray(limits)))
    if outside.size:
        row, column = outside[0]
        msg = (
            f"endpoints for {solver!r} must have {names[column]} between 0 and "
            f"{limits[column] - 1}; got {values[row, column]} in row {row}."
        )
        raise ValueError(msg)
    return values.astype(np.float64)
