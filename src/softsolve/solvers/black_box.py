"""A user's function as a solver: solved where, and what becomes of failures."""

import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from softsolve.errors import SolverError
from softsolve.parallel import run_ranges
from softsolve.solvers.base import Array, Shape, Solver, as_numbers
from softsolve.solvers.executors import (
    Failure,
    Instance,
    Outcome,
    attempt,
    check_executor,
    run_on,
)
from softsolve.solvers.options import (
    check_count,
    check_failures,
    check_flag,
    check_function,
    check_native,
    check_processes,
    check_shape,
    check_time_limit,
)
from softsolve.solvers.processes import ProcessPool

_NOT_FINITE = "the solution has NaN or an infinity"


class FunctionSolver(Solver):
    """A user's function as a solver; made by :func:`solver`.

    Attributes
    ----------
    drops
        Whether a solve that failed is a row of NaN, which layers leave out of their
        averages, and not an error.
    dropped
        How many solves have failed and were dropped, of all calls together.
    """

    def __init__(
        self,
        function: Any,
        *,
        batched: bool,
        linear: bool,
        workers: int | None,
        executor: Any,
        processes: int | None,
        time_limit: float | None,
        on_failure: str,
        event_ndim: int,
        out_shape: tuple[int, ...] | None,
        native: bool,
    ) -> None:
        check_function(function)
        for name, flag in (
            ("batched", batched),
            ("linear", linear),
            ("native", native),
        ):
            check_flag(name, flag)
        check_count("workers", workers)
        check_count("processes", processes)
        check_count("event_ndim", event_ndim)
        check_shape(out_shape)
        if executor is not None:
            check_executor(executor)
        check_failures(on_failure)
        check_processes(processes, batched, workers, executor)
        check_time_limit(time_limit, processes)
        plain = (workers, executor, processes) == (None, None, None)
        check_native(native, batched and plain and on_failure == "raise")
        self.function = function
        self.batched = batched
        self.linear = linear
        self.workers = workers
        self.executor = executor
        self.processes = processes
        self.time_limit = time_limit
        self.drops = on_failure == "drop"
        self.event_ndim = event_ndim
        self.out_shape = None if out_shape is None else tuple(out_shape)
        self.host = not native
        self.dropped = 0
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()
        functools.update_wrapper(self, function)

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Accept any shape and any context: the function is the judge of them."""

    def __call__(self, theta: Array, *context: Array) -> Array:
        """Call the function on the batch, or on each instance of it."""
        if not self.batched:
            return self._collect(theta, self._outcomes((theta, *context)))
        if self.workers is None and self.executor is None:
            y = self.function(theta, *context)
        else:
            y = self._solve_pieces((theta, *context))
        if not self.host:
            return y
        y = as_numbers(y, repr(self))
        return self._without_bad_rows(y, theta) if self.drops else y

    def _solve_pieces(self, arrays: Instance) -> np.ndarray[Any, Any]:
        """Solve pieces of a batch at the same time, with a function of batches."""
        pieces = [
            tuple(array[piece] for array in arrays) for piece in self._pieces(arrays)
        ]
        call = functools.partial(_solve_batch, self)
        if self.executor is not None:
            attempts = functools.partial(_attempt_batch, self)
            solved = list(map(_raised, run_on(self.executor, attempts, pieces)))
        else:
            found: dict[int, np.ndarray[Any, Any]] = {}

            def solve_range(start: int, stop: int) -> None:
                found.update({i: call(pieces[i]) for i in range(start, stop)})

            run_ranges(solve_range, len(pieces), threads=self.workers)
            solved = [found[index] for index in range(len(pieces))]
        return np.concatenate(solved) if solved else self._nothing(arrays[0])

    def _outcomes(self, arrays: Instance) -> list[Outcome]:
        """Solve one instance at a time; without ``drops``, up to a failure."""
        instances = list(zip(*arrays, strict=True))
        if self.processes is not None:
            return self._process_pool().solve(instances, patient=self.drops)
        if self.executor is not None:
            call = functools.partial(_solve_instances, self)
            pieces = [instances[piece] for piece in self._pieces(arrays)]
            return list(self._until_failure(run_on(self.executor, call, pieces)))
        return self._solve_in_threads(instances)

    def _until_failure(self, results: Iterator[list[Outcome]]) -> Iterator[Outcome]:
        for outcomes in results:
            yield from outcomes
            if not self.drops and isinstance(outcomes[-1], Failure):
                return

    def _solve_in_threads(self, instances: Sequence[Instance]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        # No row beyond this one is begun; all before it are solved, so that the first
        # failure is the same for any number of threads.
        last = len(instances)

        def solve_range(start: int, stop: int) -> None:
            nonlocal last
            for row in range(start, stop):
                if row > last:
                    return
                try:
                    outcomes[row] = attempt(self.function, instances[row])
                except BaseException:
                    last = -1  # an interrupt: all end with the row they are at
                    raise
                if isinstance(outcomes[row], Failure) and not self.drops:
                    last = min(last, row)

        try:
            run_ranges(solve_range, len(instances), threads=self.workers or 1)
        except BaseException:
            last = -1  # it may also come while the other threads are waited for
            raise
        return [outcomes[row] for row in sorted(outcomes)]

    def _pieces(self, arrays: Instance) -> list[slice]:
        rows = len(arrays[0])
        workers = self.workers or os.cpu_count() or 1
        # Several pieces a worker, so that one slow piece does not hold up the rest.
        size = max(1, -(-rows // (4 * workers)))
        return [slice(start, start + size) for start in range(0, rows, size)]

    def _process_pool(self) -> ProcessPool:
        assert self.processes is not None
        with self._lock:
            # After a fork the workers are still the parent's.
            if self._pool is None or self._pool.pid != os.getpid():
                call = functools.partial(_solve_one, self)
                self._pool = ProcessPool(call, self.processes, self.time_limit)
            return self._pool

    def _collect(
        self, theta: np.ndarray[Any, Any], outcomes: list[Outcome]
    ) -> np.ndarray[Any, Any]:
        """Stack solutions; failures are errors, or rows of NaN."""
        solved: dict[int, np.ndarray[Any, Any]] = {}
        failures: dict[int, Exception] = {}
        for row, outcome in enumerate(outcomes):
            if isinstance(outcome, Failure):
                failures[row] = outcome.error
                continue
            as_numbers(outcome, repr(self))
            if self.drops and not np.isfinite(outcome).all():
                failures[row] = ValueError(_NOT_FINITE)
            else:
                solved[row] = outcome
        if failures and not self.drops:
            self._raise(failures, len(theta), "")
        shape = self._common_shape(solved, failures, theta)
        if not failures:
            y = list(solved.values())
            return np.stack(y) if y else self._nothing(theta)
        self._count(failures, len(theta))
        filled = np.full((len(theta), *shape), np.nan, dtype=theta.dtype)
        for row, solution in solved.items():
            filled[row] = solution
        return filled

    def _common_shape(
        self,
        solved: dict[int, np.ndarray[Any, Any]],
        failures: dict[int, Exception],
        theta: np.ndarray[Any, Any],
    ) -> Shape:
        for row, solution in solved.items():
            first, expected = next(iter(solved.items()))
            if solution.shape != expected.shape:
                msg = (
                    f"{self!r} must return solutions of one shape; it returned "
                    f"{expected.shape} in row {first} and {solution.shape} in row "
                    f"{row}."
                )
                raise ValueError(msg)
        if solved:
            return next(iter(solved.values())).shape
        if self.out_shape is None and not self.linear and failures:
            self._raise(failures, len(theta), " None is left to tell their shape.")
        return self._nothing(theta).shape[1:]

    def _nothing(self, theta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shape = theta.shape[1:] if self.out_shape is None else self.out_shape
        return np.zeros((0, *shape), dtype=theta.dtype)

    def _without_bad_rows(
        self, y: np.ndarray[Any, Any], theta: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return solutions of a batch with NaN in all of a row that is not finite."""
        bad = ~np.isfinite(y).reshape(len(y), -1).all(axis=1)
        if not bad.any():
            return y
        error = ValueError(_NOT_FINITE)
        self._count(dict.fromkeys(np.flatnonzero(bad).tolist(), error), len(theta))
        y = y.copy()
        y[bad] = np.nan
        return y

    def _count(self, failures: dict[int, Exception], rows: int) -> None:
        with self._lock:
            first = self.dropped == 0
            self.dropped += len(failures)
        if first:
            row, error = next(iter(failures.items()))
            msg = (
                f"{self!r} failed on {len(failures)} of {rows} rows, first row {row}: "
                f"{_tell(error)}. They are left out of averages, which are then over "
                "the solves that succeed. This is said once; the attribute dropped "
                "counts on."
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)

    def _raise(self, failures: dict[int, Exception], rows: int, more: str) -> None:
        row, error = next(iter(failures.items()))
        msg = (
            f"{self!r} failed on row {row} of the {rows} it was given (a layer gives "
            f"one for each sample): {_tell(error)}.{more}"
        )
        if not self.drops:
            msg += ' To leave failed solves out, pass on_failure="drop".'
        raise SolverError(msg) from error

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A decorated function goes by its name, which leads to this solver and not to
        # the function; others take along what can be taken.
        name = getattr(self, "__qualname__", "")
        module = sys.modules.get(getattr(self, "__module__", None) or "")
        if name and getattr(module, name, None) is self:
            return name
        return _restore, (self._options(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FunctionSolver":
        return self  # it has no state but counters, and executors cannot be copied

    def _options(self) -> dict[str, Any]:
        names = (
            "function",
            "batched",
            "linear",
            "workers",
            "processes",
            "time_limit",
            "event_ndim",
            "out_shape",
        )
        options = {name: getattr(self, name) for name in names}
        on_failure = "drop" if self.drops else "raise"
        return options | {"on_failure": on_failure, "native": not self.host}

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        facts = [name, f"batched={self.batched}", f"linear={self.linear}"]
        facts += [
            f"{option}={getattr(self, option)}"
            for option in ("workers", "processes", "time_limit")
            if getattr(self, option) is not None
        ]
        if self.executor is not None:
            facts.append(f"executor={type(self.executor).__name__}")
        if self.drops:
            facts.append('on_failure="drop"')
        return f"solver({', '.join(facts)})"


def _restore(options: dict[str, Any]) -> FunctionSolver:
    return FunctionSolver(executor=None, **options)


# What runs in other processes: functions of the solver, which knows how to be pickled.


def _solve_batch(solver: FunctionSolver, arrays: Instance) -> np.ndarray[Any, Any]:
    return np.asarray(solver.function(*arrays))


def _attempt_batch(solver: FunctionSolver, arrays: Instance) -> Outcome:
    # Executors differ in what they make of exceptions, and of those of other pieces.
    return attempt(solver.function, arrays)


def _raised(outcome: Outcome) -> np.ndarray[Any, Any]:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


def _solve_one(solver: FunctionSolver, *instance: np.ndarray[Any, Any]) -> Any:
    return solver.function(*instance)


def _solve_instances(
    solver: FunctionSolver, instances: Sequence[Instance]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for instance in instances:
        outcomes.append(attempt(solver.function, instance))
        if isinstance(outcomes[-1], Failure) and not solver.drops:
            break
    return outcomes


def _tell(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
