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
import warnings

import joblib
import numpy as np
import pytest
import torch
from scipy.stats import norm

import softsolve as ss
import softsolve.jax
import softsolve.numpy
import softsolve.torch
from softsolve import solvers
from support import black_boxes
from support.frontends import FRONTENDS
from support.statistics import Comparison, assert_derivative, assert_unbiased

SPAWN = multiprocessing.get_context("spawn")
ALL = pytest.mark.parametrize("frontend", FRONTENDS.values(), ids=FRONTENDS.keys())


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


def quietly(solver, theta):
    """Call a solver whose first failure is announced."""
    with pytest.warns(RuntimeWarning, match="left out of averages"):
        return solver(theta)


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


def test_a_decorated_function_goes_to_other_processes(process_pool):
    theta = scores(10)
    restored = pickle.loads(pickle.dumps(black_boxes.decorated))
    assert restored is black_boxes.decorated
    together = ss.solver(
        black_boxes.decorated.function, batched=False, executor=process_pool
    )
    with pytest.raises(TypeError, match="cannot be pickled"):
        together(theta)  # its name leads to the solver, not to the function
    by_name = copy.copy(black_boxes.decorated)
    assert by_name is black_boxes.decorated


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


def test_batched_functions_raise_as_they_do():
    def broken(theta):
        return theta.no_such_attribute

    with pytest.raises(AttributeError, match="no_such_attribute"):
        ss.solver(broken)(scores(3))


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


# Dropped draws in layers

CUT = 0.8


def upper_orthant(theta):
    """Return which scores are positive; fail where the first is beyond the cut."""
    y = (theta > 0).astype(theta.dtype)
    y[theta[:, 0] > CUT] = np.nan
    return y


def dropping():
    solver = ss.solver(upper_orthant, linear=True, on_failure="drop")
    quietly(solver, np.array([[9.0, 0.0]]))
    return solver


THETA, TEMPERATURE = np.array([0.2, -0.3]), 0.7


def exact_given_success():
    """Return E[y | success] (2,), its Jacobian, and its derivative in ε."""
    low, high = -THETA[0] / TEMPERATURE, (CUT - THETA[0]) / TEMPERATURE
    p, f = norm.cdf, norm.pdf
    other = THETA[1] / TEMPERATURE
    mean = np.array([1 - p(low) / p(high), p(other)])
    slope = f(low) / p(high) - p(low) * f(high) / p(high) ** 2
    jacobian = np.diag([slope, f(other)]) / TEMPERATURE
    drift = low * f(low) / p(high) - p(low) * high * f(high) / p(high) ** 2
    return mean, jacobian, np.array([drift, -other * f(other)]) / TEMPERATURE


@ALL
def test_estimates_are_of_the_expectation_given_success(frontend):
    draws = 12
    theta = np.tile(THETA, (20_000, 1))
    layer = frontend.layer(dropping(), num_samples=draws, temperature=TEMPERATURE)
    mean, jacobian, drift = exact_given_success()
    assert_unbiased(frontend.value(layer, theta), mean)

    replicates = frontend.jacobian(layer, theta, seed=1)
    assert_derivative(replicates, jacobian, TEMPERATURE)
    comparison = Comparison(replicates, jacobian)
    # Over all draws, as if none had been dropped from the count.
    share = norm.cdf((CUT - THETA[0]) / TEMPERATURE)
    unconditional = np.diag(norm.pdf(THETA / TEMPERATURE)) / TEMPERATURE
    comparison.check_power(
        {
            "M - 1 for M' - 1": comparison.mean * (share * draws - 1) / (draws - 1),
            "the unconditional one": unconditional,
            "no baseline": jacobian
            + np.outer(mean, [-norm.pdf((CUT - THETA[0]) / TEMPERATURE) / share, 0])
            / TEMPERATURE,
        }
    )

    for index in (0, 1):
        g = np.zeros_like(theta)
        g[:, index] = 1
        in_theta, in_temperature = frontend.vjp(
            layer, theta, g, temperature=TEMPERATURE, seed=2
        )
        assert_unbiased(in_theta, jacobian[index])
        assert_derivative(in_temperature, drift[index])


def by_hand(theta, z, target):
    """Return what a layer must return for one row and draws (M, d)."""
    x = theta + TEMPERATURE * z
    kept = x[:, 0] <= CUT
    y, z, x = upper_orthant(x)[kept], z[kept], x[kept]
    centred = y - y.mean(axis=0)
    scale = TEMPERATURE * (len(y) - 1)
    return {
        "value": y.mean(axis=0),
        "jacobian": centred.T @ z / scale,
        "in temperature": centred.sum(axis=1) @ ((z * z).sum(axis=1) - 2) / scale,
        "maximum": (y * x).sum(axis=1).mean(),
        "loss": ((y - target) * x).sum(axis=1).mean(),
        "loss in theta": y.mean(axis=0) - target,
        "loss in temperature": ((y - target) * z).sum(axis=1).mean(),
    }


