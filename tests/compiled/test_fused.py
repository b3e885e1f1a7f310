"""Fused passes against the formulas, spelt out in float64 on the exported draws."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from softsolve import parallel
from softsolve.compiled.fused import FusedPass, leave_one_out
from softsolve.compiled.kernel import INFEASIBLE, OK, kernel
from softsolve.compiled.work import group_size
from softsolve.errors import SolverError
from softsolve.solvers import GraphPath, GridPath, OneHot, Ranking, TopK
from softsolve.solvers.base import KernelSolver

NOISES = ("normal", "gumbel", "logistic", "laplace")
DTYPES = (np.float32, np.float64)


@kernel
def nearest_integers(theta, ints, reals, context, state, y):
    """Round, up to 9 in size: no two entries of a solution depend on each other."""
    for j in range(theta.size):
        y[j] = min(max(np.rint(3 * theta[j]), -9), 9)
    return OK


@kernel
def shifted_sign(theta, ints, reals, context, state, y):
    """Mark what exceeds the context; the state must be that of the unperturbed row."""
    if state[0] == 0:
        state[0] = 1
        state[1] = theta[0]
    for j in range(theta.size):
        y[j] = theta[j] > context[0] + state[1]
    return OK


@kernel
def rarely_fails(theta, ints, reals, context, state, y):
    """Fail where the first score is large."""
    y[:] = theta
    return INFEASIBLE if theta[0] > context[0] else OK


class Rounding(KernelSolver):
    kernel = nearest_integers
    solution = "integer"
    linear = False


class Scores(KernelSolver):
    kernel = nearest_integers
    solution = "real"
    linear = False


class ShiftedSign(KernelSolver):
    kernel = shifted_sign
    solution = "binary"

    def pack_context(self, rows, event_shape, *context):
        return np.asarray(context[0], dtype=np.float64).reshape(rows, 1)

    def state_size(self, event_shape):
        return 2


class RarelyFails(ShiftedSign):
    kernel = rarely_fails
    solution = "real"

    def state_size(self, event_shape):
        return 0

    def __repr__(self):
        return "RarelyFails()"


SOLVERS = {
    "argmax": (OneHot(), 10),
    "argmax-1": (OneHot(), 1),
    "argmax-large": (OneHot(), 300),
    "topk": (TopK(3), 13),
    "topk-none": (TopK(0), 5),
    "topk-all": (TopK(5), 5),
    "topk-large": (TopK(10), 1000),
    "topk-one": (TopK(1), 70),
    "topk-many": (TopK(20), 700),
    "topk-partition": (TopK(100), 333),
    "ranking": (Ranking(), 21),
    "ranking-uneven": (Ranking([0.5, 0.5, -1.0, 4.0, 9.3]), 5),
    "ranking-sorted": (Ranking(), 300),
    "ranking-1": (Ranking(), 1),
    "integers": (Rounding(), 7),
    "reals": (Scores(), 7),
}


class Case:
    """Random inputs of a pass, its results, and noise and solutions in float64."""

    def __init__(
        self, solver, size, noise, samples, dtype, *, rows=5, antithetic=False, count=2
    ):
        rng = np.random.default_rng(0)
        self.fused = FusedPass(
            solver, (size,), noise, samples, antithetic=antithetic, dtype=dtype
        )
        self.theta = rng.normal(size=(rows, size)).astype(dtype)
        self.temperature = np.linspace(0.5, 1.5, rows).astype(dtype)
        self.keys = rng.integers(-(2**31), 2**31, (rows, 2)).astype(np.int32)
        self.target = np.asarray(solver(rng.normal(size=(rows, size)).astype(dtype)))
        self.g, self.v, self.w = rng.normal(size=(3, rows, count, size)).astype(dtype)
        self.e, self.f = rng.normal(size=(2, rows, count)).astype(dtype)
        self.samples, self.antithetic = samples, antithetic
        self.exact_z = self.fused.draws(self.keys)
        scaled = self.temperature[:, None, None] * self.exact_z
        self.x = self.theta[:, None] + scaled
        self.z = self.exact_z.astype(np.float64)
        self.eps = self.temperature.astype(np.float64)[:, None, None]
        self.s = {
            "normal": self.z,
            "gumbel": 1 - np.exp(-self.z),
            "logistic": np.tanh(self.z / 2),
            "laplace": np.sign(self.z),
        }[noise]
        self.c = {
            "normal": np.ones_like(self.z),
            "gumbel": np.exp(-self.z),
            "logistic": (1 - self.s**2) / 2,
            "laplace": np.zeros_like(self.z),
        }[noise]
        self.radial = (self.z * self.s).sum(-1) - size
        self.y = np.asarray(solver(self.x.reshape(-1, size))).reshape(self.x.shape)
        self.y = self.y.astype(np.float64)

    def close(self, actual, expected, slack=1.0):
        assert actual.dtype == self.theta.dtype
        scale = max(np.abs(expected).max(initial=0), 1)
        eps = np.finfo(self.theta.dtype).eps
        tolerance = slack * 40 * eps * scale * np.sqrt(self.theta.shape[1])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)

    def centred(self, baseline):
        """Return y - b and what to tell the pass about it."""
        y, mean = self.y, self.y.mean(1, keepdims=True)
        rounded = mean[:, 0].astype(self.theta.dtype)
        if baseline == "none":
            return y, (None, 1.0, 0.0)
        if baseline == "point":
            return y - self.target[:, None], (self.target, 1.0, 0.0)
        how = leave_one_out(self.samples, antithetic=self.antithetic)
        if not self.antithetic:
            others = (self.samples * mean - y) / (self.samples - 1)
            return y - others, (rounded, *how)
        pairs = self.samples // 2
        shape = (len(y), pairs, 2, y.shape[2])
        own = y.reshape(shape).mean(2, keepdims=True)
        others = (pairs * mean[:, None] - own) / (pairs - 1)
        return (y.reshape(shape) - others).reshape(y.shape), (rounded, *how)

    def along(self, v, e):
        return (
            np.einsum("bmd,bkd->bmk", self.s, v) + self.radial[..., None] * e[:, None]
        )

    def second(self, v, e, w, f):
        d, s = self.theta.shape[1], self.s[:, :, None]
        u = v[:, None] + e[:, None, :, None] * self.z[:, :, None]
        t = w[:, None] + f[:, None, :, None] * self.z[:, :, None]
        su, st, e, f = (s * u).sum(-1), (s * t).sum(-1), e[:, None], f[:, None]
        curved = (u * self.c[:, :, None] * t).sum(-1)
        return (su - d * e) * (st - d * f) - curved - e * st - f * su + d * e * f


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", [1, 7, 33, 100])
@pytest.mark.parametrize("name", SOLVERS)
def test_forward(name, samples, dtype):
    noise = NOISES[(samples + len(name)) % 4]
    case = Case(*SOLVERS[name], noise, samples, dtype)
    out = case.fused.forward(
        case.theta, case.temperature, case.keys, target=case.target
    )
    np.testing.assert_array_equal(case.fused.solutions(out.samples), case.y)
    case.close(out.mean, case.y.mean(1))
    case.close(out.moment, (case.y * case.z).sum(-1).mean(1))
    gaps = ((case.y - case.target[:, None]) * case.x).sum(-1)
    case.close(out.loss, gaps.mean(1))
    case.close(out.lowest, gaps.min(1))
    moments = ((case.y - case.target[:, None]) * case.z).sum(-1).mean(1)
    case.close(out.gap_moment, moments)
    bare = case.fused.forward(case.theta, case.temperature, case.keys, keep=False)
    assert bare.samples == ()
    assert bare.loss is None
    np.testing.assert_array_equal(bare.mean, out.mean)


def check_first_order(case, baseline):
    out = case.fused.forward(case.theta, case.temperature, case.keys)
    centred, how = case.centred(baseline)
    arguments = (out.samples, case.keys, case.temperature)
    weights = np.einsum("bmd,bkd->bmk", centred, case.g)
    in_theta, in_eps = case.fused.vjp(*arguments, case.g, *how)
    expected = np.einsum("bmk,bmd->bkd", weights, case.s) / case.samples / case.eps
    case.close(in_theta, expected, slack=4)
    expected = (weights * case.radial[..., None]).mean(1) / case.eps[:, 0]
    case.close(in_eps, expected, slack=40)
    tangent = case.fused.jvp(*arguments, case.v, case.e, *how)
    along = case.along(case.v, case.e)
    expected = np.einsum("bmk,bmd->bkd", along, centred) / case.samples / case.eps
    case.close(tangent, expected, slack=40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", [2, 6, 64, 100])
@pytest.mark.parametrize("name", SOLVERS)
def test_vjp_and_jvp(name, samples, dtype):
    noise = NOISES[(samples // 2 + len(name)) % 4]
    case = Case(*SOLVERS[name], noise, samples, dtype)
    for baseline in ("none", "point", "others"):
        check_first_order(case, baseline)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", ["argmax", "ranking", "integers"])
def test_antithetic_leave_one_out(name, noise, dtype):
    for samples in (4, 38, 100):
        case = Case(*SOLVERS[name], noise, samples, dtype, antithetic=True)
        check_first_order(case, "others")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("noise", NOISES[:3])
@pytest.mark.parametrize("name", ["argmax", "topk", "reals"])
def test_second_order(name, noise, antithetic, dtype):
    case = Case(*SOLVERS[name], noise, 60, dtype, antithetic=antithetic)
    out = case.fused.forward(case.theta, case.temperature, case.keys)
    centred, how = case.centred("others")
    arguments = (out.samples, case.keys, case.temperature)
    second = case.second(case.v, case.e, case.w, case.f)
    both = case.fused.jjvp(*arguments, case.v, case.e, case.w, case.f, *how)
    expected = np.einsum("bmk,bmd->bkd", second, centred) / 60 / case.eps**2
    case.close(both, expected, slack=100)
    # The gradient in p of something linear in p: compare along directions that span.
    weights = np.einsum("bmd,bkd->bmk", centred, case.g)
    in_theta, in_eps = case.fused.hvp(*arguments, case.g, case.v, case.e, *how)
    size = case.theta.shape[1]
    for j in range(size + 1):
        w, f = np.zeros_like(case.w), np.zeros_like(case.f)
        if j < size:
            w[..., j] = 1
        else:
            f[:] = 1
        second = case.second(case.v, case.e, w, f)
        expected = (weights * second).mean(1) / case.eps[:, 0] ** 2
        actual = in_theta[..., j] if j < size else in_eps
        case.close(actual, expected, slack=100)


def test_second_order_needs_curvature():
    case = Case(OneHot(), 4, "laplace", 10, np.float64)
    out = case.fused.forward(case.theta, case.temperature, case.keys)
    arguments = (out.samples, case.keys, case.temperature)
    with pytest.raises(ValueError, match="Laplace noise has no second"):
        case.fused.hvp(*arguments, case.g, case.v, case.e)
    with pytest.raises(ValueError, match="Laplace noise has no second"):
        case.fused.jjvp(*arguments, case.v, case.e, case.w, case.f)


def everything(case):
    out = case.fused.forward(
        case.theta, case.temperature, case.keys, target=case.target
    )
    arguments = (out.samples, case.keys, case.temperature)
    how = (out.mean, 1.1, 0.0)
    return [
        *(out.mean, out.moment, out.loss, out.lowest, out.gap_moment, *out.samples),
        *case.fused.vjp(*arguments, case.g, *how),
        case.fused.jvp(*arguments, case.v, case.e, *how),
        *case.fused.hvp(*arguments, case.g, case.v, case.e, *how),
        case.fused.jjvp(*arguments, case.v, case.e, case.w, case.f, *how),
    ]


@pytest.fixture
def threads():
    before = parallel.get_num_threads()
    yield parallel.set_num_threads
    parallel.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 3, 37])
@pytest.mark.parametrize("samples", [1, 10, 700])
@pytest.mark.parametrize("name", ["argmax", "topk", "ranking-uneven", "reals"])
def test_threads_do_not_change_a_bit(name, samples, rows, threads):
    case = Case(*SOLVERS[name], "gumbel", samples, np.float32, rows=rows)
    case.fused.inline = 0
    threads(1)
    expected = everything(case)
    for number in (2, 4):
        threads(number)
        for actual, one in zip(everything(case), expected, strict=True):
            np.testing.assert_array_equal(actual, one)


def test_rows_do_not_depend_on_the_batch():
    case = Case(*SOLVERS["ranking-uneven"], "logistic", 50, np.float32, rows=9)
    whole = everything(case)
    for name in ("theta", "temperature", "keys", "target", *"gvwef"):
        setattr(case, name, np.ascontiguousarray(getattr(case, name)[4:7]))
    for part, one in zip(everything(case), whole, strict=True):
        np.testing.assert_array_equal(part, one[4:7])


def test_several_threads_use_one_pass():
    case = Case(*SOLVERS["ranking"], "normal", 200, np.float32, rows=20)
    case.fused.inline = 0
    expected = everything(case)
    wrong = []

    def work():
        for _ in range(5):
            for actual, one in zip(everything(case), expected, strict=True):
                if not np.array_equal(actual, one):
                    wrong.append(actual)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive()
    assert wrong == []


def test_ties_go_to_the_lowest_index():
    # A temperature that is lost in rounding: scores stay as they are, ties and all.
    theta = np.array([[1, 3, 3, 1, 3], [0, 0, 0, 0, 0]], dtype=np.float32) * 1e6
    temperature, keys = np.full(2, 1e-6, np.float32), np.ones((2, 2), np.int32)
    for samples in (1, 40):
        for solver, expected in (
            (OneHot(), [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
            (TopK(2), [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
            (TopK(4), [[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]),
            (Ranking(), [[2, 5, 4, 1, 3], [5, 4, 3, 2, 1]]),
        ):
            fused = FusedPass(solver, (5,), "normal", samples)
            tied = theta.copy()
            tied[1] += 1e6
            out = fused.forward(tied, temperature, keys)
            np.testing.assert_array_equal(out.mean, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "size"), [(1, 40), (3, 131), (20, 700), (60, 2000)])
def test_few_of_many_that_tie(k, size, dtype):
    rng = np.random.default_rng(k)
    theta = rng.integers(0, 3, (20, size)).astype(dtype) * 1e6
    theta[0], theta[1, :-k] = 0, -1e6
    fused = FusedPass(TopK(k), (size,), "normal", 2, dtype=dtype)
    assert fused.plan.top == k
    # Lost in rounding, but where the score is 0: there the draws decide.
    tiny = np.full(20, 1e-30, dtype)
    keys = np.ones((20, 2), np.int32)
    out = fused.forward(theta, tiny, keys)
    x = theta[:, None] + tiny[:, None, None] * fused.draws(keys)
    np.testing.assert_array_equal(
        fused.solutions(out.samples), TopK(k)(x.reshape(-1, size)).reshape(x.shape)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [65, 300, 2000])
def test_sorting_ties_and_signed_zeros(size, dtype):
    rng = np.random.default_rng(size)
    theta = rng.integers(-3, 4, (20, size)).astype(dtype)
    theta[theta == 0] *= rng.choice([-1.0, 1.0], (theta == 0).sum())
    theta[:, -1] = 1e30
    fused = FusedPass(Ranking(), (size,), "normal", 1, dtype=dtype)
    tiny = np.full(20, 1e-40 if dtype == np.float32 else 1e-300, dtype)
    theta[theta == 0] = 0.0 * np.sign(theta[theta == 0])
    out = fused.forward(theta, tiny, np.zeros((20, 2), np.int32))
    shifted = theta + tiny[:, None] * fused.draws(np.zeros((20, 2), np.int32))[:, 0]
    np.testing.assert_array_equal(out.mean, Ranking()(shifted))


@pytest.mark.parametrize("samples", [1, 5, 40])
def test_block_kernels_agree_with_instance_kernels(samples):
    rng = np.random.default_rng(3)
    solver, rows = GridPath(endpoints=True), 13
    theta = -rng.exponential(size=(rows, 30)).astype(np.float32)
    temperature = np.full(rows, 0.3, np.float32)
    keys = rng.integers(0, 99, (rows, 2)).astype(np.int32)
    ends = np.stack([rng.integers(0, 5, rows), rng.integers(0, 6, rows)] * 2, axis=1)
    ends[:, 2:] = [4, 5]
    context = solver.pack_context(rows, (5, 6), ends)
    fused = FusedPass(solver, (5, 6), "normal", samples)
    out = fused.forward(theta, temperature, keys, context)
    x = theta[:, None] + temperature[:, None, None] * fused.draws(keys)
    flat = x.reshape(-1, 5, 6)
    expected = solver(flat, ends.repeat(samples, axis=0)).reshape(rows, samples, 30)
    np.testing.assert_array_equal(fused.solutions(out.samples), expected)
    np.testing.assert_allclose(out.mean, expected.mean(1), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("rows", "samples"), [(1, 1), (7, 1), (7, 5), (3, 100)])
@pytest.mark.parametrize("solver", [GridPath(), Rounding()])
def test_clipped_values(solver, rows, samples, targeted, dtype, threads):
    rng = np.random.default_rng(rows)
    shape = (4, 5) if solver.event_ndim == 2 else (20,)
    theta = (-rng.exponential(size=(rows, 20)) - 0.2).astype(dtype)
    temperature = np.full(rows, 0.8, dtype)
    keys = rng.integers(0, 99, (rows, 2)).astype(np.int32)
    target = solver((-rng.exponential(size=(rows, *shape))).astype(dtype))
    target = target.reshape(rows, 20) if targeted else np.zeros_like(theta)
    fused = FusedPass(solver, shape, "gumbel", samples, dtype=dtype)
    call = (theta, temperature, keys)
    out = fused.forward(*call, target=target if targeted else None, clip=True)
    z = fused.draws(keys)
    x = theta[:, None] + temperature[:, None, None] * z
    below = x < 0
    assert (~below).any()
    gaps = fused.solutions(out.samples).astype(np.float64) - target[:, None]
    tolerance = {"rtol": 2e-5 if dtype == np.float32 else 1e-13, "atol": 2e-6}
    np.testing.assert_allclose(out.slope, (gaps * below).mean(1), **tolerance)
    values = (gaps * np.minimum(x, 0)).sum(-1)
    np.testing.assert_allclose(out.loss, values.mean(1), **tolerance)
    np.testing.assert_allclose(out.lowest, values.min(1), **tolerance)
    moments = (gaps * below * z).sum(-1).mean(1)
    np.testing.assert_allclose(out.gap_moment, moments, **tolerance)
    fused.inline = 0
    for number in (1, 2, 4):
        threads(number)
        again = fused.forward(*call, target=target if targeted else None, clip=True)
        for name in ("mean", "slope", "loss", "lowest", "gap_moment", "moment"):
            np.testing.assert_array_equal(getattr(out, name), getattr(again, name))


@pytest.mark.parametrize("samples", [1, 9, 500])
def test_context_and_warm_start_are_those_of_the_row(samples, threads):
    threads(2)
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(6, 12))
    solver = ShiftedSign()
    context = solver.pack_context(6, (12,), rng.normal(size=6))
    keys = rng.integers(0, 99, (6, 2)).astype(np.int32)
    fused = FusedPass(solver, (12,), "normal", samples, dtype=np.float64)
    fused.inline = 0
    out = fused.forward(theta, np.ones(6), keys, context)
    x = theta[:, None] + fused.draws(keys)
    expected = x > (context + theta[:, :1])[:, None]
    np.testing.assert_array_equal(fused.solutions(out.samples), expected)


@pytest.mark.parametrize("rows", [1, 6])
def test_failures_name_the_row(rows, threads):
    threads(2)
    solver = RarelyFails()
    bound = np.full(rows, 100.0)
    fused = FusedPass(solver, (3,), "normal", 800, dtype=np.float64)
    fused.inline = 0
    theta, keys = np.zeros((rows, 3)), np.arange(2 * rows).reshape(rows, 2)
    keys = keys.astype(np.int32)
    context = solver.pack_context(rows, (3,), bound)
    fused.forward(theta, np.ones(rows), keys, context)
    bound[rows - 1] = 2.0
    context = solver.pack_context(rows, (3,), bound)
    with pytest.raises(SolverError, match=rf"first row {rows - 1}: the instance is in"):
        fused.forward(theta, np.ones(rows), keys, context)


def test_unsupported_solvers_are_refused():
    with pytest.raises(TypeError, match="needs a solver with a kernel or a family"):
        FusedPass(lambda theta: theta, (3,), "normal", 2)


def test_group_sizes():
    for samples in range(1, 3000, 7):
        size = group_size(samples)
        assert size % (32 if samples >= 32 else 2) == 0
        assert -(-samples // size) <= 32


def test_a_million_samples_lose_no_digits():
    samples = 1_000_000
    fused = FusedPass(Scores(), (2,), "normal", samples)
    theta = np.array([[1000.0, 0.1]], np.float32)
    out = fused.forward(
        theta, np.ones(1, np.float32), np.array([[5, 6]], np.int32), keep=False
    )
    # Every sample is 9 there: a sum in float32 would be off from the fifth digit.
    assert out.mean[0, 0] == 9.0
    z = fused.draws(np.array([[5, 6]], np.int32))[0, :, 1]
    exact = np.clip(np.rint(3 * (theta[0, 1] + z)), -9, 9).mean(dtype=np.float64)
    assert abs(out.mean[0, 1] - exact) < 1e-7


def test_memory(threads):
    """Growth of a fresh process at B = 32, d = 10,000, top-k."""
    code = """
    import numpy as np
    from softsolve.compiled.fused import FusedPass
    from softsolve.solvers import TopK

    def run(samples, loss):
        fused = FusedPass(TopK(10), (10_000,), "normal", samples)
        out = fused.forward(
            theta, ones, keys, keep=not loss, target=theta if loss else None
        )
        if not loss:
            fused.vjp(out.samples, keys, ones, theta[:, None], out.mean)

    rng = np.random.default_rng(0)
    theta = rng.normal(size=(32, 10_000)).astype(np.float32)
    ones, keys = np.ones(32, np.float32), np.arange(64).reshape(32, 2).astype(np.int32)
    run(4, True), run(4, False)
    def peak():  # of this program alone: getrusage counts its parent's, too
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if "VmHWM" in line) / 1024
    before = peak()
    run(40, True)
    short = peak() - before
    run(400, True)
    long = peak() - before
    run(200, False)
    print(short, long, peak() - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    short, long, kept = map(float, run.stdout.split())
    assert long < short + 2
    assert kept < 60


def test_a_second_process_compiles_nothing(tmp_path):
    code = """
    import numpy as np
    from softsolve.compiled import kernel
    from softsolve.compiled.fused import FusedPass
    from softsolve.solvers import OneHot

    made = []
    compiled = kernel.Kernel.compiled
    def watch(self, dtype):
        made.append(compiled(self, dtype))
        return made[-1]
    kernel.Kernel.compiled = watch
    fused = FusedPass(OneHot(), (5,), "gumbel", 40)
    ones, keys = np.ones(2, np.float32), np.ones((2, 2), np.int32)
    theta = np.zeros((2, 5), np.float32)
    out = fused.forward(theta, ones, keys)
    fused.vjp(out.samples, keys, ones, theta[:, None])
    stats = [one.stats for one in set(made)]
    print(
        sum(sum(one.cache_hits.values()) for one in stats),
        sum(sum(one.cache_misses.values()) for one in stats),
    )
    """
    counts = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        counts.append([int(number) for number in run.stdout.split()])
    (hits, misses), (hits_again, misses_again) = counts
    assert hits == 0
    assert misses == hits_again > 4
    assert misses_again == 0


@pytest.mark.parametrize(
    ("solver", "shape"),
    [
        (Ranking(), (0,)),
        (TopK(0), (0,)),
        (GraphPath(1, np.zeros((0, 2), int), source=0, target=0), (0,)),
    ],
)
@pytest.mark.parametrize("samples", [1, 40])
def test_instances_without_scores(solver, shape, samples):
    fused = FusedPass(solver, shape, "normal", samples)
    keys, ones = np.zeros((3, 2), np.int32), np.ones(3, np.float32)
    theta = np.zeros((3, 0), np.float32)
    out = fused.forward(theta, ones, keys, target=theta)
    assert out.mean.shape == (3, 0)
    np.testing.assert_array_equal(out.loss, np.zeros(3))
    g = np.zeros((3, 1, 0), np.float32)
    gradient, in_temperature = fused.vjp(out.samples, keys, ones, g, out.mean, 1.0)
    assert gradient.shape == (3, 1, 0)
    np.testing.assert_array_equal(in_temperature, np.zeros((3, 1)))


@pytest.mark.parametrize("solver", [OneHot(), Ranking()])
@pytest.mark.parametrize("noise", ["normal", "gumbel"])
@pytest.mark.parametrize("samples", [10, 100])
def test_a_vjp_in_theta_alone_is_the_same(solver, noise, samples):
    rng = np.random.default_rng(0)
    fused = FusedPass(solver, (5,), noise, samples)
    theta = rng.normal(size=(3, 5)).astype(np.float32)
    temperature = np.full(3, 0.5, np.float32)
    keys = rng.integers(-(2**31), 2**31, (3, 2), dtype=np.int32)
    out = fused.forward(theta, temperature, keys)
    g = rng.normal(size=(3, 2, 5)).astype(np.float32)
    how = leave_one_out(samples)
    given = (out.samples, keys, temperature, g, out.mean, *how)
    in_theta, _ = fused.vjp(*given)
    np.testing.assert_array_equal(fused.vjp_in_theta(*given), in_theta)
    assert (in_theta != 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("samples", [32, 77, 3000])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 15, 16])
