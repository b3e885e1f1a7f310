r"""Best paths in graphs with scores on their edges.

Both kernels keep the best way found to each vertex by the arc it ends with, and walk
back along these arcs from the target.
"""

import numpy as np
from numba import njit

from softsolve.compiled.kernel import INFEASIBLE, OK, block_kernel, kernel
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
from softsolve.solvers._heap import drop, push
from softsolve.solvers._paths import NEGATIVE_COST


@njit(error_model="numpy")
def _ordered_graph(ints):  # type: ignore[no-untyped-def]
    """Unpack a graph in topological order.

    Vertices are called by their place in that order. The arcs into the vertex at place
    p are first[p] to first[p + 1], by the number of their edge; each has the place of
    its tail and its edge.
    """
    size, arcs = ints[2], ints[3]
    first = ints[4 : 5 + size]
    tails = ints[5 + size : 5 + size + arcs]
    edges = ints[5 + size + arcs : 5 + size + 2 * arcs]
    places = ints[5 + size + 2 * arcs :]
    return size, first, tails, edges, places


@njit(error_model="numpy")
def _places_of_ends(ints, places, context):  # type: ignore[no-untyped-def]
    if context.size:
        return places[np.int64(context[0])], places[np.int64(context[1])]
    return places[ints[0]], places[ints[1]]


@kernel
def acyclic_path(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Dynamic program in topological order, for one instance."""
    size, first, tails, edges, places = _ordered_graph(ints)
    source, target = _places_of_ends(ints, places, context)
    nowhere = theta.dtype.type(-np.inf)
    values = np.empty(size, dtype=theta.dtype)
    came = np.empty(size, dtype=np.int32)
    for edge in range(y.size):
        y[edge] = 0
    for vertex in range(size):
        best = theta.dtype.type(0) if vertex == source else nowhere
        chosen = -1
        for arc in range(first[vertex], first[vertex + 1]):
            value = values[tails[arc]] + theta[edges[arc]]
            if value > best:
                best = value
                chosen = arc
        values[vertex] = best
        came[vertex] = chosen
    if values[target] == nowhere:
        return INFEASIBLE
    here = target
    while here != source:
        y[edges[came[here]]] = 1
        here = tails[came[here]]
    return OK


@block_kernel(LANES)
def acyclic_paths(theta, ints, reals, context, y, status):  # type: ignore[no-untyped-def]
    """Dynamic program in topological order, for :data:`LANES` instances in step."""
    size, first, tails, edges, places = _ordered_graph(ints)
    scores = theta.reshape(-1)
    marks = y.reshape(-1)
    values = lane_buffer(size * LANES, theta.dtype)
    came = lane_buffer(size * LANES, np.int32)
    nowhere = fill(theta.dtype.type(-np.inf))
    unmarked = fill(np.uint8(0))
    for edge in range(theta.shape[0]):
        store(marks, edge * LANES, unmarked)
    for vertex in range(size):
        store(values, vertex * LANES, nowhere)
    for lane in range(LANES):
        source, _ = _places_of_ends(ints, places, context[lane])
        values[source * LANES + lane] = 0
    for vertex in range(size):
        best = load(values, vertex * LANES)
        chosen = fill(np.int32(-1))
        for arc in range(first[vertex], first[vertex + 1]):
            value = add(
                load(values, tails[arc] * LANES), load(scores, edges[arc] * LANES)
            )
            chosen = where_less(best, value, fill(np.int32(arc)), chosen)
            best = maximum(best, value)
        store(values, vertex * LANES, best)
        store(came, vertex * LANES, chosen)
    for lane in range(LANES):
        source, here = _places_of_ends(ints, places, context[lane])
        if values[here * LANES + lane] == theta.dtype.type(-np.inf):
            status[lane] = INFEASIBLE
            continue
        status[lane] = OK
        while here != source:
            arc = came[here * LANES + lane]
            marks[edges[arc] * LANES + lane] = 1
            here = tails[arc]


@kernel
def shortest_path(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Dijkstra's algorithm with a binary heap, for one instance.

    Vertices are settled by distance, then by number. The arcs out of vertex v are
    first[v] to first[v + 1]; each has its head, its edge and its tail.
    """
    size, arcs = ints[2], ints[3]
    first = ints[5 : 6 + size]
    heads = ints[6 + size : 6 + size + arcs]
    edges = ints[6 + size + arcs : 6 + size + 2 * arcs]
    tails = ints[6 + size + 2 * arcs :]
    source, target = ints[0], ints[1]
    if context.size:
        source, target = np.int64(context[0]), np.int64(context[1])
    infinity = theta.dtype.type(np.inf)
    zero = theta.dtype.type(0)
    for edge in range(y.size):
        y[edge] = 0
        if ints[4] and theta[edge] > 0:
            return NEGATIVE_COST
    distance = np.empty(size, dtype=theta.dtype)
    settled = np.empty(size, dtype=np.bool_)
    came = np.empty(size, dtype=np.int64)
    for vertex in range(size):
        distance[vertex] = infinity
        settled[vertex] = False
    keys = np.empty(arcs + 1, dtype=theta.dtype)
    items = np.empty(arcs + 1, dtype=np.int64)
    distance[source] = zero
    waiting = push(keys, items, 0, zero, source)
    while waiting and not settled[target]:
        here = items[0]
        waiting = drop(keys, items, waiting)
        if settled[here]:
            continue
        settled[here] = True
        for arc in range(first[here], first[here + 1]):
            head = heads[arc]
            if settled[head]:
                continue
            far = distance[here] + max(-theta[edges[arc]], zero)
            if far < distance[head]:
                distance[head] = far
                came[head] = arc
                waiting = push(keys, items, waiting, far, head)
            elif far == distance[head] < infinity and edges[arc] < edges[came[head]]:
                came[head] = arc
    if not settled[target]:
        return INFEASIBLE
    here = target
    while here != source:
        y[edges[came[here]]] = 1
        here = tails[came[here]]
    return OK
