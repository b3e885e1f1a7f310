"""The same draws give the same numbers in NumPy, torch and JAX."""

import numpy as np
import pytest

from softsolve.noise import NOISES
from softsolve.solvers import FiniteSet, Hypercube, L1Ball, OneHot, Ranking, TopK
from support.frontends import AUTOMATIC, FRONTENDS

ROWS, SAMPLES, SIZE = 3, 7, 4
POLYGON = FiniteSet(np.random.default_rng(3).normal(size=(6, SIZE)).round(1))
SOLVERS = {
    "one-hot": OneHot(),
    "top-k": TopK(2),
    "ranking": Ranking(),
    "hypercube": Hypercube(),
    "ball": L1Ball(),
    "points": POLYGON,
}
OPTIONS = {
    "none": {"baseline": "none"},
    "point": {"baseline": "point"},
    "leave-one-out": {"baseline": "leave_one_out"},
    "symmetric": {"symmetric": True},
    "maximum": {"form": "maximum"},
    "maximum, point": {"form": "maximum", "baseline": "point"},
    "multiplicative": {"perturbation": "multiplicative"},
    "gumbel": {"noise": "gumbel"},
    "logistic": {"noise": "logistic"},
    "laplace": {"noise": "laplace"},
    "laplace, symmetric": {"noise": "laplace", "symmetric": True},
}


CASES = [
    *((solver, "leave-one-out") for solver in SOLVERS),
    *(("ranking", options) for options in OPTIONS),
]


def measured(frontend, solver, options, dtype):
    """Return everything that a frontend computes, by name."""
    rng = np.random.default_rng(0)
    theta = (0.3 + rng.random((ROWS, SIZE))).astype(dtype)
    eps = rng.uniform(0.3, 0.8, ROWS).astype(dtype)
    u = rng.uniform(0.01, 0.99, (ROWS, SAMPLES, SIZE))
    z = NOISES[options.get("noise", "normal")].quantile(u).astype(dtype)
    g, v = rng.normal(size=(2, ROWS, SIZE)).astype(dtype)
    target = np.asarray(solver(theta[::-1].copy()))
    layer = frontend.layer(solver, num_samples=SAMPLES, route="array", **options)
    second = options.get("noise") != "laplace"
    found = {}
    with frontend.given_noise(z):
        found["value"] = frontend.value(layer, theta, temperature=eps)
        found["vjp"], found["vjp in ε"] = frontend.vjp(layer, theta, g, temperature=eps)
        found["jvp"] = frontend.jvp(layer, theta, v, temperature=eps, drift=0.4)
        found["jacobian"] = frontend.jacobian(layer, theta, temperature=eps)
        if second and not {"form", "perturbation"} & set(options):
            found["hessian"] = frontend.hessian(layer, theta, g, temperature=eps)
        if second and frontend.name in AUTOMATIC and "form" not in options:
            found["all second derivatives"] = frontend.point_hessian(
                layer, theta, g, temperature=eps
            )
        found["maximum"] = frontend.maximum(layer, theta, temperature=eps)
        if frontend.name in AUTOMATIC:
            found["maximum's gradients"] = np.column_stack(
                frontend.maximum_gradients(layer, theta, temperature=eps)
            )
        if second and frontend.name in AUTOMATIC:
            # Those in ε have several unbiased estimators, and the frontends take
            # different ones.
            hessian = frontend.maximum_hessian(layer, theta, temperature=eps)
            found["maximum's second derivatives"] = hessian[:, :SIZE, :SIZE].copy()
        if "form" not in options:
            loss = frontend.loss_of(layer, reduction="none")
            parts = frontend.loss(loss, theta, target, temperature=eps)
            found["loss"], found["loss in θ"], found["loss in ε"] = parts
            loss = frontend.loss_of(layer, reduction="sum")
            found["summed loss"] = frontend.loss(loss, theta, target, temperature=eps)[
                0
            ]
        found["sample"] = frontend.sample(layer, theta, temperature=eps)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("solver", "options"), CASES)
