"""Instances of every solver, random and degenerate, with what they are worth at best.

A family is a generator without end of one instance after another; each tells the best
value by a reference that shares no code with softsolve. To add a solver, add a family
to ``FAMILIES``.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softsolve import solvers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support import optima, vertices

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
KINDS = ("random", "ties", "degenerate", "no solution")


@dataclass(frozen=True)
class Instance:
    """One problem.

    Attributes
    ----------
    kind
        ``"random"``, ``"ties"`` (whole scores, small or all the same) or
        ``"degenerate"``: of size 1, empty, fallen apart, nothing or everything allowed.
    solver, theta, context
        What to call, as for a single row.
    best
        Returns the largest value for scores in float64, or None if there is none.
    """

    kind: str
    solver: Any
    theta: Array
    best: Callable[[Array], float | None]
    context: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Family:
    """Instances of one solver and the reference's name."""

    name: str
    reference: str
    instances: Callable[[Generator], Iterator[Instance]]
    exact: bool = True


def scored(rng: Generator, kind: str, *shape: int) -> Array:
    """Return scores: real ones, or whole ones that tie; sometimes all the same."""
    if kind == "ties":
        if rng.random() < 0.2:
            return np.full(shape, float(rng.integers(-1, 2)))
        return rng.integers(-2, 3, shape).astype(float)
    return rng.normal(size=shape)


def kinds() -> Iterator[str]:
    """Yield the kinds in turn, random instances twice as often."""
    while True:
        yield from ("random", "ties", "random", "degenerate")


def size_of(rng: Generator, kind: str, low: int, high: int) -> int:
    """Return a size: 1 where instances are to be degenerate."""
    return 1 if kind == "degenerate" else int(rng.integers(low, high + 1))


def over(points: Array) -> Callable[[Array], float]:
    """Return the best value over points (n, *event), by enumeration."""
    return lambda theta: float((points.reshape(len(points), -1) @ theta.ravel()).max())


def nothing(_: Array) -> None:
    """Tell that an instance has no solution."""


def simplex(rng: Generator) -> Iterator[Instance]:
    """Yield choices of one."""
    for kind in kinds():
        size = size_of(rng, kind, 2, 200)
        solver = (
            solvers.OneHot() if rng.random() < 0.7 else solvers.ScoredSet([0] * size)
        )
        yield Instance(kind, solver, scored(rng, kind, size), np.max)


def top(rng: Generator) -> Iterator[Instance]:
    """Yield choices of k, none and all among them."""
    for kind in kinds():
        size = int(rng.integers(1, 200))
        k = int(rng.integers(0, size + 1))
        if kind == "degenerate":
            k = int(rng.choice([0, size]))
        yield Instance(
            kind,
            solvers.TopK(k),
            scored(rng, "ties" if kind == "ties" else "random", size),
            lambda theta, k=k: np.sort(theta)[::-1][:k].sum(),
        )


def ranking(rng: Generator) -> Iterator[Instance]:
    """Yield rankings of few scores by any reference vector."""
    for kind in kinds():
        size = size_of(rng, kind, 2, 6)
        reference = scored(rng, kind, size)
        every = np.array(list(itertools.permutations(reference)))
        solver = solvers.Ranking(reference)
        yield Instance(kind, solver, scored(rng, kind, size), over(every))


def points(rng: Generator) -> Iterator[Instance]:
    """Yield corners of cubes, and lists of points."""
    for kind in kinds():
        size = size_of(rng, kind, 2, 7)
        if rng.random() < 0.5:
            signed = bool(rng.random() < 0.5)
            corners = vertices.zeros_and_ones(size)
            corners = 2 * corners - 1 if signed else corners
            solver: Any = solvers.Hypercube(signed=signed)
        else:
            corners = scored(rng, kind, size_of(rng, kind, 2, 30), size)
            solver = solvers.FiniteSet(corners)
        yield Instance(kind, solver, scored(rng, kind, size), over(corners))


