"""Every bad input raises an error that says what is wrong, in every way of calling.

Ways are the frontends, eager and compiled. A table has each input with the error; where
code is compiled, its text arrives in an exception of the framework's. What is wrong
with the arguments is found before anything is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import softsolve.jax
import softsolve.numpy
import softsolve.torch
from softsolve import SolverError, solver
from softsolve.noise import Gumbel
from softsolve.solvers import (
    Assignment,
    FiniteSet,
    GraphPath,
    Knapsack,
    LinearProgram,
    OneHot,
    OptimalTransport,
    Ranking,
    TopK,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

ROWS, SIZE, SAMPLES = 3, 4, 3
THETA = np.random.default_rng(0).normal(size=(ROWS, SIZE)).astype(np.float32)
TARGET = Ranking()(THETA)


class NumpyWay:
    """Calls of the NumPy layer."""

    module = softsolve.numpy
    wrappers: tuple[type[Exception], ...] = ()

    def layer(self, made_of, **options):
        return self.module.Perturbed(made_of, **{"num_samples": SAMPLES} | options)

    def loss(self, made_of, **options):
        return self.module.FenchelYoungLoss(self.layer(made_of, **options))

    def call(self, function, theta, *arrays, temperature=None):
        rng = np.random.default_rng(0)
        self.state = rng.bit_generator.state
        try:
            function(theta, *arrays, rng=rng, temperature=temperature)
        finally:
            self.drawn = rng.bit_generator.state != self.state

    def native(self, function):
        """Return a solver of the framework's arrays."""
        return function


class TorchWay(NumpyWay):
    """Calls of the torch layer."""

    module = softsolve.torch

    def call(self, function, theta, *arrays, temperature=None):
        tensors = [torch.as_tensor(array) for array in (theta, *arrays)]
        if isinstance(temperature, np.ndarray):
            temperature = torch.as_tensor(temperature)
        state = torch.get_rng_state()
        try:
            self.run(lambda *given: function(*given, temperature=temperature), tensors)
        finally:
            self.drawn = not torch.equal(state, torch.get_rng_state())

    def run(self, function, tensors):
        return function(*tensors)


class CompiledTorchWay(TorchWay):
    """Calls of the torch layer under torch.compile, as one graph."""

    wrappers = (torch._dynamo.exc.TorchDynamoException,)

    def run(self, function, tensors):
        torch.compiler.reset()
        return torch.compile(function, fullgraph=True, backend="eager")(*tensors)


class JaxWay(NumpyWay):
    """Calls of the JAX layer; its host solvers are called back."""

    module = softsolve.jax
    wrappers = (jax.errors.JaxRuntimeError,)
    drawn = False  # keys have no state

    def call(self, function, theta, *arrays, temperature=None):
        def given(*arrays):
            return function(*arrays, key=jax.random.key(0), temperature=temperature)

        arrays = [jnp.asarray(array) for array in (theta, *arrays)]
        jax.block_until_ready(self.run(given, arrays))

    def run(self, function, arrays):
        return function(*arrays)


class CompiledJaxWay(JaxWay):
    """Calls of the JAX layer under jit."""

    def run(self, function, arrays):
        return jax.jit(function)(*arrays)


WAYS = {
    "numpy": NumpyWay(),
    "torch": TorchWay(),
    "torch.compile": CompiledTorchWay(),
    "jax": JaxWay(),
    "jax.jit": CompiledJaxWay(),
}
EAGER = ("numpy", "torch", "jax")


@dataclass(frozen=True)
class Bad:
    """A bad input: what is done, and the error that it must get.

    ``drawn`` where it takes draws to find out.
    """

    does: Callable[[NumpyWay], None]
    error: type[Exception]
    match: str
    ways: tuple[str, ...] = tuple(WAYS)
    drawn: bool = False


def with_entry(array, value):
    changed = np.array(array)
    changed[1, 2] = value
    return changed


def calls(
    made_of, *arrays, theta=THETA, temperature=None, method="__call__", **options
):
    """Call a method of a layer."""

    def do(way):
        layer = way.layer(made_of, **options)
        function = layer if method == "__call__" else getattr(layer, method)
        way.call(function, theta, *arrays, temperature=temperature)

    return do


def loses(made_of, target=TARGET, theta=THETA, **options):
    """Call the loss of a layer."""
    return lambda way: way.call(way.loss(made_of, **options), theta, target)


