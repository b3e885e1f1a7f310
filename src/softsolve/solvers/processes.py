"""Worker processes that solve one instance at a time and can be killed."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from softsolve.solvers.executors import (
    Failure,
    Instance,
    Outcome,
    attempt,
    raise_not_picklable,
)

_START_ADVICE = (
    "Define the function at the top level of a module; a script that uses processes "
    'must keep what it runs under `if __name__ == "__main__":`, as multiprocessing '
    "asks."
)


def _work(connection: Connection, payload: bytes) -> None:
    """Solve what comes over the connection, until it closes."""
    # An interrupt at the terminal is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function: Callable[..., Any] = pickle.loads(payload)
    except Exception as error:  # noqa: BLE001  (importing a module may do anything)
        connection.send(Failure(error))
        return
    connection.send(None)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            outcome = attempt(function, connection.recv())
            try:
                connection.send(outcome)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                connection.send(Failure(error))


class _Worker:
    """One process, and the row that it is solving."""

    def __init__(self, payload: bytes) -> None:
        # Not forked: a copy of a process with threads may wait for a lock for ever.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_work, args=(theirs, payload), name="softsolve", daemon=True
        )
        self.process.start()
        theirs.close()
        self.ready = False
        self.row: int | None = None
        self.deadline = float("inf")

    @property
    def idle(self) -> bool:
        """Whether it waits for an instance."""
        return self.ready and self.row is None

    def give(self, row: int, instance: Instance, time_limit: float | None) -> None:
        """Have it solve an instance."""
        self.row = row
        self.connection.send(instance)
        if time_limit is not None:
            self.deadline = time.monotonic() + time_limit

    def take(self) -> Outcome | None:
        """Return what it has to say; None when it has started."""
        try:
            said: Outcome | None = self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            code = self.process.exitcode
            said = Failure(RuntimeError(f"the worker process died, exit code {code}"))
        if self.ready:
            self.row, self.deadline = None, float("inf")
        elif isinstance(said, Failure):
            msg = f"a worker process could not start: {said.error}. {_START_ADVICE}"
            raise RuntimeError(msg) from said.error
        self.ready = True
        return said

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessPool:
    """Processes that are started when they are wanted, and stay.

    Parameters
    ----------
    function
        What solves one instance; it is pickled.
    processes
        How many there are at most.
    time_limit
        Seconds after which a process that is still at a solve is killed, if any.
    """

    def __init__(
        self, function: Callable[..., Any], processes: int, time_limit: float | None
    ) -> None:
        self._payload = _pickled(function)
        self.processes = processes
        self.time_limit = time_limit
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self.pid = os.getpid()
        weakref.finalize(self, _end, self._workers, self.pid)

    def solve(self, instances: Sequence[Instance], *, patient: bool) -> list[Outcome]:
        """Return the outcomes of the instances, in order.

        Unless ``patient``, no instance is begun after a failure: the outcomes end with
        that of the last one begun.
        """
        with self._lock:
            try:
                outcomes = self._solve(instances, patient)
            except BaseException:
                # Whoever is busy has an answer for nobody.
                self._dismiss([worker for worker in self._workers if not worker.idle])
                raise
        return [outcomes[row] for row in sorted(outcomes)]

    def _solve(
        self, instances: Sequence[Instance], patient: bool
    ) -> dict[int, Outcome]:
        pending = deque(range(len(instances)))
        outcomes: dict[int, Outcome] = {}
        while pending or any(worker.row is not None for worker in self._workers):
            self._hand_out(pending, instances)
            for worker in self._heard():
                row = worker.row
                outcome = worker.take() if worker.connection.poll() else self._late()
                if row is None or outcome is None:
                    continue
                outcomes[row] = outcome
                if isinstance(outcome, Failure) and not patient:
                    pending.clear()
                if worker.row is not None or worker.connection.closed:
                    self._dismiss([worker])
        return outcomes

    def _hand_out(self, pending: deque[int], instances: Sequence[Instance]) -> None:
        idle = [worker for worker in self._workers if worker.idle]
        for worker, _ in zip(idle, range(len(pending)), strict=False):
            row = pending.popleft()
            try:
                worker.give(row, instances[row], self.time_limit)
            except OSError:  # it died while it was idle
                pending.appendleft(row)
                self._dismiss([worker])
        starting = sum(not worker.ready for worker in self._workers)
        room = self.processes - len(self._workers)
        for _ in range(min(room, len(pending) - starting)):
            self._workers.append(_Worker(self._payload))

    def _heard(self) -> list[_Worker]:
        """Wait for workers that have something to say, or whose time is up."""
        busy = [worker for worker in self._workers if not worker.idle]
        first = min((worker.deadline for worker in busy), default=float("inf"))
        timeout = max(0.0, first - time.monotonic())
        said = wait(
            [worker.connection for worker in busy],
            None if first == float("inf") else timeout,
        )
        now = time.monotonic()
        return [
            worker
            for worker in busy
            if worker.connection in said or worker.deadline <= now
        ]

    def _late(self) -> Failure:
        error = TimeoutError(f"the solve took more than time_limit={self.time_limit} s")
        return Failure(error)

    def _dismiss(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.kill()
            self._workers.remove(worker)


_beside = threading.local()


def process_beside(function: Callable[..., Any], time_limit: float) -> ProcessPool:
    """Return a pool of one process that the calling thread has for a function.

    For workers of an executor, whose own solves nobody could stop. It stays until the
    thread asks for that of another function.
    """
    if multiprocessing.current_process().daemon:
        msg = (
            "solver(executor=..., time_limit=...) has a process beside each worker, "
            "which is killed when a solve takes too long; but this executor's workers "
            "are daemons, which must not start processes. Use concurrent.futures, "
            "joblib or ray, set Dask's option distributed.worker.daemon to False, or "
            "pass processes=N instead."
        )
        raise RuntimeError(msg)
    wanted = (os.getpid(), time_limit, _pickled(function))
    if getattr(_beside, "wanted", None) != wanted:
        _beside.pool = ProcessPool(function, 1, time_limit)
        _beside.wanted = wanted
    pool: ProcessPool = _beside.pool
    return pool


def _pickled(function: Callable[..., Any]) -> bytes:
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise_not_picklable(function, error)


def _end(workers: list[_Worker], pid: int) -> None:
    # A forked child has a copy of the pool, but the workers are its parent's.
    if os.getpid() == pid:
        for worker in workers:
            worker.kill()
        workers.clear()
