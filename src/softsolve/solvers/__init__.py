"""Solvers: maximisers of ⟨y, θ⟩ over discrete sets, batched, for every framework."""

from softsolve.solvers.base import KernelSolver, Solver
from softsolve.solvers.box import Hypercube, L1Ball
from softsolve.solvers.finite import FiniteSet
from softsolve.solvers.function import solver
from softsolve.solvers.permutahedron import Ranking
from softsolve.solvers.simplex import OneHot, ScoredSet, TopK

__all__ = [
    "FiniteSet",
    "Hypercube",
    "KernelSolver",
    "L1Ball",
    "OneHot",
    "Ranking",
    "ScoredSet",
    "Solver",
    "TopK",
    "solver",
]
