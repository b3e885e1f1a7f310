"""All solutions of small problems, by enumeration.

Arrays with solutions first, in the order in which a solver prefers them where they tie,
if its tests rely on one.
"""

import itertools
from functools import cache

import networkx as nx
import numpy as np

GRID_MOVES = {
    4: ((-1, 0), (0, -1), (0, 1), (1, 0)),
    8: tuple(
        (i, j) for i, j in itertools.product((-1, 0, 1), repeat=2) if (i, j) != (0, 0)
    ),
}


def zeros_and_ones(size):
    """Return all vectors of zeros and ones, (2^d, d)."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=size))).reshape(-1, size)


def grid_paths(height, width, neighbours):
    """Return all simple paths from the first cell to the last, as indicators."""
    found = []

    def walk(cell, marked):
        if cell == (height - 1, width - 1):
            found.append(marked.copy())
            return
        for step_i, step_j in GRID_MOVES[neighbours]:
            beside = (cell[0] + step_i, cell[1] + step_j)
            inside = 0 <= beside[0] < height and 0 <= beside[1] < width
            if inside and not marked[beside]:
                marked[beside] = 1
                walk(beside, marked)
                marked[beside] = 0

    start = np.zeros((height, width))
    start[0, 0] = 1
    walk((0, 0), start)
    return np.array(found)


@cache
def monotone_paths(height, width, diagonal):
    """Return all paths right and down, as indicators (paths, height, width)."""
    found = []

    def walk(cells):
        i, j = cells[-1]
        if (i, j) == (height - 1, width - 1):
            marked = np.zeros((height, width))
            marked[tuple(zip(*cells, strict=True))] = 1
            found.append(marked)
        for step in ((0, 1), (1, 0), (1, 1))[: 2 + diagonal]:
            if i + step[0] < height and j + step[1] < width:
                walk([*cells, (i + step[0], j + step[1])])

    walk([(0, 0)])
    return np.array(found)


def graph_paths(num_vertices, edges, source, target, *, directed=True):
    """Return all simple paths as indicators of their edges."""
    graph = nx.MultiDiGraph() if directed else nx.MultiGraph()
    graph.add_nodes_from(range(num_vertices))
    for key, (tail, head) in enumerate(edges.tolist()):
        graph.add_edge(tail, head, key=key)
    found = []
    for path in nx.all_simple_edge_paths(graph, source, target):
        y = np.zeros(len(edges))
        y[[key for _, _, key in path]] = 1
        found.append(y)
    return np.array(found)


def components(num_vertices, edges):
    """Return how many parts a graph falls into."""
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(num_vertices))
    graph.add_edges_from(np.asarray(edges).tolist())
    return nx.number_connected_components(graph)


def forests(num_vertices, edges, num_components):
    """Return all forests with so many components as indicators (forests, E)."""
    found = []
    for taken in itertools.combinations(
        range(len(edges)), num_vertices - num_components
    ):
        if components(num_vertices, edges[list(taken)]) == num_components:
            y = np.zeros(len(edges))
            y[list(taken)] = 1
            found.append(y)
    return np.array(found)


def complete_graph(num_vertices):
    """Return the edges that join each pair of vertices."""
    return np.array(list(itertools.combinations(range(num_vertices), 2))).reshape(-1, 2)


def sequences(length, states):
    """Return all sequences: states (n, L, S) and transitions (n, L - 1, S, S).

    The lowest comes first when they are read from the end.
    """
    every = [s[::-1] for s in itertools.product(range(states), repeat=length)]
    unary = np.eye(states)[np.array(every)]
    return unary, unary[:, :-1, :, None] * unary[:, 1:, None, :]


@cache
def warping_paths(n, m):
    """Return all alignments by time warping, low last steps first."""
    if n == 0 or m == 0:
        return np.zeros((0, n, m))
    if n == m == 1:
        return np.ones((1, 1, 1))
    found = []
    for a, b in [(n - 1, m - 1), (n - 1, m), (n, m - 1)]:
        for shorter in warping_paths(a, b):
            path = np.zeros((n, m))
            path[:a, :b] = shorter
            path[-1, -1] = 1
            found.append(path)
    return np.array(found)


@cache
def sequence_alignments(n, m):
    """Return all matches and gaps as (n + 1, m + 1) events, in order of preference."""
    if n == m == 0:
        return np.zeros((1, 1, 1))
    found = []
    for a, b in [(n - 1, m - 1), (n - 1, m), (n, m - 1)]:
        for shorter in sequence_alignments(a, b) if min(a, b) >= 0 else ():
            y = np.zeros((n + 1, m + 1))
            y[:a, :b] = shorter[:-1, :-1]
            y[:a, -1] = shorter[:-1, -1]
            y[-1, :b] = shorter[-1, :-1]
            y[n - 1 if a < n else n, m - 1 if b < m else m] = 1
            found.append(y)
    return np.array(found)


def tour_matrix(tour):
    """Return a closed tour as the matrix of its steps, both ways."""
    y = np.zeros((len(tour),) * 2)
    if len(tour) > 1:
        y[tour, np.roll(tour, -1)] = y[np.roll(tour, -1), tour] = 1
    return y


@cache
def tours(n):
    """Return all closed tours of n cities, as matrices."""
    rest = itertools.permutations(range(1, n))
    found = {tour_matrix([0, *tail]).tobytes() for tail in rest}
    return np.stack([np.frombuffer(tour).reshape(n, n) for tour in sorted(found)])
