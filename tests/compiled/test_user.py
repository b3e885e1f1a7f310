"""A user's own function: results, context, shapes, caching, and errors that help."""

import copy
import logging
import os
import pickle
import subprocess
import sys

import numba
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from softsolve.compiled.fused import FusedPass, leave_one_out
from softsolve.compiled.user import compiled
from softsolve.testing import check_solver


@compiled(solution="binary")
def no_neighbours(theta, y):
    """The best set of positions of which no two are next to each other."""
    d = theta.size
    best = np.zeros(d + 2, theta.dtype)
    for i in range(d - 1, -1, -1):
        best[i] = max(best[i + 1], theta[i] + best[i + 2])
    i = 0
    while i < d:
        if best[i] > best[i + 1]:
            y[i] = 1
            i += 1
        i += 1


@compiled(event_ndim=2)
def row_maxima(theta, context, y):
    """The sum of a row's largest score and its context, in the row's first column."""
    for i in range(theta.shape[0]):
        y[i, 0] = theta[i].max() + context[i]


@compiled(event_ndim=3, linear=False)
def mirror(theta, y):
    """The scores, first axis reversed."""
    y[:] = theta[::-1]


@compiled(linear=False)
def divides(theta, y):
    """Raise where the first score is not positive."""
    if not theta[0] > 0:
        raise ValueError("the first score must be positive")  # noqa: EM101
    y[0] = 1 / theta[0]


def best_set(theta):
    """The same by integer programming."""
    d = len(theta)
    pairs = np.eye(max(d - 1, 0), d) + np.eye(max(d - 1, 0), d, 1)
    constraints = [LinearConstraint(pairs, ub=1)] if d > 1 else []
    found = milp(
        -theta, integrality=np.ones(d), bounds=Bounds(0, 1), constraints=constraints
    )
    return -found.fun


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 9, 24])
def test_against_an_integer_program(size, dtype):
    rng = np.random.default_rng(size)
    theta = rng.normal(size=(12, size)).astype(dtype)
    theta[::3] = np.rint(theta[::3])
    y = no_neighbours(theta)
    assert y.dtype == dtype
    assert set(np.unique(y)) <= {0, 1}
    assert (y[:, 1:] * y[:, :-1] == 0).all()
    values = (y * theta).sum(1)
    np.testing.assert_allclose(values, [best_set(row) for row in theta], atol=1e-5)


