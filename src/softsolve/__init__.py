"""softsolve makes any discrete solver differentiable.

The layers live in one module a framework, under the same names:
``softsolve.torch``, ``softsolve.jax`` and ``softsolve.numpy``, each with ``Perturbed``
and ``FenchelYoungLoss``. This module has what they share.
"""

from typing import TYPE_CHECKING

from softsolve import noise, parallel, solvers
from softsolve.errors import SolverError
from softsolve.solvers.function import solver

if TYPE_CHECKING:
    from softsolve.compiled.user import compiled
else:
    # A package that can be called: the name is free for both.
    from softsolve import compiled

__version__ = "0.1.0"

__all__ = [
    "SolverError",
    "__version__",
    "compiled",
    "noise",
    "parallel",
    "solver",
    "solvers",
]
