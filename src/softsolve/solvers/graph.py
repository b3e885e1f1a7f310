"""Best paths in graphs with scores on their edges."""

from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from softsolve._arrays import constant
from softsolve.solvers._graphs import (
    LARGEST_BASIS,
    Ints,
    check_graph,
    check_scores,
    group_by,
    reachable,
    topological_order,
)
from softsolve.solvers._paths import (
    PATH_FAILURES,
    Negative,
    check_count,
    check_negative,
    pack_endpoints,
)
from softsolve.solvers.base import Array, KernelSolver, Shape, whole_number
from softsolve.solvers.graph_kernels import (
    acyclic_path,
    acyclic_paths,
    shortest_path,
)


def grid_graph(height: int, width: int) -> tuple[int, Ints]:
    """Return the grid whose edges go right and down: number of vertices, and edges.

    Vertex (i, j) is number ``i * width + j``. Row by row, the edges to the right come
    first and those down follow, which is the order that PyEPO uses.

    Examples
    --------
    >>> num_vertices, edges = grid_graph(2, 2)
    >>> edges.tolist()
    [[0, 1], [0, 2], [1, 3], [2, 3]]
    """
    number = np.arange(height * width, dtype=np.int64).reshape(height, width)
    edges = []
    for i in range(height):
        edges.append(np.stack([number[i, :-1], number[i, 1:]], axis=1))
        if i < height - 1:
            edges.append(np.stack([number[i], number[i + 1]], axis=1))
    return height * width, np.concatenate(edges)


