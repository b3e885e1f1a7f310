"""Solvers: maximisers of ⟨y, θ⟩ over discrete sets, batched, for every framework."""

from softsolve.solvers.alignment import Alignment
from softsolve.solvers.assignment import Assignment
from softsolve.solvers.atomic import GroupBall, KSupportBall, NuclearBall
from softsolve.solvers.base import KernelSolver, Solver
from softsolve.solvers.box import Hypercube, L1Ball
from softsolve.solvers.chain import Chain
from softsolve.solvers.dag_grid import DagGrid
from softsolve.solvers.finite import FiniteSet
from softsolve.solvers.flow import Flow
from softsolve.solvers.function import solver
from softsolve.solvers.graph import GraphPath
from softsolve.solvers.grid import GridPath
from softsolve.solvers.knapsack import FractionalKnapsack, Knapsack
from softsolve.solvers.matching import BipartiteMatching
from softsolve.solvers.permutahedron import Ranking
from softsolve.solvers.program import LinearProgram, MixedIntegerProgram
from softsolve.solvers.salesman import Salesman, SalesmanExact
from softsolve.solvers.sequence_alignment import SequenceAlignment
from softsolve.solvers.simplex import OneHot, ScoredSet, TopK
from softsolve.solvers.transport import OptimalTransport
from softsolve.solvers.tree import SpanningForest, SpanningTree

__all__ = [
    "Alignment",
    "Assignment",
    "BipartiteMatching",
    "Chain",
    "DagGrid",
    "FiniteSet",
    "Flow",
    "FractionalKnapsack",
    "GraphPath",
    "GridPath",
    "GroupBall",
    "Hypercube",
    "KSupportBall",
    "KernelSolver",
    "Knapsack",
    "L1Ball",
    "LinearProgram",
    "MixedIntegerProgram",
    "NuclearBall",
    "OneHot",
    "OptimalTransport",
    "Ranking",
    "Salesman",
    "SalesmanExact",
    "ScoredSet",
    "SequenceAlignment",
    "Solver",
    "SpanningForest",
    "SpanningTree",
    "TopK",
    "solver",
]