def makes(made_of, **options):
    """Make a layer."""
    return lambda way: way.layer(made_of, **options)


def returns(function, **options):
    """Call a layer whose solver is a function of NumPy arrays."""
    return calls(solver(function, **options))


# Scores, temperatures, targets.

NOT_FINITE = r"theta must be finite; row 1 has .*{}.* Look for a division by zero"
NOT_POSITIVE = (
    r"temperature must be positive and finite; got {} in row {}. A learned temperature "
    r"stays positive as exp or softplus"
)
MISSED = (
    r"missed the maximum: on a sample of row \d the target is better than its solution "
    r"by \d.* Fenchel-Young losses need an exact solver, and targets inside its polytop"
)
CASES = {}
for value in (np.nan, np.inf):
    for route in ("auto", "array"):
        ways = tuple(WAYS) if route == "auto" else (*EAGER, "jax.jit")
        for method in ("__call__", "maximum"):
            CASES[f"theta {value}, {method}, {route}"] = Bad(
                calls(
                    Ranking(),
                    theta=with_entry(THETA, value),
                    method=method,
                    route=route,
                ),
                ValueError,
                NOT_FINITE.format(value),
                ways,
            )
        CASES[f"theta {value}, loss, {route}"] = Bad(
            loses(Ranking(), theta=with_entry(THETA, value), route=route),
            ValueError,
            NOT_FINITE.format(value),
            ways,
        )
        CASES[f"target {value}, {route}"] = Bad(
            loses(Ranking(), with_entry(TARGET, value), route=route),
            ValueError,
            rf"y must be finite; row 1 has .*{value}",
            ways,
        )
for method in ("jacobian", "sample", "distribution"):
    CASES[f"theta nan, {method}"] = Bad(
        calls(Ranking(), theta=with_entry(THETA, np.nan), method=method),
        ValueError,
        NOT_FINITE.format("nan"),
        EAGER,
    )
for value, shown in ((0.0, "0"), (-1.0, "-1"), (np.nan, "nan"), (np.inf, "inf")):
    for route in ("auto", "array"):
        ways = tuple(WAYS) if route == "auto" else (*EAGER, "jax.jit")
        each = np.array([1, value, value], np.float32)
        CASES[f"temperature {value} of a row, {route}"] = Bad(
            calls(Ranking(), temperature=each, route=route),
            ValueError,
            NOT_POSITIVE.format(shown, 1),
            ways,
        )
    CASES[f"temperature {value}"] = Bad(
        calls(Ranking(), temperature=value), ValueError, NOT_POSITIVE.format(shown, 0)
    )
    CASES[f"temperature {value} of a layer"] = Bad(
        makes(Ranking(), temperature=value), ValueError, NOT_POSITIVE.format(shown, 0)
    )

