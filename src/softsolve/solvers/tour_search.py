r"""A good tour of many cities: nearest neighbours, improved until no move helps.

The moves are 2-opt (take two edges out, join the paths the other way round) and Or-opt
(take a path of up to three cities out, put it back elsewhere, in either direction).
A tour that none of them improves is a local optimum.
"""

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel

LONGEST_SEGMENT = 3

# A tour is held twice in a row, so that it can be read on from any city without a
# break: ring[x] is a city, edge[x] the score of the edge from ring[x] to ring[x + 1].


@numba.njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def _best_join(score, a, b, ring, edge, start, stop):  # type: ignore[no-untyped-def]
    # What replacing an edge (c, d) by (c, a) and (b, d) gains at best. Without nans,
    # the maximum vectorises; indices are unsigned to need no guard.
    best = score[a + ring[start]] + score[b + ring[start + 1]] - edge[start]
    for x in range(start + 1, stop):
        gain = score[a + ring[x]] + score[b + ring[x + 1]] - edge[x]
        best = gain if gain > best else best
    return best


@numba.njit(nogil=True, cache=True)
def _where(score, a, b, ring, edge, start, gain):  # type: ignore[no-untyped-def]
    x = start
    while score[a + ring[x]] + score[b + ring[x + 1]] - edge[x] != gain:
        x += 1
    return x


@numba.njit(nogil=True, cache=True)
def _close(score, n, ring, edge):  # type: ignore[no-untyped-def]
    ring[n:] = ring[:n]
    for x in range(n):
        edge[x] = score[ring[x] * np.uint64(n) + ring[x + 1]]
    edge[n:] = edge[:n]


@numba.njit(nogil=True, cache=True)
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


@numba.njit(nogil=True, cache=True)
def _improve_at(score, n, ring, edge, at, tolerance, spare):  # type: ignore[no-untyped-def]
    """Make the best move of the edge and the segments that start here, if it helps."""
    size = np.uint64(n)
    first, end = ring[at] * size, ring[at + 1] * size
    gain = _best_join(score, first, end, ring, edge, at + 2, at + n - 1)
    most, length, turned = gain - edge[at], 0, False
    best_gain = gain
    for k in range(1, min(LONGEST_SEGMENT, n - 2) + 1):
        end = ring[at + k - 1] * size
        before, after = ring[at + n - 1], ring[at + k]
        freed = score[before * size + after] - edge[at + n - 1] - edge[at + k - 1]
        gain = _best_join(score, first, end, ring, edge, at + k, at + n - 1)
        if freed + gain > most:
            most, length, turned, best_gain = freed + gain, k, False, gain
        if k > 1:
            gain = _best_join(score, end, first, ring, edge, at + k, at + n - 1)
            if freed + gain > most:
                most, length, turned, best_gain = freed + gain, k, True, gain
    if not most > tolerance:
        return False

    if length == 0:
        end = ring[at + 1] * size
        x = _where(score, first, end, ring, edge, at + 2, best_gain)
        spare[0] = ring[at]
        inner = x - at
        for step in range(inner):
            spare[1 + step] = ring[x - step]
        spare[inner + 1 : n] = ring[x + 1 : at + n]
    else:
        end = ring[at + length - 1] * size
        a, b = (end, first) if turned else (first, end)
        x = _where(score, a, b, ring, edge, at + length, best_gain)
        kept = x + 1 - (at + length)
        spare[:kept] = ring[at + length : x + 1]
        # Joined as (c, a) and (b, d): the segment's end a comes first.
        for step in range(length):
            spare[kept + step] = ring[at + (length - 1 - step if turned else step)]
        spare[kept + length : n] = ring[x + 1 : at + n]
    ring[:n] = spare
    _close(score, n, ring, edge)
    return True


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
    tolerance = 32 * np.finfo(theta.dtype).eps

    ring = np.empty(2 * n, np.uint64)
    edge = np.empty(2 * n, theta.dtype)
    if state[0] == 0:
        _nearest_neighbours(score, n, ring)
    else:
        for x in range(n):
            ring[x] = np.uint64(state[x + 1])
    if n > 3:
        spare = np.empty(n, np.uint64)
        _close(score, n, ring, edge)
        at, quiet = 0, 0
        while quiet < n:
            if _improve_at(score, n, ring, edge, at, tolerance, spare):
                at, quiet = 0, 0
            else:
                at, quiet = (at + 1) % n, quiet + 1
    if state[0] == 0:
        for x in range(n):
            state[x + 1] = ring[x]
        state[0] = 1
    for x in range(n):
        i, j = ring[x], ring[(x + 1) % n]
        if i != j:
            y[i * np.uint64(n) + j] = y[j * np.uint64(n) + i] = 1
    return OK
