r"""Matching on a bipartite graph that is given by its edges."""

from collections.abc import Mapping
from typing import ClassVar

import numba
import numpy as np
from numpy.typing import ArrayLike

from softsolve._arrays import is_binary
from softsolve.compiled.kernel import OK, Kernel, kernel
from softsolve.solvers._heap import drop, push
from softsolve.solvers.base import Array, KernelSolver, Shape, whole_number

NOT_FINITE = 2


@numba.njit(error_model="numpy")
def _search(start, score, first, rights, price, owner, matched, distance, via, keys, items, closed, closed_at):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Find the best alternating path from the free left vertex ``start``.

    Dijkstra's algorithm on the scores reduced by the prices. Returns the vertices that
    the path may end at: the left one of least distance, which is left unmatched, and
    the right one, which is free; -1 unless it is nearer. Updates the prices.
    """
    least, end_left, end_right = 0.0, start, -1
    waiting, count = 0, 0
    left, offset = start, 0.0
    while True:
        for k in range(first[left], first[left + 1]):
            right = rights[k]
            through = offset - (score[k] - price[right])
            # What does not gain on leaving a vertex unmatched is never needed.
            if through < distance[right] and through < least:
                distance[right] = through
                via[right] = k
                waiting = push(keys, items, waiting, through, right)
        while waiting > 0 and keys[0] != distance[items[0]]:
            waiting = drop(keys, items, waiting)
        if waiting == 0 or keys[0] >= least:
            break
        near, right = keys[0], items[0]
        if owner[right] < 0:
            least, end_right = near, right
            break
        closed[count] = right
        closed_at[count] = near
        count += 1
        distance[right] = -np.inf
        left = owner[right]
        offset = near + (score[matched[left]] - price[right])
        if offset < least:
            least, end_left = offset, left
    for k in range(count):
        price[closed[k]] += max(least - closed_at[k], 0.0)
        # Whatever was reached was reached from the start or from one of these.
        _forget(owner[closed[k]], first, rights, distance)
    _forget(start, first, rights, distance)
    return end_left, end_right


@numba.njit(error_model="numpy")
def _forget(left, first, rights, distance):  # type: ignore[no-untyped-def]
    """Reset the distances of the neighbours of a left vertex."""
    for k in range(first[left], first[left + 1]):
        distance[rights[k]] = np.inf


@numba.njit(error_model="numpy")
def _alternate(start, end_left, end_right, lefts, rights, owner, matched, via):  # type: ignore[no-untyped-def]
    """Swap matched and unmatched edges along the path that was found."""
    right = end_right
    if right < 0:
        if end_left == start:
            return
        right = rights[matched[end_left]]
        matched[end_left] = -1
    while True:
        k = via[right]
        left = lefts[k]
        before = matched[left]
        owner[right] = left
        matched[left] = k
        if left == start:
            return
        right = rights[before]


@kernel
def match(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Match one left vertex after the other.

    ``ints`` is: how many vertices are on the left and on the right; where the edges of
    each left vertex start, once they are sorted by it; those edges, their left and
    their right vertices.
    """
    left_count, right_count, count = ints[0], ints[1], len(theta)
    first, listed = ints[2 : 3 + left_count], ints[3 + left_count :]
    edges, lefts, rights = (
        listed[:count],
        listed[count : 2 * count],
        listed[2 * count :],
    )
    score = np.empty(count)
    for k in range(count):
        score[k] = theta[edges[k]]
        if not abs(score[k]) < np.inf:
            return NOT_FINITE

    price = np.zeros(right_count)
    owner = np.full(right_count, -1, np.int64)
    matched = np.full(left_count, -1, np.int64)
    distance = np.full(right_count, np.inf)
    via = np.empty(right_count, np.int64)
    keys = np.empty(count)
    items = np.empty(count, np.int64)
    closed = np.empty(right_count, np.int64)
    closed_at = np.empty(right_count)
    for start in range(left_count):
        end_left, end_right = _search(
            *(start, score, first, rights, price, owner, matched),
            *(distance, via, keys, items, closed, closed_at),
        )
        _alternate(start, end_left, end_right, lefts, rights, owner, matched, via)

    for edge in range(count):
        y[edge] = 0
    for left in range(left_count):
        if matched[left] >= 0:
            y[edges[matched[left]]] = 1
    return OK


