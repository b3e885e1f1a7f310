"""Spanning trees, and spanning forests with a given number of components."""

from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike

from softsolve._arrays import constant
from softsolve.solvers._graphs import (
    LARGEST_BASIS,
    check_graph,
    check_scores,
    edge_blocks,
)
from softsolve.solvers.base import Array, KernelSolver, Shape, whole_number
from softsolve.solvers.tree_kernels import kruskal, prim


class SpanningForest(KernelSolver):
    r"""Best forest with a given number of components, over all vertices of a graph.

    .. math:: y^*(\theta) = \operatorname*{argmax} \{ \langle y, \theta\rangle :
        y \text{ marks the edges of a forest with } k \text{ components}\}

    Scores are (rows, E), one per edge and of any sign, and so are solutions. With
    similarities as scores, the components are the clusters of single linkage.

    Parameters
    ----------
    num_vertices
        Number of vertices, n.
    edges
        Pairs of vertices, (E, 2), in either order. Parallel edges are allowed; loops
        are, and never used.
    num_components
        Number of components, k, isolated vertices included; the forest has n - k edges.

    Notes
    -----
    Kruskal's algorithm for sparse graphs, with a radix sort, in near O(E) [1]_; Prim's
    in O(n²) for dense ones [2]_. Edges of equal score are taken by their number.
    The polytope is the base polytope of the graphic matroid, truncated to rank n - k
    [3]_.

    References
    ----------
    .. [1] J. B. Kruskal. On the shortest spanning subtree of a graph and the traveling
       salesman problem. Proceedings of the AMS, 1956.
    .. [2] R. C. Prim. Shortest connection networks and some generalizations. Bell
       System Technical Journal, 1957.
    .. [3] A. Schrijver. Combinatorial Optimization: Polyhedra and Efficiency, chapters
       40 and 50. Springer, 2003.

    Examples
    --------
    >>> edges = [[0, 1], [1, 2], [2, 3], [3, 0]]
    >>> solver = SpanningForest(4, edges, num_components=2)
    >>> solver(np.array([[5.0, 1.0, 4.0, 2.0]]))
    array([[1., 0., 1., 0.]])
    """

    kernel = kruskal
    solution = "binary"

    def __init__(
        self, num_vertices: int, edges: ArrayLike, *, num_components: int
    ) -> None:
        name = type(self).__name__
        self.edges = check_graph(name, num_vertices, edges)
        self.num_vertices = num_vertices
        num_components = whole_number(f"{name}(num_components=...)", num_components)
        self.num_components = num_components
        if not 1 <= num_components <= num_vertices:
            msg = (
                f"{name}(num_components=...) must be between 1 and the number of "
                f"vertices, {num_vertices}; got {num_components}."
            )
            raise ValueError(msg)
        self._fewest = self._count_components(self.edges)
        if num_components < self._fewest:
            msg = (
                f"{name}: edges must join the vertices into {num_components} "
                f"component(s) at most; the graph falls apart into {self._fewest}. Add "
                "edges, or use SpanningForest with as many components."
            )
            raise ValueError(msg)
        self._ints = self._pack()

    def _count_components(self, edges: np.ndarray[Any, Any]) -> int:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        shape = (self.num_vertices, self.num_vertices)
        graph = coo_array(
            (np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=shape
        )
        count, _ = connected_components(graph, directed=False)
        return int(count)

    def _pack(self) -> np.ndarray[Any, Any]:
        """Choose the kernel and return what it needs of the graph."""
        size = (self.num_vertices, self.num_vertices - self.num_components)
        joining = np.flatnonzero(self.edges[:, 0] != self.edges[:, 1])
        pairs = np.sort(self.edges[joining], axis=1)
        simple = len(np.unique(pairs, axis=0)) == len(pairs)
        # Kruskal's algorithm sorts: as dear as several look-ups in the matrix an edge.
        if simple and 8 * len(pairs) >= self.num_vertices**2:
            self.kernel = prim
            numbers = np.full((self.num_vertices, self.num_vertices), -1)
            numbers[pairs[:, 0], pairs[:, 1]] = joining
            numbers[pairs[:, 1], pairs[:, 0]] = joining
            return np.concatenate([size, numbers.reshape(-1)])
        return np.concatenate([size, self.edges.reshape(-1)])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_vertices} vertices, {len(self.edges)} "
            f"edges, num_components={self.num_components})"
        )

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score per edge, and no context."""
        super().check(event_shape, context)
        check_scores(self, len(self.edges), event_shape)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the packed graph."""
        return self._ints, np.zeros(0)

    @cached_property
    def _normals(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Edges that are not the same in all solutions, and normals on these, (E, G).

        A matroid's polytope has one equation for each of its connected components.
        Those of the graphic matroid are the blocks of the graph; a truncated one has a
        single component, of all edges that are not loops.
        """
        blocks = edge_blocks(self.num_vertices, self.edges)
        if self.num_components > self._fewest:
            blocks = np.minimum(blocks, 0)
        if self.num_components == self.num_vertices:
            blocks = np.full(len(blocks), -1)
        free = np.flatnonzero(blocks >= 0)
        _, group, counts = np.unique(
            blocks[free], return_inverse=True, return_counts=True
        )
        varying = np.zeros(len(blocks))
        varying[free[counts[group] > 1]] = 1
        if len(blocks) * len(counts) > LARGEST_BASIS:
            return varying, np.zeros((len(blocks), 0))
        normals = np.zeros((len(blocks), len(counts)))
        normals[free, group] = 1 / np.sqrt(counts[group])
        return varying, normals[:, counts > 1]

    def project(self, x: Array) -> Array:
        """Project on the directions of the polytope: within a block, sums are zero.

        Blocks are the biconnected components of the graph; with more components than
        the graph itself has, all edges together are one. Edges that all solutions share
        or avoid do not vary. For graphs of so many blocks that a dense basis would be
        too large, only these are dropped.
        """
        xp = array_namespace(x)
        varying, normals = self._normals
        x = x * constant(varying, x)
        basis = constant(normals, x)
        return x - xp.matmul(xp.matmul(x, basis), xp.matrix_transpose(basis))

    def feasible(self, y: Array, *context: Array) -> np.ndarray[Any, Any]:
        """Tell for each row of ``y`` whether it marks such a forest."""
        y = np.asarray(y)
        self.check(y.shape[1:], context)
        result = np.zeros(len(y), dtype=bool)
        for row, marked in enumerate(y):
            taken = self.edges[marked == 1]
            result[row] = (
                bool(np.all((marked == 0) | (marked == 1)))
                and len(taken) == self.num_vertices - self.num_components
                and self._count_components(taken) == self.num_components
            )
        return result


class SpanningTree(SpanningForest):
    r"""Best spanning tree of a connected graph.

    .. math:: y^*(\theta) = \operatorname*{argmax} \{ \langle y, \theta\rangle :
        y \text{ marks the edges of a spanning tree}\}

    Scores are (rows, E), one per edge and of any sign, and so are solutions.

    Parameters
    ----------
    num_vertices
        Number of vertices.
    edges
        Pairs of vertices, (E, 2), in either order. Parallel edges are allowed; loops
        are, and never used.

    Notes
    -----
    A :class:`SpanningForest` with one component, where more is said: near O(E) for
    sparse graphs, O(n²) for dense ones; edges of equal score are taken by their number;
    the polytope is the base polytope of the graphic matroid.

    Examples
    --------
    >>> solver = SpanningTree(4, [[0, 1], [1, 2], [2, 3], [3, 0]])
    >>> solver(np.array([[5.0, 1.0, 4.0, 2.0]]))
    array([[1., 0., 1., 1.]])
    """

    def __init__(self, num_vertices: int, edges: ArrayLike) -> None:
        super().__init__(num_vertices, edges, num_components=1)

    def __repr__(self) -> str:
        return f"SpanningTree({self.num_vertices} vertices, {len(self.edges)} edges)"
