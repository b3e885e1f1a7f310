"""Solving one instance, and handing pieces of a batch to executors of any make."""

import functools
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softsolve.errors import SolverError

Instance = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class Failure:
    """A solve that failed, and why."""

    error: Exception

    def __reduce__(self) -> tuple[Any, ...]:
        return Failure, (portable(self.error),)


Outcome = np.ndarray[Any, Any] | Failure


def portable(error: Exception) -> Exception:
    """Return an exception that survives the way to another process, or one like it.

    Tracebacks do not, so that they are told in a note.
    """
    told = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (an exception's constructor may do anything)
        copy = SolverError(f"{type(error).__name__}: {error}")
    if error.__traceback__ is not None:
        copy.add_note(f"In the worker:\n{told}")
    return copy


def attempt(function: Callable[..., Any], instance: Instance) -> Outcome:
    """Solve one instance; return its solution, or why there is none."""
    try:
        return np.asarray(function(*instance))
    except Exception as error:  # noqa: BLE001  (any exception is a failed solve)
        return Failure(error)


def run_on(
    executor: Any,
    function: Callable[[Any], Any],
    pieces: Sequence[Any],
) -> Iterator[Any]:
    """Yield ``function(piece)`` of each piece, in order, from a user's executor.

    Executors are told apart by what they can do:

    ===========================  =================================================
    ``remote`` and ``get``       Ray: the module ``ray``
    ``submit`` and ``gather``    a Dask ``Client``
    ``map``                      :mod:`concurrent.futures`, :mod:`multiprocessing`
                                 pools, and all that follow them: loky's, Dask's
                                 ``client.get_executor()``, Ray's ``Pool``
    ``submit``                   futures with ``result``
    callable, with ``n_jobs``    :class:`joblib.Parallel`
    ===========================  =================================================
    """
    numbered = _Numbered(function)
    tasks = list(enumerate(pieces))
    waiting: dict[int, Any] = {}
    wanted = 0
    try:
        # Some executors may be told to return what is ready first.
        for index, result in _start(executor, numbered, tasks):
            waiting[index] = result
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted += 1
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise_not_picklable(function, error)


class _Numbered:
    """A function of a piece that returns the piece's number as well."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__name__ = "softsolve"  # what schedulers call the tasks

    def __call__(self, task: tuple[int, Any]) -> tuple[int, Any]:
        index, piece = task
        return index, self.function(piece)


def _start(
    executor: Any, function: Callable[[Any], Any], tasks: list[tuple[int, Any]]
) -> Iterable[tuple[int, Any]]:
    if hasattr(executor, "remote") and hasattr(executor, "get"):
        return _run_on_ray(executor, function, tasks)
    if hasattr(executor, "submit") and hasattr(executor, "gather"):
        # Not pure: Dask would give the failure of a solve again, when it is tried anew.
        submit = functools.partial(executor.submit, pure=False)
        return _results([submit(function, task) for task in tasks])
    if hasattr(executor, "map"):
        return executor.map(function, tasks)
    if hasattr(executor, "submit"):
        return _results([executor.submit(function, task) for task in tasks])
    # What joblib.delayed(function)(task) makes.
    return executor((function, (task,), {}) for task in tasks)


def _results(futures: list[Any]) -> Iterator[tuple[int, Any]]:
    left = deque(futures)
    try:
        while left:
            yield left.popleft().result()
    finally:
        for future in left:
            if hasattr(future, "cancel"):
                future.cancel()


def _run_on_ray(
    ray: Any, function: Callable[[Any], Any], tasks: list[tuple[int, Any]]
) -> Iterator[tuple[int, Any]]:
    shared = ray.put(function)
    references = [_remote(ray).remote(shared, task) for task in tasks]
    # Not cancelled after a failure: Ray may crash if they end at that moment.
    return map(ray.get, references)


@functools.lru_cache(maxsize=4)
def _remote(ray: Any) -> Any:
    # The same for all calls, or Ray would send and keep another one with each.
    return ray.remote(_call)


def _call(function: Callable[[Any], Any], task: tuple[int, Any]) -> Any:
    return function(task)


def check_executor(executor: object) -> None:
    """Raise unless an executor is of a kind that :func:`run_on` knows."""
    ray = hasattr(executor, "remote") and hasattr(executor, "get")
    futures = hasattr(executor, "map") or hasattr(executor, "submit")
    joblib = callable(executor) and hasattr(executor, "n_jobs")
    if isinstance(executor, type) or not (ray or futures or joblib):
        msg = (
            "solver(executor=...) must be an executor with map or submit as in "
            "concurrent.futures, a joblib.Parallel, a Dask client, or the module ray; "
            f"got {executor!r}. For threads of our own, pass workers=N instead, and "
            "for processes, processes=N."
        )
        raise TypeError(msg)


def raise_not_picklable(function: object, error: BaseException) -> None:
    """Raise for a function that cannot be sent to another process."""
    msg = (
        "the function cannot be sent to other processes, because it cannot be pickled: "
        f"{error}. Define it at the top level of a module (no lambda, no function "
        "within a function, nothing in it that is open), or solve with threads, "
        "workers=N."
    )
    raise TypeError(msg) from error