def test_same_draws_same_numbers(solver, options, dtype):
    results = {
        name: measured(frontend, SOLVERS[solver], OPTIONS[options], dtype)
        for name, frontend in FRONTENDS.items()
    }
    tolerance = 100 * np.finfo(dtype).eps
    compared = 0
    for left, right in (("numpy", "torch"), ("numpy", "jax"), ("torch", "jax")):
        for what in results[left].keys() & results[right].keys():
            a, b = results[left][what], results[right][what]
            assert a.shape == b.shape, (what, left, right)
            assert a.dtype == b.dtype == dtype, (what, left, right)
            assert np.abs(a).max() > 0, what
            size = max(1.0, np.abs(a).max())
            error = np.abs(a - b).max() / size
            assert error <= tolerance, (what, left, right, error)
            compared += 1
    assert compared >= 18


@pytest.mark.parametrize("name", FRONTENDS)
def test_maximum_form_averages_values(name):
    """The first forms of the estimators, written out."""
    frontend, solver = FRONTENDS[name], Ranking()
    rng = np.random.default_rng(1)
    theta, eps = rng.normal(size=(2, SIZE)), np.array([0.4, 1.3])
    z = rng.normal(size=(2, SAMPLES, SIZE))
    x = theta[:, None] + eps[:, None, None] * z
    y = solver(x.reshape(-1, SIZE)).reshape(x.shape)
    values = (y * x).sum(-1)
    scale = 1 / eps[:, None]
    with frontend.given_noise(z):
        plain = frontend.layer(
            solver, num_samples=SAMPLES, baseline="none", route="array"
        )
        made = frontend.value(plain, theta, temperature=eps)
        np.testing.assert_allclose(made, y.mean(1), rtol=1e-12)
        made = frontend.jacobian(plain, theta, temperature=eps)
        direct = np.einsum("bmi,bmj->bij", y, z) / SAMPLES
        np.testing.assert_allclose(made, direct * scale[..., None], rtol=1e-12)
        made = frontend.maximum(plain, theta, temperature=eps)
        np.testing.assert_allclose(made, values.mean(1), rtol=1e-12)
        second = frontend.layer(
            solver,
            num_samples=SAMPLES,
            baseline="none",
            form="maximum",
            route="array",
        )
        made = frontend.value(second, theta, temperature=eps)
        direct = np.einsum("bm,bmi->bi", values, z) / SAMPLES
        np.testing.assert_allclose(made, direct * scale, rtol=1e-12)
        made = frontend.jacobian(second, theta, temperature=eps)
        outer = z[..., :, None] * z[..., None, :] - np.eye(SIZE)
        direct = np.einsum("bm,bmij->bij", values, outer) / SAMPLES
        np.testing.assert_allclose(made, direct * scale[..., None] ** 2, rtol=1e-11)


@pytest.mark.parametrize("name", FRONTENDS)
def test_chunks_do_not_change_what_is_averaged(name):
    """Noise drawn in one go or a few samples at a time averages to the same law."""
    frontend = FRONTENDS[name]
    theta = np.random.default_rng(2).normal(size=(2, 3))
    budget = 4 * theta.nbytes * 2  # two samples at a time
    small = frontend.layer(
        Ranking(), num_samples=8, memory_budget=budget, route="array"
    )
    large = frontend.layer(Ranking(), num_samples=8, route="array")
    kwargs = {"temperature": np.full(2, 1e-3)}
    for layer in (small, large):
        np.testing.assert_allclose(
            frontend.value(layer, theta, **kwargs), Ranking()(theta)
        )
        assert frontend.sample(layer, theta, **kwargs).shape == (8, 2, 3)
    np.testing.assert_allclose(
        frontend.maximum(small, theta, **kwargs),
        (Ranking()(theta) * theta).sum(1),
        rtol=0.05,
    )
