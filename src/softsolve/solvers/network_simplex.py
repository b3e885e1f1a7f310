r"""The network simplex method: a spanning tree, and the pivot that changes it.

A basis of a flow problem is a spanning tree. Arcs outside it carry nothing or all they
can; the arcs in it carry what conservation demands. Potentials :math:`\pi` make the
reduced gain :math:`g_a + \pi_{\text{tail}} - \pi_{\text{head}}` zero on the tree. An
arc that could carry more at a positive reduced gain (or less at a negative one) enters,
flow is pushed around the cycle it closes, and an arc that blocks it leaves.

Every start here is feasible, by a root that takes in nothing: nodes hang on it by arcs
that only lead to it, which must stay empty. So no large cost is needed to drive them
out. Trees are kept *strongly feasible* (some flow can be sent from every node to the
root) by the choice among blocking arcs, which rules out cycling [1]_. Potentials are
summed afresh along the tree at every pivot, so their errors do not pile up.

References
----------
.. [1] W. H. Cunningham, "A network simplex method", Mathematical Programming 11, 1976.
"""

import numba
import numpy as np

# What the tree knows about a node, by column of its integers: its parent, depth, the
# arc to the parent, whether that arc leads upwards, and the list of its children.
PARENT, DEPTH, ARC, UPWARD, CHILD, NEXT, PREVIOUS = range(7)
# And of its reals: flow, capacity and gain of the arc to the parent.
FLOW, CAPACITY, GAIN = range(3)

NODE_INTS, NODE_REALS = 7, 3


@numba.njit(error_model="numpy")
def _link(links, node, parent):  # type: ignore[no-untyped-def]
    """Make ``node`` the first child of ``parent``."""
    sibling = links[parent, CHILD]
    links[node, PARENT] = parent
    links[node, NEXT] = sibling
    links[node, PREVIOUS] = -1
    if sibling >= 0:
        links[sibling, PREVIOUS] = node
    links[parent, CHILD] = node


@numba.njit(error_model="numpy")
def _unlink(links, node):  # type: ignore[no-untyped-def]
    """Take ``node`` out of its parent's list of children."""
    before, after = links[node, PREVIOUS], links[node, NEXT]
    if before >= 0:
        links[before, NEXT] = after
    else:
        links[links[node, PARENT], CHILD] = after
    if after >= 0:
        links[after, PREVIOUS] = before


@numba.njit(error_model="numpy")
def hang(links, values, node, parent, arc, upward, flow, capacity, gain):  # type: ignore[no-untyped-def]
    """Hang a node that is in no tree yet on ``parent``."""
    _link(links, node, parent)
    links[node, ARC] = arc
    links[node, UPWARD] = upward
    values[node, FLOW] = flow
    values[node, CAPACITY] = capacity
    values[node, GAIN] = gain


@numba.njit(error_model="numpy")
def settle(links, values, potential, top):  # type: ignore[no-untyped-def]
    """Compute the depths and potentials of ``top`` and all below from its parent."""
    node = top
    while True:
        parent = links[node, PARENT]
        links[node, DEPTH] = links[parent, DEPTH] + 1
        gain = values[node, GAIN]
        potential[node] = potential[parent] + (-gain if links[node, UPWARD] else gain)
        if links[node, CHILD] >= 0:
            node = links[node, CHILD]
            continue
        while node != top and links[node, NEXT] < 0:
            node = links[node, PARENT]
        if node == top:
            return
        node = links[node, NEXT]


@numba.njit(error_model="numpy")
def _room(links, values, node, upward):  # type: ignore[no-untyped-def]
    """Return how much more flow fits between a node and its parent, in a direction."""
    flow = values[node, FLOW]
    return values[node, CAPACITY] - flow if links[node, UPWARD] == upward else flow


@numba.njit(error_model="numpy")
def _push(links, values, node, top, amount, upward):  # type: ignore[no-untyped-def]
    """Push flow along the path between a node and ``top`` above it."""
    while node != top:
        change = amount if links[node, UPWARD] == upward else -amount
        values[node, FLOW] += change
        node = links[node, PARENT]


@numba.njit(error_model="numpy")
def _move(links, values, node, parent, last, arc, upward, flow, capacity, gain):  # type: ignore[no-untyped-def]
    """Turn around the path from ``node`` up to ``last`` and hang it on ``parent``."""
    while True:
        above = links[node, PARENT]
        old_arc, old_upward = links[node, ARC], links[node, UPWARD]
        old_flow, old_capacity, old_gain = values[node]
        _unlink(links, node)
        hang(links, values, node, parent, arc, upward, flow, capacity, gain)
        if node == last:
            return
        parent, node = node, above
        arc, upward = old_arc, 1 - old_upward
        flow, capacity, gain = old_flow, old_capacity, old_gain


@numba.njit(error_model="numpy")
def pivot(links, values, potential, arc, tail, head, capacity, gain, full):  # type: ignore[no-untyped-def]
    """Bring in an arc, which carries nothing or, if ``full``, all it can.

    Returns the arc that leaves and whether it is full then; it may be the same arc.
    """
    # Flow is pushed from the join of both paths down to `first`, through the arc to
    # `second`, and back up. Of several blocking arcs, the last on that way leaves.
    first, second = (head, tail) if full else (tail, head)
    left, right = first, second
    while left != right:
        if links[left, DEPTH] >= links[right, DEPTH]:
            left = links[left, PARENT]
        else:
            right = links[right, PARENT]
    join = left

    amount, leaving, downward_side = capacity, -1, False
    node = first
    while node != join:
        room = _room(links, values, node, 0)
        if room < amount:
            amount, leaving, downward_side = room, node, True
        node = links[node, PARENT]
    node = second
    while node != join:
        room = _room(links, values, node, 1)
        if room <= amount:
            amount, leaving, downward_side = room, node, False
        node = links[node, PARENT]

    if amount > 0:
        _push(links, values, first, join, amount, 0)
        _push(links, values, second, join, amount, 1)
    if leaving < 0:
        return arc, not full
    out_arc = links[leaving, ARC]
    out_full = links[leaving, UPWARD] == (0 if downward_side else 1)
    node, parent = (first, second) if downward_side else (second, first)
    flow = capacity - amount if full else amount
    upward = 1 if node == tail else 0
    _move(links, values, node, parent, leaving, arc, upward, flow, capacity, gain)
    settle(links, values, potential, node)
    return out_arc, out_full


@numba.njit(error_model="numpy")
def bare_tree(nodes):  # type: ignore[no-untyped-def]
    """Return the links, values and potentials of ``nodes`` nodes that hang nowhere."""
    links = np.full((nodes, NODE_INTS), -1, np.int64)
    values = np.zeros((nodes, NODE_REALS))
    potential = np.zeros(nodes)
    links[nodes - 1, DEPTH] = 0
    return links, values, potential
