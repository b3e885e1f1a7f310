"""Balls, against norms, enumeration and sampled atoms, in three frameworks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from softsolve.solvers.atomic import GroupBall, KSupportBall, NuclearBall
from support import optima

DTYPES = [np.float32, np.float64]
GROUPS = [7, 2, 7, 2, 2, 5]

BALLS = {
    "groups": (GroupBall(GROUPS, 2.0), (6,)),
    "l1": (GroupBall(range(6)), (6,)),
    "l2": (GroupBall([0] * 6), (6,)),
    "one": (GroupBall([0]), (1,)),
    "support": (KSupportBall(3, 0.5), (6,)),
    "support 1": (KSupportBall(1), (6,)),
    "support d": (KSupportBall(6), (6,)),
    "nuclear": (NuclearBall(3.0), (4, 3)),
    "row": (NuclearBall(), (1, 5)),
    "column": (NuclearBall(), (5, 1)),
}
each_ball = pytest.mark.parametrize("name", BALLS)


def dual_norm(solver, theta):
    if isinstance(solver, GroupBall):
        return optima.group_ball(theta, solver.groups, solver.radius)
    if isinstance(solver, KSupportBall):
        return optima.support_ball(theta, solver.k, solver.radius)
    return optima.nuclear_ball(theta, solver.radius)


def values(theta, y):
    return np.sum((theta * y).reshape(len(theta), -1), axis=1)


@each_ball
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_is_the_dual_norm(name, dtype):
    solver, shape = BALLS[name]
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(30, *shape)).astype(dtype)
    theta[15:] = rng.integers(-1, 2, (15, *shape))
    y = solver(theta)
    assert y.dtype == dtype
    assert y.shape == theta.shape
    assert solver.feasible(y).all()
    expected = [dual_norm(solver, row.astype(np.float64)) for row in theta]
    np.testing.assert_allclose(values(theta, y), expected, rtol=1e-5, atol=1e-12)


@each_ball
def test_no_atom_is_better(name):
    solver, shape = BALLS[name]
    theta = np.random.default_rng(1).normal(size=(2000, *shape))
    atoms = solver(theta)
    scores = theta[:20].reshape(20, -1)
    every = scores @ atoms.reshape(2000, -1).T
    assert np.all(every <= values(theta[:20], atoms[:20])[:, None] + 1e-9)


@each_ball
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_frameworks_agree(name, dtype):
    solver, shape = BALLS[name]
    theta = np.random.default_rng(2).normal(size=(9, *shape)).astype(dtype)
    theta[0] = 0
    y = solver(theta)
    in_torch = solver(torch.from_numpy(theta))
    assert in_torch.numpy().dtype == dtype
    np.testing.assert_allclose(in_torch.numpy(), y, atol=2e-6)
    with jax.enable_x64(dtype is np.float64):
        in_jax = jax.jit(solver.__call__)(jnp.asarray(theta))
        assert in_jax.dtype == dtype
        np.testing.assert_allclose(np.asarray(in_jax), y, atol=2e-6)
        assert bool(solver.feasible(in_jax).all())
    assert bool(solver.feasible(in_torch).all())


@each_ball
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_huge_and_tiny_scores(name, dtype):
    solver, shape = BALLS[name]
    first = np.zeros((1, *shape), dtype)
    first.reshape(-1)[0] = solver.radius
    zero = solver(np.zeros((1, *shape), dtype))
    np.testing.assert_allclose(np.abs(zero), first, atol=1e-6)
    assert zero.reshape(-1)[0] > 0
    theta = np.random.default_rng(3).normal(size=(4, *shape)).astype(dtype)
    for exponent in (-120, 120):
        scaled = solver(theta * dtype(2.0) ** exponent)
        np.testing.assert_allclose(scaled, solver(theta), rtol=1e-4, atol=1e-5)


def test_ties_go_to_the_first():
    y = GroupBall([1, 0, 1, 0])(np.array([[3.0, 4.0, 4.0, 3.0]]))
    np.testing.assert_allclose(y, [[0, 0.8, 0, 0.6]])
    y = KSupportBall(2)(np.array([[1.0, -1.0, 1.0]]))
    np.testing.assert_allclose(y, [[0.5**0.5, -(0.5**0.5), 0]])


@each_ball
def test_empty_batch(name):
    solver, shape = BALLS[name]
    assert solver(np.zeros((0, *shape))).shape == (0, *shape)


def test_feasible_rejects():
    y = np.array([[0.6, 0.8, 0], [0.6, 0, 0.8], [0.6, 0.6, 0], [0, 0, -1], [0, 0, 0]])
    np.testing.assert_array_equal(
        GroupBall([0, 0, 1]).feasible(y), [True, False, False, True, False]
    )
    np.testing.assert_array_equal(
        KSupportBall(1).feasible(y), [False, False, False, True, False]
    )
    matrices = np.array([np.diag([1.0, 0]), np.diag([0.5, 0.5]), np.diag([0.9, 0])])
    np.testing.assert_array_equal(
        NuclearBall().feasible(matrices), [True, False, False]
    )


@each_ball
@pytest.mark.parametrize("mean", [0.0, 0.6])
def test_regulariser_at_atoms(name, mean):
    # Ω(y) = −⟨y, EZ⟩ at an atom: the loss E[max ⟨., θ + Z⟩ − ⟨y, θ + Z⟩] is not
    # negative for any draw and its infimum, along θ = t y, is zero.
    solver, shape = BALLS[name]
    rng = np.random.default_rng(4)
    z = mean + rng.normal(size=(4000, *shape))
    y = solver(rng.normal(size=(1, *shape)))
    losses = []
    for t in (0, 1, 10, 100, 1000):
        x = t * y + z
        samples = values(x, solver(x)) - values(x, y)
        assert samples.min() > -1e-9 * (1 + t)
        losses.append(samples.mean())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-2 * losses[0] + 1e-12


def test_loss_of_the_disk_falls_slowly():
    # E|ty + Z| − t = (d − 1)/(2t) + O(1/t²), not exponentially small.
    solver, d, t = GroupBall([0] * 4), 4, 30.0
    z = np.random.default_rng(5).normal(size=(200_000, d))
    y = np.eye(d)[:1]
    samples = values(t * y + z, solver(t * y + z)) - values(t * y + z, y)
    error = samples.std() / len(samples) ** 0.5
    assert samples.mean() == pytest.approx((d - 1) / (2 * t), abs=5 * error + 2 / t**2)
    assert samples.mean() > 20 * error


def test_inside_the_ball_the_loss_has_a_gap():
    # Ω(0) = −F_1(0) < 0 for Gaussian noise, so the bound −⟨0, EZ⟩ is not attained.
    z = np.random.default_rng(6).normal(size=(4000, 6))
    solver = GroupBall(GROUPS)
    assert values(z, solver(z)).mean() > 1


def smoothed_on_a_grid(solver, theta):
    """Return E y*(θ + Z) in the plane, Gaussian Z, by quadrature."""
    points = np.linspace(-7, 7, 1401)
    weights = np.exp(-0.5 * points**2)
    weights /= weights.sum()
    z = np.stack(np.meshgrid(points, points, indexing="ij"), axis=-1)
    y = solver((theta + z).reshape(-1, 2)).reshape(z.shape)
    return np.einsum("i,j,ijk->k", weights, weights, y)


@pytest.mark.parametrize("groups", [[0, 0], [0, 1]])
def test_jacobian_formula_holds_without_a_polytope(groups):
    # Off the grid's diagonals, where the square's solution jumps.
    solver, theta, step = GroupBall(groups), np.array([0.805, -0.3]), 0.05
    jacobian = np.stack(
        [
            (
                smoothed_on_a_grid(solver, theta + e)
                - smoothed_on_a_grid(solver, theta - e)
            )
            / (2 * step)
            for e in step * np.eye(2)
        ],
        axis=1,
    )
    z = np.random.default_rng(7).normal(size=(200_000, 2))
    samples = solver(theta + z)[:, :, None] * z[:, None, :]
    error = samples.std(axis=0) / len(z) ** 0.5
    distance = np.abs(samples.mean(axis=0) - jacobian) / error
    assert np.all(distance < 5)
    # The same test sees a zero, a flipped sign and a wrong scale.
    for wrong in (0, -1, 2):
        assert np.any(np.abs(wrong * samples.mean(axis=0) - jacobian) / error > 10)
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-3)


def test_errors():
    for make in (
        lambda r: GroupBall([0], r),
        lambda r: KSupportBall(1, r),
        NuclearBall,
    ):
        for radius in (0, -1, np.inf, np.nan):
            with pytest.raises(ValueError, match=r"radius=\.\.\.\) must be positive"):
                make(radius)
    with pytest.raises(ValueError, match=r"label for each coordinate.*\(0,\)"):
        GroupBall([])
    with pytest.raises(ValueError, match=r"k=\.\.\.\) must be at least 1; got 0"):
        KSupportBall(0)
    with pytest.raises(ValueError, match=r"shape \(2,\); got \(3,\)"):
        GroupBall([0, 1]).check((3,), ())
    with pytest.raises(ValueError, match=r"at least 4 scores in each row; got 3"):
        KSupportBall(4).check((3,), ())
    with pytest.raises(ValueError, match=r"2 axes in each row .* got .*\(3,\)"):
        NuclearBall().check((3,), ())
    with pytest.raises(ValueError, match=r"at least one entry; .*\(3, 0\)"):
        NuclearBall().check((3, 0), ())
    with pytest.raises(TypeError, match=r"takes no context"):
        NuclearBall().check((3, 3), (np.ones(2),))
