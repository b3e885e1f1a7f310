"""Every clause of the contract, with a solver that breaks it."""

import itertools
import re
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from softsolve import SolverError, solver
from softsolve.solvers import FiniteSet, Hypercube, L1Ball, OneHot, Ranking, TopK
from softsolve.solvers.assignment import Assignment
from softsolve.solvers.graph import GraphPath
from softsolve.solvers.grid import GridPath
from softsolve.solvers.knapsack import Knapsack
from softsolve.solvers.salesman import Salesman
from softsolve.testing import ContractError, Report, check_solver

linear = partial(solver, linear=True)
one_by_one = partial(solver, batched=False, linear=True)


def scores(rows=8, *event, dtype=np.float64, seed=0):
    event = event or (5,)
    return np.random.default_rng(seed).normal(size=(rows, *event)).astype(dtype)


def argmax(theta):
    return np.eye(theta.shape[1])[theta.argmax(axis=1)]


def best_pair(theta):
    """Return the best of all pairs by trying them, the first of equals."""
    pairs = np.array(list(itertools.combinations(range(len(theta)), 2)))
    y = np.zeros_like(theta)
    y[pairs[theta[pairs].sum(axis=1).argmax()]] = 1
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("good", "event"),
    [
        (OneHot(), (5,)),
        (OneHot(), (1,)),
        (TopK(2), (5,)),
        (TopK(5), (5,)),
        (Ranking(), (6,)),
        (Ranking([0, 0, 1, 1]), (4,)),
        (Hypercube(), (3,)),
        (L1Ball(2.0), (4,)),
        (FiniteSet([[0, 1], [1, 0], [0, 0], [2, 2]]), (2,)),
        (Assignment(), (3, 4)),
        (GridPath(), (4, 5)),
        (GraphPath(4, [[0, 1], [0, 2], [1, 3], [2, 3]], source=0, target=3), (4,)),
        (Knapsack([1, 2, 3, 4], 5), (4,)),
        (one_by_one(best_pair), (4,)),
        (linear(argmax), (5,)),
        (solver(lambda theta: np.sort(theta, axis=1)), (5,)),
    ],
    ids=repr,
)
def test_good_solvers_pass(good, event, dtype):
    for rows in (1, 7):
        report = check_solver(good, scores(rows, *event, dtype=dtype))
        assert isinstance(report, Report)
        assert len(report.checked) >= 5


def test_report_names_what_was_checked_and_what_was_not():
    report = check_solver(argmax, scores())
    text = str(report)
    assert text.startswith("argmax keeps the contract on 8 row(s).")
    assert "checked: each row solved by itself" in text
    assert "not checked: feasibility (pass feasible=)" in text
    assert "not checked: that it maximises ⟨y, θ⟩ (declare it" in text


def test_heuristics_need_not_find_the_maximum():
    report = check_solver(Salesman(), scores(4, 8, 8))
    assert any("heuristic" in text for text in report.skipped)
    assert any("feasible" in text for text in report.checked)


def test_refused_scores_are_listed():
    report = check_solver(GridPath(negative="raise"), -1 - np.abs(scores(4, 3, 3)))
    assert any(text.startswith("negated scores") for text in report.skipped)


def test_torch_and_jax_functions_are_checked_in_their_framework():
    def in_torch(theta):
        assert isinstance(theta, torch.Tensor)
        return torch.nn.functional.one_hot(theta.argmax(dim=1), theta.shape[1])

    def in_jax(theta):
        return jnp.eye(theta.shape[1])[theta.argmax(axis=1)]

    native = partial(solver, native=True, linear=True)
    for function, theta in (
        (in_torch, torch.as_tensor(scores())),
        (in_jax, jnp.asarray(scores(dtype=np.float32))),
    ):
        report = check_solver(native(function), theta)
        assert any("maximiser" in text for text in report.checked)
        with pytest.raises(ContractError, match="minimises"):
            check_solver(native(lambda x, f=function: f(-x)), theta)


def test_native_functions_must_stay_in_their_framework():
    theta = torch.as_tensor(scores())
    with pytest.raises(ContractError, match=r"returned a numpy\.ndarray for scores of"):
        check_solver(lambda x: argmax(x.numpy()), theta)
    with pytest.raises(ContractError, match=r"returned a builtins\.list"):
        check_solver(lambda x: argmax(x).tolist(), scores())


# One broken solver a clause.


def test_one_array_for_all_rows():
    message = r"returned shape \(5,\) for 8 row\(s\).*batched=False"
    with pytest.raises(ContractError, match=message):
        check_solver(lambda theta: np.eye(5)[0], scores())


def test_linear_solvers_keep_the_shape():
    with pytest.raises(ContractError, match=r"returned shape \(8, 1\) for scores of"):
        check_solver(linear(lambda theta: theta.argmax(1)[:, None]), scores())


def test_declared_output_shape():
    wrong = solver(lambda theta: theta[:, :2], out_shape=(3,))
    with pytest.raises(ContractError, match=r"Declare out_shape=\(2,\)"):
        check_solver(wrong, scores())


