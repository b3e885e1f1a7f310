"""softsolve makes any discrete solver differentiable.

The layers live in one module a framework, under the same names:
``softsolve.torch``, ``softsolve.jax`` and ``softsolve.numpy``, each with ``Perturbed``
and ``FenchelYoungLoss``. This module has what they share.
"""

from softsolve import noise, solvers
from softsolve.errors import SolverError
from softsolve.solvers.function import solver

__version__ = "0.1.0"

__all__ = ["SolverError", "__version__", "noise", "solver", "solvers"]
