"""The best value of one instance, by software that is not softsolve's.

Functions of scores, which are maximised, in float64; each returns a number, or None
for an instance that has no solution.
"""

import itertools

import networkx as nx
import numpy as np
from ortools.graph.python import min_cost_flow
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model
from scipy.optimize import LinearConstraint, linear_sum_assignment, linprog, milp
from scipy.sparse import csr_array, eye_array, kron, vstack
from scipy.sparse.csgraph import bellman_ford, dijkstra

from support.vertices import GRID_MOVES


def grid_path(theta, neighbours, start, end, blocked=None):
    """A path over cells, scores above zero counting as zero: SciPy's Dijkstra."""
    cost = np.maximum(-np.asarray(theta, dtype=np.float64), 0)
    height, width = cost.shape
    blocked = np.zeros(cost.shape, bool) if blocked is None else blocked
    tails, heads, weights = [], [], []
    for i, j in itertools.product(range(height), range(width)):
        for step_i, step_j in GRID_MOVES[neighbours]:
            k, l = i + step_i, j + step_j
            if 0 <= k < height and 0 <= l < width:
                if blocked[i, j] or blocked[k, l]:
                    continue
                tails.append(i * width + j)
                heads.append(k * width + l)
                weights.append(cost[k, l])
    size = height * width
    graph = csr_array((np.array(weights, float), (tails, heads)), shape=(size, size))
    if blocked[start] or blocked[end]:
        return None
    first = start[0] * width + start[1]
    last = end[0] * width + end[1]
    length = dijkstra(graph, indices=first)[last] + cost[start]
    return None if np.isinf(length) else -length


def _longest_path(ends, edges):
    """The best path over scored edges (tail, head, score): SciPy's Bellman-Ford.

    NetworkX's skips vertices that it expects to improve, which rounding may prevent:
    with real scores it finds a wrong length once in some thousands.
    """
    numbers, best = {}, {}
    for tail, head, score in edges:
        pair = tuple(numbers.setdefault(v, len(numbers)) for v in (tail, head))
        best[pair] = max(score, best.get(pair, -np.inf))
    source, target = (numbers.setdefault(v, len(numbers)) for v in ends)
    tails, heads = np.array(list(best), dtype=int).reshape(-1, 2).T
    costs = -np.array(list(best.values()), dtype=np.float64)
    shape = (len(numbers), len(numbers))
    length = bellman_ford(csr_array((costs, (tails, heads)), shape), indices=source)
    return None if np.isinf(length[target]) else -length[target]


def monotone_path(theta, diagonal):
    """A path over cells, right and down: SciPy's Bellman-Ford."""
    height, width = theta.shape
    edges = [
        ((i, j), (i + a, j + b), float(theta[i + a, j + b]))
        for i in range(height)
        for j in range(width)
        for a, b in ((0, 1), (1, 0), (1, 1))[: 2 + diagonal]
        if i + a < height and j + b < width
    ]
    last = (height - 1, width - 1)
    return float(theta[0, 0]) + _longest_path([(0, 0), last], edges)


def warping(theta):
    """An alignment by time warping: SciPy's Bellman-Ford."""
    return monotone_path(theta, diagonal=True)


def sequence_alignment(theta):
    """An alignment by matches and gaps: SciPy's Bellman-Ford."""
    n, m = theta.shape[0] - 1, theta.shape[1] - 1
    edges = []
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        if i < n and j < m:
            edges.append(((i, j), (i + 1, j + 1), float(theta[i, j])))
        if i < n:
            edges.append(((i, j), (i + 1, j), float(theta[i, m])))
        if j < m:
            edges.append(((i, j), (i, j + 1), float(theta[n, j])))
    return _longest_path([(0, 0), (n, m)], edges)


