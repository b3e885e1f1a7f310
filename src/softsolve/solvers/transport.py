r"""Optimal transport between given marginals."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from softsolve._arrays import constant
from softsolve.compiled.kernel import Kernel
from softsolve.solvers.base import Array, KernelSolver, Shape
from softsolve.solvers.transport_kernel import NOT_FINITE, STALLED, transport

# Marginals that are meant to have the same sum may differ by rounding, in float32 too.
_IMBALANCE = 1e-5

Marginals = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class OptimalTransport(KernelSolver):
    r"""Find the transport plan of largest score between given marginals.

    .. math::
        y^*(\theta) = \operatorname{argmax} \Big\{ \textstyle\sum_{ij} y_{ij}
        \theta_{ij} : y \in \mathbb{R}_{\ge 0}^{n \times m},\ y 1 = a,\ y^\top 1 = b
        \Big\}

    With :math:`\theta = -c`, that is the plan of least cost :math:`c`. A solution is a
    vertex of the transport polytope: its cells with :math:`y_{ij} > 0` form no cycle,
    so there are at most :math:`n + m - 1` of them.

    Parameters
    ----------
    row_marginals, column_marginals
        :math:`a \ge 0`, (n,), and :math:`b \ge 0`, (m,), of the same sum, for all rows
        of a batch. Without them, each row has its own, given as context:
        ``solver(theta, a, b)`` with a (rows, n) and b (rows, m).

    Notes
    -----
    Scores are (rows, n, m). The network simplex method from a greedy plan, in float64
    whatever the scores' dtype; marginals need not be whole numbers, and integer ones
    give integer plans. Sums that differ by rounding (relatively less than 1e-5) are
    made equal by scaling b. Among plans of equal score it always returns the same one.

    References
    ----------
    W. H. Cunningham, "A network simplex method", Mathematical Programming 11, 1976.
    G. Peyré and M. Cuturi, "Computational Optimal Transport", 2019, chapter 3.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.solvers.transport import OptimalTransport
    >>> cost = np.array([[[0.0, 1.0], [2.0, 5.0]]])
    >>> OptimalTransport([0.5, 0.5], [0.7, 0.3])(-cost)
    array([[[0.2, 0.3],
            [0.5, 0. ]]])
    """

    event_ndim = 2
    kernel: Kernel = transport
    failures: ClassVar[Mapping[int, str]] = {
        NOT_FINITE: "a score is not finite",
        STALLED: "no optimal plan within the limit of pivots. Please report this "
        "instance",
    }

    def __init__(
        self,
        row_marginals: ArrayLike | None = None,
        column_marginals: ArrayLike | None = None,
    ) -> None:
        self.marginals: Marginals | None = None
        if (row_marginals is None) != (column_marginals is None):
            msg = (
                "OptimalTransport() must get both marginals, or none to take both as "
                "context; got one of them."
            )
            raise TypeError(msg)
        if row_marginals is not None:
            a = np.array(row_marginals, dtype=np.float64)
            b = np.array(column_marginals, dtype=np.float64)
            if a.ndim != 1 or b.ndim != 1 or 0 in (a.size, b.size):
                msg = (
                    "OptimalTransport(row_marginals, column_marginals) must be two "
                    f"vectors, (n,) and (m,); got shapes {a.shape} and {b.shape}."
                )
                raise ValueError(msg)
            packed = _balanced("OptimalTransport", a[None, :], b[None, :])
            self.marginals = packed[0, : a.size], packed[0, a.size :]

    def __repr__(self) -> str:
        if self.marginals is None:
            return "OptimalTransport()"
        a, b = self.marginals
        return f"OptimalTransport({a.size} x {b.size})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless shapes agree and the marginals are given exactly once."""
        if self.marginals is not None:
            a, b = self.marginals
            super().check(event_shape, context)
            fits = tuple(event_shape) == (a.size, b.size)
            shape = f"{(a.size, b.size)}"
        else:
            if len(context) != 2:
                msg = (
                    f"{self!r} must get the marginals of each row as context, "
                    f"solver(theta, a, b); got {len(context)} context argument(s)."
                )
                raise TypeError(msg)
            fits = len(event_shape) == 2 and 0 not in event_shape
            shape = "(n, m) with n, m >= 1"
        if not fits:
            msg = (
                f"{self!r} must get instances of shape {shape}; got "
                f"{tuple(event_shape)}. Reshape theta to (..., n, m)."
            )
            raise ValueError(msg)

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return the shape, and the marginals if all rows share them."""
        shared = np.zeros(0) if self.marginals is None else np.hstack(self.marginals)
        return np.asarray(event_shape, dtype=np.int64), shared

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray
    ) -> np.ndarray:
        """Return the marginals (rows, n + m), or (rows, 0) if all rows share them."""
        self.check(event_shape, context)
        if self.marginals is not None:
            return np.zeros((rows, 0))
        a, b = (np.asarray(marginals, dtype=np.float64) for marginals in context)
        n, m = event_shape
        if a.shape != (rows, n) or b.shape != (rows, m):
            msg = (
                f"the marginals for {self!r} must have shapes {(rows, n)} and "
                f"{(rows, m)}; got {a.shape} and {b.shape}."
            )
            raise ValueError(msg)
        return _balanced(repr(self), a, b)

    def project(self, x: Array) -> Array:
        r"""Project ``x`` (..., n, m) on the directions of the polytope.

        Sums along both axes are fixed: x is centred both ways. Where all rows share
        the marginals, the cells where one is zero are left out.
        """
        if self.marginals is None:
            x = x - array_namespace(x).mean(x, axis=-1, keepdims=True)
            return x - array_namespace(x).mean(x, axis=-2, keepdims=True)
        xp = array_namespace(x)
        used_rows, used_columns = (marginal > 0 for marginal in self.marginals)
        used = constant(np.outer(used_rows, used_columns), x)
        x = x * used
        x = x - used * xp.sum(x, axis=-1, keepdims=True) / max(used_columns.sum(), 1)
        return x - used * xp.sum(x, axis=-2, keepdims=True) / max(used_rows.sum(), 1)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is a plan, up to rounding."""
        y = np.asarray(y)
        shape = y.shape[1:]
        marginals = self.pack_context(len(y), shape, *map(np.asarray, context))
        if self.marginals is not None:
            marginals = self.structure(shape)[1][None, :]
        sums = np.concatenate([y.sum(axis=2), y.sum(axis=1)], axis=1)
        total = marginals[:, : shape[0]].sum(axis=1, keepdims=True)
        slack = 4 * np.finfo(y.dtype).eps * sum(shape) * total
        close = np.all(np.abs(sums - marginals) <= slack, axis=1)
        return close & np.all(y >= 0, axis=(1, 2))


def _balanced(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Check marginals (rows, n), (rows, m); return them side by side, of equal sums."""
    for side, marginals in (("row", a), ("column", b)):
        wrong = np.argwhere(~((marginals >= 0) & np.isfinite(marginals)))
        if wrong.size:
            row, index = wrong[0]
            msg = (
                f"the {side} marginals of {name} must be finite and not negative; got "
                f"{marginals[row, index]} at index {index} of row {row}."
            )
            raise ValueError(msg)
    supply, demand = a.sum(axis=1), b.sum(axis=1)
    bad = np.flatnonzero(np.abs(supply - demand) > _IMBALANCE * supply)
    if bad.size:
        msg = (
            f"the marginals of {name} must have the same sum; got {supply[bad[0]]} for "
            f"the rows and {demand[bad[0]]} for the columns in row {bad[0]}. Scale one "
            "of them."
        )
        raise ValueError(msg)
    scale = np.divide(supply, demand, out=np.ones_like(supply), where=demand > 0)
    return np.concatenate([a, b * scale[:, None]], axis=1)
