"""The thread pool: coverage, nesting, concurrency, fork, exceptions."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from softsolve import parallel


@pytest.fixture(autouse=True)
def _threads():
    before = parallel.get_num_threads()
    parallel.set_num_threads(3)
    yield
    parallel.set_num_threads(before)


def counts(size, **options):
    seen = np.zeros(size, dtype=int)

    def count(start, stop):
        seen[start:stop] += 1

    parallel.run_ranges(count, size, **options)
    return seen


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 100, 1001])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("grain", [1, 8])
def test_every_row_runs_once(size, threads, grain):
    assert (counts(size, threads=threads, grain=grain) == 1).all()


def test_ranges_have_whole_grains():
    ranges = []
    lock = threading.Lock()

    def keep(start, stop):
        with lock:
            ranges.append((start, stop))

    parallel.run_ranges(keep, 50, grain=16)
    assert all(start % 16 == 0 for start, _ in ranges)
    assert sum(stop - start for start, stop in ranges) == 50


def test_other_threads_take_part():
    names = set()

    def work(start, stop):
        names.add(threading.get_ident())
        time.sleep(0.01)

    parallel.run_ranges(work, 12)
    assert len(names) >= 2


def test_nested_calls_run_in_place():
    seen = np.zeros((6, 50), dtype=int)

    def outer(start, stop):
        for row in range(start, stop):
            here = threading.get_ident()

            def inner(begin, end, row=row, here=here):
                assert threading.get_ident() == here
                seen[row, begin:end] += 1

            parallel.run_ranges(inner, 50)

    parallel.run_ranges(outer, 6)
    assert (seen == 1).all()


def test_several_threads_call_at_once():
    results = [None] * 6

    def call(index):
        results[index] = all((counts(97) == 1).all() for _ in range(30))

    callers = [threading.Thread(target=call, args=(index,)) for index in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=30)
    assert results == [True] * 6


@pytest.mark.parametrize("failing", [0, 49, 99])
def test_exceptions_arrive_and_leave_the_pool_usable(failing):
    def fail(start, stop):
        if start <= failing < stop:
            msg = f"row {failing}"
            raise ArithmeticError(msg)

    with pytest.raises(ArithmeticError, match=f"row {failing}"):
        parallel.run_ranges(fail, 100)
    assert (counts(100) == 1).all()


def test_growing_the_pool():
    for threads in (2, 5, 3, 8):
        parallel.set_num_threads(threads)
        assert (counts(500) == 1).all()


def _in_child(queue):
    queue.put(bool((counts(100) == 1).all()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_a_forked_process_has_its_own_pool():
    assert (counts(100) == 1).all()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    # Fork while another thread holds the pool's lock.
    with parallel._lock:
        child = context.Process(target=_in_child, args=(queue,))
        child.start()
    assert queue.get(timeout=20)
    child.join(timeout=20)
    assert child.exitcode == 0


@pytest.mark.parametrize(("bad", "error"), [(0, ValueError), (1.5, TypeError)])
def test_set_num_threads_refuses(bad, error):
    with pytest.raises(error, match="set_num_threads"):
        parallel.set_num_threads(bad)


@pytest.mark.parametrize(("text", "expected"), [("3", "3"), ("no", "must be a whole")])
def test_environment_variable(text, expected):
    code = "from softsolve import parallel; print(parallel.get_num_threads())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SOFTSOLVE_NUM_THREADS": text},
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in run.stdout + run.stderr


def test_workers_keep_off_the_callers_cpu():
    """Linux would wake them there, to take turns with the caller on one CPU."""
    allowed, caller = os.sched_getaffinity(0), threading.current_thread()
    of_workers: list[set[int]] = []

    def look(start, stop):
        time.sleep(0.01)
        if threading.current_thread() is not caller:
            of_workers.append(os.sched_getaffinity(0))

    parallel.run_ranges(look, 12)  # the workers start
    of_workers.clear()
    parallel.run_ranges(look, 12)
    assert of_workers
    assert all(cpus <= allowed for cpus in of_workers)
    assert {len(cpus) for cpus in of_workers} == {max(len(allowed) - 1, 1)}
    assert os.sched_getaffinity(0) == allowed
