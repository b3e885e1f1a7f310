"""Black boxes that other processes can import, and executors to solve them on."""

import concurrent.futures
import inspect
import os
import time

import numpy as np
import pytest
from numba import cloudpickle

import softsolve as ss

# Scores of which the first entry is beyond these have no solution.
TOO_LARGE, TOO_SLOW, DEADLY = 100.0, 200.0, 300.0


def largest(theta):
    return np.eye(len(theta), dtype=theta.dtype)[theta.argmax()]


def largest_rows(theta):
    return np.eye(theta.shape[1], dtype=theta.dtype)[theta.argmax(axis=1)]


def largest_allowed(theta, mask):
    return largest(np.where(mask, theta, -np.inf).astype(theta.dtype))


class PoorlyPickledError(Exception):
    """An exception that cannot be made from its arguments."""

    def __init__(self, score, limit):
        super().__init__(f"{score} is beyond {limit}")


def moody(theta):
    if theta[0] >= DEADLY:
        os._exit(7)
    if theta[0] >= TOO_SLOW:
        time.sleep(60)
    if theta[0] >= TOO_LARGE:
        raise PoorlyPickledError(theta[0], TOO_LARGE)
    return largest(theta)


def broken(theta):
    return theta.no_such_attribute


licences = 0


def licensed(theta):
    if not licences:
        msg = "all licences are in use"
        raise OSError(msg)
    return theta


@ss.solver(batched=False, linear=True, processes=1)
def decorated(theta):
    return largest(theta)


class StandInForDask:
    """Dask's Client: a call that is taken for pure is made once, its failure kept."""

    def __init__(self):
        self.futures = {}

    def submit(self, function, *args, pure=True):
        call = cloudpickle.dumps((function, args))
        future = concurrent.futures.Future()
        if pure:
            future = self.futures.setdefault(call, future)
        if not future.done():
            function, args = cloudpickle.loads(call)
            try:
                future.set_result(function(*args))
            except Exception as error:  # noqa: BLE001  (Dask keeps any)
                future.set_exception(error)
        return future

    def map(self, function, iterable):
        return [self.submit(function, item) for item in iterable]

    def gather(self, futures):
        return [future.result() for future in futures]


def frozen(result):
    """Return a result as Ray does from its store: arrays cannot be written to."""
    for array in result[1] if isinstance(result[1], list) else [result[1]]:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return result


class StandInForRay:
    """The module ray: functions are made remote, and results are got by reference.

    Like it, it takes functions only, which it pickles whole and keeps, and it tells a
    task's exception in one of its own.
    """

    class Reference:
        def __init__(self, get):
            self.get = get

    class Remote:
        def __init__(self, function):
            self.function = cloudpickle.loads(cloudpickle.dumps(function))

        def remote(self, *args):
            refer = StandInForRay.Reference
            given = [arg.get() if isinstance(arg, refer) else arg for arg in args]
            return refer(lambda: frozen(self.function(*given)))

    def __init__(self):
        self.kept = 0

    def remote(self, function):
        if not inspect.isfunction(function):
            msg = "The @ray.remote decorator must be applied to either a function or a"
            raise TypeError(msg)
        self.kept += 1
        return self.Remote(function)

    def put(self, value):
        pickled = cloudpickle.dumps(value)
        return self.Reference(lambda: cloudpickle.loads(pickled))

    def get(self, reference):
        assert isinstance(reference, self.Reference)
        try:
            return reference.get()
        except Exception as error:
            msg = f"ray::call() {error}"
            raise RayTaskError(msg) from error


class RayTaskError(Exception):
    """What Ray makes of a task's exception."""


class OnlySubmits:
    """An executor whose futures have no more than a result."""

    class Future:
        def __init__(self, call):
            self.result = call

    def submit(self, function, *args):
        return self.Future(lambda: function(*args))


def quietly(solver, theta):
    """Call a solver whose first failure is announced."""
    with pytest.warns(RuntimeWarning, match="left out of averages"):
        return solver(theta)
