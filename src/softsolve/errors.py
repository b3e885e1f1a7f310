"""Errors of softsolve's own."""


class SolverError(RuntimeError):
    """A solver failed: infeasible, unbounded, out of time, or not what it claims."""


class ContractError(AssertionError):
    """A solver that does not keep its contract: what was found, where, what to do."""
