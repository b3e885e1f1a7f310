"""Shortest paths on many grids side by side, by sweeps over the rows.

Row by row, every cell pulls the distances of its neighbours in the row before, then the
row spreads them to the right and to the left. One sweep down finds every path that
never turns back up; further sweeps, up and down in turn, go over the rows next to
changed ones until nothing changes that could matter. All of it is the same for every
lane, so all lanes go through it in step.
"""

import numpy as np
from numba import njit

from softsolve.compiled.kernel import INFEASIBLE, OK, block_kernel
from softsolve.compiled.lanes import (
    LANES,
    add,
    any_improves,
    fill,
    join,
    lane_buffer,
    load,
    maximum,
    minimum,
    negative,
    store,
    where_less,
)
from softsolve.solvers._paths import NEGATIVE_COST
from softsolve.solvers.grid_kernels import (
    bordered,
    endpoints_of,
    fill_with,
    leave_plateau,
    neighbour_offsets,
    shortest_path,
    unbordered,
)

# Beyond this side, sweeps take longer than one search a lane.
LARGEST_SIDE = 300


@njit(error_model="numpy")
def _relax(distance, cost, bound, cell, at, before, width, diagonal):  # type: ignore[no-untyped-def]
    """Pull the distances from the row ``before`` into a row; spread them to the right.

    Tells whether any lane improved to at most its ``bound``.
    """
    carry = fill(distance.dtype.type(np.inf))
    improved = False
    for _ in range(width):
        reach = minimum(carry, load(distance, at + before))
        if diagonal:
            left = load(distance, at + before - LANES)
            right = load(distance, at + before + LANES)
            reach = minimum(reach, minimum(left, right))
        new = add(reach, load(cost, cell))
        old = load(distance, at)
        improved |= any_improves(new, old, bound)
        carry = minimum(new, old)
        store(distance, at, carry)
        at += LANES
        cell += LANES
    return improved


@njit(error_model="numpy")
def _spread_left(distance, cost, cell, at, width):  # type: ignore[no-untyped-def]
    """Spread the distances of a row from right to left."""
    at += (width - 1) * LANES
    cell += (width - 1) * LANES
    carry = load(distance, at)
    for _ in range(1, width):
        at -= LANES
        cell -= LANES
        carry = minimum(load(distance, at), add(carry, load(cost, cell)))
        store(distance, at, carry)


@njit(error_model="numpy")
def _sweep(distance, cost, ends, height, width, diagonal):  # type: ignore[no-untyped-def]
    """Sweep until every distance up to that of the lane's end is right."""
    row = (width + 2) * LANES
    bounds = np.empty(LANES, dtype=distance.dtype)
    bound = fill(distance.dtype.type(np.inf))
    # Whether a row has changed since the one below (above) last pulled from it.
    changed_for_below = np.empty(height + 1, dtype=np.bool_)
    changed_for_above = np.empty(height + 1, dtype=np.bool_)
    fill_with(changed_for_below, True)
    fill_with(changed_for_above, True)
    first = True
    down = True
    changed = True
    while changed:
        changed = False
        for step in range(height):
            i = step if down else height - 1 - step
            at = (i + 1) * row + LANES
            cell = i * width * LANES
            if down:
                stale = changed_for_below[i - 1]
                changed_for_below[i - 1] = False
            else:
                stale = changed_for_above[i + 1]
                changed_for_above[i + 1] = False
            before = -row if down else row
            if stale and (
                _relax(distance, cost, bound, cell, at, before, width, diagonal)
                or first
            ):
                _spread_left(distance, cost, cell, at, width)
                changed_for_below[i] = True
                changed_for_above[i] = True
                changed = True
        first = False
        down = not down
        for lane in range(LANES):
            bounds[lane] = distance[ends[lane] * LANES + lane]
        bound = load(bounds, 0)


