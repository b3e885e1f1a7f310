r"""Shortest paths on a grid with costs on its cells.

With costs :math:`c = \max(-\theta, 0)`, the distance of a cell (both ends counted) is
the one solution of

.. math:: D(v) = c(v) + \min_{u \sim v} D(u), \qquad D(start) = c(start),

in floating point too, because a rounded sum is monotone in each of its terms. So every
algorithm gives the same distances, bit by bit, and one rule that walks back from the
end over the distances alone gives the same path:

- from a cell, go to the neighbour of smallest distance if that is smaller than the
  cell's own, among equals to the one of lowest flat index;
- where no neighbour is nearer (the cell is free, or its cost is lost in rounding), walk
  over cells of the same distance to the first from which one is, in breadth-first
  order, neighbours by flat index.

Cells are addressed in a grid with a border of one cell on each side, which no path can
enter, so that every cell has all its neighbours.
"""

import numpy as np
from numba import njit

from softsolve.compiled.kernel import INFEASIBLE, OK, kernel
from softsolve.solvers._heap import drop, push
from softsolve.solvers._paths import NEGATIVE_COST

# One bucket is about as wide as the distance between two cells on the frontier.
_BUCKETS_PER_SIDE = 2


# Loops rather than slices and reductions of NumPy, which take long to compile.


@njit(error_model="numpy")
def fill_with(array, value):  # type: ignore[no-untyped-def]
    """Set every entry of an array."""
    for place in range(array.size):
        array[place] = value


@njit(error_model="numpy")
def range_of(array):  # type: ignore[no-untyped-def]
    """Return the smallest and the largest entry of an array."""
    lowest = highest = array[0]
    for value in array:
        lowest = min(lowest, value)
        highest = max(highest, value)
    return lowest, highest


@njit(error_model="numpy")
def neighbour_offsets(width, diagonal):  # type: ignore[no-untyped-def]
    """Return the steps to a cell's neighbours, by flat index, with a border."""
    row = width + 2
    if diagonal:
        return np.array([-row - 1, -row, -row + 1, -1, 1, row - 1, row, row + 1])
    return np.array([-row, -1, 1, row])