def balls(rng: Generator) -> Iterator[Instance]:
    """Yield balls of atomic norms, whose best value is the dual norm."""
    for kind in kinds():
        size, radius = size_of(rng, kind, 2, 8), float(rng.uniform(0.5, 3))
        which = rng.integers(4)
        theta = scored(rng, kind, size)
        if which == 0:
            solver: Any = solvers.L1Ball(radius)
            best = lambda theta, r=radius: r * np.abs(theta).max()  # noqa: E731
        elif which == 1:
            groups = rng.integers(0, 3, size)
            solver = solvers.GroupBall(groups, radius)
            best = lambda theta, g=groups, r=radius: optima.group_ball(theta, g, r)  # noqa: E731
        elif which == 2:
            k = int(rng.integers(1, size + 1))
            solver = solvers.KSupportBall(k, radius)
            best = lambda theta, k=k, r=radius: optima.support_ball(theta, k, r)  # noqa: E731
        else:
            theta = scored(rng, kind, size, int(rng.integers(1, 7)))
            solver = solvers.NuclearBall(radius)
            best = lambda theta, r=radius: optima.nuclear_ball(theta, r)  # noqa: E731
        yield Instance(kind, solver, theta, best)


def grid_path(rng: Generator) -> Iterator[Instance]:
    """Yield paths over grids with any ends and obstacles, some of them walled in."""
    for kind in kinds():
        neighbours = int(rng.choice([4, 8]))
        shape = (size_of(rng, kind, 2, 9), int(rng.integers(1, 10)))
        theta = scored(rng, kind, *shape) - (1.5 if kind == "random" else 0)
        ends = np.array([rng.integers(side) for side in (*shape, *shape)])
        blocked = rng.random(shape) < rng.choice([0.0, 0.2, 0.35])
        solver = solvers.GridPath(neighbours=neighbours, endpoints=True, obstacles=True)
        start, end = tuple(ends[:2].tolist()), tuple(ends[2:].tolist())
        yield Instance(
            kind,
            solver,
            theta,
            lambda theta, n=neighbours, s=start, e=end, b=blocked: optima.grid_path(
                theta, n, s, e, b
            ),
            (ends, blocked),
        )


def dag_grid(rng: Generator) -> Iterator[Instance]:
    """Yield paths right and down."""
    for kind in kinds():
        diagonal = bool(rng.random() < 0.5)
        theta = scored(rng, kind, size_of(rng, kind, 2, 12), int(rng.integers(1, 13)))
        yield Instance(
            kind,
            solvers.DagGrid(diagonal=diagonal),
            theta,
            lambda theta, d=diagonal: optima.monotone_path(theta, d),
        )


def graph_path(rng: Generator) -> Iterator[Instance]:
    """Yield paths in graphs with loops and parallel edges, some fallen apart."""
    for kind in kinds():
        count = size_of(rng, kind, 2, 9)
        edges = rng.integers(count, size=(int(rng.integers(1, 25)), 2))
        directed, acyclic = rng.random(2) < 0.5
        edges = np.sort(edges, axis=1) if acyclic else edges
        solver = solvers.GraphPath(count, edges, directed=bool(directed))
        theta = scored(rng, kind, len(edges))
        theta = theta if solver.acyclic else -np.abs(theta)
        ends = rng.integers(count, size=2)
        yield Instance(
            kind,
            solver,
            theta,
            lambda theta, n=count, e=edges, s=ends, d=directed: optima.graph_path(
                n, e, theta, *s, directed=d
            ),
            (ends,),
        )