ZERO = with_entry(THETA, 0)
TIMES = {"perturbation": "multiplicative"}
NOT_ZERO = (
    r"theta must not be zero anywhere under multiplicative perturbation, .*; row 1 has "
    r'.* Use perturbation="additive", or keep scores away from zero'
)
CASES |= {
    "a zero under multiplicative noise": Bad(
        calls(Ranking(), theta=ZERO, **TIMES), ValueError, NOT_ZERO
    ),
    "a zero under multiplicative noise, maximum": Bad(
        calls(Ranking(), theta=ZERO, method="maximum", **TIMES), ValueError, NOT_ZERO
    ),
    "a zero under multiplicative noise, loss": Bad(
        loses(Ranking(), theta=ZERO, **TIMES), ValueError, NOT_ZERO
    ),
    "a temperature that is zero in single precision": Bad(
        calls(Ranking(), temperature=1e-60), ValueError, NOT_POSITIVE.format("0", 0)
    ),
    "a temperature that is infinite in single precision": Bad(
        calls(Ranking(), temperature=1e60),
        ValueError,
        NOT_POSITIVE.format("inf", 0),
        ("numpy",),  # the others' own conversion raises or warns
    ),
    "temperature of another shape": Bad(
        calls(Ranking(), temperature=np.ones(2, np.float32)),
        ValueError,
        r"must broadcast over the batch of theta, of shape \(3,\); got shape \(2,\)",
    ),
    "temperature of words": Bad(
        calls(Ranking(), temperature="hot"),
        TypeError,
        "temperature must be a number or an array of them; got 'hot'",
        EAGER,
    ),
    "whole numbers as theta": Bad(
        calls(Ranking(), theta=np.ones((ROWS, SIZE), np.int64)),
        TypeError,
        r"theta must be of a floating type, to have derivatives; got \S*int\d\d\. "
        r"Convert it first, e\.g\. theta\.float\(\)",
    ),
    "complex theta": Bad(
        calls(Ranking(), theta=np.ones((ROWS, SIZE), np.complex64)),
        TypeError,
        r"theta must be of a floating type, to have derivatives; got \S*complex",
    ),
    "theta without axes": Bad(
        calls(Ranking(), theta=np.float32(1)),
        ValueError,
        r"theta must have at least 1 axes for Ranking\(\) .* got shape \(\)",
    ),
    "theta of too few axes": Bad(
        calls(Assignment(), theta=THETA[0]),
        ValueError,
        r"at least 2 axes for Assignment\(.* \(the last 2 are one .* got shape \(4,\)",
    ),
    "theta of another length than the reference": Bad(
        calls(Ranking([1, 2, 3])),
        ValueError,
        r"Ranking\(\[1.0, 2.0, 3.0\]\) needs 3 scores in each row; got 4\. Pass a ref",
    ),
    "theta of another length than the points": Bad(
        calls(FiniteSet(np.eye(3))), ValueError, "needs 3 scores in each row, .* got 4"
    ),
    "theta of another length than the weights": Bad(
        calls(Knapsack([1, 2, 3], 4)), ValueError, r"Knapsack\(.*3.*4"
    ),
    "theta of fewer scores than k": Bad(
        calls(TopK(5)), ValueError, r"TopK\(5\) needs at least 5 scores .* got 4"
    ),
    "theta without scores": Bad(
        calls(OneHot(), theta=THETA[:, :0]),
        ValueError,
        r"OneHot\(\) needs at least one score in each row; got shape \(…, 0\)",
    ),
    "target of fewer rows": Bad(
        loses(Ranking(), TARGET[:2]),
        ValueError,
        r"y must be solutions for theta, of its shape \(3, 4\); got \(2, 4\)",
    ),
    "target of class indices": Bad(
        loses(OneHot(), np.array([0, 1, 2])),
        ValueError,
        r"of its shape \(3, 4\); got \(3,\). Class indices must be made one-hot",
    ),
    "target outside of the polytope": Bad(
        loses(Ranking(), 100 * THETA), SolverError, MISSED, drawn=True
    ),
    "context for a solver that takes none": Bad(
        calls(Ranking(), THETA),
        TypeError,
        r"Ranking\(\) takes no context, but got 1 extra .* Call the layer with the",
    ),
    "context of fewer rows": Bad(
        calls(solver(lambda theta, mask: theta * mask), THETA[:2]),
        ValueError,
        r"context argument 1 must have one entry for each instance: its first axes must"
        r" be the batch shape \(3,\) \(or 1 to share\); got shape \(2, 4\)",
    ),
    "context that is missing": Bad(
        calls(GraphPath(3, [[0, 1], [1, 2], [0, 2], [2, 0]])),
        TypeError,
        "GraphPath.* endpoints",
    ),
}

# Settings.

CASES |= {
    "unknown noise": Bad(
        makes(Ranking(), noise="gauss"),
        ValueError,
        r"noise= must be one of .*laplace.* got 'gauss'. softsolve.noise.CustomN",
    ),
    "the class of a noise": Bad(
        makes(Ranking(), noise=Gumbel), ValueError, "noise= must be one of .*got <class"
    ),
    "unknown baseline": Bad(
        makes(Ranking(), baseline="mean"), ValueError, "baseline= must be one of .*mean"
    ),
    "unknown route": Bad(
        makes(Ranking(), route="gpu"), ValueError, "route= must be one of .* got 'gpu'"
    ),
    "unknown perturbation": Bad(
        makes(Ranking(), perturbation="times"), ValueError, "perturbation= must be"
    ),
    "unknown reduction": Bad(
        lambda way: way.module.FenchelYoungLoss(way.layer(Ranking()), reduction="avg"),
        ValueError,
        'reduction= must be one of "none", "mean", "sum"; got \'avg\'',
    ),
    "no samples": Bad(
        makes(Ranking(), num_samples=0), ValueError, "must be at least 1; got 0"
    ),
    "half a sample": Bad(
        makes(Ranking(), num_samples=2.5), TypeError, "a whole number ≥ 1; got 2.5"
    ),
    "leave-one-out of one": Bad(
        makes(Ranking(), num_samples=1, baseline="leave_one_out"),
        ValueError,
        'needs num_samples ≥ 2; got 1. Use baseline="point"',
    ),
    "the class of a solver": Bad(
        makes(Ranking), TypeError, r"got the class Ranking. Make one: Ranking\(...\)"
    ),
    "no solver": Bad(makes(3), TypeError, "needs a function of scores; got 3"),
    "a route that there is not": Bad(
        calls(solver(lambda theta: theta), route="fused"),
        ValueError,
        'route="fused" is not possible: .* has no compiled kernel. Use route="auto"',
    ),
    "the loss of a solver that is not linear": Bad(
        loses(solver(lambda theta: theta)),
        TypeError,
        r"FenchelYoungLoss needs a linear solver, .* If it is, say so: softsolve.",
    ),
    "the maximum of a solver that is not linear": Bad(
        calls(solver(lambda theta: theta), method="maximum"),
        TypeError,
        r"maximum needs a linear solver, one that maximises .* is not declared as one",
    ),
    "the loss of a bare solver": Bad(
        lambda way: way.module.FenchelYoungLoss(Ranking()),
        TypeError,
        r"must be a softsolve.\w+.Perturbed; got Ranking. Wrap the solver in Perturbed",
    ),
}

