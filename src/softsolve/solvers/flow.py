r"""Flows from a source to a target within capacities."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from softsolve._arrays import constant
from softsolve.compiled.kernel import Kernel
from softsolve.solvers.base import Array, KernelSolver, Shape, whole_number
from softsolve.solvers.flow_kernel import NOT_FINITE, STALLED, maximum_flow

_LARGEST_CAPACITY = np.iinfo(np.int16).max


class Flow(KernelSolver):
    r"""Find the flow from a source to a target of largest score, within capacities.

    .. math::
        y^*(\theta) = \operatorname{argmax} \Big\{ \langle y, \theta \rangle :
        0 \le y_e \le c_e,\ \sum_{e \text{ out of } v} y_e =
        \sum_{e \text{ into } v} y_e \text{ for } v \ne s, t,\
        \sum_{e \text{ out of } s} y_e \ge \sum_{e \text{ into } s} y_e \Big\}

    Each edge has a score per unit of flow. How much flows from s to t is free, but not
    negative; paths of negative total score stay empty. Flow may also go around directed
    cycles, which pays where their total score is positive. Capacities are whole
    numbers, and so are solutions: the vertices of this polytope.

    Parameters
    ----------
    num_vertices
        How many vertices there are.
    edges
        (tail, head) pairs of vertex numbers from 0, (E, 2). Parallel edges and loops
        are allowed.
    source, target
        The two vertices s and t.
    capacities
        Whole numbers :math:`c_e` from 0 to 32767, (E,), for all rows of a batch.
        Without them, each row has its own, given as context:
        ``solver(theta, capacities)`` with capacities (rows, E).

    Notes
    -----
    Scores are (rows, E). The network simplex method on the circulation that an edge
    without limit from t to s makes of a flow, in float64 whatever the scores' dtype.
    Among flows of equal score it always returns the same one.

    References
    ----------
    W. H. Cunningham, "A network simplex method", Mathematical Programming 11, 1976.
    R. K. Ahuja, T. L. Magnanti and J. B. Orlin, "Network Flows", 1993, chapter 11.

    Examples
    --------
    Two units from vertex 0 to vertex 3 gain 2 + 1 by the upper way; one of them would
    gain 5 - 1 by the lower.

    >>> import numpy as np
    >>> from softsolve.solvers.flow import Flow
    >>> edges = [(0, 1), (1, 3), (0, 2), (2, 3)]
    >>> flow = Flow(4, edges, source=0, target=3, capacities=[2, 2, 1, 3])
    >>> flow(np.array([[2.0, 1.0, 5.0, -1.0], [2.0, 1.0, 5.0, -6.0]]))
    array([[2., 2., 1., 1.],
           [2., 2., 0., 0.]])
    """

    kernel: Kernel = maximum_flow
    failures: ClassVar[Mapping[int, str]] = {
        NOT_FINITE: "a score is not finite",
        STALLED: "no optimal flow within the limit of pivots. Please report this "
        "instance",
    }

    def __init__(
        self,
        num_vertices: int,
        edges: ArrayLike,
        source: int,
        target: int,
        capacities: ArrayLike | None = None,
    ) -> None:
        num_vertices = whole_number("Flow(num_vertices=...)", num_vertices)
        source = whole_number("Flow(source=...)", source)
        target = whole_number("Flow(target=...)", target)
        given = np.asarray(edges)
        if given.ndim != 2 or given.shape[1] != 2 or len(given) == 0:
            msg = (
                "Flow(edges=...) must be (tail, head) pairs, shape (E, 2) with E >= 1; "
                f"got shape {given.shape}."
            )
            raise ValueError(msg)
        if given.dtype.kind not in "iu":
            msg = f"Flow(edges=...) must hold whole numbers; got dtype {given.dtype}."
            raise TypeError(msg)
        bad = np.flatnonzero(np.any((given < 0) | (given >= num_vertices), axis=1))
        if bad.size:
            msg = (
                f"Flow(edges=...) must name vertices from 0 to {num_vertices - 1}; got "
                f"{tuple(given[bad[0]].tolist())} for edge {bad[0]}."
            )
            raise ValueError(msg)
        if source == target or not all(
            0 <= end < num_vertices for end in (source, target)
        ):
            msg = (
                "Flow(source=..., target=...) must be two vertices from 0 to "
                f"{num_vertices - 1}; got {source} and {target}."
            )
            raise ValueError(msg)
        self.num_vertices = num_vertices
        self.edges = given.astype(np.int64)
        self.source = source
        self.target = target
        self.capacities: np.ndarray[Any, Any] | None = None
        self.solution: Literal["binary", "integer", "real"] = "integer"
        if capacities is not None:
            limits = np.asarray(capacities)
            if limits.shape != (len(self.edges),):
                msg = (
                    f"Flow(capacities=...) must hold one number per edge, shape "
                    f"({len(self.edges)},); got {limits.shape}."
                )
                raise ValueError(msg)
            self.capacities = _checked("Flow", limits[None, :])[0]
            if self.capacities.max() <= 1:
                self.solution = "binary"

    def __repr__(self) -> str:
        return (
            f"Flow({self.num_vertices} vertices, {len(self.edges)} edges, "
            f"source={self.source}, target={self.target})"
        )

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score per edge, and capacities given exactly once."""
        if tuple(event_shape) != (len(self.edges),):
            msg = (
                f"{self!r} must get one score per edge, an event of shape "
                f"({len(self.edges)},); got {tuple(event_shape)}."
            )
            raise ValueError(msg)
        if len(context) != (self.capacities is None):
            msg = (
                f"{self!r} must get its capacities either at construction or as the "
                f"only context, solver(theta, capacities); got {len(context)} context "
                "argument(s)."
            )
            raise TypeError(msg)

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return the graph with its edge back to the source, and shared capacities."""
        shared = np.zeros(0) if self.capacities is None else self.capacities
        return self._graph, shared

    @cached_property
    def _graph(self) -> np.ndarray[Any, Any]:
        tails, heads = np.vstack([self.edges, [[self.target, self.source]]]).T
        return np.concatenate([[self.num_vertices], tails, heads])

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray
    ) -> np.ndarray:
        """Return the capacities (rows, E), or (rows, 0) if all rows share them."""
        self.check(event_shape, context)
        if self.capacities is not None:
            return np.zeros((rows, 0))
        limits = np.asarray(context[0])
        if limits.shape != (rows, len(self.edges)):
            msg = (
                f"the capacities for {self!r} must have shape "
                f"{(rows, len(self.edges))}; got {limits.shape}."
            )
            raise ValueError(msg)
        return _checked(repr(self), limits)

    def project(self, x: Array) -> Array:
        r"""Project ``x`` (..., E) on the directions of the polytope.

        These are the flows, of any sign, on the edges that can carry any: those on a
        directed cycle, once an edge leads from the target back to the source.
        """
        usable, balances, inverse = self._directions
        x = x * constant(usable, x)
        # x - Bᵀ (B Bᵀ)⁺ B x, for the balances B of the vertices.
        surplus = array_namespace(x).matmul(x, constant(balances.T, x))
        return x - array_namespace(x).matmul(surplus, constant(inverse, x))

    @cached_property
    def _directions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return usable edges (E,), balances (V, E) and their pseudo-inverse."""
        tails, heads = self.edges.T
        size = self.num_vertices
        positive = np.ones(len(self.edges), dtype=bool)
        if self.capacities is not None:
            positive = self.capacities > 0
        arcs = np.vstack([self.edges[positive], [[self.target, self.source]]])
        graph = coo_array((np.ones(len(arcs)), tuple(arcs.T)), shape=(size, size))
        _, parts = connected_components(graph, directed=True, connection="strong")
        usable = positive & (parts[tails] == parts[heads])
        balances = np.zeros((size, len(self.edges)))
        columns = np.flatnonzero(usable)
        np.add.at(balances, (tails[columns], columns), 1)
        np.add.at(balances, (heads[columns], columns), -1)
        # Where flow can go from s to t, their balances are free.
        if parts[self.source] == parts[self.target]:
            balances[[self.source, self.target]] = 0
        return usable, balances, np.linalg.pinv(balances).T

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` (rows, E) whether it is a whole-numbered flow."""
        y = np.asarray(y)
        packed = self.pack_context(len(y), y.shape[1:], *map(np.asarray, context))
        limits = packed if self.capacities is None else self.capacities
        valid = np.all((y >= 0) & (y <= limits) & (y == np.floor(y)), axis=1)
        surplus = np.zeros((self.num_vertices, len(y)))
        np.add.at(surplus, self.edges[:, 0], y.T)
        np.subtract.at(surplus, self.edges[:, 1], y.T)
        inner = np.delete(surplus, [self.source, self.target], axis=0)
        return valid & np.all(inner == 0, axis=0) & (surplus[self.source] >= 0)


def _checked(name: str, capacities: np.ndarray) -> np.ndarray:
    """Check capacities (rows, E) and return them in float64."""
    limits = np.ascontiguousarray(capacities, dtype=np.float64)
    whole = (limits >= 0) & (limits <= _LARGEST_CAPACITY) & (limits == np.floor(limits))
    bad = np.argwhere(~whole)
    if bad.size:
        row, edge = bad[0]
        msg = (
            f"the capacities of {name} must be whole numbers from 0 to "
            f"{_LARGEST_CAPACITY}; got {limits[row, edge]} for edge {edge} of row "
            f"{row}."
        )
        raise ValueError(msg)
    return limits