@njit(error_model="numpy")
def _nearest_neighbours(distance, height, width, diagonal, choice):  # type: ignore[no-untyped-def]
    """Write for every cell which of its neighbours is nearest, the first among equals.

    With 8 added where it is no nearer than the cell itself; 24 where it is farther.
    """
    row = width + 2
    for i in range(height):
        for j in range(width):
            at = (i + 1) * row + j + 1
            own = load(distance, at * LANES)
            nearest = own
            chosen = fill(np.int32(16))
            # Backwards and with "at most", so that the first among equals is left.
            if diagonal:
                for number, offset in (
                    (7, row + 1),
                    (6, row),
                    (5, row - 1),
                    (4, 1),
                    (3, -1),
                    (2, -row + 1),
                    (1, -row),
                    (0, -row - 1),
                ):
                    beside = load(distance, (at + offset) * LANES)
                    chosen = where_less(nearest, beside, chosen, fill(np.int32(number)))
                    nearest = minimum(nearest, beside)
            else:
                for number, offset in ((3, row), (2, 1), (1, -1), (0, -row)):
                    beside = load(distance, (at + offset) * LANES)
                    chosen = where_less(nearest, beside, chosen, fill(np.int32(number)))
                    nearest = minimum(nearest, beside)
            equal = join(chosen, fill(np.int32(8)))
            chosen = where_less(nearest, own, chosen, equal)
            store(choice, (i * width + j) * LANES, chosen)


@njit(error_model="numpy")
def _solve_lanes(theta, ints, context, y, status):  # type: ignore[no-untyped-def]
    """Solve lane by lane, by the kernel for one instance."""
    scores = np.empty(theta.shape[0], dtype=theta.dtype)
    solution = np.empty(theta.shape[0], dtype=theta.dtype)
    for lane in range(LANES):
        for cell in range(scores.size):
            scores[cell] = theta[cell, lane]
        status[lane] = shortest_path(scores, ints, context[lane], solution)
        for cell in range(scores.size):
            y[cell, lane] = np.uint8(solution[cell])


@block_kernel(LANES)
def grid_paths(theta, ints, reals, context, y, status):  # type: ignore[no-untyped-def]
    """Shortest paths by sweeps, for :data:`LANES` instances side by side."""
    height, width, diagonal = ints[0], ints[1], ints[2]
    if max(height, width) > LARGEST_SIDE:
        _solve_lanes(theta, ints, context, y, status)
        return
    cells = height * width
    row = width + 2
    infinity = theta.dtype.type(np.inf)
    scores = theta.reshape(-1)
    marks = y.reshape(-1)
    distance = lane_buffer((height + 2) * row * LANES, theta.dtype)
    cost = lane_buffer(cells * LANES, theta.dtype)
    for at in range((height + 2) * row):
        store(distance, at * LANES, fill(infinity))
    zero = fill(theta.dtype.type(0.0))
    for at in range(cells):
        store(cost, at * LANES, maximum(negative(load(scores, at * LANES)), zero))
    if ints[5]:
        for lane in range(LANES):
            blocked = context[lane, context.shape[1] - cells :]
            for at in range(cells):
                if blocked[at] != 0:
                    cost[at * LANES + lane] = infinity

    starts = np.empty(LANES, dtype=np.int64)
    ends = np.empty(LANES, dtype=np.int64)
    final = np.empty(LANES, dtype=np.int64)
    for lane in range(LANES):
        start, end = endpoints_of(ints, context[lane])
        starts[lane], final[lane] = start, end
        ends[lane] = bordered(end, width)
        distance[bordered(start, width) * LANES + lane] = cost[start * LANES + lane]
    _sweep(distance, cost, ends, height, width, diagonal)

    # The costs are not needed any more: reuse their memory, hot in the cache.
    choice = cost.view(np.uint8)
    _nearest_neighbours(distance, height, width, diagonal, choice)
    offsets = neighbour_offsets(width, diagonal)
    steps = neighbour_offsets(width - 2, diagonal) * LANES
    came = np.empty((height + 2) * row, dtype=np.int32)
    fill_with(came, np.int32(-1))
    queue = np.empty((height + 2) * row, dtype=np.int32)
    fill_with(marks, np.uint8(0))
    for lane in range(LANES):
        status[lane] = OK
        if not distance[ends[lane] * LANES + lane] < infinity:
            status[lane] = INFEASIBLE
            continue
        here = final[lane] * LANES + lane
        start = starts[lane] * LANES + lane
        marks[here] = 1
        while here != start:
            number = choice[here]
            beside = here + steps[number & 7]
            if number < 8 or beside == start or choice[beside] < 8:
                here = beside
                marks[here] = 1
            else:
                leave = leave_plateau(
                    distance,
                    marks,
                    width,
                    offsets,
                    lane,
                    LANES,
                    bordered(starts[lane], width),
                    bordered(here // LANES, width),
                    came,
                    queue,
                )
                here = unbordered(leave, width) * LANES + lane
    if ints[3]:
        for lane in range(LANES):
            for cell in range(cells):
                if theta[cell, lane] > 0:
                    status[lane] = NEGATIVE_COST
            if status[lane] == NEGATIVE_COST:
                for cell in range(cells):
                    y[cell, lane] = 0