def chain(unary, pairwise):
    """A sequence of states (L, S) with transitions (L - 1, S, S): the same."""
    length, states = unary.shape
    edges = [("start", (0, i), float(unary[0, i])) for i in range(states)]
    edges += [((length - 1, i), "end", 0.0) for i in range(states)]
    edges += [
        ((t, i), (t + 1, j), float(pairwise[t, i, j]) + float(unary[t + 1, j]))
        for t in range(length - 1)
        for i in range(states)
        for j in range(states)
    ]
    return _longest_path(["start", "end"], edges)


def graph_path(num_vertices, edges, theta, source, target, *, directed=True):
    """A path over edges: SciPy's Bellman-Ford."""
    scored = [
        (tail, head, score)
        for (tail, head), score in zip(edges.tolist(), theta.tolist(), strict=True)
        if tail != head
    ]
    if not directed:
        scored += [(head, tail, score) for tail, head, score in scored]
    assert max(source, target) < num_vertices
    return _longest_path((source, target), scored)


def spanning_tree(edges, theta):
    """A spanning tree of a connected graph: NetworkX."""
    graph = nx.MultiGraph()
    for (one, other), score in zip(edges.tolist(), theta.tolist(), strict=True):
        graph.add_edge(one, other, weight=score)
    best = nx.maximum_spanning_tree(graph)
    return sum(score for *_, score in best.edges(data="weight"))


def assignment(theta, *, partial=False):
    """An assignment: SciPy.

    For partial ones every row and column gets a place of its own at score 0.
    """
    theta = np.asarray(theta, dtype=np.float64)
    if partial:
        n, m = theta.shape
        padded = np.zeros((n + m, n + m))
        padded[:n, :m] = theta
        padded[:n, m:] = np.where(np.eye(n, dtype=bool), 0, -1e6)
        padded[n:, :m] = np.where(np.eye(m, dtype=bool), 0, -1e6)
        theta = padded
    return theta[linear_sum_assignment(theta, maximize=True)].sum()


def marginal_matrix(n, m):
    """Return the matrix that takes a flat plan (n·m) to its two marginals."""
    rows = kron(eye_array(n), csr_array(np.ones((1, m))))
    columns = kron(csr_array(np.ones((1, n))), eye_array(m))
    return vstack([rows, columns]).tocsr()


def transport(theta, a, b):
    """A transport plan: SciPy's linear programming."""
    matrix = marginal_matrix(*theta.shape)
    result = linprog(-theta.ravel(), A_eq=matrix, b_eq=np.concatenate([a, b]))
    return -result.fun


def whole_transport(theta, a, b):
    """A plan of whole numbers by whole scores: OR-Tools' minimum-cost flow."""
    n, m = theta.shape
    flow = min_cost_flow.SimpleMinCostFlow()
    for i, j in itertools.product(range(n), range(m)):
        flow.add_arc_with_capacity_and_unit_cost(
            i, n + j, int(a.sum()), -int(theta[i, j])
        )
    for i in range(n):
        flow.set_node_supply(i, int(a[i]))
    for j in range(m):
        flow.set_node_supply(n + j, -int(b[j]))
    assert flow.solve() == flow.OPTIMAL
    return -flow.optimal_cost()


def flow(num_vertices, edges, theta, capacities, source, target):
    """A flow within capacities: SciPy's linear programming."""
    columns = np.arange(len(edges))
    matrix = np.zeros((num_vertices, len(columns)))
    np.add.at(matrix, (edges[:, 0], columns), 1)
    np.add.at(matrix, (edges[:, 1], columns), -1)
    inner = np.delete(matrix, [source, target], axis=0)
    result = linprog(
        -theta,
        A_eq=inner if len(inner) else None,
        b_eq=np.zeros(len(inner)) if len(inner) else None,
        A_ub=-matrix[[source]],
        b_ub=[0],
        bounds=np.column_stack([np.zeros(len(theta)), capacities]),
    )
    return -result.fun


