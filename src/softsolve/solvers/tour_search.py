r"""A good tour of many cities: nearest neighbours, improved until no move helps.

The moves are 2-opt (take two edges out, join the paths the other way round) and Or-opt
(take a path of up to three cities out, put it back elsewhere, in either direction).
A tour that none of them improves is a local optimum.
"""

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel

# A tour is held twice in a row, so that it can be read on from any city without a
# break: ring[x] is a city, edge[x] the score of the edge from ring[x] to ring[x + 1].
# For the three cities from which moves are sought, rows holds the scores with the
# others in the order of the ring: the sums over all places to join are then sums of
# neighbours in memory. The indices of long loops are unsigned, so that Numba guards
# against no negative ones there.
KEPT_ROWS = 3


@numba.njit(nogil=True)
def _read_row(score, n, ring, position, rows, row):  # type: ignore[no-untyped-def]
    size = np.uint64(n)
    start = ring[position] * size
    for x in range(size):
        rows[row + x] = score[start + ring[x]]
    for x in range(size):
        rows[row + size + x] = rows[row + x]


@numba.njit(nogil=True)
def _best_join(rows, a, b, edge, start, stop, threshold):  # type: ignore[no-untyped-def]
    """Find where to replace an edge (c, d) by (c, a) and (b, d), or return ``stop``.

    The place is the one that gains most, if that is more than the threshold; ``a`` and
    ``b`` are where the rows of these cities begin.
    """
    to_d = b + np.uint64(1)
    # Mostly there is none. Asking for that vectorises, the maximum does not.
    found = False
    for x in range(start, stop):
        found |= rows[a + x] + rows[to_d + x] - edge[x] > threshold
    place = stop
    if found:
        for x in range(start, stop):
            gain = rows[a + x] + rows[to_d + x] - edge[x]
            if gain > threshold:
                threshold = gain
                place = x
    return place


@numba.njit(nogil=True)
def _close(score, n, ring, edge):  # type: ignore[no-untyped-def]
    ring[n:] = ring[:n]
    for x in range(n):
        edge[x] = score[ring[x] * np.uint64(n) + ring[x + 1]]
    edge[n:] = edge[:n]


@numba.njit(nogil=True)
def _nearest_neighbours(score, n, ring):  # type: ignore[no-untyped-def]
    for x in range(n):
        ring[x] = x
    for x in range(1, n - 1):
        row = ring[x - 1] * np.uint64(n)
        nearest = x
        for other in range(x + 1, n):
            gain = score[row + ring[other]] - score[row + ring[nearest]]
            if gain > 0 or (gain == 0 and ring[other] < ring[nearest]):
                nearest = other
        ring[x], ring[nearest] = ring[nearest], ring[x]


@numba.njit(nogil=True)
def _improve_at(score, n, ring, edge, at, rows, tolerance, spare):  # type: ignore[no-untyped-def]
    """Make the best move of the edge and the segments that start here, if it helps."""
    stop = at + n - 1
    end = np.uint64(stop)
    before = ring[stop] * np.uint64(n)
    first = np.uint64(at % KEPT_ROWS * 2 * n)
    most, length, turned, place = tolerance, -1, False, np.int64(0)
    for k in range(1, min(KEPT_ROWS, n - 2) + 1):
        start = at + k
        last = np.uint64((start - 1) % KEPT_ROWS * 2 * n)
        freed = score[before + ring[start]] - edge[stop] - edge[start - 1]
        # Turning the path from here to c round joins the cities that moving a segment
        # of two does.
        least = min(most - freed, most + edge[at]) if k == 2 else most - freed
        x = _best_join(rows, first, last, edge, np.uint64(start), end, least)
        if x < end:
            gain = rows[first + x] + rows[last + x + np.uint64(1)] - edge[x]
            if freed + gain > most:
                most, length, turned, place = freed + gain, k, False, np.int64(x)
            if k == 2 and gain - edge[at] > most:
                most, length, turned, place = gain - edge[at], 0, False, np.int64(x)
        if k > 1:
            least = most - freed
            x = _best_join(rows, last, first, edge, np.uint64(start), end, least)
            if x < end:
                gain = rows[last + x] + rows[first + x + np.uint64(1)] - edge[x]
                if freed + gain > most:
                    most, length, turned, place = freed + gain, k, True, np.int64(x)
    if length < 0:
        return False

    if length == 0:
        spare[0] = ring[at]
        for step in range(place - at):
            spare[1 + step] = ring[place - step]
    else:
        kept = place + 1 - at - length
        spare[:kept] = ring[at + length : place + 1]
        # Joined as (c, a) and (b, d): the end a of the segment comes first.
        for step in range(length):
            spare[kept + step] = ring[at + (length - 1 - step if turned else step)]
    spare[place + 1 - at :] = ring[place + 1 : at + n]
    ring[:n] = spare
    _close(score, n, ring, edge)
    return True


@numba.njit(nogil=True)
def _search(score, n, ring, edge, tolerance):  # type: ignore[no-untyped-def]
    spare = np.empty(n, np.uint64)
    rows = np.empty(KEPT_ROWS * 2 * n, score.dtype)
    _close(score, n, ring, edge)
    # After a move, the search goes on from the start of the ring that it made.
    at, fresh = 0, KEPT_ROWS
    while at < n:
        # Of the rows wanted here, all but the last were wanted one city before.
        for k in range(KEPT_ROWS - fresh, KEPT_ROWS):
            row = np.uint64((at + k) % KEPT_ROWS * 2 * n)
            _read_row(score, n, ring, at + k, rows, row)
        if _improve_at(score, n, ring, edge, at, rows, tolerance, spare):
            at, fresh = 0, KEPT_ROWS
        else:
            at, fresh = at + 1, 1


@kernel
def search_tour(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Improve a tour until no move helps; ``ints[0]`` is n.

    ``state[1:]`` is the tour of the unperturbed scores, where the search starts.
    """
    n = ints[0]
    y[:] = 0
    # In units of the largest score no sum overflows and rounding has a known size.
    largest = np.max(np.abs(theta))
    unit = largest if largest > 0 else theta.dtype.type(1)
    score = np.empty(n * n, theta.dtype)
    for i in range(n):
        for j in range(n):
            score[i * n + j] = theta[i * n + j] / unit + theta[j * n + i] / unit
    tolerance = theta.dtype.type(32 * np.finfo(theta.dtype).eps)

    ring = np.empty(2 * n, np.uint64)
    edge = np.empty(2 * n, theta.dtype)
    if state[0] == 0:
        _nearest_neighbours(score, n, ring)
    else:
        for x in range(n):
            ring[x] = np.uint64(state[x + 1])
    if n > 3:
        _search(score, n, ring, edge, tolerance)
    if state[0] == 0:
        for x in range(n):
            state[x + 1] = ring[x]
        state[0] = 1
    for x in range(n):
        i, j = ring[x], ring[(x + 1) % n]
        if i != j:
            y[i * np.uint64(n) + j] = y[j * np.uint64(n) + i] = 1
    return OK
