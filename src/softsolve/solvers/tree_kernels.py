"""Maximum-weight spanning forests.

Edges are compared by weight, then by number, so the best forest is unique and does not
depend on the algorithm.
"""

import numpy as np
from numba import njit

from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers._heap import drop, push
from softsolve.solvers._sort import descending


@njit(error_model="numpy")
def _root(parents, vertex):  # type: ignore[no-untyped-def]
    while parents[vertex] != vertex:
        parents[vertex] = parents[parents[vertex]]
        vertex = parents[vertex]
    return vertex


@kernel
def kruskal(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Take the best edge that joins two components until there are enough.

    ``ints`` holds the number of vertices, of edges to take, and the ends of all edges.
    """
    num_vertices, wanted = ints[0], ints[1]
    for edge in range(y.size):
        y[edge] = 0
    parents = np.empty(num_vertices, dtype=np.int64)
    for vertex in range(num_vertices):
        parents[vertex] = vertex
    for edge in descending(theta):
        if wanted == 0:
            break
        one = _root(parents, ints[2 + 2 * edge])
        other = _root(parents, ints[3 + 2 * edge])
        if one != other:
            parents[one] = other
            y[edge] = 1
            wanted -= 1
    return OK


@kernel
def prim(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Grow a tree by its best edge to a new vertex, then keep the best edges.

    For graphs without parallel edges. ``ints`` holds the number of vertices, of edges
    to take, and the matrix (vertices, vertices) of the edges' numbers, or -1.
    """
    num_vertices, wanted = ints[0], ints[1]
    for edge in range(y.size):
        y[edge] = 0
    nothing = theta.dtype.type(-np.inf)
    # Vertices that are not in the tree, with the best edge to each from it.
    outside = np.empty(num_vertices, dtype=np.int64)
    weights = np.empty(num_vertices, dtype=theta.dtype)
    nearest = np.empty(num_vertices, dtype=np.int64)
    keys = np.empty(num_vertices, dtype=theta.dtype)
    edges = np.empty(num_vertices, dtype=np.int64)
    size = 0
    count = num_vertices - 1
    for place in range(count):
        outside[place] = place
        weights[place] = nothing
        nearest[place] = -1
    vertex = num_vertices - 1
    while count > 0:
        row = 2 + vertex * num_vertices
        best = 0
        for place in range(count):
            edge = ints[row + outside[place]]
            if edge >= 0:
                weight = theta[edge]
                if weight > weights[place] or (
                    weight == weights[place] and edge < nearest[place]
                ):
                    weights[place] = weight
                    nearest[place] = edge
            if weights[place] > weights[best] or (
                weights[place] == weights[best] and nearest[place] < nearest[best]
            ):
                best = place
        # Without an edge to any vertex left, the next one starts another tree.
        if nearest[best] >= 0:
            size = push(keys, edges, size, -weights[best], nearest[best])
        vertex = outside[best]
        count -= 1
        outside[best] = outside[count]
        weights[best] = weights[count]
        nearest[best] = nearest[count]
    for _ in range(wanted):
        y[edges[0]] = 1
        size = drop(keys, edges, size)
    return OK
