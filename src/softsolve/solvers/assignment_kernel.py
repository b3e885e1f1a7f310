r"""The assignment kernel: bids, then shortest augmenting paths.

The dual of the assignment problem has a price :math:`p_j` for each column; a matching
is optimal when every row has a column of largest :math:`s_{ij} - p_j` and columns left
over cost nothing. Two phases keep the first condition for every matched row, after
Jonker and Volgenant [1]_:

1. Bids, as in an auction [2]_: a free row takes its best column from whoever has it
   and raises the price by its lead on the second best. A few rows bid at the same
   prices, the highest bid for a column wins: they do not wait for one another, so the
   processor works on them at once.
2. For each row still free, the shortest alternating path to a free column with
   Dijkstra's algorithm on the reduced scores, which the prices keep nonnegative.

The first phase is cut off after about two bids a row: it only makes a good start, and
any start of that form is right. So is a start from the prices of other scores, where
no column is left over; it saves a quarter of the work when these scores are close and
costs a tenth when they are far, so the state holds a row of them to tell.

References
----------
.. [1] R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and
   sparse linear assignment problems", Computing 38, 1987.
.. [2] D. P. Bertsekas, "The auction algorithm: a distributed relaxation method for the
   assignment problem", Annals of Operations Research 14, 1988.
"""

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel
from softsolve.compiled.lanes import lane_buffer
from softsolve.solvers.assignment_rows import LANES, bid_row, relax_row

NOT_FINITE = 2

# Rows that bid at the same prices, and bids that are made for each row of scores.
_TOGETHER = 4
_BIDS_PER_ROW = 2

# Ties in a row after which a free column is looked for among the columns that tie. Bids
# leave short runs of ties behind; whole numbers, long ones.
_TIES = 32

# Squared noise, in squared spreads of the scores, up to which prices are worth keeping.
_NEAR = 0.25


@numba.njit(error_model="numpy")
def _copy_scores(theta, rows, columns, transposed, partial, scores, width):  # type: ignore[no-untyped-def]
    """Copy ``theta`` into padded rows; tell whether all scores can be added up."""
    # Prices are sums of at most `rows` differences: they stay finite below this.
    limit = theta.dtype.type(1e30 if theta.itemsize == 4 else 1e300)
    least = theta.dtype.type(0) if partial else -limit
    in_range = True
    for i in range(rows):
        row = scores[i * width : (i + 1) * width]
        if transposed:
            for j in range(columns):
                score = theta[j * rows + i]
                in_range &= abs(score) < limit
                row[j] = max(score, least)
        else:
            given = theta[i * columns : (i + 1) * columns]
            for j in range(columns):
                in_range &= abs(given[j]) < limit
                row[j] = max(given[j], least)
        for j in range(columns, width):
            row[j] = -np.inf
    return in_range


@numba.njit(error_model="numpy")
def _bid(scores, price, owner, column, queue, blocks, wanted, level):  # type: ignore[no-untyped-def]
    """Let free rows bid for columns; return where the rows still free are queued."""
    rows, width = len(queue), blocks * LANES
    front, waiting, left = 0, rows, _BIDS_PER_ROW * rows
    while left > 0 and waiting > 0:
        size = min(_TOGETHER, waiting)
        left -= size
        at = front
        for k in range(size):
            j, lead = bid_row(scores, queue[at] * width, price, blocks)
            wanted[k] = j
            level[k] = price[j] + lead
            at = at + 1 if at + 1 < rows else 0
        for k in range(size):
            i, j = queue[front], wanted[k]
            front = front + 1 if front + 1 < rows else 0
            waiting -= 1
            loser = owner[j]
            if loser < 0 or level[k] > price[j]:
                owner[j] = i
                column[i] = j
                price[j] = level[k]
                i = loser
            if i >= 0:
                column[i] = -1
                back = front + waiting
                queue[back if back < rows else back - rows] = i
                waiting += 1
    return front, waiting


@numba.njit(error_model="numpy")
def _free_among_nearest(distance, least, owner, nearest):  # type: ignore[no-untyped-def]
    """Return the first free column at the distance ``least``, or else ``nearest``.

    Where many columns tie, taking them in their order would visit nearly all of them.
    """
    for j in range(nearest + 1, len(distance)):
        if distance[j] == least and owner[j] < 0:
            return j
    return nearest