class GraphPath(KernelSolver):
    r"""Best path between two vertices of a graph, with scores on its edges.

    .. math:: y^*(\theta) = \operatorname*{argmax} \{ \langle y, \theta\rangle :
        y \text{ marks the edges of a path from source to target}\}

    Scores are (rows, E), one per edge, and so are solutions.

    - Where the graph is directed and has no cycles, scores may have any sign.
    - Otherwise an edge costs :math:`-\theta_e`, and costs must not be negative, as
      noise may make them: taken as zero then, so that the solver maximises
      :math:`\langle y, \min(\theta, 0)\rangle`.

    Parameters
    ----------
    num_vertices
        Number of vertices.
    edges
        Pairs (tail, head) of vertices, (E, 2). Parallel edges are allowed; loops are,
        and never used.
    source, target
        Ends of the path, the same for all instances. Without them, each has its own,
        given as context: ``solver(theta, endpoints)`` with integers (rows, 2).
    directed
        Whether edges go from tail to head only.
    negative
        What to do with negative costs where there may be cycles: ``"clip"`` takes them
        as zero, ``"raise"`` fails.

    Notes
    -----
    A dynamic program in O(V + E) without cycles, Dijkstra's algorithm in
    O((V + E) log V) with them [1]_. The polytope is the convex hull of the simple
    paths; without cycles, it is that of the unit flows from source to target. Distances
    are sums in the type of ``theta``. Of equally good last edges of a way to a vertex,
    the first is taken (with cycles: of those from vertices settled before, which are
    settled by distance, then by number).

    References
    ----------
    .. [1] E. W. Dijkstra. A note on two problems in connexion with graphs. Numerische
       Mathematik, 1959.

    Examples
    --------
    >>> solver = GraphPath(4, [[0, 1], [0, 2], [1, 3], [2, 3]], source=0, target=3)
    >>> solver(np.array([[-1.0, -3.0, -1.0, -3.0], [-1.0, 3.0, -1.0, -3.0]]))
    array([[1., 0., 1., 0.],
           [0., 1., 0., 1.]])
    """

    kernel = shortest_path
    solution = "binary"
    failures = PATH_FAILURES

    def __init__(
        self,
        num_vertices: int,
        edges: ArrayLike,
        *,
        source: int | None = None,
        target: int | None = None,
        directed: bool = True,
        negative: Negative = "clip",
    ) -> None:
        self.edges = check_graph("GraphPath", num_vertices, edges)
        check_negative("GraphPath", negative)
        self.num_vertices = num_vertices
        self.directed = directed
        self.negative = negative
        self.endpoints = self._check_ends(source, target)
        joining = np.flatnonzero(self.edges[:, 0] != self.edges[:, 1])
        tails, heads = self.edges[joining].T
        order = topological_order(num_vertices, tails, heads) if directed else None
        self.acyclic = order is not None
        self.clips_scores = not self.acyclic
        if order is not None:
            self.kernel = acyclic_path
            self.block = acyclic_paths
        if not directed:
            joining = np.concatenate([joining, joining])
            tails, heads = np.concatenate([[tails, heads], [heads, tails]], axis=1)
        self._useful = self._on_some_way(joining, tails, heads)
        arcs = (joining, tails, heads)
        self._ints = (
            self._cyclic(*arcs) if order is None else self._ordered(order, *arcs)
        )

    def _check_ends(
        self, source: int | None, target: int | None
    ) -> tuple[int, int] | None:
        if source is None and target is None:
            return None
        for name, end in (("source", source), ("target", target)):
            if end is not None:
                whole_number(f"GraphPath({name}=...)", end)
            if end is None or not 0 <= end < self.num_vertices:
                msg = (
                    f"GraphPath({name}=...) must be a vertex, 0 to "
                    f"{self.num_vertices - 1}; got {end}. Leave out both source and "
                    "target to give each row its own as context."
                )
                raise ValueError(msg)
        return int(source), int(target)  # type: ignore[arg-type]

    def _on_some_way(self, joining: Ints, tails: Ints, heads: Ints) -> Any:
        """Tell for each edge whether a path may use it, or raise if there is none."""
        useful = np.zeros(len(self.edges), dtype=bool)
        if self.endpoints is None:
            useful[joining] = True
            return useful
        source, target = self.endpoints
        reached = reachable(self.num_vertices, tails, heads, source)
        if not reached[target]:
            msg = (
                f"GraphPath: target {target} must be reachable from source {source}, "
                "and no path joins them. Check the edges"
                + (" and their directions." if self.directed else ".")
            )
            raise ValueError(msg)
        leading = reachable(self.num_vertices, heads, tails, target)
        on_way = reached[tails] & leading[heads] & (heads != source) & (tails != target)
        useful[joining[on_way]] = True
        return useful

    def _ordered(self, order: Ints, joining: Ints, tails: Ints, heads: Ints) -> Ints:
        """Pack an acyclic graph, see :func:`graph_kernels._ordered_graph`."""
        places = np.empty(self.num_vertices, dtype=np.int64)
        places[order] = np.arange(self.num_vertices)
        first, by_head = group_by(places[heads], self.num_vertices)
        return np.concatenate(
            [
                self.endpoints or (-1, -1),
                (self.num_vertices, len(joining)),
                first,
                places[tails][by_head],
                joining[by_head],
                places,
            ]
        )

    def _cyclic(self, joining: Ints, tails: Ints, heads: Ints) -> Ints:
        """Pack a graph for Dijkstra's algorithm, see its kernel."""
        first, by_tail = group_by(tails, self.num_vertices)
        return np.concatenate(
            [
                self.endpoints or (-1, -1),
                (self.num_vertices, len(joining), self.negative == "raise"),
                first,
                heads[by_tail],
                joining[by_tail],
                tails[by_tail],
            ]
        )

    def __repr__(self) -> str:
        ends = ""
        if self.endpoints is not None:
            ends = f", source={self.endpoints[0]}, target={self.endpoints[1]}"
        return (
            f"GraphPath({self.num_vertices} vertices, {len(self.edges)} edges{ends}, "
            f"directed={self.directed}, negative={self.negative!r})"
        )

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score per edge, and endpoints exactly once."""
        check_scores(self, len(self.edges), event_shape)
        check_count(self, ["endpoints"] if self.endpoints is None else [], context)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the packed graph."""
        return self._ints, np.zeros(0)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the endpoints (rows, 2), or (rows, 0) if all rows share them."""
        self.check(event_shape, context)
        if not context:
            return np.zeros((rows, 0))
        limits = (self.num_vertices, self.num_vertices)
        return pack_endpoints(self, context[0], rows, ("source", "target"), limits)

    @cached_property
    def _potentials(self) -> np.ndarray[Any, Any] | None:
        """Orthonormal basis of what is orthogonal to all flows on useful edges."""
        if not self.directed:
            return None
        edges = np.flatnonzero(self._useful)
        vertices, ends = np.unique(self.edges[edges], return_inverse=True)
        if len(edges) * len(vertices) > LARGEST_BASIS:
            return None
        incidence = np.zeros((len(edges), len(vertices)))
        tails, heads = ends.reshape(-1, 2).T
        incidence[np.arange(len(edges)), tails] = 1
        incidence[np.arange(len(edges)), heads] -= 1
        left, values, _ = np.linalg.svd(incidence, full_matrices=False)
        basis = np.zeros((len(self.edges), int((values > 1e-8).sum())))
        basis[edges] = left[:, values > 1e-8]
        return basis

    def project(self, x: Array) -> Array:
        """Project on flows: as much leaves a vertex as enters it, on useful edges only.

        These are the directions of the polytope where there are no cycles and the ends
        are fixed; otherwise they contain them. For undirected graphs, and for graphs
        too large for a dense basis, only edges that no path can use are dropped.
        """
        x = x * constant(self._useful, x)
        if self._potentials is None:
            return x
        xp = array_namespace(x)
        basis = constant(self._potentials, x)
        return x - xp.matmul(xp.matmul(x, basis), xp.matrix_transpose(basis))

    def feasible(self, y: Array, *context: Array) -> np.ndarray[Any, Any]:
        """Tell for each row of ``y`` whether it is a simple path between its ends."""
        y = np.asarray(y)
        packed = self.pack_context(len(y), y.shape[1:], *context).astype(np.int64)
        result = np.zeros(len(y), dtype=bool)
        for row, marked in enumerate(y):
            source, target = self.endpoints or packed[row]
            binary = bool(np.all((marked == 0) | (marked == 1)))
            result[row] = binary and self._is_path(
                self.edges[marked == 1].tolist(), int(source), int(target)
            )
        return result

    def _is_path(self, edges: list[list[int]], source: int, target: int) -> bool:
        """Tell whether all ``edges`` together are a simple path."""
        here, visited = source, {source}
        while here != target:
            onward = [
                (edge, edge[1] if edge[0] == here else edge[0])
                for edge in edges
                if edge[0] == here or (edge[1] == here and not self.directed)
            ]
            if len(onward) != 1 or onward[0][1] in visited:
                return False
            edges.remove(onward[0][0])
            here = onward[0][1]
            visited.add(here)
        return not edges