@ALL
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_formulas_over_the_draws_that_are_left(frontend, dtype):
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(30, 2)).astype(dtype) * 0.5
    z = rng.normal(size=(30, 8, 2)).astype(dtype)
    target = np.ones((30, 2), dtype)
    x = theta[:, None] + dtype(TEMPERATURE) * z
    left = (x[:, :, 0] <= CUT).sum(axis=1)
    theta, z, target = theta[left > 1], z[left > 1], target[left > 1]
    assert len(theta) > 20
    assert len(np.unique(left[left > 1])) > 3

    layer = frontend.layer(dropping(), num_samples=8, temperature=TEMPERATURE)
    loss = frontend.loss_of(layer, reduction="none")
    g = np.ones_like(theta)
    with frontend.given_noise(z):
        value = frontend.value(layer, theta)
        jacobian = frontend.jacobian(layer, theta)
        in_theta, in_temperature = frontend.vjp(
            layer, theta, g, temperature=TEMPERATURE
        )
        maximum = frontend.maximum(layer, theta)
        losses = frontend.loss(loss, theta, target, temperature=TEMPERATURE)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for row in range(len(theta)):
        exact = by_hand(
            *(array[row].astype(np.float64) for array in (theta, z, target))
        )
        found = {
            "value": value,
            "jacobian": jacobian,
            "in temperature": in_temperature,
            "maximum": maximum,
            "loss": losses[0],
            "loss in theta": losses[1],
            "loss in temperature": losses[2],
        }
        for name, number in exact.items():
            np.testing.assert_allclose(
                found[name][row], number, rtol=tolerance, atol=tolerance, err_msg=name
            )
        np.testing.assert_allclose(
            in_theta[row], exact["jacobian"].sum(axis=0), atol=10 * tolerance
        )
    assert value.dtype == jacobian.dtype == dtype


@ALL
def test_samples_and_distribution(frontend):
    theta = np.tile(THETA, (3, 1))
    layer = frontend.layer(dropping(), num_samples=200, temperature=TEMPERATURE)
    sampled = frontend.sample(layer, theta)
    dropped = np.isnan(sampled).all(axis=2)
    assert 0 < dropped.sum() < 200
    assert not np.isnan(sampled[~dropped]).any()
    for row, (solutions, frequencies) in enumerate(frontend.distribution(layer, theta)):
        kept = sampled[~dropped[:, row], row]
        np.testing.assert_allclose(frequencies.sum(), 1, rtol=1e-6)
        np.testing.assert_allclose(frequencies @ solutions, kept.mean(0), rtol=1e-6)


@ALL
def test_a_row_without_draws_is_an_error(frontend):
    layer = frontend.layer(dropping(), num_samples=6, temperature=0.1)
    theta = np.array([[0.0, 0.0], [5.0, 0.0]])
    match = r"failed on 6 of the 6 draws of instance 1, and an average needs one"
    with pytest.raises(ss.SolverError, match=match):
        frontend.value(layer, theta)
    with pytest.raises(ss.SolverError, match=match):
        frontend.maximum(layer, theta)


@ALL
def test_one_draw_has_no_derivative(frontend):
    layer = frontend.layer(dropping(), num_samples=3, temperature=1.0)
    theta = np.zeros((2, 2))
    z = np.zeros((2, 3, 2))
    z[1, 1:, 0] = 5
    match = r"failed on 2 of the 3 draws of instance 1, and derivatives need two"
    with frontend.given_noise(z):
        with pytest.raises(ss.SolverError, match=match):
            frontend.jacobian(layer, theta)
        with pytest.raises(ss.SolverError, match=match):
            frontend.vjp(layer, theta, np.ones_like(theta), temperature=1.0)
        if frontend.name != "jax":  # which cannot know what will be asked for
            assert np.isfinite(frontend.value(layer, theta)).all()
        assert np.isfinite(frontend.maximum(layer, theta)).all()


@ALL
def test_no_second_derivatives(frontend):
    layer = frontend.layer(dropping(), num_samples=30, temperature=0.5)
    theta = np.zeros((2, 2))
    match = "has no estimate of its second derivatives"
    with pytest.raises(RuntimeError, match=match):
        frontend.hessian(layer, theta, np.ones_like(theta), temperature=0.5)
    if frontend.name != "numpy":
        with pytest.raises(RuntimeError, match=match):
            frontend.maximum_hessian(layer, theta, temperature=0.5)