@njit(error_model="numpy")
def bordered(cell, width):  # type: ignore[no-untyped-def]
    """Return the flat index, with a border, of a cell given without one."""
    return (cell // width + 1) * (width + 2) + cell % width + 1


@njit(error_model="numpy")
def unbordered(cell, width):  # type: ignore[no-untyped-def]
    """Return the flat index, without a border, of a cell given with one."""
    return (cell // (width + 2) - 1) * width + cell % (width + 2) - 1


@njit(error_model="numpy")
def endpoints_of(ints, context):  # type: ignore[no-untyped-def]
    """Return the flat indices of the start and the end, without a border."""
    height, width = ints[0], ints[1]
    if ints[4]:
        start = np.int64(context[0]) * width + np.int64(context[1])
        end = np.int64(context[2]) * width + np.int64(context[3])
        return start, end
    return np.int64(0), height * width - 1


@njit(error_model="numpy")
def leave_plateau(distance, y, width, offsets, lane, lanes, start, cell, came, queue):  # type: ignore[no-untyped-def]
    """Walk from ``cell`` over cells of its distance to where one is nearer.

    Marks the cells walked over in ``y`` and returns the first nearer cell, or the
    start. ``came`` (all -1, and left so) and ``queue`` have room for every cell.
    Entry ``v`` of this lane is at ``v * lanes + lane`` of ``distance`` and ``y``.
    """
    level = distance[cell * lanes + lane]
    came[cell] = cell
    queue[0] = cell
    head, tail = 0, 1
    here, leave = cell, start
    while head < tail:
        here = queue[head]
        head += 1
        nearest = level
        for offset in offsets:
            if distance[(here + offset) * lanes + lane] < nearest:
                nearest = distance[(here + offset) * lanes + lane]
                leave = here + offset
        if nearest < level or here == start:
            break
        for offset in offsets:
            beside = here + offset
            if distance[beside * lanes + lane] == level and came[beside] < 0:
                came[beside] = here
                queue[tail] = beside
                tail += 1
    y[unbordered(leave, width) * lanes + lane] = 1
    while here != cell:
        y[unbordered(here, width) * lanes + lane] = 1
        here = came[here]
    for place in range(tail):
        came[queue[place]] = -1
    return np.int64(leave)


@njit(error_model="numpy")
def _costs(theta, ints, context):  # type: ignore[no-untyped-def]
    """Return the cells' costs with a border; infinite where no path can go."""
    height, width = ints[0], ints[1]
    zero = theta.dtype.type(0.0)
    cost = np.empty((height + 2) * (width + 2), dtype=theta.dtype)
    fill_with(cost, theta.dtype.type(np.inf))
    for i in range(height):
        row = (i + 1) * (width + 2) + 1
        for j in range(width):
            cost[row + j] = max(-theta[i * width + j], zero)
    if ints[5]:
        blocked = context[context.size - height * width :]
        for cell in range(height * width):
            if blocked[cell] != 0:
                cost[bordered(cell, width)] = np.inf
    return cost


@njit(error_model="numpy")
def _distances(cost, scale, buckets, offsets, start, end, following, cells):  # type: ignore[no-untyped-def]
    """Return the distances, right up to that of the end; those not reached are inf.

    A cell gets its final distance from the first of its neighbours that is settled,
    since its cost does not depend on where one comes from. So each is queued once: in
    buckets by distance, of which only the current one is kept in order, as a heap.
    ``following`` and ``cells`` are room for an integer a cell.
    """
    infinity = cost.dtype.type(np.inf)
    distance = np.empty(cost.size, dtype=cost.dtype)
    fill_with(distance, infinity)
    keys = np.empty(cost.size, dtype=cost.dtype)
    first = np.empty(buckets, dtype=np.int32)
    fill_with(first, np.int32(-1))
    distance[start] = cost[start]
    ordered = push(keys, cells, 0, cost[start], np.int32(start))
    waiting = 0
    current = np.int64(cost[start] * scale)
    while True:
        while ordered == 0 and waiting > 0:
            current += 1
            cell = first[current & (buckets - 1)]
            first[current & (buckets - 1)] = -1
            while cell >= 0:
                after = following[cell]
                bucket = np.int64(distance[cell] * scale)
                if bucket <= current:
                    ordered = push(keys, cells, ordered, distance[cell], cell)
                    waiting -= 1
                else:
                    # Rounding took it beyond the last bucket; it waits another turn.
                    place = min(bucket, current + buckets - 1) & (buckets - 1)
                    following[cell] = first[place]
                    first[place] = cell
                cell = after
        if ordered == 0 or keys[0] > distance[end]:
            return distance
        here = np.int64(cells[0])
        reached = keys[0]
        ordered = drop(keys, cells, ordered)
        for offset in offsets:
            beside = here + offset
            if distance[beside] == infinity:
                far = reached + cost[beside]
                if far < infinity:
                    distance[beside] = far
                    bucket = np.int64(far * scale)
                    if bucket <= current:
                        ordered = push(keys, cells, ordered, far, np.int32(beside))
                    else:
                        place = min(bucket, current + buckets - 1) & (buckets - 1)
                        following[beside] = first[place]
                        first[place] = np.int32(beside)
                        waiting += 1


@njit(error_model="numpy")
def shortest_path(theta, ints, context, y):  # type: ignore[no-untyped-def]
    """Solve one instance; see :class:`softsolve.solvers.grid.GridPath`."""
    height, width = ints[0], ints[1]
    fill_with(y, y.dtype.type(0))
    lowest, highest = range_of(theta)
    if ints[3] and highest > 0:
        return NEGATIVE_COST
    from_cell, to_cell = endpoints_of(ints, context)
    start, end = bordered(from_cell, width), bordered(to_cell, width)
    cost = _costs(theta, ints, context)
    if cost[start] == np.inf or cost[end] == np.inf:
        return INFEASIBLE
    buckets = 64
    while buckets < _BUCKETS_PER_SIDE * (height + width):
        buckets *= 2
    largest = -np.float64(lowest)
    # Costs so small that the quotient overflows may share one bucket.
    scale = (buckets - 4) / largest if largest > 1e-200 else 0.0
    offsets = neighbour_offsets(width, ints[2])
    following = np.empty(cost.size, dtype=np.int32)
    cells = np.empty(cost.size, dtype=np.int32)
    distance = _distances(cost, scale, buckets, offsets, start, end, following, cells)
    if distance[end] == np.inf:
        return INFEASIBLE

    first_plateau = True
    here = end
    y[to_cell] = 1
    while here != start:
        nearest = distance[here]
        leave = here
        for offset in offsets:
            if distance[here + offset] < nearest:
                nearest = distance[here + offset]
                leave = here + offset
        if leave == here:
            if first_plateau:
                fill_with(following, np.int32(-1))
                first_plateau = False
            leave = leave_plateau(
                distance, y, width, offsets, 0, 1, start, here, following, cells
            )
        y[unbordered(leave, width)] = 1
        here = leave
    return OK


@kernel
def grid_path(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Shortest path by a search over buckets, for one instance."""
    return shortest_path(theta, ints, context, y)
