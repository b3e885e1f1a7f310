"""The flow kernel: the network simplex method on a graph given by its arcs.

A flow from source to target is a circulation once an arc without limit leads back. The
zero flow is a start. Arcs that may enter the tree are looked through in blocks, and the
best of a block enters.
"""

import math

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers.network_simplex import (
    ARC,
    FLOW,
    bare_tree,
    hang,
    pivot,
    settle,
)

NOT_FINITE, STALLED = 2, 3

# Where an arc is: in the tree, or outside it with no flow or all it can carry.
_IN_TREE, _EMPTY, _FULL = 0, 1, -1

_SMALLEST_BLOCK = 16


@numba.njit(error_model="numpy")
def _best_in_block(start, block, gains, tails, heads, place, potential, tolerance):  # type: ignore[no-untyped-def]
    """Return the arc that improves most, in the first block that has one, and the next.

    The arc is -1 where none improves by more than ``tolerance``.
    """
    arcs = len(gains)
    best, entering, left_in_block, arc = tolerance, -1, block, start
    for _ in range(arcs):
        reduced = gains[arc] + potential[tails[arc]] - potential[heads[arc]]
        improvement = place[arc] * reduced
        if improvement > best:
            best, entering = improvement, arc
        arc = arc + 1 if arc + 1 < arcs else 0
        left_in_block -= 1
        if left_in_block == 0:
            if entering >= 0:
                break
            left_in_block = block
    return entering, arc


@kernel
def maximum_flow(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Find the best flow; ``reals`` or ``context`` holds the capacities.

    ``ints`` is the number of vertices, then the tails and the heads of the arcs, of
    which the last one leads from the target back to the source.
    """
    vertices, edges = ints[0], len(theta)
    arcs = edges + 1
    tails, heads = ints[1 : 1 + arcs], ints[1 + arcs : 1 + 2 * arcs]
    capacities = context if len(context) > 0 else reals
    gains = np.zeros(arcs)
    largest = 0.0
    for arc in range(edges):
        gains[arc] = theta[arc]
        if not abs(gains[arc]) < np.inf:
            return NOT_FINITE
        largest = max(largest, abs(gains[arc]))

    links, values, potential = bare_tree(vertices + 1)
    for node in range(vertices):
        hang(links, values, node, vertices, arcs + node, 1, 0.0, np.inf, 0.0)
        settle(links, values, potential, node)
    place = np.full(arcs, _EMPTY, np.int8)

    tolerance = 4 * np.finfo(np.float64).eps * (vertices + 1) * largest
    block = max(_SMALLEST_BLOCK, int(math.sqrt(arcs)))
    pivots_left = 1000 * (vertices + arcs)
    start = 0
    while True:
        entering, start = _best_in_block(
            start, block, gains, tails, heads, place, potential, tolerance
        )
        if entering < 0:
            break
        if pivots_left == 0:
            return STALLED
        pivots_left -= 1
        capacity = capacities[entering] if entering < edges else np.inf
        full = place[entering] == _FULL
        place[entering] = _IN_TREE
        leaving, leaves_full = pivot(
            *(links, values, potential, entering),
            *(tails[entering], heads[entering], capacity, gains[entering], full),
        )
        if leaving < arcs:
            place[leaving] = _FULL if leaves_full else _EMPTY

    for edge in range(edges):
        y[edge] = capacities[edge] if place[edge] == _FULL else 0
    for node in range(vertices):
        arc = links[node, ARC]
        if arc < edges:
            y[arc] = values[node, FLOW]
    return OK
