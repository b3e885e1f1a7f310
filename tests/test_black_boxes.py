"""Functions of users: where they are solved, and what becomes of those that fail."""

import concurrent.futures
import copy
import multiprocessing
import multiprocessing.pool
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import joblib
import numpy as np
import pytest
import torch

import softsolve as ss
import softsolve.torch
from support import black_boxes
from support.black_boxes import quietly

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def process_pool():
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield pool


@pytest.fixture(scope="module")
def thread_pool():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def other_thread_pool():
    with multiprocessing.pool.ThreadPool(2) as pool:
        yield pool


EXECUTORS = {
    "threads": lambda request: request.getfixturevalue("thread_pool"),
    "processes": lambda request: request.getfixturevalue("process_pool"),
    "multiprocessing": lambda request: request.getfixturevalue("other_thread_pool"),
    "joblib, threads": lambda _: joblib.Parallel(2, backend="threading"),
    "joblib, as it comes": lambda _: joblib.Parallel(
        2, backend="threading", return_as="generator_unordered"
    ),
    "like Dask": lambda _: black_boxes.StandInForDask(),
    "like Ray": lambda _: black_boxes.StandInForRay(),
    "futures": lambda _: black_boxes.OnlySubmits(),
}


@pytest.fixture(params=EXECUTORS)
def executor(request):
    return EXECUTORS[request.param](request)


def scores(rows, seed=0, dtype=np.float64):
    theta = np.random.default_rng(seed).normal(size=(rows, 4)).astype(dtype)
    theta[: rows // 4] = np.round(theta[: rows // 4])  # ties
    return theta


# Where functions are solved


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_executors_do_what_a_loop_does(executor, rows, dtype):
    theta = scores(rows, dtype=dtype)
    expected = black_boxes.largest_rows(theta)
    for function, batched in (
        (black_boxes.largest, False),
        (black_boxes.largest_rows, True),
    ):
        y = ss.solver(function, batched=batched, executor=executor)(theta)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("workers", [None, 1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_threads_do_what_a_loop_does(workers, rows):
    theta = scores(rows)
    expected = black_boxes.largest_rows(theta)
    one = ss.solver(black_boxes.largest, batched=False, workers=workers)
    many = ss.solver(black_boxes.largest_rows, workers=workers)
    np.testing.assert_array_equal(one(theta), expected)
    np.testing.assert_array_equal(many(theta), expected)


def test_context_goes_with_its_row(executor):
    theta = scores(50)
    mask = np.random.default_rng(1).random(theta.shape) < 0.5
    mask[:, 2] = True
    solver = ss.solver(black_boxes.largest_allowed, batched=False, executor=executor)
    expected = black_boxes.largest_rows(np.where(mask, theta, -np.inf))
    np.testing.assert_array_equal(solver(theta, mask), expected)


def test_joblib_processes():
    theta = scores(20)
    with joblib.Parallel(2, backend="loky") as parallel:
        y = ss.solver(lambda t: -t, batched=False, executor=parallel)(theta)
    np.testing.assert_array_equal(y, -theta)


def test_a_decorated_function_goes_to_other_processes():
    solver = black_boxes.decorated
    assert pickle.loads(pickle.dumps(solver)) is solver
    theta = scores(10)
    np.testing.assert_array_equal(solver(theta), black_boxes.largest_rows(theta))


def test_copies_of_layers_with_executors(thread_pool):
    solver = ss.solver(black_boxes.largest, batched=False, executor=thread_pool)
    layer = softsolve.torch.Perturbed(solver, num_samples=3)
    theta = torch.zeros(2, 4)
    values = [
        made(theta, generator=torch.Generator().manual_seed(0))
        for made in (layer, copy.deepcopy(layer))
    ]
    torch.testing.assert_close(*values, rtol=0, atol=0)
    alone = pickle.loads(pickle.dumps(solver))
    assert alone.executor is None
    np.testing.assert_array_equal(alone(scores(5)), solver(scores(5)))


def test_functions_that_cannot_be_sent(process_pool):
    with pytest.raises(TypeError, match=r"cannot be pickled.*top level of a module"):
        ss.solver(lambda t: t, batched=False, executor=process_pool)(scores(3))
    with pytest.raises(TypeError, match=r"cannot be pickled.*workers=N"):
        ss.solver(lambda t: t, batched=False, processes=1)(scores(3))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"workers": 0}, ValueError, r"workers=\.\.\.\) must be at least 1; got 0"),
        ({"processes": 0}, ValueError, r"processes=\.\.\.\) must be at least 1"),
        ({"workers": 2.5}, TypeError, "workers.* must be a whole number; got 2.5"),
        ({"workers": "2"}, TypeError, "workers.* must be a whole number; got '2'"),
        ({"event_ndim": 0}, ValueError, "event_ndim.* must be at least 1; got 0"),
        ({"out_shape": 3}, TypeError, r"such as \(3,\), or \(\) for a number; got 3"),
        ({"out_shape": (-1,)}, TypeError, r"out_shape.* got \(-1,\)"),
        ({"linear": "yes"}, TypeError, "linear.* must be True or False; got 'yes'"),
        ({"executor": 3}, TypeError, "map or submit as in concurrent.futures.*got 3"),
        ({"executor": dict}, TypeError, "got <class 'dict'>"),
        ({"on_failure": "skip"}, ValueError, '"raise" or "drop"; got \'skip\''),
        ({"processes": 2, "batched": True}, ValueError, "pass batched=False"),
        ({"processes": 2, "workers": 2}, ValueError, "one of workers=, processes="),
        ({"time_limit": 1.0}, ValueError, "cannot be stopped.*can be killed"),
        ({"time_limit": 0.0, "processes": 1}, ValueError, "positive seconds; got 0.0"),
        ({"time_limit": float("nan"), "processes": 1}, ValueError, "got nan"),
        ({"native": True}, ValueError, "do not go with it"),
        ({"native": True, "batched": True, "on_failure": "drop"}, ValueError, "native"),
    ],
)
def test_options(options, error, match):
    with pytest.raises(error, match=match):
        ss.solver(black_boxes.largest, **({"batched": False} | options))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (ss.solvers.OneHot, r"got the class OneHot. Make one, OneHot\(...\)"),
        (3, "needs a callable; got 3"),
    ],
)
def test_what_is_no_function(function, match):
    with pytest.raises(TypeError, match=match):
        ss.solver(function)