def test_sums_by_who_wins_give_the_same_vjp(size, samples, noise, dtype):
    case = Case(OneHot(), size, noise, samples, dtype)
    fused, how = case.fused, leave_one_out(samples)
    assert fused.sums_winners
    given = (case.theta, case.temperature, case.keys)
    kept, out = fused.forward(*given), fused.forward(*given, keep=False, winners=True)
    assert out.samples == ()
    np.testing.assert_array_equal(out.mean, kept.mean)
    np.testing.assert_array_equal(out.moment, kept.moment)
    exact = np.swapaxes(case.y, 1, 2) @ case.s
    digits = 1e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(out.winners, exact, atol=samples * digits)
    drawn = (kept.samples, case.keys, case.temperature, case.g)
    summed = (out.winners, case.temperature, case.g)
    for center, scale in ((out.mean, how.scale), (None, 1.0)):
        expected = fused.vjp_in_theta(*drawn, center, scale)
        actual = fused.vjp_of_winners(*summed, center, scale)
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 3, 37])
def test_sums_by_who_wins_do_not_depend_on_threads(rows, threads):
    case = Case(OneHot(), 10, "gumbel", 5000, np.float32, rows=rows)
    case.fused.inline = 0
    found = []
    for number in (1, 2, 4):
        threads(number)
        given = (case.theta, case.temperature, case.keys)
        found.append(case.fused.forward(*given, keep=False, winners=True).winners)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert np.abs(found[0]).min() > 0


