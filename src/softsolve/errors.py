"""Errors of softsolve's own."""


class SolverError(RuntimeError):
    """A solver failed: infeasible, unbounded, out of time, or not what it claims."""