# Solves that fail


def picky(theta):
    if theta[0] > 1:
        msg = f"{theta[0]:.0f} is too large"
        raise KeyError(msg)
    return black_boxes.largest(theta)


@pytest.mark.parametrize("bad", [[0], [7, 31], [99], list(range(100))])
def test_the_first_failure_is_named(executor, bad):
    theta = np.minimum(scores(100), 0.5)
    theta[bad, 0] = 2 + np.array(bad)
    name = f"failed on row {bad[0]} of the 100 .*KeyError.*{2 + bad[0]} is too large"
    # Processes cannot import this file, whose name is not on their path.
    function = picky
    if isinstance(executor, concurrent.futures.ProcessPoolExecutor):
        function, theta[bad, 0] = black_boxes.moody, black_boxes.TOO_LARGE
        name = f"failed on row {bad[0]} of the 100 .*PoorlyPickledError: 100.0 is beyon"
    for options in ({"executor": executor}, {"workers": 2}, {}):
        with pytest.raises(ss.SolverError, match=name) as caught:
            ss.solver(function, batched=False, **options)(theta)
        assert isinstance(caught.value.__cause__, Exception)


def test_an_exception_from_another_process_tells_where(process_pool):
    theta = np.full((1, 4), black_boxes.TOO_LARGE)
    solver = ss.solver(black_boxes.moody, batched=False, executor=process_pool)
    with pytest.raises(ss.SolverError) as caught:
        solver(theta)
    (note,) = caught.value.__cause__.__notes__
    assert "In the worker:" in note
    assert "black_boxes.py" in note


