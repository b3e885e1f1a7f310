"""Best paths on grids that only go down and to the right."""

import itertools
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numba import njit

from softsolve._arrays import constant
from softsolve.compiled.kernel import OK, block_kernel, kernel
from softsolve.compiled.lanes import (
    LANES,
    add,
    fill,
    lane_buffer,
    load,
    maximum,
    store,
    where_less,
)
from softsolve.solvers.base import Array, KernelSolver, Shape

# Where a path came from, in the order in which ties are decided: by flat index.
_ABOVE_LEFT, _ABOVE, _LEFT = 0, 1, 2


@njit(error_model="numpy")
def _walk_back(came, y, width, here, start, stride):  # type: ignore[no-untyped-def]
    """Mark the path from ``here`` to ``start``, entries of cells ``stride`` apart."""
    y[here] = 1
    while here != start:
        if came[here] == _ABOVE_LEFT:
            here -= (width + 1) * stride
        elif came[here] == _ABOVE:
            here -= width * stride
        else:
            here -= stride
        y[here] = 1


@kernel
def dag_grid_path(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Dynamic program over the rows, for one instance."""
    height, width, diagonal = ints[0], ints[1], ints[2]
    nowhere = theta.dtype.type(-np.inf)
    values = np.empty(width, dtype=theta.dtype)
    came = np.empty(theta.size, dtype=np.uint8)
    for j in range(width):
        values[j] = nowhere
    for i in range(height):
        left = nowhere if i else theta.dtype.type(0)
        above_left = nowhere
        for j in range(width):
            cell = i * width + j
            y[cell] = 0
            above = values[j]
            best, chosen = above, _ABOVE
            if diagonal and above_left >= above:
                best, chosen = above_left, _ABOVE_LEFT
            if left > best:
                best, chosen = left, _LEFT
            left = best + theta[cell]
            above_left = above
            values[j] = left
            came[cell] = chosen
    _walk_back(came, y, width, theta.size - 1, 0, 1)
    return OK


@block_kernel(LANES)
def dag_grid_paths(theta, ints, reals, context, y, status):  # type: ignore[no-untyped-def]
    """Dynamic program over the rows, for :data:`LANES` instances side by side."""
    height, width, diagonal = ints[0], ints[1], ints[2]
    scores = theta.reshape(-1)
    marks = y.reshape(-1)
    nowhere = fill(theta.dtype.type(-np.inf))
    values = lane_buffer(width * LANES, theta.dtype)
    came = np.empty(scores.size, dtype=np.uint8)
    unmarked = fill(np.uint8(0))
    for j in range(width):
        store(values, j * LANES, nowhere)
    for i in range(height):
        left = nowhere
        if i == 0:
            left = fill(theta.dtype.type(0))
        above_left = nowhere
        for j in range(width):
            cell = (i * width + j) * LANES
            store(marks, cell, unmarked)
            above = load(values, j * LANES)
            best = above
            chosen = fill(np.int32(_ABOVE))
            if diagonal:
                chosen = where_less(
                    above_left, above, chosen, fill(np.int32(_ABOVE_LEFT))
                )
                best = maximum(above, above_left)
            chosen = where_less(best, left, fill(np.int32(_LEFT)), chosen)
            left = add(maximum(best, left), load(scores, cell))
            above_left = above
            store(values, j * LANES, left)
            store(came, cell, chosen)
    for lane in range(LANES):
        end = (height * width - 1) * LANES + lane
        _walk_back(came, marks, width, end, lane, LANES)
        status[lane] = OK


class DagGrid(KernelSolver):
    r"""Best path from the first cell of a grid to the last, going right and down.

    .. math:: y^*(\theta) = \operatorname*{argmax} \{ \langle y, \theta\rangle :
        y \text{ marks the cells of such a path}\}

    Scores are (rows, height, width), and so are solutions, 1 on the path and 0
    elsewhere. There are no cycles, so scores may have any sign. (Scores on the steps
    instead of the cells: :func:`softsolve.solvers.graph.grid_graph`.)

    Parameters
    ----------
    diagonal
        Whether a step may also go right and down at once.

    Notes
    -----
    A dynamic program in O(height · width) [1]_. The polytope is the convex hull of the
    monotone paths. Without diagonal steps it spans the arrays whose antidiagonals sum
    to zero, with them all that are zero at both ends. Ties go to the predecessor of
    lowest flat index, from the end backwards.

    References
    ----------
    .. [1] R. Bellman. Dynamic Programming. Princeton University Press, 1957.

    Examples
    --------
    >>> solver = DagGrid()
    >>> solver(np.array([[[1.0, 5.0, 1.0], [1.0, -2.0, 1.0], [1.0, 9.0, 1.0]]]))
    array([[[1., 1., 0.],
            [0., 1., 0.],
            [0., 1., 1.]]])
    """

    event_ndim = 2
    kernel = dag_grid_path
    block = dag_grid_paths
    solution = "binary"

    def __init__(self, *, diagonal: bool = False) -> None:
        self.diagonal = diagonal

    def __repr__(self) -> str:
        return f"DagGrid(diagonal={self.diagonal})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless instances are grids, without context."""
        if len(event_shape) != 2 or 0 in event_shape:
            msg = (
                f"{self!r} must get a grid of scores for each instance, an event of "
                f"shape (height, width) with cells in it; got {tuple(event_shape)}."
            )
            raise ValueError(msg)
        super().check(event_shape, context)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the grid's shape and whether steps may be diagonal."""
        return np.array([*event_shape, self.diagonal], dtype=np.int64), np.zeros(0)

    def project(self, x: Array) -> Array:
        """Project on the directions of the polytope."""
        height, width = x.shape[-2:]
        if min(height, width) == 1:
            return 0 * x
        if self.diagonal:
            free = np.ones((height, width))
            free[0, 0] = free[-1, -1] = 0
            return x * constant(free, x)
        # Padded by its height and cut into rows that are one entry shorter, each row of
        # the grid moves one step further right, and antidiagonals become columns.
        xp = array_namespace(x)
        batch = x.shape[:-2]
        length = height + width - 1
        gap = xp.broadcast_to(
            constant(np.zeros((height, height)), x), (*batch, height, height)
        )
        padded = xp.reshape(xp.concat((x, gap), axis=-1), (*batch, -1))
        skewed = xp.reshape(padded[..., : height * length], (*batch, height, length))
        counts = np.convolve(np.ones(height), np.ones(width))
        means = xp.sum(skewed, axis=-2, keepdims=True) / constant(counts, x)
        repeated = xp.broadcast_to(means, (*batch, height, length))
        flat = xp.reshape(repeated, (*batch, height * length))
        padded = xp.concat((flat, gap[..., 0, :]), axis=-1)
        return x - xp.reshape(padded, (*batch, height, length + 1))[..., :width]

    def feasible(self, y: Array, *context: Array) -> np.ndarray[Any, Any]:
        """Tell for each row of ``y`` whether it marks such a path."""
        y = np.asarray(y)
        self.check(y.shape[1:], context)
        steps = {(0, 1), (1, 0)} | ({(1, 1)} if self.diagonal else set())
        last = (y.shape[1] - 1, y.shape[2] - 1)
        result = np.zeros(len(y), dtype=bool)
        for row, marked in enumerate(y):
            cells = [tuple(cell) for cell in np.argwhere(marked).tolist()]
            result[row] = (
                bool(np.all((marked == 0) | (marked == 1)))
                and cells[:1] == [(0, 0)]
                and cells[-1:] == [last]
                and all(
                    (after[0] - before[0], after[1] - before[1]) in steps
                    for before, after in itertools.pairwise(cells)
                )
            )
        return result
