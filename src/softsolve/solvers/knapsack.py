r"""Knapsacks: the most valuable items within a capacity, whole or in fractions."""

import abc
import math
from typing import Any

import numba
import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from softsolve._arrays import constant
from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers.base import Array, KernelSolver, Shape


@numba.njit(nogil=True, inline="always")
def _consider(with_item, without_item, score, best, taken):  # type: ignore[no-untyped-def]
    # All arrays start at the same capacity, so that the loop has no index to guard and
    # vectorises: with_item is the previous row of the table, shifted by the weight.
    for c in range(best.size):
        value = with_item[c] + score
        better = value > without_item[c]
        best[c] = value if better else without_item[c]
        taken[c] = 1 if better else 0


@kernel
def solve_knapsack(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Fill the table of best values by capacity, item by item, and read it back.

    ``ints`` holds the unit of the capacities, the capacity and the weights in units; a
    ``context`` holds the capacity of the instance instead.
    """
    unit, capacity, weights = ints[0], ints[1], ints[2:]
    if context.size:
        capacity = np.int64(context[0]) // unit

    items = np.empty(theta.size, np.int64)
    count, total = 0, 0
    for i in range(theta.size):
        y[i] = 0
        if theta[i] > 0 and weights[i] <= capacity:
            items[count] = i
            count += 1
            total += weights[i]
    if total <= capacity:
        for k in range(count):
            y[items[k]] = 1
        return OK

    before = np.zeros(capacity + 1, theta.dtype)
    after = np.empty(capacity + 1, theta.dtype)
    taken = np.empty((count, capacity + 1), np.uint8)
    later = total
    for k in range(count):
        weight = weights[items[k]]
        later -= weight
        # Less than this cannot be left over by the items that follow.
        lowest = max(0, capacity - later)
        if lowest < weight:
            after[lowest:weight] = before[lowest:weight]
            taken[k, lowest:weight] = 0
            lowest = weight
        _consider(
            before[lowest - weight : capacity + 1 - weight],
            before[lowest:],
            theta[items[k]],
            after[lowest:],
            taken[k, lowest:],
        )
        before, after = after, before

    for k in range(count - 1, -1, -1):
        if taken[k, capacity]:
            y[items[k]] = 1
            capacity -= weights[items[k]]
    return OK


@kernel
def solve_fractional(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Take items in the order of score per weight until the capacity is used up.

    ``reals`` holds the capacity and the weights; a ``context`` holds the capacity of
    the instance instead.
    """
    capacity, weights = reals[0], reals[1:]
    if context.size:
        capacity = context[0]
    # A weightless item has no ratio: it comes first. Worthless ones never come.
    cost = np.empty(theta.size)
    for i in range(theta.size):
        y[i] = 0
        cost[i] = -np.inf if weights[i] == 0 else -theta[i] / weights[i]
    for i in np.argsort(cost, kind="mergesort"):
        if theta[i] <= 0:
            continue
        if weights[i] > capacity:
            y[i] = capacity / weights[i]
            break
        y[i] = 1
        capacity -= weights[i]
    return OK


class _Knapsack(KernelSolver):
    """What the two knapsacks share: weights, and a capacity for all or for each row."""

    def __init__(self, weights: np.ndarray[Any, Any], capacity: float | None) -> None:
        name = type(self).__name__
        if weights.ndim != 1 or weights.size == 0:
            msg = (
                f"{name}(weights=...) must be a vector with one weight per item; got "
                f"shape {weights.shape}."
            )
            raise ValueError(msg)
        if not np.all(np.isfinite(weights)) or np.any(weights < 0):
            worst = int(np.argmax(~np.isfinite(weights) | (weights < 0)))
            msg = (
                f"{name}(weights=...) must be finite and not negative; got "
                f"{weights[worst]} for item {worst}."
            )
            raise ValueError(msg)
        if capacity is not None and not 0 <= capacity < math.inf:
            msg = (
                f"{name}(capacity=...) must be finite and not negative; got "
                f"{capacity}. Pass capacity=None to give each row its own as context."
            )
            raise ValueError(msg)
        self.weights = weights
        self.capacity = capacity

    def __repr__(self) -> str:
        items = self.weights.size
        return f"{type(self).__name__}({items} items, capacity={self.capacity})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score per item, and a capacity given exactly once."""
        if tuple(event_shape) != self.weights.shape:
            msg = (
                f"{self!r} must get one score per item, an event of shape "
                f"{self.weights.shape}; got {tuple(event_shape)}."
            )
            raise ValueError(msg)
        if len(context) != (self.capacity is None):
            msg = (
                f"{self!r} must get its capacity either at construction or as the only "
                f"context, solver(theta, capacity); got {len(context)} context "
                "argument(s)."
            )
            raise TypeError(msg)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the capacities (rows, 1), or (rows, 0) if all rows share one."""
        self.check(event_shape, context)
        if not context:
            return np.zeros((rows, 0))
        capacity = np.asarray(context[0], dtype=np.float64)
        if capacity.shape != (rows,):
            msg = (
                f"the capacity for {self!r} must hold one number per row, shape "
                f"({rows},); got {capacity.shape}."
            )
            raise ValueError(msg)
        bad = np.flatnonzero(~((capacity >= 0) & np.isfinite(capacity)))
        if bad.size:
            msg = (
                f"the capacity for {self!r} must be finite and not negative; got "
                f"{capacity[bad[0]]} in row {bad[0]}."
            )
            raise ValueError(msg)
        return np.ascontiguousarray(capacity[:, None])

    @abc.abstractmethod
    def _possible(self, capacity: float) -> np.ndarray[Any, Any]:
        """Tell which items can be taken at all."""

    def project(self, x: Array) -> Array:
        """Drop the items that no solution takes; all others vary freely.

        Where rows have their own capacities, any item may fit.
        """
        if self.capacity is None:
            return x
        return x * constant(self._possible(self.capacity), x)

    def _weigh(self, y: Array, context: tuple[Array, ...]) -> tuple[Array, Array]:
        """Return the weight of each row of ``y`` and what its knapsack can hold."""
        xp = array_namespace(y)
        weights = constant(self.weights, y)
        capacity = self.capacity if self.capacity is not None else context[0]
        limit = constant(capacity, y)
        return xp.sum(y * weights, axis=-1), limit


class Knapsack(_Knapsack):
    r"""0/1 knapsack: the best set of items within a capacity, exactly.

    .. math:: y^*(\theta) = \operatorname*{argmax}
        \Big\{ \langle y, \theta\rangle : y \in \{0, 1\}^n,
        \textstyle\sum_i w_i y_i \le C \Big\}

    Items whose score is not positive are never taken. Of several best sets, the one
    that avoids the last items: between equal items, the first is taken.

    Parameters
    ----------
    weights
        Whole numbers :math:`w_i \ge 0`, (n,).
    capacity
        :math:`C \ge 0`, the same for all rows. Without it, each row has its own, given
        as context: ``solver(theta, capacity)`` with capacity (rows,).

    Notes
    -----
    A dynamic program over the capacities, O(n C) time and n C bytes for an instance;
    weights are divided by their common divisor first. The polytope is the convex hull
    of the feasible sets; it has an interior, but for items heavier than C [1]_.

    References
    ----------
    .. [1] H. Kellerer, U. Pferschy, D. Pisinger. Knapsack Problems. Springer, 2004.

    Examples
    --------
    >>> solver = Knapsack([3, 4, 5], capacity=7)
    >>> solver(np.array([[4.0, 5.0, 6.0], [4.0, -1.0, 6.0]]))
    array([[1., 1., 0.],
           [0., 0., 1.]])
    """

    kernel = solve_knapsack
    solution = "binary"

    def __init__(self, weights: ArrayLike, capacity: float | None = None) -> None:
        given = np.asarray(weights)
        if given.dtype.kind not in "iu":
            msg = (
                "Knapsack(weights=...) must be integers; got dtype "
                f"{given.dtype}. Express weights and capacity in a unit in which they "
                "are whole, or use FractionalKnapsack."
            )
            raise TypeError(msg)
        super().__init__(given.astype(np.int64), capacity)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the unit, the capacity and the weights in units."""
        unit = max(int(np.gcd.reduce(self.weights)), 1)
        capacity = 0 if self.capacity is None else int(self.capacity) // unit
        return np.array([unit, capacity, *(self.weights // unit)]), np.zeros(0)

    def _possible(self, capacity: float) -> np.ndarray[Any, Any]:
        return self.weights <= capacity

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is a set of items that fits."""
        xp = array_namespace(y)
        weight, limit = self._weigh(y, context)
        return xp.all((y == 0) | (y == 1), axis=-1) & (weight <= limit)


class FractionalKnapsack(_Knapsack):
    r"""Fractional knapsack: the linear relaxation, by the greedy rule, exactly.

    .. math:: y^*(\theta) = \operatorname*{argmax}
        \Big\{ \langle y, \theta\rangle : y \in [0, 1]^n,
        \textstyle\sum_i w_i y_i \le C \Big\}

    Items are taken by decreasing :math:`\theta_i / w_i`, equal ones in their order,
    while that is positive; the one that no longer fits is taken in part.

    Parameters
    ----------
    weights
        Real numbers :math:`w_i \ge 0`, (n,).
    capacity
        :math:`C \ge 0`, the same for all rows. Without it, each row has its own, given
        as context: ``solver(theta, capacity)`` with capacity (rows,).

    Notes
    -----
    O(n log n) for an instance. The polytope is the unit cube cut by one half-space;
    every vertex has at most one fractional entry [1]_.

    References
    ----------
    .. [1] G. Dantzig. Discrete-variable extremum problems. Operations Research, 1957.

    Examples
    --------
    >>> solver = FractionalKnapsack([3.0, 4.0, 5.0], capacity=6.0)
    >>> solver(np.array([[4.0, 5.0, 6.0]]))
    array([[1.  , 0.75, 0.  ]])
    """

    kernel = solve_fractional

    def __init__(self, weights: ArrayLike, capacity: float | None = None) -> None:
        super().__init__(np.asarray(weights, dtype=np.float64), capacity)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return no integers; the capacity and the weights."""
        capacity = 0.0 if self.capacity is None else self.capacity
        return np.zeros(0, dtype=np.int64), np.array([capacity, *self.weights])

    def _possible(self, capacity: float) -> np.ndarray[Any, Any]:
        return np.asarray((self.weights == 0) | (capacity > 0))

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it fits, up to rounding."""
        xp = array_namespace(y)
        weight, limit = self._weigh(y, context)
        slack = 8 * xp.finfo(y.dtype).eps * float(np.sum(self.weights))
        return xp.all((y >= 0) & (y <= 1), axis=-1) & (weight <= limit + slack)
