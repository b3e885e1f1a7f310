"""Checks of the options of a user's solver."""

from numbers import Integral

import numpy as np


def check_function(function: object) -> None:
    """Raise unless a function was given, and not a class to make one of."""
    if isinstance(function, type):
        msg = (
            f"solver(function) needs a function of scores, got the class "
            f"{function.__name__}. Make one, {function.__name__}(...), if it can be "
            "called."
        )
        raise TypeError(msg)
    if not callable(function):
        msg = f"solver(function) needs a callable; got {function!r}."
        raise TypeError(msg)


def check_flag(name: str, flag: object) -> None:
    """Raise unless an option is True or False."""
    if not isinstance(flag, bool | np.bool_):
        msg = f"solver({name}=...) must be True or False; got {flag!r}."
        raise TypeError(msg)


def check_count(name: str, count: object) -> None:
    """Raise unless an option is a whole number, if it is given."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, Integral):
        msg = f"solver({name}=...) must be a whole number; got {count!r}."
        raise TypeError(msg)
    if count < 1:
        msg = f"solver({name}=...) must be at least 1; got {count}."
        raise ValueError(msg)


def check_shape(out_shape: object) -> None:
    """Raise unless the shape of one output is a tuple of sizes, if it is given."""
    if out_shape is None:
        return
    sizes = out_shape if isinstance(out_shape, tuple | list) else (None,)
    if not all(isinstance(size, Integral) and int(size) >= 0 for size in sizes):
        msg = (
            "solver(out_shape=...) must be the shape of one instance's output, such as "
            f"(3,), or () for a number; got {out_shape!r}."
        )
        raise TypeError(msg)


def check_failures(on_failure: object) -> None:
    """Raise for an unknown way of going on after a failure."""
    if on_failure not in ("raise", "drop"):
        msg = f'solver(on_failure=...) must be "raise" or "drop"; got {on_failure!r}.'
        raise ValueError(msg)


def check_native(native: bool, possible: bool) -> None:
    """Raise if a function cannot take the framework's arrays with other options."""
    if native and not possible:
        msg = (
            "solver(native=True) hands the framework's own batch to the function: "
            "batched=False, workers=, executor=, processes= and on_failure= do not "
            "go with it. Drop native=True to work on NumPy arrays."
        )
        raise ValueError(msg)


def check_processes(
    processes: int | None, batched: bool, workers: int | None, executor: object
) -> None:
    """Raise for processes that do not go with the other options."""
    if processes is None:
        return
    if batched:
        msg = (
            "solver(processes=...) is for functions of one instance: pass "
            "batched=False, or an executor= of processes for batches."
        )
        raise ValueError(msg)
    if workers is not None or executor is not None:
        msg = "solver(...) takes one of workers=, processes= and executor=, not two."
        raise ValueError(msg)


def check_time_limit(
    time_limit: float | None, batched: bool, processes: int | None, executor: object
) -> None:
    """Raise unless solves can be stopped after that time."""
    if time_limit is None:
        return
    if not 0 < time_limit < float("inf"):
        msg = f"solver(time_limit=...) must be positive seconds; got {time_limit}."
        raise ValueError(msg)
    if batched or (processes is None and executor is None):
        msg = (
            "solver(time_limit=...) needs batched=False and processes=N or executor=: "
            "a thread that runs Python cannot be stopped, but a process can be killed. "
            "Or hand the limit to the solver that you call, if it takes one."
        )
        raise ValueError(msg)