def test_no_solve_is_begun_after_a_failure():
    begun = []

    def fails_at_ten(theta):
        begun.append(int(theta[0]))
        time.sleep(0.001)
        return theta / 0 if theta[0] != 10 else {}[0]

    theta = np.arange(1000.0)[:, None]
    for workers in (None, 2):
        begun.clear()
        solver = ss.solver(fails_at_ten, batched=False, workers=workers)
        with (
            np.errstate(all="ignore"),
            pytest.raises(ss.SolverError, match="row 10 of the 1000"),
        ):
            solver(theta)
        assert set(range(11)) <= set(begun)
        assert len(begun) < 300


def test_batched_functions_raise_as_they_do(executor):
    for options in ({}, {"workers": 2}, {"executor": executor}):
        solver = ss.solver(black_boxes.broken, **options)
        with pytest.raises(AttributeError) as caught:
            solver(scores(30))
        told = "'numpy.ndarray' object has no attribute 'no_such_attribute'"
        assert str(caught.value) == told


def test_dask_tries_anew_what_failed(monkeypatch):
    dask = black_boxes.StandInForDask()
    solver = ss.solver(black_boxes.licensed, batched=False, executor=dask)
    with pytest.raises(ss.SolverError, match="all licences are in use"):
        solver(np.ones((3, 4)))
    monkeypatch.setattr(black_boxes, "licences", 1)
    np.testing.assert_array_equal(solver(np.ones((3, 4))), np.ones((3, 4)))


def test_ray_gets_one_function_for_all_calls():
    ray = black_boxes.StandInForRay()
    solver = ss.solver(black_boxes.largest, batched=False, executor=ray)
    for _ in range(3):
        solver(scores(10))
    assert ray.kept == 1


def test_solutions_of_several_shapes():
    solver = ss.solver(lambda t: t[: 1 + (t[0] > 0)], batched=False)
    with pytest.raises(ValueError, match=r"\(1,\) in row 0 and \(2,\) in row 2"):
        solver(np.array([[-1.0, 0], [-1.0, 0], [1.0, 0]]))


def test_dropped_rows_are_nan(executor):
    theta = np.minimum(scores(60), 0.5)
    bad = [3, 17, 18, 59]
    theta[bad, 0] = black_boxes.TOO_LARGE
    solver = ss.solver(
        black_boxes.moody, batched=False, executor=executor, on_failure="drop"
    )
    y = quietly(solver, theta)
    assert solver.dropped == 4
    expected = black_boxes.largest_rows(theta)
    expected[bad] = np.nan
    np.testing.assert_array_equal(y, expected)
    solver(theta)  # no second warning
    assert solver.dropped == 8


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("batched", [False, True])
def test_solutions_that_are_not_finite_have_failed(batched, value):
    def function(theta):
        return np.where(theta[..., :1] > 0, theta, np.append(theta[..., :1] * value, 0))

    theta = np.array([[1.0, 2.0], [-1.0, 2.0]])
    if batched:

        def function(theta):
            y = theta.copy()
            y[y[:, 0] < 0, 0] = value
            return y

    solver = ss.solver(function, batched=batched, on_failure="drop")
    y = quietly(solver, theta)
    np.testing.assert_array_equal(y, [[1, 2], [np.nan, np.nan]])
    assert solver.dropped == 1


def test_whole_numbers_become_floats_where_some_are_dropped():
    solver = ss.solver(
        lambda t: (t > 0).astype(int) if t[0] < 1 else {}[0],
        batched=False,
        on_failure="drop",
    )
    assert solver(np.zeros((2, 3), np.float32)).dtype.kind == "i"
    y = quietly(solver, np.array([[0, 1], [2, 1]], np.float32))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [[0, 1], [np.nan, np.nan]])