def spanning_tree(rng: Generator) -> Iterator[Instance]:
    """Yield trees of connected graphs."""
    for kind in kinds():
        count = 2 if kind == "degenerate" else int(rng.integers(3, 40))
        line = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
        more = rng.integers(count, size=(int(rng.integers(0, 120)), 2))
        edges = rng.permutation(np.concatenate([line, more]))
        yield Instance(
            kind,
            solvers.SpanningTree(count, edges),
            scored(rng, kind, len(edges)),
            lambda theta, e=edges: optima.spanning_tree(e, theta),
        )


def spanning_forest(rng: Generator) -> Iterator[Instance]:
    """Yield forests of as many components as there can be, or fewer."""
    for kind in kinds():
        count = size_of(rng, kind, 2, 6)
        edges = rng.integers(count, size=(int(rng.integers(1, 9)), 2))
        k = int(rng.integers(vertices.components(count, edges), count + 1))
        every = vertices.forests(count, edges, k)
        solver = solvers.SpanningForest(count, edges, num_components=k)
        yield Instance(kind, solver, scored(rng, kind, len(edges)), over(every))


def flow(rng: Generator) -> Iterator[Instance]:
    """Yield flows in graphs with cycles, without capacities or targets in reach."""
    for kind in kinds():
        count = 2 if kind == "degenerate" else int(rng.integers(3, 15))
        edges = rng.integers(0, count, (int(rng.integers(1, 60)), 2))
        capacities = rng.integers(0, 5, len(edges))
        source, target = (int(v) for v in rng.choice(count, 2, replace=False))
        solver = solvers.Flow(count, edges, source, target)
        best = optima.whole_flow if kind == "ties" else optima.flow
        yield Instance(
            kind,
            solver,
            scored(rng, kind, len(edges)),
            lambda theta, f=best, a=(count, edges), b=(capacities, source, target): f(
                *a, theta, *b
            ),
            (capacities,),
        )


def matching(rng: Generator) -> Iterator[Instance]:
    """Yield matchings on sparse bipartite graphs."""
    for kind in kinds():
        left, right = size_of(rng, kind, 2, 15), int(rng.integers(1, 16))
        count = int(rng.integers(1, 50))
        edges = rng.integers([left, right], size=(count, 2))
        yield Instance(
            kind,
            solvers.BipartiteMatching(left, right, edges),
            scored(rng, kind, count),
            lambda theta, a=(left, right, edges): optima.bipartite_matching(*a, theta),
        )


def assignment(rng: Generator, *, partial: bool = False) -> Iterator[Instance]:
    """Yield assignments, square and rectangular."""
    for kind in kinds():
        n = size_of(rng, kind, 2, 40)
        m = n if rng.random() < 0.4 else int(rng.integers(1, 41))
        yield Instance(
            kind,
            solvers.Assignment(partial=partial),
            scored(rng, kind, n, m),
            lambda theta: optima.assignment(theta, partial=partial),
        )


def transport(rng: Generator) -> Iterator[Instance]:
    """Yield transport with marginals of each row, whole ones and zeros among them."""
    for kind in kinds():
        n, m = size_of(rng, kind, 2, 12), int(rng.integers(1, 13))
        if kind == "ties":
            a = rng.multinomial(60, np.ones(n) / n)
            b = rng.multinomial(60, np.ones(m) / m)
            best: Any = optima.whole_transport
        else:
            a, b = rng.random(n), rng.random(m) * (rng.random(m) < 0.7)
            b[-1] += 0.1
            b *= a.sum() / b.sum()
            best = optima.transport
        yield Instance(
            kind,
            solvers.OptimalTransport(),
            scored(rng, kind, n, m),
            lambda theta, f=best, a=a, b=b: f(theta, a, b),
            (a.astype(float), b.astype(float)),
        )


