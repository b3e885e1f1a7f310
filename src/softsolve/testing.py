r"""Checks of a solver of your own, before you train through it.

The contract of a solver is one sentence: *a pure, deterministic function from a batch
of scores to a batch of solutions, row by row*. A solver that is declared linear
moreover maximises :math:`\langle y, \theta\rangle` over a fixed set, exactly.
Everything that is averaged and differentiated rests on that, and a solver that breaks
it is trained through without an error. :func:`check_solver` finds out beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softsolve._subject import (
    Array,
    Subject,
    Values,
    failed_rows,
    first_row,
    show,
    to_numpy,
)
from softsolve.errors import ContractError, SolverError
from softsolve.solvers.base import Solver

__all__ = ["ContractError", "Report", "check_solver"]

Feasible = Callable[..., Any]
# Scores and their solutions, by what the scores are.
Solved = dict[str, tuple[Values, Values]]

# How many rows are solved by themselves, and how many swapped for one another.
_SINGLE_ROWS = 16
_SWAPS = 3


@dataclass(frozen=True)
class Report:
    """What :func:`check_solver` looked at.

    Attributes
    ----------
    solver
        Name of the solver.
    rows
        Number of instances it was given.
    checked
        What was checked, and holds.
    skipped
        What could not be checked, and what it would take.
    """

    solver: str
    rows: int
    checked: tuple[str, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.solver} keeps the contract on {self.rows} row(s)."]
        lines += [f"  checked: {text}" for text in self.checked]
        lines += [f"  not checked: {text}" for text in self.skipped]
        return "\n".join(lines)


def check_solver(
    solver: Callable[..., Any],
    theta: Array,
    *context: Array,
    feasible: Feasible | None = None,
) -> Report:
    r"""Check that a solver keeps the contract, on scores of yours.

    It is called on the scores, on rows of them by themselves and in another order, and
    on related ones: scaled, negated, noisy, of other rows, all equal, rounded until
    they tie. Some 20 solves a row in all.

    Parameters
    ----------
    solver
        What you would hand to ``Perturbed``.
    theta
        Scores such as the solver will meet, (rows, \*event), in the framework that it
        takes. The more rows, the more is noticed.
    *context
        What else it takes, one row for each instance.
    feasible
        ``feasible(y, *context)``: whether each row of y is a solution at all, (rows,).
        The default is the solver's own check, if it has one.

    Returns
    -------
    Report
        What was checked and what could not be; ``print`` it.

    Raises
    ------
    ContractError
        If the solver breaks the contract: says on which row, and what to fix.

    Examples
    --------
    >>> from softsolve import solver
    >>> def nearest_corner(theta):
    ...     return np.where(theta > 0, 1.0, -1.0)
    >>> theta = np.random.default_rng(0).normal(size=(8, 3))
    >>> print(check_solver(solver(nearest_corner, linear=True), theta))
    solver(nearest_corner, batched=True, linear=True) keeps the contract on 8 row(s).
      checked: one finite solution a row, in a numeric array
      checked: arguments left as they are
      checked: the same solution twice, in an array of its own
      checked: each row solved by itself, whatever the batch
      checked: read-only arrays, as JAX hands them over
      checked: ties broken the same way each time
      checked: a maximiser: no solution of other scores is better
      checked: solutions differ along the declared directions
      not checked: feasibility (pass feasible=)

    >>> def farthest_corner(theta):
    ...     return np.where(theta > 0, -1.0, 1.0)
    >>> check_solver(solver(farthest_corner, linear=True), theta)
    Traceback (most recent call last):
    ...
    softsolve.errors.ContractError: solver(farthest_corner, ...) minimises ⟨y, θ⟩: ...
    """
    return _Examination(Subject(solver, theta, context), feasible).run()


class _Examination:
    """One run of :func:`check_solver`, clause by clause."""

    def __init__(self, subject: Subject, feasible: Feasible | None) -> None:
        self.subject = subject
        self.theta = subject.theta
        self.context = subject.context
        self.rows = len(subject.theta)
        self.feasible = feasible or _own_feasibility(subject.solver)
        self.checked: list[str] = []
        self.skipped: list[str] = []

    def run(self) -> Report:
        """Check one clause after the other; the first that does not hold raises."""
        y = self.subject.solve_given()
        self.checked.append("one finite solution a row, in a numeric array")
        self.checked.append("arguments left as they are")
        self._check_repeatable(y)
        self._check_rows(y)
        self._check_read_only(y)
        solved = self._solve_related(y)
        self._check_ties(solved)
        self._check_feasible(solved)
        self._check_maximiser(solved)
        self._check_directions(solved)
        name = self.subject.name
        return Report(name, self.rows, tuple(self.checked), tuple(self.skipped))

    def _check_repeatable(self, y: Values) -> None:
        kept, again = self.subject.call(self.theta, self.context)
        row = _first_difference(again, y)
        if row is not None:
            self.subject.fail(
                f"is not deterministic: solved twice, row {row} of theta gave "
                f"{show(y[row])} and then {show(again[row])}",
                "Draw nothing at random and keep no state between calls.",
            )
        self.subject.solve(2 * self.theta, self.context, "scaled scores")
        row = _first_difference(to_numpy(kept), again)
        if row is not None:
            self.subject.fail(
                f"wrote over a solution that it had returned (row {row})",
                "Return a new array from each call, not a buffer that is used again.",
            )
        self.checked.append("the same solution twice, in an array of its own")

    def _check_rows(self, y: Values) -> None:
        turned = self.subject.solve(
            self.theta[::-1],
            tuple(array[::-1] for array in self.context),
            "rows in reverse order",
        )
        row = _first_difference(turned[::-1], y, self._rounding())
        if row is not None:
            self._fail_rows(row, "the rows come in reverse order", turned[::-1], y)
        for row in range(min(self.rows, _SINGLE_ROWS)):
            alone = self._solve_alone(row, self.theta, f"row {row} by itself")
            if _first_difference(alone, y[[row]], self._rounding()) is not None:
                self._fail_rows(row, "it is solved by itself", alone, y[[row]])
        self.checked.append("each row solved by itself, whatever the batch")

    def _check_read_only(self, y: Values) -> None:
        solved = self.subject.solve_read_only()
        if solved is None:
            return
        row = _first_difference(solved, y, self._rounding())
        if row is not None:
            self.subject.fail(
                f"has another solution for read-only arrays: {show(solved[row])} "
                f"instead of {show(y[row])} in row {row}",
                "JAX hands over such arrays: work on a copy.",
            )
        self.checked.append("read-only arrays, as JAX hands them over")

    def _solve_alone(self, row: int, theta: Values, what: str) -> Values:
        context = tuple(array[[row]] for array in self.context)
        return self.subject.solve(theta[[row]], context, what)

    def _fail_rows(self, row: int, when: str, other: Values, y: Values) -> None:
        at = min(row, len(y) - 1)
        self.subject.fail(
            f"is not row-wise: row {row} of theta has another solution when {when}, "
            f"{show(other[at])} instead of {show(y[at])}",
            "Solve each row from its own scores and context alone; a function of one "
            "instance needs softsolve.solver(function, batched=False).",
        )

    def _solve_related(self, y: Values) -> Solved:
        solved: Solved = {"theta": (self.theta, y)}
        for what, theta in self._related_scores().items():
            try:
                solved[what] = theta, self.subject.solve(theta, self.context, what)
            except ContractError as error:
                if not _refuses(error.__cause__):
                    raise
                self.skipped.append(f"{what}, which it refuses: {error.__cause__}")
        return solved

    def _related_scores(self) -> dict[str, Values]:
        theta = self.theta
        rng = np.random.default_rng(0)
        scale = float(np.abs(theta).mean()) or 1.0
        related = {
            "equal scores": np.zeros_like(theta),
            "rounded scores": np.round(theta / scale) * scale,
            "scaled scores": 2 * theta,
            "negated scores": -theta,
        }
        for shift in range(1, min(self.rows, _SWAPS + 1)):
            related[f"the scores of {shift} row(s) on"] = np.roll(theta, -shift, axis=0)
        for size in (0.1, 1.0):
            noise = rng.normal(size=theta.shape)
            related[f"noisy scores ({size:g})"] = theta + size * scale * noise
        return {what: x.astype(theta.dtype) for what, x in related.items()}

    def _check_ties(self, solved: Solved) -> None:
        last = self.rows - 1
        for what in ("equal scores", "rounded scores"):
            if what not in solved:
                continue
            theta, y = solved[what]
            again = self.subject.solve(theta, self.context, what)
            row = _first_difference(again, y, self._rounding())
            alone = self._solve_alone(last, theta, what)
            if _first_difference(alone, y[[last]], self._rounding()) is not None:
                row = last
            if row is not None:
                self.subject.fail(
                    f"breaks ties in more than one way: row {row} of {what}, "
                    f"{show(theta[row])}, has other solutions in other calls",
                    "Break ties by a fixed rule, such as the lowest index.",
                )
        self.checked.append("ties broken the same way each time")

    def _check_feasible(self, solved: Solved) -> None:
        if self.feasible is None:
            self.skipped.append("feasibility (pass feasible=)")
            return
        for what, (theta, y) in solved.items():
            arrays = self.subject.convert(y, *self.context)
            valid = to_numpy(self.feasible(*arrays))
            if valid.shape != (self.rows,) or valid.dtype.kind != "b":
                msg = (
                    "feasible(y, *context) must return one boolean for each of the "
                    f"{self.rows} rows; got {valid.dtype} of shape {valid.shape}."
                )
                raise ValueError(msg)
            row = first_row(~valid & ~failed_rows(y))
            if row is not None:
                self.subject.fail(
                    f"returned a solution that is not feasible: {show(y[row])}, for "
                    f"row {row} of {what}, {show(theta[row])}",
                    "Return points of the set only, ties included; raise "
                    "softsolve.SolverError where there is none.",
                )
        self.checked.append("feasible solutions")

    def _check_maximiser(self, solved: Solved) -> None:
        if not self.subject.linear:
            self.skipped.append(
                "that it maximises ⟨y, θ⟩ (declare it: softsolve.solver(function, "
                "linear=True), with native=True if it takes torch or JAX arrays)"
            )
            return
        self._check_no_minimiser(solved)
        if not getattr(self.subject.solver, "exact", True):
            self.skipped.append("that it finds the maximum: it is declared a heuristic")
            return
        for what, (theta, y) in solved.items():
            for other, (origin, candidate) in solved.items():
                lead, error = self._lead(candidate, y, theta)
                row = first_row(lead > error)
                if row is not None:
                    self.subject.fail(
                        f"misses the maximum on row {row} of {what}, "
                        f"{show(theta[row])}: its solution {show(y[row])} is worth "
                        f"{lead[row]:.3g} less than {show(candidate[row])}, which it "
                        f"returned for row {row} of {other}, {show(origin[row])}",
                        "Maximise ⟨y, θ⟩ exactly, over one set for all scores; drop "
                        "linear=True if it is a heuristic or another function.",
                    )
        self.checked.append("a maximiser: no solution of other scores is better")

    def _check_no_minimiser(self, solved: Solved) -> None:
        if "negated scores" not in solved:
            return
        theta, y = solved["theta"]
        lead, error = self._lead(solved["negated scores"][1], y, theta)
        # A heuristic may fail on a row; a minimiser does wherever there is a choice.
        row = int(np.argmax(lead))
        if (lead >= -error).all() and lead[row] > error[row]:
            self.subject.fail(
                f"minimises ⟨y, θ⟩: on row {row}, {show(theta[row])}, its solution "
                f"{show(y[row])} is worth {lead[row]:.3g} less than its solution of "
                "the negated scores",
                "Solvers maximise, and costs go in as theta = -costs: negate the "
                "scores where your function takes costs.",
            )

    def _check_directions(self, solved: Solved) -> None:
        solver = self.subject.solver
        if not self.subject.linear or not isinstance(solver, Solver):
            return
        dtype = self.theta.dtype
        first = solved["theta"][1].astype(dtype)
        for what, (_, y) in solved.items():
            difference = y.astype(dtype) - first
            projected = to_numpy(solver.project(*self.subject.convert(difference)))
            row = _first_difference(projected, difference, self._rounding())
            if row is not None:
                self.subject.fail(
                    "declares directions that its solutions leave: project() changes "
                    f"the difference of its solutions for row {row} of {what} and of "
                    f"theta, {show(difference[row])}, to {show(projected[row])}",
                    "Project on the span of all y - y', or leave project() out.",
                )
        self.checked.append("solutions differ along the declared directions")

    def _rounding(self) -> float:
        return float(64 * np.finfo(self.theta.dtype).eps) ** 0.75

    def _lead(
        self, candidate: Values, y: Values, theta: Values
    ) -> tuple[Values, Values]:
        """Return by how much a candidate beats y in each row, and its rounding."""
        shape = (self.rows, -1)
        scores = theta.astype(np.float64).reshape(shape)
        if getattr(self.subject.solver, "clips_scores", False):
            scores = np.minimum(scores, 0)
        a, b = (x.astype(np.float64).reshape(shape) for x in (candidate, y))
        terms = (np.abs(a) + np.abs(b)) * np.abs(scores)
        error = 16 * float(np.finfo(self.theta.dtype).eps) * terms.sum(axis=1)
        return np.vecdot(a - b, scores), error


def _refuses(error: BaseException | None) -> bool:
    """Tell whether a solver said itself that the scores have no solution."""
    if not isinstance(error, SolverError):
        return False
    return error.__cause__ is None or _refuses(error.__cause__)


def _own_feasibility(solver: Callable[..., Any]) -> Feasible | None:
    if isinstance(solver, Solver) and type(solver).feasible is not Solver.feasible:
        return solver.feasible
    return None


def _first_difference(a: Values, b: Values, rounding: float = 0.0) -> int | None:
    """Return the first row where two arrays differ by more than rounding."""
    if a.shape != b.shape:
        return 0
    a, b = a.astype(np.float64), b.astype(np.float64)
    return first_row(np.abs(a - b) > rounding * (1 + np.abs(b)))