@pytest.mark.parametrize("bad", [1j, "text", None])
def test_numeric_type(bad):
    def broken(theta):
        return np.full(theta.shape, bad)

    with pytest.raises(ContractError, match="returned an array of type"):
        check_solver(broken, scores())


def test_finite():
    def broken(theta):
        return np.where(np.arange(len(theta))[:, None] == 3, np.nan, argmax(theta))

    with pytest.raises(ContractError, match="NaN or an infinity in row 3"):
        check_solver(broken, scores())


def test_scores_in_place():
    def broken(theta):
        theta -= theta.max(axis=1, keepdims=True)
        return (theta == 0).astype(float)

    with pytest.raises(ContractError, match="changed theta in place"):
        check_solver(broken, scores())


def test_context_in_place():
    def broken(theta, mask):
        mask[:] = True
        return argmax(theta)

    masks = np.zeros((8, 5), dtype=bool)
    with pytest.raises(ContractError, match="changed context argument 0 in place"):
        check_solver(broken, scores(), masks)


def test_read_only_arrays():
    def broken(theta):
        theta += 0.0
        return argmax(theta)

    with pytest.raises(ContractError, match="raised ValueError on read-only arrays"):
        check_solver(broken, scores())


def test_deterministic():
    rng = np.random.default_rng(0)

    def broken(theta):
        return argmax(theta + rng.normal(size=theta.shape))

    with pytest.raises(ContractError, match="is not deterministic: solved twice, row"):
        check_solver(broken, scores())


def test_state_between_calls():
    calls = itertools.count()

    def broken(theta):
        return argmax(theta) * (next(calls) + 1)

    with pytest.raises(ContractError, match="is not deterministic"):
        check_solver(broken, scores())


def test_buffer_used_again():
    buffer = np.zeros((8, 5))

    def broken(theta):
        if len(theta) != 8:
            return np.sort(theta, axis=1)
        buffer[:] = np.sort(theta, axis=1)
        return buffer

    with pytest.raises(ContractError, match="wrote over a solution"):
        check_solver(broken, scores())


@pytest.mark.parametrize(
    "broken",
    [
        lambda theta: argmax(theta - theta.mean(axis=0)),
        lambda theta: argmax(theta) * np.arange(len(theta))[:, None],
        lambda theta: np.sort(theta, axis=0),
        lambda theta: np.broadcast_to(argmax(theta)[0], theta.shape),
    ],
    ids=["centred", "by position", "wrong axis", "first row for all"],
)
def test_row_wise(broken):
    with pytest.raises(ContractError, match=r"is not row-wise: row \d of theta"):
        check_solver(broken, scores())


def test_row_wise_for_a_single_row_of_larger_batches():
    def broken(theta):
        return argmax(theta) if len(theta) > 1 else np.zeros_like(theta)

    with pytest.raises(ContractError, match=r"row 0 of theta .* solved by itself"):
        check_solver(broken, scores())


def test_context_goes_with_its_row():
    masks = np.random.default_rng(1).random((8, 5)) < 0.5

    def masked(theta, mask):
        return argmax(np.where(mask, theta, -1e9))

    def broken(theta, mask):
        return masked(theta, np.broadcast_to(mask[0], mask.shape))

    check_solver(linear(masked), scores(), masks)
    with pytest.raises(ContractError, match="is not row-wise"):
        check_solver(linear(broken), scores(), masks)


def test_other_numbers_of_rows():
    def broken(theta):
        return argmax(theta.reshape(8, 5))

    message = "raised ValueError on row 0 by itself, though not on theta itself"
    with pytest.raises(ContractError, match=message):
        check_solver(broken, scores())


def test_ties_are_broken_by_a_rule():
    calls = itertools.count()

    def broken(theta):
        if (theta == 0).all():
            return np.roll(argmax(theta), next(calls), axis=1)
        return argmax(theta)

    with pytest.raises(ContractError, match="breaks ties in more than one way: row"):
        check_solver(broken, scores())


def test_ties_must_be_feasible():
    def broken(theta):  # takes more than two where scores tie
        return (theta >= np.sort(theta, axis=1)[:, -2:-1]).astype(float)

    def two(y):
        return y.sum(axis=1) == 2

    with pytest.raises(ContractError, match=r"not feasible: .* for row 0 of equal"):
        check_solver(solver(broken), scores(), feasible=two)


def test_declared_feasibility_is_used():
    class Broken(TopK):
        def __call__(self, theta):
            return super().__call__(theta) * 2

    with pytest.raises(ContractError, match=r"TopK\(2\) returned a solution that is "):
        check_solver(Broken(2), scores())


def test_feasibility_must_answer_for_each_row():
    with pytest.raises(ValueError, match="one boolean for each of the 8 rows"):
        check_solver(argmax, scores(), feasible=lambda y: True)