def knapsack(rng: Generator) -> Iterator[Instance]:
    """Yield knapsacks that hold nothing, everything, or weightless things."""
    for kind in kinds():
        size = size_of(rng, kind, 2, 11)
        weights = rng.integers(0, 9, size)
        whole = int(weights.sum())
        capacity = int(rng.integers(0, whole + 2))
        if kind == "degenerate":
            capacity = int(rng.choice([0, whole]))
        sets = vertices.zeros_and_ones(size)
        sets = sets[sets @ weights <= capacity]
        solver = solvers.Knapsack(weights)
        theta = scored(rng, kind, size)
        yield Instance(kind, solver, theta, over(sets), (np.float64(capacity),))


def large_knapsack(rng: Generator) -> Iterator[Instance]:
    """Yield knapsacks of many items with whole scores."""
    while True:
        size = int(rng.integers(20, 60))
        weights = rng.integers(1, 100, size)
        capacity = int(weights.sum() // 3)
        yield Instance(
            "ties",
            solvers.Knapsack(weights, capacity),
            rng.integers(-20, 1000, size).astype(float),
            lambda theta, w=weights, c=capacity: optima.knapsack(theta, w, c),
        )


def fractional_knapsack(rng: Generator) -> Iterator[Instance]:
    """Yield fractional knapsacks."""
    for kind in kinds():
        size = size_of(rng, kind, 2, 30)
        weights = (
            rng.uniform(0.1, 2, size) if kind == "random" else rng.integers(0, 5, size)
        )
        capacity = float(rng.uniform(0, weights.sum() + 0.5))
        yield Instance(
            kind,
            solvers.FractionalKnapsack(weights),
            scored(rng, kind, size),
            lambda theta, w=weights, c=capacity: optima.fractional_knapsack(
                theta, w, c
            ),
            (np.float64(capacity),),
        )


def chain(rng: Generator) -> Iterator[Instance]:
    """Yield sequences of states."""
    for kind in kinds():
        length, states = size_of(rng, kind, 2, 8), int(rng.integers(1, 9))
        cut = length * states
        shape = (length - 1, states, states)
        yield Instance(
            kind,
            solvers.Chain(states),
            scored(rng, kind, cut + (length - 1) * states**2),
            lambda theta, c=cut, s=states, p=shape: optima.chain(
                theta[:c].reshape(-1, s), theta[c:].reshape(p)
            ),
        )


def warping(rng: Generator) -> Iterator[Instance]:
    """Yield time warping."""
    for kind in kinds():
        theta = scored(rng, kind, size_of(rng, kind, 2, 15), int(rng.integers(1, 16)))
        yield Instance(kind, solvers.Alignment(), theta, optima.warping)


def sequence_alignment(rng: Generator) -> Iterator[Instance]:
    """Yield matches and gaps."""
    for kind in kinds():
        shape = (1 + size_of(rng, kind, 2, 15), 1 + int(rng.integers(1, 16)))
        theta = scored(rng, kind, *shape)
        solver = solvers.SequenceAlignment()
        yield Instance(kind, solver, theta, optima.sequence_alignment)


def tour(rng: Generator, *, solver: Any, whole: bool = False) -> Iterator[Instance]:
    """Yield tours of few cities, to enumerate, or of more with whole scores."""
    for kind in kinds():
        if whole:
            n = int(rng.integers(8, 13))
            theta = -rng.integers(1, 100, (n, n)).astype(float)
            yield Instance("ties", solver, theta, optima.tour)
            continue
        n = int(rng.integers(1, 4)) if kind == "degenerate" else int(rng.integers(4, 8))
        yield Instance(kind, solver, scored(rng, kind, n, n), over(vertices.tours(n)))


def linear_program(rng: Generator) -> Iterator[Instance]:
    """Yield programs with equations, some without a point or a bound."""
    for kind in kinds():
        rows, columns = size_of(rng, kind, 2, 12), size_of(rng, kind, 2, 20)
        matrix = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.6)
        inside = matrix @ rng.random(columns)
        how = rng.integers(0, 4, rows)
        low = np.select([how == 0, how == 1], [-np.inf, inside], inside - 0.5)
        high = np.select([how == 2, how == 1], [np.inf, inside], inside + 0.5)
        upper = 1.0 if rng.random() < 0.9 else np.inf
        if rng.random() < 0.1:
            low, high = low + 9, high + 9
        bounds = {"row_lower": low, "row_upper": high, "upper": upper}
        yield Instance(
            kind,
            solvers.LinearProgram(matrix, **bounds),
            scored(rng, kind, columns),
            lambda theta, a=(matrix, low, high), u=upper: optima.linear_program(
                theta, *a, upper=u
            ),
        )


