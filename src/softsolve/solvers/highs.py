"""One linear or mixed-integer model in HiGHS, solved again and again for new costs."""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array

# The largest cost is scaled to at least this: HiGHS compares costs and objectives with
# absolute tolerances of 1e-7 and 1e-6.
_COST_EXPONENT = 10

# HiGHS' numbers for the two simplex methods.
_DUAL, _PRIMAL = 1, 4

# Squared change of the scores, in squared spreads, up to which a basis is a good start.
_NEAR = 0.1


def import_highspy(name: str) -> Any:
    """Return highspy, or say how to get it."""
    try:
        import highspy
    except ModuleNotFoundError as error:
        msg = (
            f"{name} needs highspy, which is not installed. Install it with: pip "
            "install 'softsolve[lp]'."
        )
        raise ImportError(msg) from error
    except ImportError as error:
        msg = (
            f"{name} needs highspy, which is installed but cannot be loaded: {error}. "
            "Some of its versions clash with the HiGHS that OR-Tools brings, once that "
            "is imported; highspy 1.13.0 does not. Install it with: pip install "
            "highspy==1.13.0."
        )
        raise ImportError(msg) from error
    return highspy


@dataclass(frozen=True)
class Program:
    """A set of points: rows within bounds, columns within bounds, some of them whole.

    Attributes
    ----------
    matrix
        (r, d), in compressed columns.
    row_lower, row_upper
        (r,); infinite where there is no bound.
    lower, upper
        (d,), the same for the columns.
    whole
        Which columns are integer, bool (d,).
    """

    matrix: csc_array
    row_lower: np.ndarray[Any, Any]
    row_upper: np.ndarray[Any, Any]
    lower: np.ndarray[Any, Any]
    upper: np.ndarray[Any, Any]
    whole: np.ndarray[Any, Any]


class Start(NamedTuple):
    """Where a solve may start: scores that were solved, and their solution or basis."""

    theta: np.ndarray[Any, Any]
    spread: float
    basis: Any
    y: np.ndarray[Any, Any]

    def near(self, theta: np.ndarray[Any, Any]) -> bool:
        """Tell whether ``theta`` is so close that the basis pays."""
        return float(np.sum((theta - self.theta) ** 2)) <= _NEAR * self.spread


class Model:
    """A program in HiGHS, for the use of one thread."""

    def __init__(self, program: Program, time_limit: float | None) -> None:
        highspy = import_highspy("A program in matrix form")
        self._highspy = highspy
        self.program = program
        self.mixed = bool(program.whole.any())
        self._columns = np.arange(program.lower.size, dtype=np.int32)
        self._time_limit = time_limit
        self._highs = self._built()

    def _built(self) -> Any:
        highs = self._highspy.Highs()
        options: dict[str, Any] = {
            "output_flag": False,
            "threads": 1,
            "parallel": "off",
        }
        if self.mixed:
            options |= {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
        else:
            # Presolving costs more than it saves where only the costs are new.
            options |= {"solver": "simplex", "presolve": "off"}
        if self._time_limit is not None:
            options["time_limit"] = self._time_limit
        for option, value in options.items():
            highs.setOptionValue(option, value)
        highs.passModel(self._formulated())
        return highs

    def _formulated(self) -> Any:
        highspy, program = self._highspy, self.program
        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = program.matrix.shape
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.zeros(program.lower.size)
        model.col_lower_, model.col_upper_ = program.lower, program.upper
        model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = program.matrix.indptr
        model.a_matrix_.index_ = program.matrix.indices
        model.a_matrix_.value_ = program.matrix.data
        if self.mixed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[whole] for whole in program.whole.tolist()]
        return model

    def solve(
        self, theta: np.ndarray[Any, Any], start: Start | None
    ) -> np.ndarray[Any, Any] | str:
        """Return the solution (d,) in float64, or what went wrong."""
        began = time.perf_counter()
        status = self._run(theta, start)
        if status == self._highspy.HighsModelStatus.kTimeLimit:
            passed = time.perf_counter() - began
            if self._time_limit is not None and passed < self._time_limit:
                # HiGHS' clock may run on from solve to solve: start a new one.
                self._highs = self._built()
                status = self._run(theta, start)
        if status != self._highspy.HighsModelStatus.kOptimal:
            return self._reason(status)
        y = np.array(self._highs.getSolution().col_value)
        y[self.program.whole] = np.round(y[self.program.whole])
        return y

    def _run(self, theta: np.ndarray[Any, Any], start: Start | None) -> Any:
        highs = self._highs
        exponent = np.frexp(np.max(np.abs(theta)))[1]
        costs = np.ldexp(theta, _COST_EXPONENT - exponent)
        highs.changeColsCost(len(theta), self._columns, costs)
        # Nothing is left of the last solve: a solution depends on its row alone.
        highs.clearSolver()
        if self.mixed:
            if start is not None:
                incumbent = self._highspy.HighsSolution()
                incumbent.col_value = start.y
                highs.setSolution(incumbent)
        else:
            warm = False
            if start is not None and start.near(theta):
                warm = True
                highs.setBasis(start.basis)
            # The basis of other costs is primal feasible; that of all slacks often is
            # not, and the dual method is better from there.
            highs.setOptionValue("simplex_strategy", _PRIMAL if warm else _DUAL)
        highs.run()
        return highs.getModelStatus()

    def start(self, theta: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Start:
        """Return where to start for scores close to those that were just solved."""
        basis = None if self.mixed else self._highs.getBasis()
        return Start(theta, float(np.sum((theta - np.mean(theta)) ** 2)), basis, y)

    def _reason(self, status: Any) -> str:
        statuses = self._highspy.HighsModelStatus
        reasons = {
            statuses.kInfeasible: "no point satisfies the constraints",
            statuses.kUnbounded: "the score grows without bound. Bound every variable",
            statuses.kUnboundedOrInfeasible: "no point satisfies the constraints, or "
            "the score grows without bound",
            statuses.kTimeLimit: "the time limit was reached",
        }
        name = self._highs.modelStatusToString(status)
        return reasons.get(status, f"HiGHS ended with the status {name!r}")