def whole_flow(num_vertices, edges, theta, capacities, source, target):
    """A flow by whole scores: OR-Tools' minimum-cost flow, with an edge back."""
    network = min_cost_flow.SimpleMinCostFlow()
    for (tail, head), limit, score in zip(
        edges.tolist(), capacities, theta.tolist(), strict=True
    ):
        network.add_arc_with_capacity_and_unit_cost(tail, head, int(limit), -int(score))
    most = int(np.sum(capacities)) + 1
    network.add_arc_with_capacity_and_unit_cost(target, source, most, 0)
    assert network.solve() == network.OPTIMAL
    return -network.optimal_cost()


def bipartite_matching(num_left, num_right, edges, theta):
    """A matching: SciPy's linear programming."""
    incidence = np.zeros((num_left + num_right, len(edges)))
    incidence[edges[:, 0], np.arange(len(edges))] = 1
    incidence[num_left + edges[:, 1], np.arange(len(edges))] = 1
    result = linprog(
        -theta, A_ub=incidence, b_ub=np.ones(len(incidence)), bounds=(0, 1)
    )
    return -result.fun


def fractional_knapsack(theta, weights, capacity):
    """A fractional knapsack: SciPy's linear programming."""
    result = linprog(
        -np.asarray(theta, dtype=np.float64),
        A_ub=np.asarray(weights)[None],
        b_ub=[capacity],
        bounds=(0, 1),
    )
    return -result.fun


def _solved(model):
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value


def knapsack(theta, weights, capacity):
    """A knapsack by whole scores: OR-Tools' CP-SAT."""
    model = cp_model.CpModel()
    chosen = [model.new_bool_var("") for _ in weights]
    model.add(
        sum(int(w) * x for w, x in zip(weights, chosen, strict=True)) <= int(capacity)
    )
    model.maximize(sum(int(s) * x for s, x in zip(theta, chosen, strict=True)))
    return _solved(model)


def tour(theta):
    """A closed tour by whole scores, counted both ways: OR-Tools' CP-SAT."""
    both = theta + theta.T
    n = len(theta)
    model = cp_model.CpModel()
    arcs = [
        (i, j, model.new_bool_var("")) for i, j in itertools.permutations(range(n), 2)
    ]
    model.add_circuit(arcs)
    model.maximize(sum(int(both[i, j]) * arc for i, j, arc in arcs))
    return _solved(model)


def linear_program(theta, matrix, low, high, *, lower=0.0, upper=1.0):
    """A linear program: OR-Tools' GLOP."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    variables = [solver.NumVar(lower, upper, "") for _ in theta]
    for row, least, most in zip(matrix, low, high, strict=True):
        constraint = solver.Constraint(float(least), float(most))
        for variable, entry in zip(variables, row.tolist(), strict=True):
            constraint.SetCoefficient(variable, entry)
    objective = solver.Objective()
    for variable, score in zip(variables, theta.tolist(), strict=True):
        objective.SetCoefficient(variable, score)
    objective.SetMaximization()
    status = solver.Solve()
    if status in (pywraplp.Solver.INFEASIBLE, pywraplp.Solver.UNBOUNDED):
        return None
    assert status == pywraplp.Solver.OPTIMAL
    return objective.Value()


def mixed_program(theta, matrix, low, high, lower, upper, integrality):
    """A mixed-integer program: SciPy's milp, which is HiGHS too."""
    result = milp(
        -theta,
        constraints=LinearConstraint(matrix, low, high),
        bounds=(lower, upper),
        integrality=integrality,
        options={"mip_rel_gap": 0.0},
    )
    assert result.status == 0
    return -result.fun


def group_ball(theta, groups, radius):
    """The dual norm: the largest Euclidean norm of a group."""
    labels = np.asarray(groups)
    return radius * max(np.linalg.norm(theta[labels == g]) for g in set(labels))


def support_ball(theta, k, radius):
    """The dual norm, over all supports of k entries."""
    supports = itertools.combinations(range(len(theta)), k)
    return radius * max(np.linalg.norm(theta[list(s)]) for s in supports)


def nuclear_ball(theta, radius):
    """The dual norm: the largest singular value."""
    return radius * np.linalg.norm(theta, 2)