@pytest.mark.parametrize("rows", [1, 8])
def test_minimisers(rows):
    message = r"minimises ⟨y, θ⟩: on row \d.*theta = -costs"
    with pytest.raises(ContractError, match=message):
        check_solver(linear(lambda theta: argmax(-theta)), scores(rows))


@pytest.mark.parametrize(
    "broken",
    [
        lambda theta: np.round(argmax(theta) * theta),
        lambda theta: np.eye(5)[np.abs(theta).argmax(axis=1)],
        lambda theta: np.eye(5)[theta[:, :4].argmax(axis=1) + (theta[:, 4] > 2)],
    ],
    ids=["no fixed set", "largest absolute value", "sloppy"],
)
def test_maximisers_of_something_else(broken):
    with pytest.raises(ContractError, match=r"misses the maximum on row \d of"):
        check_solver(linear(broken), scores())


def test_wrong_directions():
    class Broken(FiniteSet):
        def project(self, x):
            return x * np.array([1.0, 0.0])

    with pytest.raises(ContractError, match="declares directions that its solutions"):
        check_solver(Broken([[0, 1], [1, 0], [0, 0]]), scores(8, 2))


def test_errors_of_the_solver_come_through_with_a_note():
    def broken(theta):
        msg = "no such file"
        raise OSError(msg)

    with pytest.raises(OSError, match="no such file") as caught:
        check_solver(broken, scores())
    assert "batched=False" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="missing 1 required") as caught:
        check_solver(solver(lambda theta, mask: theta), scores())
    assert "and 0 context argument(s)" in caught.value.__notes__[0]


def test_a_function_of_batches_that_gets_instances():
    def broken(theta):
        return np.eye(theta.shape[1])[theta.argmax(axis=1)]

    with pytest.raises(SolverError, match="IndexError") as caught:
        check_solver(one_by_one(broken), scores())
    assert "declared to take one instance at a time" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "broken",
    [
        lambda theta: None,
        lambda theta: (argmax(theta), 1.0),
        lambda theta: np.full(theta.shape, None),
        lambda theta: theta * 1j,
    ],
    ids=["nothing", "a value as well", "objects", "complex"],
)
def test_wrapped_functions_return_numbers(broken):
    with pytest.raises(TypeError, match="must return an array of booleans, integers"):
        check_solver(solver(broken), scores())


def test_lists_are_arrays_where_functions_are_wrapped():
    for made in (
        linear(lambda theta: argmax(theta).tolist()),
        one_by_one(lambda theta: argmax(theta[None])[0].tolist()),
    ):
        check_solver(made, scores())


def test_failing_on_some_scores_is_no_refusal():
    def broken(theta):
        if (theta == 0).all():
            msg = "all equal"
            raise IndexError(msg)
        return argmax(theta)

    def refusing(theta):
        if (theta == 0).all():
            msg = "all equal"
            raise SolverError(msg)
        return argmax(theta)

    with pytest.raises(ContractError, match="raised IndexError on equal scores"):
        check_solver(broken, scores())
    assert "equal scores" in check_solver(refusing, scores()).skipped[0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((OneHot, scores()), TypeError, "needs a function of scores"),
        ((argmax, np.ones((2, 3), dtype=int)), TypeError, "floating type; got int"),
        ((argmax, scores()[0]), ValueError, r"A single instance is theta\[None\]"),
        ((argmax, scores(4, 3, 3)), ValueError, r"solver\(function, event_ndim"),
        ((argmax, np.full((3, 2), np.nan)), ValueError, "finite; got .* in row 0"),
        ((argmax, scores(), np.zeros(3)), ValueError, "argument 0 must have one row"),
        ((linear(argmax), torch.zeros(2, 3)), TypeError, "takes NumPy arrays"),
        ((TopK(9), scores()), ValueError, re.escape("TopK(9) needs at least 9")),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        check_solver(*arguments)


def test_errors_of_wrapped_functions_are_no_refusals():
    def broken(theta):
        return np.array([1.0, 2.0])[int(10 * (theta == 0).all())] * theta

    def refusing(theta):
        if (theta == 0).all():
            msg = "all equal"
            raise SolverError(msg)
        return theta

    with pytest.raises(ContractError, match="on equal scores, though not on theta"):
        check_solver(solver(broken, batched=False), scores())
    report = check_solver(solver(refusing, batched=False), scores())
    assert "equal scores, which it refuses" in report.skipped[0]


def test_failed_solves_may_be_dropped_if_declared():
    def failing_one(theta):
        return np.full(5, np.nan) if theta[0] > 1 else argmax(theta[None])[0]

    dropping = solver(failing_one, batched=False, linear=True, on_failure="drop")
    with pytest.warns(RuntimeWarning):
        report = check_solver(dropping, scores(), feasible=lambda y: y.sum(1) == 1)
    assert "feasible solutions" in report.checked
    with pytest.raises(ContractError, match="returned NaN or an infinity in row"):
        check_solver(lambda x: np.stack(list(map(failing_one, x))), scores())


def test_contracts_are_assertions():
    assert issubclass(ContractError, AssertionError)