@pytest.mark.parametrize(
    ("solver", "size", "samples", "antithetic"),
    [
        (OneHot(), 17, 100, False),
        (OneHot(), 5, 31, False),
        (OneHot(), 5, 64, True),
        (TopK(1), 5, 100, False),
    ],
)
def test_where_drawing_again_is_quicker(solver, size, samples, antithetic):
    fused = FusedPass(solver, (size,), "normal", samples, antithetic=antithetic)
    assert not fused.sums_winners


@pytest.mark.parametrize("samples", [33, 40, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_share_blocks_for_what_is_left_of_their_samples(samples, threads):
    rng = np.random.default_rng(0)
    fused = FusedPass(GridPath(), (4, 5), "normal", samples)
    fused.inline = 0
    theta = -rng.uniform(0.5, 2, size=(9, 20)).astype(np.float32)
    temperature = rng.uniform(0.3, 1, 9).astype(np.float32)
    keys = rng.integers(-(2**31), 2**31, (9, 2), dtype=np.int32)
    goal = np.zeros_like(theta)
    before = parallel.get_num_threads()
    parallel.set_num_threads(threads)
    try:
        out = fused.forward(theta, temperature, keys, target=goal, clip=True)
    finally:
        parallel.set_num_threads(before)
    x = theta[:, None] + temperature[:, None, None] * fused.draws(keys)
    y = GridPath()(x.reshape(-1, 4, 5)).reshape(x.shape)
    np.testing.assert_array_equal(fused.solutions(out.samples), y)
    np.testing.assert_allclose(out.mean, y.mean(axis=1), rtol=1e-6)
    values = np.vecdot(y, np.minimum(x, 0))
    np.testing.assert_allclose(out.loss, values.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(out.lowest, values.min(axis=1), rtol=1e-5)
    slope = (y * (x < 0)).mean(axis=1)
    np.testing.assert_allclose(out.slope, slope, rtol=1e-6)
