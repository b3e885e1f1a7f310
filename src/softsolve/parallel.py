"""A pool of threads for functions that release the GIL.

Compiled passes split their rows into ranges and run them here. The calling thread
always takes part, so a call finishes even when every worker is busy with the work of
other threads, and a single thread needs no pool at all.

The pool is our own, so that a call can wait for its workers without sleeping, there is
one queue however many workers are asked for, and their numbers at the operating system
are known. 180 µs of work take 125 µs on two threads of it, and 194 on those of the
standard library's executor.
"""

import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["available_threads", "get_num_threads", "run_ranges", "set_num_threads"]

# Ranges per thread: enough that a thread that was held up does not hold up the call.
RANGES_PER_THREAD = 4
# How often a call that is done lets others run, before it sleeps until they are done:
# some 50 µs. Being woken takes as long, and most workers end sooner.
PATIENCE = 100

_state = threading.local()
_lock = threading.Lock()
_threads: int | None = None


def available_threads() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads_from_environment() -> int:
    text = os.environ.get("SOFTSOLVE_NUM_THREADS")
    if text is None:
        return available_threads()
    if not text.isdecimal() or int(text) < 1:
        msg = (
            "the environment variable SOFTSOLVE_NUM_THREADS must be a whole number of "
            f"at least 1; got {text!r}. Unset it to use every CPU of the process."
        )
        raise ValueError(msg)
    return int(text)


def get_num_threads() -> int:
    """Return how many threads compiled passes use at most."""
    global _threads  # noqa: PLW0603
    if _threads is None:
        _threads = _threads_from_environment()
    return _threads


def set_num_threads(threads: int) -> None:
    """Set how many threads compiled passes use at most; 1 keeps to the caller's.

    The default is the environment variable ``SOFTSOLVE_NUM_THREADS``, or else the
    number of CPUs that the process may use. Results do not depend on it.

    Examples
    --------
    >>> from softsolve import parallel
    >>> before = parallel.get_num_threads()
    >>> parallel.set_num_threads(1)
    >>> parallel.get_num_threads()
    1
    >>> parallel.set_num_threads(before)
    """
    global _threads  # noqa: PLW0603
    if isinstance(threads, bool) or not isinstance(threads, int):
        msg = f"set_num_threads() takes an int; got {threads!r}"
        raise TypeError(msg)
    if threads < 1:
        msg = f"set_num_threads() must be at least 1; got {threads}"
        raise ValueError(msg)
    _threads = threads


def _current_cpu() -> Callable[[], int] | None:
    """Return what tells the CPU that the calling thread is on, where there is such."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return ctypes.PyDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None


def _let_others_run() -> Callable[[], object] | None:
    """Return what gives up the interpreter and the CPU for a moment, if there is such.

    ``os.sched_yield`` keeps the interpreter, and ``time.sleep(0)`` takes 70 µs.
    """
    if not hasattr(os, "sched_yield"):
        return None
    try:
        return ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError):
        return None


_cpu, _yield = _current_cpu(), _let_others_run()


class _Job:
    """The ranges of one call, handed to whichever thread asks next."""

    def __init__(self, function: Callable[[int, int], object], bounds: list[int]):
        self.function = function
        self.bounds = bounds
        self.next_range = itertools.count()
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._helping = 0
        self._over = self._awaited = False
        self._all_gone = threading.Lock()

    def run(self) -> None:
        nested = getattr(_state, "nested", False)
        _state.nested = True
        try:
            while (index := next(self.next_range)) < len(self.bounds) - 1:
                self.function(self.bounds[index], self.bounds[index + 1])
        except BaseException:
            self.bounds = self.bounds[:1]  # the other threads find nothing left
            raise
        finally:
            _state.nested = nested

    def help(self) -> None:
        """Take part as a worker, unless the call is over already."""
        with self._lock:
            if self._over:
                return
            self._helping += 1
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.error = error
        with self._lock:
            self._helping -= 1
            if self._awaited and not self._helping:
                self._all_gone.release()

    def end(self) -> None:
        """Let no worker begin any more, and wait for those that are at work."""
        self._over = True
        if _yield is not None:
            for _ in range(PATIENCE):
                if not self._helping:
                    break
                _yield()
        with self._lock:
            self._awaited = self._helping > 0
            if self._awaited:
                self._all_gone.acquire()
        if self._awaited:
            self._all_gone.acquire()


class _Pool:
    """Threads that wait for jobs. There are as many as were ever asked for."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.ids: list[int] = []  # of the operating system

    def hand_over(self, job: _Job, workers: int) -> None:
        """Let so many workers take part in a job."""
        if len(self.ids) < workers:
            self._grow(workers)
        self._make_way()
        for _ in range(workers):
            self.jobs.put(job)

    def _grow(self, workers: int) -> None:
        with _lock:
            while len(self.ids) < workers:
                name = f"softsolve-{len(self.ids)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending
                    return
                assert thread.native_id is not None
                self.ids.append(thread.native_id)

    def _work(self) -> None:
        while True:
            self.jobs.get().help()

    def _make_way(self) -> None:
        """Keep the workers off the calling thread's CPU.

        Linux likes to wake a worker on the CPU of the thread that wakes it, although
        others are idle, and to leave it there for some milliseconds: longer than most
        passes take. On two CPUs passes after a pause took 1.8 times as long.
        """
        if _cpu is None:
            return
        others = os.sched_getaffinity(0) - {_cpu()}
        if others:
            for worker in self.ids:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(worker, others)


_pool = _Pool()


def _reset_after_fork() -> None:
    # Threads do not survive a fork, and the locks may have been held by one of them.
    global _lock, _pool, _state  # noqa: PLW0603
    _lock = threading.Lock()
    _state = threading.local()
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def run_ranges(
    function: Callable[[int, int], object],
    size: int,
    *,
    grain: int = 1,
    threads: int | None = None,
    ranges_per_thread: int = RANGES_PER_THREAD,
) -> None:
    """Call ``function(start, stop)`` for ranges that together cover ``range(size)``.

    The ranges run at the same time on up to ``threads`` threads (default: as set by
    :func:`set_num_threads`), of which the calling thread is one. With one thread, or
    called from within another run, there is one range and it runs in place. Ranges but
    the last have a multiple of ``grain`` as length. The first
    exception is raised here, once no thread is at work on the call any more.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.parallel import run_ranges
    >>> squares = np.empty(1000)
    >>> def fill(start, stop):
    ...     squares[start:stop] = np.arange(start, stop) ** 2
    >>> run_ranges(fill, 1000)
    >>> squares[-1]
    np.float64(998001.0)
    """
    grains = -(-size // grain)
    threads = min(get_num_threads() if threads is None else threads, grains)
    if threads <= 1 or getattr(_state, "nested", False):
        if size:
            function(0, size)
        return
    ranges = min(grains, threads * ranges_per_thread)
    bounds = [min(grains * i // ranges * grain, size) for i in range(ranges + 1)]
    job = _Job(function, bounds)
    _pool.hand_over(job, threads - 1)
    try:
        job.run()
    finally:
        job.end()
    if job.error is not None:
        raise job.error
