"""The fused route in JAX, against the estimators on the draws that it exports."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softsolve as ss
from softsolve import estimators
from softsolve.estimators import Samples
from softsolve.fused_products import FusedCall
from softsolve.jax import FenchelYoungLoss, Perturbed, fused
from softsolve.products import ArrayProducts

SAMPLES = 12
KEY = jax.random.key(3)
CASES = {
    "one-hot": (ss.solvers.OneHot(), (4, 3), "float32", {}),
    "ranking": (ss.solvers.Ranking(), (4, 3), "float64", {"baseline": "none"}),
    "assignment": (ss.solvers.Assignment(), (2, 2, 2), "float64", {}),
    "top-k": (ss.solvers.TopK(2), (4, 3), "float64", {"baseline": "point"}),
    "symmetric": (ss.solvers.OneHot(), (4, 3), "float64", {"symmetric": True}),
}
NOISES = {
    "one-hot": "normal",
    "ranking": "gumbel",
    "assignment": "logistic",
    "top-k": "normal",
    "symmetric": "gumbel",
}


class Case:
    """A layer on the fused route, and what it must come to."""

    def __init__(self, name, **options):
        self.solver, self.shape, dtype, given = CASES[name]
        self.dtype = np.dtype(dtype)
        self.layer = Perturbed(
            self.solver,
            num_samples=SAMPLES,
            noise=NOISES[name],
            **{"route": "fused"} | given | options,
        )
        rng = np.random.default_rng(0)
        self.theta, self.g, self.v = rng.normal(size=(3, *self.shape)).astype(dtype)
        self.eps = rng.uniform(0.5, 1.0, self.shape[0]).astype(dtype)
        self.drift = rng.normal(size=self.shape[0]).astype(dtype)
        self.rows = self.shape[0]
        self.size = self.theta[0].size
        self.tolerance = 2e-4 if dtype == "float32" else 1e-11

    def __call__(self, theta, eps, key=KEY):
        return self.layer(theta, key=key, temperature=eps)

    def product(self, theta, eps):
        """Return ⟨y_ε(θ), g⟩ for each row."""
        y = self(theta, eps)
        return (y * self.g).reshape(self.rows, -1).sum(1)

    def noise(self, key=KEY):
        keys = np.array(fused.draw_keys(key, self.rows)).view(np.int32)
        call = FusedCall(self.layer.settings, self.shape[1:])
        return call.work(self.dtype).draws(keys)

    def solve(self, x):
        flat = np.asarray(self.solver(x.reshape(-1, *self.shape[1:])))
        return flat.reshape(x.shape).astype(self.dtype)

    def products(self, theta=None, key=KEY):
        theta = self.theta if theta is None else theta
        tau = theta.reshape(self.rows, -1)
        z = self.noise(key)
        x = tau[:, None] + self.eps[:, None, None] * z
        settings = self.layer.settings
        at_point = self.solve(tau[:, None])[:, 0]
        samples = Samples(self.solve(x), settings.baseline, at_point)
        point = (tau, self.eps)
        return ArrayProducts(settings, self.shape[1:], point, z, samples)

    def flat(self, array):
        return np.asarray(array).reshape(self.rows, -1)

    def check(self, got, wanted):
        got = np.asarray(got)
        assert got.dtype == self.dtype
        wanted = np.asarray(wanted).reshape(got.shape)
        assert np.abs(wanted).max() > 0
        error = np.abs(got - wanted).max()
        assert error <= self.tolerance * (1 + np.abs(wanted).max())

    def point_jacobian(self):
        """Return the Jacobian in (θ, ε), (B, k, d + 1)."""
        products = self.products()
        still = np.zeros((self.rows, self.size, 1), self.dtype)
        last = products.push((still, np.ones_like(self.eps)[:, None]))
        return np.concatenate([products.jacobian(), last], axis=2)

    def point_hessian(self):
        """Return the Hessian of ⟨y_ε(θ), g⟩ in (θ, ε), (B, d + 1, d + 1)."""
        count = self.size + 1
        columns = np.broadcast_to(np.eye(count), (self.rows, count, count))
        columns = columns.astype(self.dtype)
        g = np.repeat(self.flat(self.g)[..., None], count, axis=2)
        direction = (columns[:, :-1], columns[:, -1])
        in_tau, in_eps = self.products().hvp(g, direction)
        return np.concatenate([in_tau, in_eps[:, None]], axis=1)


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=CASES)
def case(request):
    return Case(request.param)


def test_the_draws_are_those_of_the_key():
    case = Case("one-hot")
    assert np.array_equal(case.noise(), case.noise())
    assert not np.array_equal(case.noise(), case.noise(jax.random.key(4)))


def test_value(case):
    wanted = case.products().mean()
    case.check(case(case.theta, case.eps), wanted)
    case.check(jax.jit(case)(case.theta, case.eps), wanted)


def test_vjp(case):
    def pulled(theta, eps, g):
        return jax.vjp(case, theta, eps)[1](g)

    wanted = case.products().pull(case.flat(case.g)[..., None])
    for function in (pulled, jax.jit(pulled)):
        got = function(case.theta, case.eps, case.g)
        for part, its in zip(got, wanted, strict=True):
            case.check(part, its)


def test_jvp(case):
    def pushed(theta, eps, v, drift):
        return jax.jvp(case, (theta, eps), (v, drift))[1]

    direction = (case.flat(case.v)[..., None], case.drift[:, None])
    wanted = case.products().push(direction)
    for function in (pushed, jax.jit(pushed)):
        case.check(function(case.theta, case.eps, case.v, case.drift), wanted)


def stacked_jacobian(case, transform):
    """Return the Jacobian in (θ, ε), (B, k, d + 1), from one of all rows."""

    def flat(point):
        theta, eps = point[:, :-1], point[:, -1]
        return case(theta.reshape(case.shape), eps).reshape(case.rows, -1)

    point = np.concatenate([case.flat(case.theta), case.eps[:, None]], axis=1)
    full = np.asarray(jax.jit(transform(flat))(point))
    rows = np.arange(case.rows)
    others = full.copy()
    others[rows, :, rows] = 0
    assert not others.any()
    return full[rows, :, rows]


@pytest.mark.parametrize("transform", [jax.jacrev, jax.jacfwd])
@pytest.mark.parametrize("name", ["one-hot", "ranking", "assignment", "top-k"])
def test_jacobian_of_all_rows(name, transform):
    case = Case(name)
    case.check(stacked_jacobian(case, transform), case.point_jacobian())


def test_the_jacobian_method(case):
    got = case.layer.jacobian(case.theta, key=KEY, temperature=case.eps)
    case.check(got, case.products().jacobian())


def test_linearize():
    case = Case("ranking")
    _, push = jax.linearize(case, case.theta, case.eps)
    wanted = case.products().push((case.v[..., None], case.drift[:, None]))
    case.check(push(case.v, case.drift), wanted)
    (pulled, _) = jax.linear_transpose(push, case.theta, case.eps)(case.g)
    case.check(pulled, case.products().pull(case.g[..., None])[0])


SECOND = {
    "forward over reverse": (jax.jacfwd, jax.jacrev),
    "reverse over reverse": (jax.jacrev, jax.jacrev),
    "forward over forward": (jax.jacfwd, jax.jacfwd),
    "reverse over forward": (jax.jacrev, jax.jacfwd),
}


@pytest.mark.parametrize("order", SECOND)
@pytest.mark.parametrize("name", ["one-hot", "ranking", "top-k"])
def test_second_derivatives(name, order):
    case = Case(name)
    outer, inner = SECOND[order]

    def total(point):
        theta = point[:, :-1].reshape(case.shape)
        return case.product(theta, point[:, -1]).sum()

    point = np.concatenate([case.flat(case.theta), case.eps[:, None]], axis=1)
    full = np.asarray(jax.jit(outer(inner(total)))(point))
    rows = np.arange(case.rows)
    case.check(full[rows, :, rows], case.point_hessian())


def test_second_derivatives_of_a_nonlinear_loss():
    case = Case("ranking")

    def loss(theta):
        return 0.5 * (case(theta, case.eps) ** 2).sum()

    products = case.products()
    jacobian, mean = products.jacobian(), products.mean()
    count = case.size
    columns = np.broadcast_to(np.eye(count), (case.rows, count, count)).copy()
    spread = np.repeat(mean[..., None], count, axis=2)
    curved, _ = products.hvp(spread, (columns, np.zeros_like(columns[:, 0])))
    wanted = np.swapaxes(jacobian, 1, 2) @ jacobian + curved
    rows = np.arange(case.rows)
    case.check(
        np.asarray(jax.jit(jax.hessian(loss))(case.theta))[rows, :, rows], wanted
    )


def test_second_derivatives_along_two_directions():
    case = Case("ranking")

    def along(theta, eps):
        return jax.jvp(case, (theta, eps), (case.v, case.drift))[1]

    products = case.products()
    first = (case.v[..., None], case.drift[:, None])
    second = (case.g[..., None], 0 * case.drift[:, None])
    wanted = estimators.jjvp(
        products.derivatives, products.samples, case.eps, first, second
    )
    direction = (case.g, np.zeros_like(case.drift))
    case.check(jax.jvp(along, (case.theta, case.eps), direction)[1], wanted)


def test_third_derivatives_raise():
    case = Case("one-hot")

    def total(theta):
        return case.product(theta, case.eps).sum()

    with pytest.raises(NotImplementedError, match=r'third derivatives.*route="array"'):
        jax.make_jaxpr(jax.jacfwd(jax.hessian(total)))(case.theta)


def test_vmap_over_scores_shares_the_noise():
    case = Case("one-hot")
    thetas = np.stack([case.theta, case.v, case.g], axis=1)

    def value_and_jacobian(theta):
        return case(theta, case.eps), jax.jacrev(case)(theta, case.eps)

    mapped = jax.jit(jax.vmap(value_and_jacobian, in_axes=1))
    values, jacobians = mapped(thetas)
    rows = np.arange(case.rows)
    for index in range(3):
        products = case.products(thetas[:, index])
        case.check(values[index], products.mean())
        case.check(jacobians[index][rows, :, rows], products.jacobian())


def test_vmap_over_keys():
    case = Case("ranking")
    keys = jax.random.split(KEY, 2)

    @jax.jit
    def gradient(key):
        return jax.grad(lambda t: (case(t, case.eps, key) * case.g).sum())(case.theta)

    got = jax.vmap(gradient)(keys)
    for index in range(2):
        products = case.products(key=keys[index])
        case.check(got[index], products.pull(case.g[..., None])[0])


def test_nested_vmap_equals_a_batch_with_more_axes():
    case = Case("ranking")
    thetas = np.stack([case.theta, case.v, case.g, -case.g]).reshape(2, 2, *case.shape)

    @jax.jit
    def hessian(theta):
        return jax.hessian(lambda t: case.product(t, case.eps).sum())(theta)

    got = jax.jit(jax.vmap(jax.vmap(hessian)))(thetas)
    for i in range(2):
        for j in range(2):
            case.check(got[i, j], hessian(thetas[i, j]))


def test_scan_equals_a_loop():
    case = Case("top-k")

    def step(theta, key):
        return theta - 0.1 * case(theta, case.eps, key) * case.g, None

    keys = jax.random.split(KEY, 3)

    def scanned(theta):
        return (jax.lax.scan(step, theta, keys)[0] ** 2).sum()

    def looped(theta):
        for key in keys:
            theta, _ = step(theta, key)
        return (theta**2).sum()

    got = jax.jit(jax.grad(scanned))(case.theta)
    wanted = jax.grad(looped)(case.theta)
    case.check(got, wanted)
    without = jax.grad(lambda theta: (theta**2).sum())(case.theta)
    assert not np.allclose(got, without)


def test_checkpoint():
    case = Case("ranking")

    def total(theta):
        return case.product(theta, case.eps).sum()

    got = jax.jit(jax.grad(jax.checkpoint(total)))(case.theta)
    case.check(got, case.products().pull(case.g[..., None])[0])


class Maximum:
    """The perturbed maximum or loss of a case, with its derivatives."""

    def __init__(self, case, target):
        self.case, self.target = case, target
        products = case.products()
        tau, z, y = products.tau, products.derivatives.z, products.samples.values
        goal = np.zeros_like(tau) if target is None else case.flat(target)
        difference = y - goal[:, None]
        x = tau[:, None] + case.eps[:, None, None] * z
        self.value = (difference * x).sum(2).mean(1)
        self.in_theta = products.mean() - goal
        self.in_eps = (difference * z).sum(2).mean(1)

    def __call__(self, theta, eps):
        layer = self.case.layer
        if self.target is None:
            return layer.maximum(theta, key=KEY, temperature=eps)
        loss = FenchelYoungLoss(layer, reduction="none")
        return loss(theta, self.target, key=KEY, temperature=eps)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", ["one-hot", "ranking", "assignment"])
def test_maximum_and_loss(name, targeted):
    case = Case(name)
    target = case.solve(case.v.reshape(case.rows, 1, -1)).reshape(case.shape)
    maximum = Maximum(case, target if targeted else None)
    value, pull = jax.vjp(maximum, case.theta, case.eps)
    case.check(value, maximum.value)
    in_theta, in_eps = pull(np.ones_like(value))
    case.check(in_theta, maximum.in_theta)
    case.check(in_eps, maximum.in_eps)
    case.check(jax.jit(maximum)(case.theta, case.eps), maximum.value)


@pytest.mark.parametrize("targeted", [False, True])
def test_hessian_of_maximum_and_loss_is_the_jacobian(targeted):
    case = Case("top-k")
    target = case.solve(case.v[:, None])[:, 0]
    maximum = Maximum(case, target if targeted else None)

    def total(point):
        return maximum(point[:, :-1], point[:, -1]).sum()

    point = np.concatenate([case.theta, case.eps[:, None]], axis=1)
    full = np.asarray(jax.jit(jax.hessian(total))(point))
    rows = np.arange(case.rows)
    got = full[rows, :, rows]
    jacobian = case.point_jacobian()
    case.check(got[:, :-1, :-1], jacobian[..., :-1])
    case.check(got[:, -1, :-1], jacobian[..., -1])
    case.check(got[:, :-1, -1], jacobian[..., -1])
    homogeneous = -(case.theta * jacobian[..., -1]).sum(1) / case.eps
    case.check(got[:, -1, -1], homogeneous)


def test_a_loss_keeps_no_samples():
    case = Case("one-hot")
    target = case.solve(case.v[:, None])[:, 0]
    loss = FenchelYoungLoss(case.layer)

    def value(theta):
        return loss(theta, target, key=KEY, temperature=case.eps)

    program = str(jax.make_jaxpr(jax.value_and_grad(value))(case.theta))
    assert program.count("softsolve[") == 1
    assert "u8[" not in program


def test_values_keep_no_samples():
    case = Case("one-hot")
    program = str(jax.make_jaxpr(case)(case.theta, case.eps))
    assert program.count("softsolve[") == 1
    assert "u8[" not in program


def test_samples_and_their_distribution():
    case = Case("one-hot")
    y = case.products().samples.values
    options = {"key": KEY, "temperature": case.eps}
    drawn = case.layer.sample(case.theta, **options)
    case.check(drawn, np.moveaxis(y, 1, 0))
    found = case.layer.distribution(case.theta, **options)
    assert len(found) == case.rows
    for row, distribution in enumerate(found):
        mean = distribution.frequencies @ distribution.solutions
        np.testing.assert_allclose(mean, y[row].mean(0), rtol=1e-6)


def test_independent_draws_for_derivatives():
    case = Case("ranking", backward="independent")
    value, pull = jax.vjp(lambda t: case(t, case.eps), case.theta)
    case.check(value, case.products().mean())
    fresh = case.products(key=jax.random.fold_in(KEY, 1))
    case.check(pull(case.g)[0], fresh.pull(case.g[..., None])[0])


def test_context_under_transforms():
    solver = ss.solvers.GridPath(endpoints=True)
    layer = Perturbed(solver, temperature=0.3, num_samples=4, route="fused")
    rng = np.random.default_rng(1)
    theta = -rng.uniform(1, 2, size=(2, 3, 3, 3))
    ends = np.array([[0, 0, 2, 2], [0, 2, 2, 0], [1, 0, 1, 2]])

    def gradient(at):
        return jax.grad(lambda t: (layer(t, ends, key=KEY) ** 2).sum())(at)

    got = jax.jit(jax.vmap(gradient))(theta)
    assert np.abs(got).max() > 0
    for index in range(2):
        np.testing.assert_allclose(got[index], gradient(theta[index]), rtol=1e-10)


NAN = np.where(np.arange(12).reshape(3, 4) == 6, np.nan, 0.0)
BAD_VALUES = [
    (NAN, 1.0, "theta must be finite; row 1"),
    (np.zeros((3, 4)), np.array([1.0, 1.0, -2.0]), r"positive.*-2 in row 2"),
    (np.zeros((3, 4)), np.array([1.0, np.inf, 1.0]), r"positive.*inf in row 1"),
]


@pytest.mark.parametrize(("theta", "eps", "message"), BAD_VALUES)
def test_bad_values_raise(theta, eps, message):
    layer = Perturbed(ss.solvers.OneHot(), num_samples=2)

    def value(theta, eps):
        return layer(theta, key=KEY, temperature=eps)

    with pytest.raises(ValueError, match=message):
        value(theta, eps)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jax.jit(value)(theta, jnp.asarray(eps)))


def test_targets_must_be_finite_and_no_better_than_solutions():
    loss = FenchelYoungLoss(Perturbed(ss.solvers.OneHot(), num_samples=2))
    theta, y = np.zeros((2, 3)), np.zeros((2, 3))
    y[1] = np.nan
    with pytest.raises(ValueError, match="y must be finite; row 1"):
        loss(theta, y, key=KEY)
    y[1] = [10.0, 20.0, -40.0]
    theta[1] = [1.0, 2.0, -3.0]
    with pytest.raises(ss.errors.SolverError, match=r"missed the maximum.*row 1"):
        loss(theta, y, key=KEY)


def test_infeasible_instances_raise():
    layer = Perturbed(ss.solvers.GridPath(obstacles=True), num_samples=2)
    theta = -np.ones((2, 3, 3))
    walls = np.zeros((2, 3, 3), dtype=bool)
    walls[1, 1] = True
    with pytest.raises(ss.errors.SolverError, match="row 1"):
        layer(theta, walls, key=KEY)
    with pytest.raises(jax.errors.JaxRuntimeError, match="row 1"):
        jax.block_until_ready(jax.jit(layer)(theta, walls, key=KEY))


def test_half_precision_keeps_its_type():
    layer = Perturbed(ss.solvers.OneHot(), num_samples=4)
    theta = jnp.ones((2, 3), jnp.bfloat16)
    value, pull = jax.vjp(lambda t: layer(t, key=KEY), theta)
    assert value.dtype == jnp.bfloat16
    assert pull(value)[0].dtype == jnp.bfloat16


def test_large_arrays_cross_under_jit():
    layer = Perturbed(ss.solvers.TopK(3), num_samples=10, route="fused")
    theta = np.random.default_rng(0).normal(size=(100, 5000))
    y = jax.jit(lambda t: layer(t, key=KEY))(theta)
    assert np.allclose(np.asarray(y).sum(1), 3)


def test_the_array_route_serves_other_backends():
    layer = Perturbed(ss.solvers.OneHot(), num_samples=2)
    theta = np.zeros((2, 3))
    assert 'route="fused"' in repr(layer)
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        assert 'route="array"' in repr(layer)
        program = str(jax.make_jaxpr(lambda t: layer(t, key=KEY))(theta))
        asked = Perturbed(ss.solvers.OneHot(), num_samples=2, route="fused")
        with pytest.raises(ValueError, match="runs on the CPU only"):
            asked(theta, key=KEY)
    assert "softsolve[" not in program