# Solvers that do not keep the contract, of NumPy arrays and of the framework's own.

ONE_FOR_EACH = (
    r"must return one solution for each of the 9 rows of scores it is given, shape "
    r"\(9, …\); it returned shape {}. A function of one instance is made into a solver "
)


def misses(theta):
    """Return the best of the first two: a heuristic."""
    return OneHot()(np.where(np.arange(SIZE) < 2, theta, -100).astype(theta.dtype))


CASES |= {
    "solutions of another shape": Bad(
        returns(lambda theta: theta[:, :2], linear=True),
        ValueError,
        r"is linear, so its solutions must have the shape of the scores, \(4,\); it ret"
        r"urned \(2,\) in each row",
        drawn=True,
    ),
    "solutions of an undeclared shape": Bad(
        returns(lambda theta: theta[:, :2]),
        ValueError,
        r"returned solutions of shape \(2,\), not \(4,\). Tell .*out_shape=\(2,\)",
        ("torch.compile", "jax", "jax.jit"),
        drawn=True,
    ),
    "one array for all rows": Bad(
        returns(lambda theta: np.eye(SIZE)[0]),
        ValueError,
        ONE_FOR_EACH.format(r"\(4,\)"),
        drawn=True,
    ),
    "the solution of the first row": Bad(
        returns(lambda theta: theta[:1]),
        ValueError,
        ONE_FOR_EACH.format(r"\(1, 4\)"),
        drawn=True,
    ),
    "solutions of NaN": Bad(
        returns(lambda theta: np.where(np.arange(len(theta)) == 4, np.nan, theta.T).T),
        SolverError,
        r"must return finite solutions; its solution of row 4 \(samples included\) has "
        r"NaN or an infinity. softsolve.testing.check_solver finds out",
        drawn=True,
    ),
    "no solutions at all": Bad(
        returns(lambda theta: None),
        TypeError,
        "must return an array of booleans, integers or real numbers, .* it returned "
        "NoneType of type object",
        drawn=True,
    ),
    "solutions of text": Bad(
        returns(lambda theta: theta.astype(str)),
        TypeError,
        "must return an array of booleans, integers or real numbers",
        drawn=True,
    ),
    "complex solutions": Bad(
        returns(lambda theta: theta * 1j),
        TypeError,
        "integers or real numbers, .* it returned an array of type complex",
        drawn=True,
    ),
    "rows of several lengths": Bad(
        returns(lambda theta: [[1.0] * (1 + row) for row in range(len(theta))]),
        TypeError,
        "integers or real numbers, .* it returned list with rows of several lengths",
        drawn=True,
    ),
    "an instance that is not solved": Bad(
        returns(lambda theta: theta[9], batched=False),
        SolverError,
        r"failed on row 0 of the 9 it was given \(a layer gives one for each sample\): "
        r"IndexError",
        drawn=True,
    ),
    "a native function of one instance": Bad(
        calls(lambda theta: theta[0]),
        ValueError,
        ONE_FOR_EACH.format(r"\(4,\)"),
        drawn=True,
    ),
    "a native function of NaN": Bad(
        calls(lambda theta: theta * float("nan")),
        SolverError,
        r"must return finite solutions; its solution of row 0 \(samples included\)",
        drawn=True,
    ),
    "a native function of NumPy arrays": Bad(
        calls(lambda theta: np.sort(np.asarray(theta))),
        TypeError,
        r"<lambda> (must return a \S+ of|is not a function that JAX can trace).* Functi"
        r"ons of NumPy arrays.* made into solvers by softsolve.solver",
        ("torch", "jax", "jax.jit"),
        drawn=True,
    ),
    "a native function of nothing": Bad(
        calls(lambda theta: None),
        TypeError,
        "<lambda> must return an? .* booleans, integers or real numbers.*NoneType",
        drawn=True,
    ),
    "a heuristic that misses the maximum": Bad(
        loses(
            solver(misses, linear=True),
            np.eye(SIZE, dtype=np.float32)[[0, 2, 1]],
            THETA + np.array([0, 0, 9, 0], np.float32),
        ),
        SolverError,
        MISSED,
        drawn=True,
    ),
}

