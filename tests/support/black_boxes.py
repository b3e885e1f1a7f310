"""Black boxes that other processes can import, and executors to solve them on."""

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


@ss.solver(batched=False, linear=True, processes=1)
def decorated(theta):
    return largest(theta)


class StandInForDask:
    """Dask's Client: map returns futures, which gather waits for."""

    def map(self, function, iterable):
        self.futures = [lambda item=item: function(item) for item in iterable]
        return self.futures

    def gather(self, futures):
        assert futures is self.futures
        return [future() for future in futures]

    def submit(self, function, *args):
        return lambda: function(*args)


def frozen(result):
    """Return a result as Ray does from its store: arrays cannot be written to."""
    for array in result[1] if isinstance(result[1], list) else [result[1]]:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return result


class StandInForRay:
    """The module ray: functions are made remote, and results are got by reference.

    Like it, it takes functions only, which it pickles whole.
    """

    class Remote:
        def __init__(self, function):
            self.function = cloudpickle.loads(cloudpickle.dumps(function))

        def remote(self, *args):
            return {"reference": lambda: frozen(self.function(*args))}

    def remote(self, function):
        if not inspect.isfunction(function):
            msg = "The @ray.remote decorator must be applied to either a function or a"
            raise TypeError(msg)
        return self.Remote(function)

    def get(self, references):
        return [reference["reference"]() for reference in references]


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