def test_all_dropped():
    def fail(theta):
        raise ArithmeticError

    linear = ss.solver(fail, batched=False, linear=True, on_failure="drop")
    assert np.isnan(quietly(linear, np.zeros((3, 2)))).all()
    shaped = ss.solver(fail, batched=False, out_shape=(5,), on_failure="drop")
    assert quietly(shaped, np.zeros((3, 2))).shape == (3, 5)
    unknown = ss.solver(fail, batched=False, on_failure="drop")
    with pytest.raises(ss.SolverError, match=r"ArithmeticError.*tell their shape"):
        unknown(np.zeros((3, 2)))


# Processes that are killed


def test_processes_time_limit_and_crash():
    theta = np.minimum(scores(24), 0.5)
    solver = ss.solver(
        black_boxes.moody,
        batched=False,
        processes=2,
        time_limit=1.0,
        on_failure="drop",
    )
    np.testing.assert_array_equal(solver(theta), black_boxes.largest_rows(theta))
    theta[[2, 9], 0] = black_boxes.TOO_LARGE, black_boxes.DEADLY
    theta[5, 0] = black_boxes.TOO_SLOW
    began = time.monotonic()
    y = quietly(solver, theta)
    assert time.monotonic() - began < 30  # and not the 60 s of the sleep
    assert solver.dropped == 3
    assert np.flatnonzero(np.isnan(y).any(axis=1)).tolist() == [2, 5, 9]
    again = np.delete(theta, [2, 5, 9], axis=0)
    np.testing.assert_array_equal(solver(again), black_boxes.largest_rows(again))


@pytest.fixture(scope="module")
def strict():
    return ss.solver(black_boxes.moody, batched=False, processes=1, time_limit=0.5)


@pytest.mark.parametrize(
    ("score", "cause", "match"),
    [
        (black_boxes.TOO_SLOW, TimeoutError, r"more than time_limit=0\.5 s"),
        (black_boxes.DEADLY, RuntimeError, "process died, exit code 7"),
        (black_boxes.TOO_LARGE, ss.SolverError, "PoorlyPickledError: 100.0 is beyond"),
    ],
)
def test_what_happened_in_a_process(strict, score, cause, match):
    theta = np.zeros((4, 3))
    theta[1:3, 0] = score
    with pytest.raises(ss.SolverError, match=f"row 1 of the 4.*{match}") as caught:
        strict(theta)
    assert isinstance(caught.value.__cause__, cause)


def test_an_interrupt_ends_the_processes(strict):
    strict(np.zeros((1, 3)))
    slow = ss.solver(black_boxes.moody, batched=False, processes=1)
    slow(np.zeros((1, 3)))
    (process,) = [worker.process for worker in slow._pool._workers]
    theta = np.full((2, 3), black_boxes.TOO_SLOW)
    began = time.monotonic()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        slow(theta)
    assert time.monotonic() - began < 10
    assert not process.is_alive()


def test_an_interrupt_leaves_threads_idle():
    begun = []

    def solve(theta):
        begun.append(theta[0])
        time.sleep(0.01)
        return theta

    solver = ss.solver(solve, batched=False, workers=2)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        solver(np.zeros((2000, 1)))
    count = len(begun)
    assert count < 100
    time.sleep(0.1)
    assert len(begun) == count
    np.testing.assert_array_equal(solver(np.ones((3, 1))), np.ones((3, 1)))


def test_a_script_and_its_fork(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, warnings
            import numpy as np
            import softsolve as ss

            def negate(theta):
                return -theta

            if __name__ == "__main__":
                solver = ss.solver(negate, batched=False, processes=1)
                theta = np.arange(6.0).reshape(3, 2)
                assert (solver(theta) == -theta).all()
                warnings.simplefilter("ignore")  # of Python 3.12 about threads
                child = os.fork()
                if child == 0:  # the workers are the parent's: it starts its own
                    sys.exit(0 if (solver(theta) == -theta).all() else 1)
                assert os.waitpid(child, 0)[1] == 0
                assert (solver(theta) == -theta).all()
                print("done")
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "done\n"