@ALL
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": 1}, "does not go with num_samples=1"),
        ({"baseline": "none"}, 'does not go with baseline="none"'),
        ({"baseline": "point"}, 'does not go with baseline="point"'),
        ({"form": "maximum"}, 'does not go with form="maximum"'),
        ({"symmetric": True}, "does not go with symmetric=True"),
    ],
)
def test_what_does_not_go_with_dropped_draws(frontend, options, match):
    with pytest.raises(ValueError, match=match):
        frontend.layer(dropping(), **options)


@ALL
def test_nothing_changes_where_nothing_fails(frontend):
    def positive(theta):
        return (theta > 0).astype(theta.dtype)

    theta = np.random.default_rng(4).normal(size=(5, 3))
    results = []
    for on_failure in ("raise", "drop"):
        with warnings.catch_warnings(action="error"):
            solver = ss.solver(positive, linear=True, on_failure=on_failure)
            layer = frontend.layer(solver, num_samples=9, temperature=0.5)
            results.append(
                (
                    frontend.value(layer, theta),
                    frontend.jacobian(layer, theta),
                    frontend.maximum(layer, theta),
                )
            )
        assert solver.dropped == 0
    for raised, dropped in zip(*results, strict=True):
        np.testing.assert_allclose(dropped, raised, rtol=1e-12, atol=1e-12)


def test_dropped_draws_do_not_compile():
    layer = softsolve.torch.Perturbed(dropping(), num_samples=3)
    compiled = torch.compile(layer, backend="eager")
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        compiled(torch.zeros(1, 2))


# Starts from the unperturbed solution


def transport(size=4):
    matrix = np.zeros((2 * size, size * size))
    for index in range(size):
        matrix[index, index * size : (index + 1) * size] = 1
        matrix[size + index, index::size] = 1
    return solvers.LinearProgram(matrix, row_lower=1, row_upper=1)


PROGRAMS = {
    "linear": transport,
    "mixed": lambda: solvers.MixedIntegerProgram(
        np.arange(1, 17)[None], row_upper=[60], upper=1
    ),
}


class Watched:
    """A program that counts its solves."""

    def __init__(self, program):
        self.program = program
        self.primed = []
        self.started = []
        for name in ("host", "linear", "event_ndim"):
            setattr(self, name, getattr(program, name))

    def __call__(self, theta, *context, starts=None):
        self.started.append((len(theta), None if starts is None else len(starts)))
        return self.program(theta, starts=starts)

    def prime(self, theta, *context):
        self.primed.append(theta.copy())
        return self.program.prime(theta)


@ALL
@pytest.mark.parametrize("kind", PROGRAMS)
def test_solves_start_from_the_unperturbed_solution(frontend, kind):
    program = PROGRAMS[kind]()
    theta = np.random.default_rng(5).normal(size=(3, 16))
    watched = Watched(program)
    plain = ss.solver(program, linear=True)  # a function that has no starts
    values = {}
    for name, solver in {"warm": watched, "cold": plain}.items():
        layer = frontend.layer(solver, num_samples=6, temperature=0.1)
        values[name] = (
            frontend.value(layer, theta),
            frontend.vjp(layer, theta, np.ones_like(theta), temperature=0.1)[0],
            frontend.maximum(layer, theta),
        )
    for warm, cold in zip(values["warm"], values["cold"], strict=True):
        np.testing.assert_allclose(warm, cold, rtol=1e-6, atol=1e-6)
    assert len(watched.primed) == 3
    for primed in watched.primed:
        np.testing.assert_allclose(primed, theta)
    assert watched.started == [(18, 18)] * 3


@ALL
def test_few_draws_are_not_worth_a_start(frontend):
    watched = Watched(transport())
    layer = frontend.layer(watched, num_samples=3, temperature=0.1)
    frontend.value(layer, np.zeros((2, 16)))
    assert watched.primed == []
    assert watched.started == [(6, None)]


@ALL
def test_each_chunk_starts_from_the_same_solution(frontend):
    watched = Watched(transport())
    options = {"num_samples": 12, "temperature": 0.1}
    theta = np.random.default_rng(6).normal(size=(2, 16))
    # Room for the six draws of a chunk.
    budget = 6 * 4 * theta.size * 8
    layer = frontend.layer(watched, memory_budget=budget, **options)
    frontend.value(layer, theta)
    assert watched.started == [(12, 12)] * 2
    assert all(np.allclose(primed, theta) for primed in watched.primed)
