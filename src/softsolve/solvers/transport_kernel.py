"""The transport kernel: the network simplex method on a complete bipartite graph.

Arcs need not be listed: the best one of a row is found in one vectorised pass. A first
tree comes from a greedy rule: each row in turn ships to its best column that still
wants something.
"""

import numba
import numpy as np

from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers.assignment_rows import LANES, bid_row
from softsolve.solvers.network_simplex import (
    ARC,
    FLOW,
    PARENT,
    bare_tree,
    hang,
    pivot,
    settle,
)

NOT_FINITE, STALLED = 2, 3


@numba.njit(error_model="numpy")
def _ship(scores, given, wanted, links, values, rows, columns, width):  # type: ignore[no-untyped-def]
    """Ship greedily, and hang what ships together on its column not yet satisfied.

    A row satisfies all its columns but the last, so the shipments form no cycle.
    """
    root = width + rows
    for i in range(rows):
        node, left = width + i, given[i]
        while left > 0:
            j = -1
            for k in range(columns):
                if wanted[k] > 0 and (
                    j < 0 or scores[i * width + k] > scores[i * width + j]
                ):
                    j = k
            if j < 0:
                break
            amount = min(left, wanted[j])
            left -= amount
            wanted[j] -= amount
            arc, gain = i * columns + j, scores[i * width + j]
            if left > 0:
                hang(links, values, j, node, arc, 0, amount, np.inf, gain)
            else:
                hang(links, values, node, j, arc, 1, amount, np.inf, gain)
    arcs = rows * columns
    for node in range(root):
        if links[node, PARENT] < 0 and (node < columns or node >= width):
            hang(links, values, node, root, arcs + node, 1, 0.0, np.inf, 0.0)


@kernel
def transport(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Solve a transport problem; ``ints`` is (n, m), reals or context the marginals."""
    rows, columns = ints[0], ints[1]
    marginals = context if len(context) > 0 else reals
    blocks = (columns + LANES - 1) // LANES
    width = blocks * LANES
    scores = np.empty(rows * width)
    largest = 0.0
    for i in range(rows):
        for j in range(columns):
            score = np.float64(theta[i * columns + j])
            if not abs(score) < np.inf:
                return NOT_FINITE
            largest = max(largest, abs(score))
            scores[i * width + j] = score
        for j in range(columns, width):
            scores[i * width + j] = -np.inf

    root = width + rows
    links, values, potential = bare_tree(root + 1)
    wanted = marginals[rows : rows + columns].copy()
    _ship(scores, marginals[:rows], wanted, links, values, rows, columns, width)
    for node in range(root):
        if links[node, PARENT] == root:
            settle(links, values, potential, node)

    nodes = rows + columns
    tolerance = 4 * np.finfo(np.float64).eps * nodes * largest
    pivots_left = 1000 * nodes + rows * columns
    i, optimal_rows = 0, 0
    while optimal_rows < rows:
        j, _ = bid_row(scores, i * width, potential, blocks)
        gain = scores[i * width + j]
        if gain - potential[j] + potential[width + i] > tolerance:
            if pivots_left == 0:
                return STALLED
            pivots_left -= 1
            pivot(
                *(links, values, potential, i * columns + j),
                *(width + i, j, np.inf, gain, False),
            )
            optimal_rows = 0
        else:
            optimal_rows += 1
            i = i + 1 if i + 1 < rows else 0

    for cell in range(len(y)):
        y[cell] = 0
    for node in range(root):
        arc = links[node, ARC]
        if 0 <= arc < rows * columns:
            y[arc] = values[node, FLOW]
    return OK
