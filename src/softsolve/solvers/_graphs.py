"""Graphs given by their edges: checks and the structures that kernels walk on."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Ints = np.ndarray[Any, np.dtype[np.int64]]


def check_graph(solver: str, num_vertices: int, edges: ArrayLike) -> Ints:
    """Return ``edges`` as int64 (E, 2), or raise unless they join such vertices."""
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
