"""Every solver of the package keeps the contract that users' solvers must keep."""

import numpy as np
import pytest

from softsolve import solvers
from softsolve.solvers import (
    alignment,
    assignment,
    atomic,
    chain,
    dag_grid,
    flow,
    graph,
    grid,
    knapsack,
    matching,
    program,
    salesman,
    sequence_alignment,
    transport,
    tree,
)
from softsolve.solvers.base import Solver
from softsolve.testing import check_solver

CYCLE = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [3, 1]]
LAYERS = [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]
BIPARTITE = [[0, 0], [0, 1], [1, 1], [2, 0], [2, 2]]
ENDS = np.array([[0, 0, 2, 3], [2, 3, 0, 0], [1, 1, 1, 1], [0, 3, 2, 0]])

CASES = {
    "OneHot": (solvers.OneHot(), (5,)),
    "TopK": (solvers.TopK(2), (5,)),
    "TopK of none": (solvers.TopK(0), (3,)),
    "Ranking": (solvers.Ranking(), (6,)),
    "Ranking of ties": (solvers.Ranking([0, 0, 1, 1]), (4,)),
    "ScoredSet": (solvers.ScoredSet("abc"), (3,)),
    "FiniteSet": (solvers.FiniteSet([[0, 1], [1, 0], [2, 2]]), (2,)),
    "Hypercube": (solvers.Hypercube(), (3,)),
    "Hypercube of zeros and ones": (solvers.Hypercube(signed=False), (3,)),
    "L1Ball": (solvers.L1Ball(2.0), (4,)),
    "GroupBall": (atomic.GroupBall([0, 0, 1, 1, 1]), (5,)),
    "KSupportBall": (atomic.KSupportBall(2), (5,)),
    "NuclearBall": (atomic.NuclearBall(), (3, 4)),
    "GridPath": (grid.GridPath(), (4, 5)),
    "GridPath of four neighbours": (grid.GridPath(neighbours=4), (3, 3)),
    "GridPath of any ends": (grid.GridPath(endpoints=True), (3, 4), ENDS),
    "DagGrid": (dag_grid.DagGrid(), (4, 5)),
    "DagGrid with diagonals": (dag_grid.DagGrid(diagonal=True), (4, 5)),
    "GraphPath": (graph.GraphPath(4, LAYERS, source=0, target=3), (5,)),
    "GraphPath with cycles": (graph.GraphPath(4, CYCLE, source=0, target=3), (6,)),
    "GraphPath of any ends": (graph.GraphPath(4, CYCLE), (6,), ENDS[:, [0, 3]]),
    "SpanningTree": (tree.SpanningTree(4, CYCLE), (6,)),
    "SpanningForest": (tree.SpanningForest(4, CYCLE, num_components=2), (6,)),
    "Flow": (flow.Flow(4, LAYERS, 0, 3, [1, 2, 1, 1, 2]), (5,)),
    "BipartiteMatching": (matching.BipartiteMatching(3, 3, BIPARTITE), (5,)),
    "Assignment": (assignment.Assignment(), (4, 4)),
    "Assignment of rectangles": (assignment.Assignment(), (3, 5)),
    "Assignment of some": (assignment.Assignment(partial=True), (4, 4)),
    "OptimalTransport": (transport.OptimalTransport([1, 2], [1, 1, 1]), (2, 3)),
    "Knapsack": (knapsack.Knapsack([1, 2, 3, 4], 5), (4,)),
    "FractionalKnapsack": (knapsack.FractionalKnapsack([1, 2, 3, 4], 5), (4,)),
    "Chain": (chain.Chain(3), (4 * 3 + 3 * 9,)),
    "Alignment": (alignment.Alignment(), (3, 4)),
    "SequenceAlignment": (sequence_alignment.SequenceAlignment(), (4, 5)),
    "SalesmanExact": (salesman.SalesmanExact(), (6, 6)),
    "Salesman": (salesman.Salesman(), (7, 7)),
    "LinearProgram": (
        program.LinearProgram([[1, 1, 1], [1, -1, 0]], row_upper=[2, 1], upper=1),
        (3,),
    ),
    "MixedIntegerProgram": (
        program.MixedIntegerProgram([[3, 5, 7]], row_upper=[9], upper=1),
        (3,),
    ),
}


def test_every_solver_is_here():
    checked = {type(case[0]) for case in CASES.values()}
    public = {getattr(solvers, name) for name in solvers.__all__}
    classes = {item for item in public if isinstance(item, type)}
    assert {
        item
        for item in classes - checked
        if issubclass(item, Solver) and not item.__abstractmethods__
    } <= {solvers.KernelSolver}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_contract(name, dtype):
    solver, event, *context = CASES[name]
    theta = np.random.default_rng(0).normal(size=(4, *event)).astype(dtype)
    report = check_solver(solver, theta, *context)
    assert "feasible solutions" in report.checked
    assert not [text for text in report.skipped if "heuristic" not in text]
