"""Graphs given by their edges: checks and the structures that kernels walk on."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softsolve.solvers.base import whole_number

Ints = np.ndarray[Any, np.dtype[np.int64]]

# Largest dense basis, in entries, that is built for a projection.
LARGEST_BASIS = 1_000_000


def check_graph(solver: str, num_vertices: int, edges: ArrayLike) -> Ints:
    """Return ``edges`` as int64 (E, 2), or raise unless they join such vertices."""
    num_vertices = whole_number(f"{solver}(num_vertices=...)", num_vertices)
    if num_vertices < 1:
        msg = f"{solver}(num_vertices=...) must be at least 1; got {num_vertices}."
        raise ValueError(msg)
    array = np.asarray(edges)
    if array.size == 0:
        array = np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        msg = (
            f"{solver}(edges=...) must be pairs of vertices, shape (E, 2); got shape "
            f"{array.shape}."
        )
        raise ValueError(msg)
    if array.dtype.kind not in "iu":
        msg = (
            f"{solver}(edges=...) must be integers, the numbers of the vertices; got "
            f"dtype {array.dtype}."
        )
        raise TypeError(msg)
    outside = np.flatnonzero(np.any((array < 0) | (array >= num_vertices), axis=1))
    if outside.size:
        first = outside[0]
        msg = (
            f"{solver}(edges=...) must join vertices 0 to {num_vertices - 1}; got "
            f"{array[first].tolist()} for edge {first}."
        )
        raise ValueError(msg)
    return array.astype(np.int64)


def check_scores(solver: object, num_edges: int, event_shape: tuple[int, ...]) -> None:
    """Raise unless an instance has one score per edge."""
    if tuple(event_shape) != (num_edges,):
        msg = (
            f"{solver!r} must get one score per edge, an event of shape "
            f"({num_edges},); got {tuple(event_shape)}."
        )
        raise ValueError(msg)


def group_by(keys: Ints, size: int) -> tuple[Ints, Ints]:
    """Group indices by key: those of key k are ``order[first[k] : first[k + 1]]``.

    Within a group they stay in their order.
    """
    counts = np.bincount(keys, minlength=size)
    first = np.concatenate(([0], np.cumsum(counts)))
    return first, np.argsort(keys, kind="stable")


def topological_order(num_vertices: int, tails: Ints, heads: Ints) -> Ints | None:
    """Return the vertices with every arc from an earlier to a later; None if cyclic."""
    first, order = group_by(tails, num_vertices)
    missing = np.bincount(heads, minlength=num_vertices)
    found = np.flatnonzero(missing == 0).tolist()
    for vertex in found:
        for arc in order[first[vertex] : first[vertex + 1]]:
            head = heads[arc]
            missing[head] -= 1
            if missing[head] == 0:
                found.append(int(head))
    return np.array(found, dtype=np.int64) if len(found) == num_vertices else None


def reachable(num_vertices: int, tails: Ints, heads: Ints, start: int) -> Any:
    """Tell for each vertex whether there is a way to it from ``start``."""
    first, order = group_by(tails, num_vertices)
    reached = np.zeros(num_vertices, dtype=bool)
    reached[start] = True
    waiting = [start]
    while waiting:
        vertex = waiting.pop()
        for arc in order[first[vertex] : first[vertex + 1]]:
            if not reached[heads[arc]]:
                reached[heads[arc]] = True
                waiting.append(int(heads[arc]))
    return reached


def edge_blocks(num_vertices: int, edges: Ints) -> Ints:
    """Label edges by biconnected component, 0, 1, …; loops get -1.

    Two edges have the same label if they lie on a common cycle; a bridge is alone.
    """
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    others = np.concatenate([edges[:, 1], edges[:, 0]]).tolist()
    first, order = group_by(ends, num_vertices)
    labels = np.full(len(edges), -1, dtype=np.int64)
    visits = [-1] * num_vertices  # when a vertex was first visited
    lowest = [0] * num_vertices  # first visited vertex within reach of what follows it
    clock = count = 0
    for root in range(num_vertices):
        if visits[root] >= 0:
            continue
        visits[root] = lowest[root] = clock
        clock += 1
        open_edges: list[int] = []
        stack = [(root, -1, iter(order[first[root] : first[root + 1]].tolist()))]
        while stack:
            vertex, entry, arcs = stack[-1]
            for arc in arcs:
                edge, other = arc % len(edges), others[arc]
                if edge == entry or other == vertex:
                    continue
                if visits[other] < 0:
                    visits[other] = lowest[other] = clock
                    clock += 1
                    open_edges.append(edge)
                    onward = order[first[other] : first[other + 1]].tolist()
                    stack.append((other, edge, iter(onward)))
                    break
                if visits[other] < visits[vertex]:
                    open_edges.append(edge)
                    lowest[vertex] = min(lowest[vertex], visits[other])
            else:
                stack.pop()
                if not stack:
                    continue
                before = stack[-1][0]
                lowest[before] = min(lowest[before], lowest[vertex])
                if lowest[vertex] >= visits[before]:
                    start = open_edges.index(entry)
                    labels[open_edges[start:]] = count
                    del open_edges[start:]
                    count += 1
    return labels