@numba.njit(error_model="numpy")
def _augment(start, scores, price, open_price, distance, reached_at, via, owner, column, order, blocks):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Match the free row ``start`` along a shortest alternating path."""
    width = blocks * LANES
    for j in range(width):
        distance[j] = np.inf
        open_price[j] = price[j]
    reached, tied = 0, 0
    i, offset, before = start, price.dtype.type(0), price.dtype.type(-np.inf)
    while True:
        least, j = relax_row(
            scores, i * width, open_price, distance, via, np.int32(i), offset, blocks
        )
        if owner[j] < 0:
            break
        tied = tied + 1 if least == before else 0
        before = least
        if tied >= _TIES:
            j = _free_among_nearest(distance, least, owner, j)
            if owner[j] < 0:
                break
        order[reached] = j
        reached_at[reached] = least
        reached += 1
        i = owner[j]
        offset = least + (scores[i * width + j] - price[j])
        # An infinite price closes the column: nothing is nearer through it.
        open_price[j] = np.inf
        distance[j] = np.inf
    for k in range(reached):
        price[order[k]] += least - reached_at[k]
    while True:
        i = via[j]
        owner[j] = i
        column[i], j = j, column[i]
        if i == start:
            break


@numba.njit(error_model="numpy")
def _near(state, scores, columns):  # type: ignore[no-untyped-def]
    """Tell whether ``scores`` are so close to the state's that its prices help."""
    apart = 0.0
    for j in range(columns):
        difference = scores[j] - state[2 + columns + j]
        apart += difference * difference
    return apart <= state[1]


@numba.njit(error_model="numpy")
def _remember(state, scores, price, columns):  # type: ignore[no-untyped-def]
    """Write the prices, a row of scores and how far others may be from it."""
    mean = 0.0
    for j in range(columns):
        mean += scores[j] / columns
    spread = 0.0
    for j in range(columns):
        state[2 + j] = price[j]
        state[2 + columns + j] = scores[j]
        spread += (scores[j] - mean) ** 2
    state[1] = _NEAR * spread
    state[0] = 1


@kernel
def assign(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Solve an assignment; ``ints`` is (n, m, partial); see :func:`_remember`."""
    transposed = ints[0] > ints[1]
    rows, columns = min(ints[0], ints[1]), max(ints[0], ints[1])
    partial = ints[2] != 0
    blocks = (columns + LANES - 1) // LANES
    width = blocks * LANES

    numbers = lane_buffer((rows + 4) * width + _TOGETHER, theta.dtype)
    scores = numbers[: rows * width]
    price = numbers[rows * width : (rows + 1) * width]
    open_price = numbers[(rows + 1) * width : (rows + 2) * width]
    distance = numbers[(rows + 2) * width : (rows + 3) * width]
    reached_at = numbers[(rows + 3) * width : (rows + 4) * width]
    level = numbers[(rows + 4) * width :]
    indices = lane_buffer(3 * width + 2 * rows + _TOGETHER, np.int32)
    via = indices[:width]
    owner = indices[width : 2 * width]
    order = indices[2 * width : 3 * width]
    column = indices[3 * width : 3 * width + rows]
    queue = indices[3 * width + rows : 3 * width + 2 * rows]
    wanted = indices[3 * width + 2 * rows :]

    if not _copy_scores(theta, rows, columns, transposed, partial, scores, width):
        return NOT_FINITE
    for j in range(width):
        price[j] = 0
        owner[j] = -1
        via[j] = 0
    for i in range(rows):
        column[i] = -1
        queue[i] = i
    primed = len(state) > 0 and state[0] == 1
    if primed and _near(state, scores, columns):
        for j in range(columns):
            price[j] = state[2 + j]

    front, waiting = 0, rows
    if columns > 1:
        front, waiting = _bid(
            scores, price, owner, column, queue, blocks, wanted, level
        )
    for k in range(waiting):
        at = front + k
        _augment(
            queue[at if at < rows else at - rows],
            *(scores, price, open_price, distance, reached_at),
            *(via, owner, column, order, blocks),
        )

    if len(state) > 0 and not primed:
        _remember(state, scores, price, columns)
    for cell in range(len(y)):
        y[cell] = 0
    for i in range(rows):
        j = column[i]
        # A cell of score 0 or less in a partial assignment stands for no match.
        if not partial or scores[i * width + j] > 0:
            y[j * rows + i if transposed else i * columns + j] = 1
    return OK