class BipartiteMatching(KernelSolver):
    r"""Choose edges of a bipartite graph that share no vertex, at the largest score.

    .. math::
        y^*(\theta) = \operatorname{argmax} \Big\{ \langle y, \theta \rangle :
        y \in \{0, 1\}^E, \textstyle\sum_{e \ni v} y_e \le 1
        \text{ for every vertex } v \Big\}

    Edges whose score is not positive are never chosen. On a bipartite graph these
    points are the vertices of the polytope with :math:`y \in [0, 1]^E` instead; it has
    an interior.

    Parameters
    ----------
    num_left, num_right
        How many vertices each side has.
    edges
        (left, right) pairs of vertex numbers from 0, (E, 2). Parallel edges are
        allowed.

    Notes
    -----
    Scores are (rows, E). Successive best alternating paths with Dijkstra's algorithm,
    one for each left vertex: :math:`O(n E \log E)` for an instance, usually much less.
    Exact in float64 whatever the scores' dtype. Among matchings of equal score it
    always returns the same one. For a dense graph, ``Assignment(partial=True)`` is
    faster.

    References
    ----------
    H. W. Kuhn, "The Hungarian method for the assignment problem", Naval Research
    Logistics Quarterly 2, 1955. J. Edmonds and R. M. Karp, "Theoretical improvements in
    algorithmic efficiency for network flow problems", Journal of the ACM 19, 1972.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.solvers.matching import BipartiteMatching
    >>> matching = BipartiteMatching(2, 2, [(0, 0), (0, 1), (1, 0)])
    >>> matching(np.array([[3.0, 2.0, 2.0], [5.0, 2.0, 2.0], [-1.0, -1.0, 1.0]]))
    array([[0., 1., 1.],
           [1., 0., 0.],
           [0., 0., 1.]])
    """

    kernel: Kernel = match
    solution = "binary"
    failures: ClassVar[Mapping[int, str]] = {NOT_FINITE: "a score is not finite"}

    def __init__(self, num_left: int, num_right: int, edges: ArrayLike) -> None:
        num_left = whole_number("BipartiteMatching(num_left=...)", num_left)
        num_right = whole_number("BipartiteMatching(num_right=...)", num_right)
        given = np.asarray(edges)
        if given.ndim != 2 or given.shape[1] != 2 or len(given) == 0:
            msg = (
                "BipartiteMatching(edges=...) must be (left, right) pairs, shape "
                f"(E, 2) with E >= 1; got shape {given.shape}."
            )
            raise ValueError(msg)
        if given.dtype.kind not in "iu":
            msg = (
                "BipartiteMatching(edges=...) must hold whole numbers; got dtype "
                f"{given.dtype}."
            )
            raise TypeError(msg)
        sizes = np.array([num_left, num_right])
        bad = np.flatnonzero(np.any((given < 0) | (given >= sizes), axis=1))
        if bad.size:
            msg = (
                "BipartiteMatching(edges=...) must name left vertices below num_left="
                f"{num_left} and right vertices below num_right={num_right}, both from "
                f"0; got {tuple(given[bad[0]].tolist())} for edge {bad[0]}."
            )
            raise ValueError(msg)
        self.num_left = num_left
        self.num_right = num_right
        self.edges = given.astype(np.int64)
        left = self.edges[:, 0]
        order = np.argsort(left, kind="stable")
        first = np.searchsorted(left[order], np.arange(num_left + 1))
        self._graph = np.concatenate([sizes, first, order, *self.edges[order].T])

    def __repr__(self) -> str:
        return (
            f"BipartiteMatching({self.num_left}, {self.num_right}, "
            f"{len(self.edges)} edges)"
        )

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score for each edge."""
        super().check(event_shape, context)
        if tuple(event_shape) != (len(self.edges),):
            msg = (
                f"{self!r} must get one score per edge, an event of shape "
                f"({len(self.edges)},); got {tuple(event_shape)}."
            )
            raise ValueError(msg)

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return the sizes and the edges, sorted by their left vertex."""
        return self._graph, np.zeros(0)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` (rows, E) whether it is a matching."""
        self.check(y.shape[1:], context)
        y = np.asarray(y)
        valid = is_binary(y)
        rows, chosen = np.nonzero(y)
        for side, size in enumerate((self.num_left, self.num_right)):
            used = np.zeros((len(y), size), dtype=np.int64)
            np.add.at(used, (rows, self.edges[chosen, side]), 1)
            valid &= np.all(used <= 1, axis=1)
        return valid