def test_contract():
    rng = np.random.default_rng(0)
    check_solver(no_neighbours, rng.normal(size=(6, 11)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("samples", [1, 33, 200])
def test_fused(samples, dtype):
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(4, 15)).astype(dtype)
    keys = rng.integers(0, 99, (4, 2)).astype(np.int32)
    ones = np.ones(4, dtype)
    fused = FusedPass(no_neighbours, (15,), "normal", samples, dtype=dtype)
    out = fused.forward(theta, ones, keys)
    z = fused.draws(keys)
    expected = no_neighbours((theta[:, None] + z).reshape(-1, 15)).reshape(z.shape)
    np.testing.assert_array_equal(fused.solutions(out.samples), expected)
    if samples > 1:
        how = leave_one_out(samples)
        g = rng.normal(size=(4, 1, 15)).astype(dtype)
        gradient, _ = fused.vjp(out.samples, keys, ones, g, out.mean, *how)
        centred = (expected - expected.mean(1, keepdims=True)) * how.scale
        weights = (centred * g).sum(-1, keepdims=True)
        np.testing.assert_allclose(
            gradient[:, 0], (weights * z).mean(1), rtol=1e-4, atol=1e-5
        )


def test_context_and_matrices():
    theta = np.arange(12.0).reshape(2, 2, 3)
    context = np.array([[10.0, 20.0], [30.0, 40.0]])
    expected = np.zeros_like(theta)
    expected[..., 0] = [[12, 25], [38, 51]]
    np.testing.assert_array_equal(row_maxima(theta, context), expected)
    np.testing.assert_array_equal(row_maxima(theta[1], context[1]), expected[1])
    packed = row_maxima.pack_context(2, (2, 3), context)
    fused = FusedPass(row_maxima, (2, 3), "normal", 50, dtype=np.float64)
    keys = np.array([[1, 2], [3, 4]], np.int32)
    flat = theta.reshape(2, 6)
    out = fused.forward(flat, np.ones(2), keys, packed)
    x = (flat[:, None] + fused.draws(keys)).reshape(100, 2, 3)
    expected = row_maxima(x, context.repeat(50, axis=0)).reshape(2, 50, 6)
    np.testing.assert_allclose(out.mean, expected.mean(1))


def test_three_axes():
    theta = np.arange(24.0).reshape(1, 2, 3, 4)
    np.testing.assert_array_equal(mirror(theta), theta[:, ::-1])
    with pytest.raises(ValueError, match=r"3 axes; got shape \(3, 4\)"):
        mirror.check((3, 4), ())


def test_exceptions_of_the_function_arrive():
    np.testing.assert_array_equal(divides(np.array([[4.0]])), [[0.25]])
    fused = FusedPass(divides, (1,), "normal", 1000, dtype=np.float64)
    fused.inline = 0
    keys = np.zeros((3, 2), np.int32)
    with pytest.raises(ValueError, match="first score must be positive"):
        fused.forward(np.zeros((3, 1)), np.ones(3), keys)
    fused.forward(np.full((3, 1), 50.0), np.ones(3), keys)


def test_copies_and_pickles():
    theta = np.ones((1, 4))
    for again in (copy.deepcopy(no_neighbours), copy.copy(no_neighbours)):
        np.testing.assert_array_equal(again(theta), no_neighbours(theta))
    assert "no_neighbours" in repr(no_neighbours)
    assert "next to each other" in no_neighbours.__doc__


def test_pickle_by_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import softsolve.compiled.user as user\n"
        "@user.compiled\n"
        "def ones(theta, y):\n"
        "    y[:] = 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import mine

        again = pickle.loads(pickle.dumps(mine.ones))
        np.testing.assert_array_equal(again(np.zeros((1, 2))), [[1, 1]])
    finally:
        sys.path.remove(str(tmp_path))


@compiled
def unknown_attribute(theta, y):
    y[0] = theta.largest()


@compiled
def unknown_name(theta, y):
    y[0] = helper(theta)


@compiled
def imports(theta, y):
    import os

    y[0] = len(os.sep)


@compiled
def wrong_axes(theta, y):
    y[0, 0] = 1


@pytest.mark.parametrize(
    ("solver", "reason"),
    [
        (unknown_attribute, "Unknown attribute 'largest'"),
        (unknown_name, "name 'helper' is not defined"),
        (imports, "IMPORT_NAME"),
        (wrong_axes, "cannot compile wrong_axes for float64 scores with 1 axes"),
    ],
)
def test_what_does_not_compile_is_explained(solver, reason):
    with pytest.raises(TypeError, match=reason) as caught:
        solver(np.zeros((1, 2)))
    text = str(caught.value)
    assert f"cannot compile {solver.__name__} for float64" in text
    assert "test_user.py" in text
    assert "functions it calls need @numba.njit" in text
    assert len(text) < 700
    fused = FusedPass(solver, (2,), "normal", 3)
    ones, keys = np.ones(1, np.float32), np.zeros((1, 2), np.int32)
    with pytest.raises(TypeError, match=f"{solver.__name__} for float32"):
        fused.forward(np.zeros((1, 2), np.float32), ones, keys)


def test_bad_declarations():
    with pytest.raises(TypeError, match=r"\(theta, y\) or of \(theta, context, y\)"):
        compiled(lambda theta: theta)
    with pytest.raises(ValueError, match="event_ndim"):
        compiled(event_ndim=4)(lambda theta, y: None)
    with pytest.raises(ValueError, match="solution"):
        compiled(solution="bits")(lambda theta, y: None)
    with pytest.raises(TypeError, match=r"linear.*must be True or False; got 'yes'"):
        compiled(linear="yes")(lambda theta, y: None)
    with pytest.raises(TypeError, match="written in Python, with def; got 3"):
        compiled(3)
    with pytest.raises(TypeError, match="with def; got <built-in function len>"):
        compiled(len)


def test_a_jitted_function_is_taken_as_it_was():
    @numba.njit
    def first(theta, y):
        y[0] = theta[0]

    solver = compiled(linear=False)(first)
    np.testing.assert_array_equal(solver(np.ones((2, 3))), [[1, 0, 0]] * 2)


def test_bad_calls():
    with pytest.raises(TypeError, match="must be of a floating type; got int64"):
        no_neighbours(np.zeros((2, 3), dtype=int))
    with pytest.raises(ValueError, match="with 1 axes; got shape"):
        no_neighbours(np.zeros((2, 3, 4)))
    with pytest.raises(TypeError, match="takes theta alone; got 1 extra"):
        no_neighbours(np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(TypeError, match="takes one context array; got 0 extra"):
        row_maxima(np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match="one entry for each of the 2 rows"):
        row_maxima(np.zeros((2, 3, 4)), np.zeros((3, 3)))


def test_what_cannot_be_kept_is_announced(caplog):
    space = {}
    exec("def ones(theta, y):\n    y[:] = 1\n", space)
    with caplog.at_level(logging.WARNING, logger="softsolve"):
        np.testing.assert_array_equal(
            compiled(space["ones"])(np.zeros((1, 2))), [[1, 1]]
        )
    assert "cannot be kept on disk" in caplog.text


def test_a_second_process_does_not_compile(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "import numpy as np\n"
        "from softsolve.compiled.user import compiled\n"
        "@compiled\n"
        "def ones(theta, y):\n"
        "    y[:] = 1\n"
        "assert ones(np.zeros((1, 2))).sum() == 2\n"
    )
    told = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(run.stderr)
    assert "compiled ones for float64" in told[0]
    assert told[1] == ""