# Instances without a solution.

TWO_PARTS = GraphPath(4, [[0, 1], [1, 0], [2, 3], [3, 2]])
CASES |= {
    "an instance without a path": Bad(
        calls(TWO_PARTS, np.array([[0, 1], [0, 2], [0, 1]])),
        SolverError,
        r"GraphPath.* failed on 1 of the 3 rows it was given, first row 1: no path join"
        r"s the start to the end. Check the endpoints",
        (*EAGER, "jax.jit"),
        drawn=True,
    ),
    "an instance without a path, on the host": Bad(
        calls(TWO_PARTS, np.array([[0, 1], [0, 2], [0, 1]]), route="host"),
        SolverError,
        r"failed on 3 of the 9 rows it was given \(a layer gives one for each sample\)"
        r", first row 3: no path joins",
        drawn=True,
    ),
    "endpoints that are not there": Bad(
        calls(TWO_PARTS, np.array([[0, 1], [0, 9], [0, 1]])),
        ValueError,
        r"GraphPath.*row 1",
        (*EAGER, "jax.jit"),
    ),
    "an unbounded program": Bad(
        calls(LinearProgram([[1, -1, 0, 0]], row_upper=[1])),
        SolverError,
        r"LinearProgram.* failed on \d of the 9 rows it was given \(a layer gives one "
        r"for each sample\), first row \d: the score grows without bound. Bound every",
        drawn=True,
    ),
    "a program without points": Bad(
        calls(LinearProgram([[1, 1, 1, 1]], row_upper=[-1], upper=1)),
        SolverError,
        r"first row 0: no point satisfies the constraints",
        drawn=True,
    ),
}

# Solvers are made of what holds for every instance.
MADE = {
    "a transport of unequal masses": (
        lambda: OptimalTransport([1, 2], [1, 1]),
        "OptimalTransport",
    ),
    "a knapsack of negative weights": (lambda: Knapsack([1, -2], 3), "Knapsack"),
    "edges between no vertices": (lambda: GraphPath(2, [[0, 5]]), "GraphPath"),
    "points that are not finite": (
        lambda: FiniteSet([[0, 1], [np.nan, 0]]),
        r"FiniteSet\(vertices\) needs finite points; got .* in row 1",
    ),
    "a reference that is not finite": (
        lambda: Ranking([1, np.inf]),
        r"Ranking\(reference\) needs a vector of finite numbers",
    ),
}

TABLE = [
    pytest.param(way, bad, id=f"{name}-{way}")
    for name, bad in CASES.items()
    for way in bad.ways
]


@pytest.mark.parametrize(("way", "bad"), TABLE)
def test_bad_input(way, bad):
    way = WAYS[way]
    torch.manual_seed(0)
    way.drawn = False
    with pytest.raises((bad.error, *way.wrappers), match=f"(?s){bad.match}"):
        bad.does(way)
    assert bad.drawn or not way.drawn


@pytest.mark.parametrize(("make", "match"), MADE.values(), ids=MADE)
def test_solvers_that_cannot_be(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize("way", WAYS)
def test_good_input_raises_nothing(way):
    """The ways of calling do call, and notice what is drawn."""
    way = WAYS[way]
    calls(Ranking(), route="array")(way)
    calls(Ranking(), method="maximum")(way)
    loses(Ranking())(way)
    calls(solver(lambda theta: theta))(way)
    assert way.drawn or isinstance(way, JaxWay)