def mixed_program(rng: Generator) -> Iterator[Instance]:
    """Yield programs in zeros and ones, some without a point."""
    for kind in kinds():
        rows, columns = int(rng.integers(1, 5)), size_of(rng, kind, 2, 10)
        matrix = rng.integers(-3, 9, (rows, columns)).astype(float)
        high = matrix.sum(axis=1) * rng.uniform(0, 0.8)
        low = np.where(rng.random(rows) < 0.3, high - rng.uniform(0, 3), -np.inf)
        solver = solvers.MixedIntegerProgram(
            matrix, row_lower=low, row_upper=high, upper=1.0
        )
        corners = vertices.zeros_and_ones(columns)
        values = corners @ matrix.T
        corners = corners[np.all((values >= low) & (values <= high), axis=1)]
        best = over(corners) if len(corners) else nothing
        yield Instance(kind, solver, scored(rng, kind, columns), best)


FAMILIES = [
    Family("OneHot, ScoredSet", "NumPy's maximum", simplex),
    Family("TopK", "NumPy's sort", top),
    Family("Ranking", "enumeration of permutations", ranking),
    Family("Hypercube, FiniteSet", "enumeration of points", points),
    Family("L1Ball, GroupBall, KSupportBall, NuclearBall", "the dual norm", balls),
    Family("GridPath, any ends, obstacles", "SciPy's Dijkstra", grid_path),
    Family("DagGrid", "SciPy's Bellman-Ford", dag_grid),
    Family("GraphPath, any ends", "SciPy's Bellman-Ford", graph_path),
    Family("SpanningTree", "NetworkX's spanning tree", spanning_tree),
    Family("SpanningForest", "enumeration of forests", spanning_forest),
    Family("Flow", "SciPy's linear programming, OR-Tools' flow", flow),
    Family("BipartiteMatching", "SciPy's linear programming", matching),
    Family("Assignment", "SciPy's assignment", assignment),
    Family(
        "Assignment(partial=True)",
        "SciPy's assignment, padded",
        lambda rng: assignment(rng, partial=True),
    ),
    Family("OptimalTransport", "SciPy's linear programming, OR-Tools' flow", transport),
    Family("Knapsack", "enumeration of sets", knapsack),
    Family("Knapsack, 20 to 59 items", "OR-Tools' CP-SAT", large_knapsack),
    Family("FractionalKnapsack", "SciPy's linear programming", fractional_knapsack),
    Family("Chain", "SciPy's Bellman-Ford", chain),
    Family("Alignment", "SciPy's Bellman-Ford", warping),
    Family("SequenceAlignment", "SciPy's Bellman-Ford", sequence_alignment),
    Family(
        "SalesmanExact",
        "enumeration of tours",
        lambda rng: tour(rng, solver=solvers.SalesmanExact()),
    ),
    Family(
        "SalesmanExact, 8 to 12 cities",
        "OR-Tools' CP-SAT",
        lambda rng: tour(rng, solver=solvers.SalesmanExact(), whole=True),
    ),
    Family(
        "Salesman, 8 to 12 cities",
        "OR-Tools' CP-SAT",
        lambda rng: tour(rng, solver=solvers.Salesman(), whole=True),
        exact=False,
    ),
    Family("LinearProgram", "OR-Tools' GLOP", linear_program),
    Family("MixedIntegerProgram", "enumeration of points", mixed_program),
]
