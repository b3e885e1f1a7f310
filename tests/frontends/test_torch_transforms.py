"""torch's function transforms, and derivatives of second order."""

import itertools

import numpy as np
import pytest
import torch
from torch import func

from softsolve import solver
from softsolve.solvers import OneHot, Ranking
from softsolve.torch import FenchelYoungLoss, Perturbed
from support.statistics import assert_derivative

routes = pytest.mark.parametrize("route", ["array", "auto"])
ROWS, SIZE = 3, 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def scores(*shape, seed=0):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(
        *(shape or (ROWS, SIZE)), dtype=torch.float64, generator=generator
    )


def layer_of(route="auto", **options):
    return Perturbed(Ranking(), temperature=0.7, num_samples=6, route=route, **options)


def by_backward(function, theta):
    at = theta.clone().requires_grad_()
    return torch.autograd.grad(function(at), at)[0]


@routes
def test_grad(route):
    layer, g = layer_of(route), scores(seed=1)

    def product(theta):
        return (layer(theta, generator=seeded()) * g).sum()

    expected = by_backward(product, scores())
    assert expected.abs().min() > 0
    torch.testing.assert_close(func.grad(product)(scores()), expected)
    gradient, value = func.grad_and_value(product)(scores())
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(value, product(scores()))


@routes
@pytest.mark.parametrize("transform", [func.jacrev, func.jacfwd])
def test_jacobians(route, transform):
    layer = layer_of(route)

    def smoothed(theta):
        return layer(theta, generator=seeded())

    full = transform(smoothed)(scores())
    rows = torch.arange(ROWS)
    blocks = layer.jacobian(scores(), generator=seeded())
    torch.testing.assert_close(full[rows, :, rows], blocks)
    full = full.clone()
    full[rows, :, rows] = 0
    assert full.abs().max() == 0
    assert blocks.abs().min() > 0


@routes
def test_forward_and_reverse_mode_agree(route):
    layer, g, v = layer_of(route), scores(seed=1), scores(seed=2)

    def smoothed(theta):
        return layer(theta, generator=seeded())

    value, pushed = func.jvp(smoothed, (scores(),), (v,))
    same, pull = func.vjp(smoothed, scores())
    torch.testing.assert_close(value, same)
    (pulled,) = pull(g)
    torch.testing.assert_close((pushed * g).sum(), (pulled * v).sum())
    assert pushed.abs().min() > 0  # never silently zero


@routes
def test_vmap_over_the_batch(route):
    """Rows of a mapped call draw their own noise, and are solved as one batch."""
    layer, theta = layer_of(route), scores()
    y = func.vmap(layer, randomness="different")(theta)
    assert y.shape == theta.shape
    torch.testing.assert_close(y.sum(-1), torch.full((ROWS,), 10.0, dtype=y.dtype))
    equal = scores(SIZE).expand(50, SIZE)
    y = func.vmap(layer, randomness="different")(equal)
    assert len(torch.unique(y, dim=0)) > 10
    nested = func.vmap(func.vmap(layer, randomness="different"), randomness="different")
    assert nested(scores(2, 3, SIZE)).shape == (2, 3, SIZE)


@routes
def test_vmap_of_grad(route):
    layer, g = layer_of(route), scores(SIZE, seed=1)

    def product(theta):
        return (layer(theta) * g).sum()

    each = func.vmap(func.grad(product), randomness="different")(scores())
    assert each.shape == (ROWS, SIZE)
    assert each.abs().max() > 0
    jacobians = func.vmap(func.jacrev(layer), randomness="different")(scores())
    assert jacobians.shape == (ROWS, SIZE, SIZE)
    # Columns of ranks sum to a constant whatever θ.
    torch.testing.assert_close(
        jacobians.sum(1), torch.zeros(ROWS, SIZE, dtype=torch.float64)
    )


def test_vmap_in_expectation():
    """Mapped gradients are those of the closed form."""
    layer = Perturbed(OneHot(), temperature=0.5, num_samples=50, noise="gumbel")
    theta, g = scores(3), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    mapped = func.vmap(func.grad(lambda at: layer(at) @ g), randomness="different")
    torch.manual_seed(0)
    each = mapped(theta.expand(400, 3))
    closed = func.grad(lambda at: torch.softmax(at / 0.5, -1) @ g)(theta)
    assert_derivative(each.numpy(), closed.numpy(), 0.5)


@routes
def test_hessians(route):
    layer, g = layer_of(route), scores(1, SIZE, seed=1)
    theta = scores(1, SIZE)

    def product(at):
        return (layer(at, generator=seeded()) * g).sum()

    at = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(product(at), at, create_graph=True)
    double = torch.stack(
        [
            torch.autograd.grad(gradient[0, i], at, retain_graph=True)[0][0]
            for i in range(SIZE)
        ]
    )
    assert double.abs().min() > 0
    torch.testing.assert_close(double, double.T)
    for outer, inner in (
        (func.jacfwd, func.jacrev),
        (func.jacrev, func.jacfwd),
        (func.jacrev, func.jacrev),
        (func.jacfwd, func.jacfwd),
    ):
        made = outer(inner(product))(theta)[0, :, 0]
        torch.testing.assert_close(made, double)
    torch.testing.assert_close(func.hessian(product)(theta)[0, :, 0], double)


@routes
def test_second_derivatives_of_a_nonlinear_loss(route):
    """Both terms are there: of the loss in the output, and of the output."""
    layer, target = layer_of(route), scores(1, SIZE, seed=3)

    def loss(at):
        return 0.5 * (layer(at, generator=seeded()) - target).square().sum()

    theta = scores(1, SIZE)
    residual = (layer(theta, generator=seeded()) - target)[0]
    jacobian = layer.jacobian(theta, generator=seeded())[0]

    def product(at):
        return (layer(at, generator=seeded())[0] * residual).sum()

    gauss_newton = jacobian.T @ jacobian
    curvature = func.hessian(product)(theta)[0, :, 0]
    full = func.hessian(loss)(theta)[0, :, 0]
    torch.testing.assert_close(full, gauss_newton + curvature)
    assert (curvature.abs().max() / full.abs().max()) > 0.05


ORDERS = {"reverse": func.jacrev, "forward": func.jacfwd}


@routes
@pytest.mark.parametrize("outer", ORDERS)
@pytest.mark.parametrize("inner", ORDERS)
def test_second_derivatives_of_maximum_and_loss(route, outer, inner):
    layer, theta = layer_of(route), scores(1, SIZE)
    jacobian = layer.jacobian(theta, generator=seeded())[0]
    loss = FenchelYoungLoss(layer)
    target = Ranking()(scores(1, SIZE, seed=1))
    functions = (
        lambda at: layer.maximum(at, generator=seeded()).sum(),
        lambda at: loss(at, target, generator=seeded()),
    )
    for function in functions:
        gradient = func.grad(function)(theta)
        torch.testing.assert_close(gradient, by_backward(function, theta))
        torch.testing.assert_close(func.jacfwd(function)(theta), gradient)
        hessian = ORDERS[outer](ORDERS[inner](function))(theta)[0, :, 0]
        # The Hessian of the maximum is the Jacobian, in one order or the other.
        both = torch.stack([hessian - jacobian, hessian - jacobian.T])
        assert both.abs().amax(dim=(1, 2)).min() < 1e-12


@routes
@pytest.mark.parametrize("options", [{}, {"baseline": "point"}, {"symmetric": True}])
@pytest.mark.parametrize("name", ["solution", "maximum", "loss"])
def test_second_derivatives_in_the_temperature(route, options, name):
    """Whatever the order of the modes, of all pairs of scores and temperature."""
    layer, g = layer_of(route, **options), scores(1, SIZE, seed=1)
    loss, target = FenchelYoungLoss(layer), Ranking()(scores(1, SIZE, seed=1))
    given = {"generator": None, "temperature": None}

    def function(point):
        given.update(generator=seeded(), temperature=point[:1].exp())
        theta = point[None, 1:]
        if name == "solution":
            return (layer(theta, **given) * g).sum()
        if name == "maximum":
            return layer.maximum(theta, **given).sum()
        return loss(theta, target, **given)

    point = torch.cat([torch.tensor([-0.3], dtype=torch.float64), scores(SIZE)])
    made = [
        outer(inner(function))(point)
        for outer in ORDERS.values()
        for inner in ORDERS.values()
    ]
    assert made[0].abs().min() > 0
    for other in made[1:]:
        torch.testing.assert_close(other, made[0])


def test_forward_over_forward_with_vectors():
    """torch's own functions do not always do this: jvp of jvp may be zero."""
    layer, theta = layer_of("array"), scores(2, SIZE)
    u, v = scores(2, SIZE, seed=1), scores(2, SIZE, seed=2)

    def maximum(at):
        return layer.maximum(at, generator=seeded()).sum()

    def along(at):
        return func.jvp(maximum, (at,), (u,))[1]

    twice = func.jvp(along, (theta,), (v,))[1]
    gradient = func.grad(maximum)
    expected = (func.jvp(gradient, (theta,), (v,))[1] * u).sum()
    torch.testing.assert_close(twice, expected)
    assert twice.abs() > 0.01


@routes
def test_jacobian_has_derivatives(route):
    layer, theta, g = layer_of(route), scores(1, SIZE), scores(1, SIZE, seed=1)

    def product(at):
        jacobian = layer.jacobian(at, generator=seeded())
        return torch.einsum("bi,bij->bj", g, jacobian)

    made = func.jacrev(product)(theta)[0, :, 0]
    expected = func.hessian(lambda at: (layer(at, generator=seeded()) * g).sum())(theta)
    torch.testing.assert_close(made, expected[0, :, 0])
    assert not layer.jacobian(theta).requires_grad


@routes
def test_third_order_raises(route):
    layer, theta = layer_of(route), scores(1, SIZE).requires_grad_()

    def total(at):
        return (layer(at, generator=seeded()) * theta.detach().flip(-1)).sum()

    (first,) = torch.autograd.grad(total(theta), theta, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivatives"):
        torch.autograd.grad(second.sum(), theta)
    with pytest.raises(RuntimeError, match="third derivatives"):
        func.jacrev(func.hessian(total))(theta.detach())


@routes
def test_third_derivatives_of_the_maximum_are_right_or_raise(route):
    """They are second derivatives of the solution, which not all orders reach."""
    layer, theta = layer_of(route, baseline="none"), scores(1, SIZE)

    def maximum(at):
        return layer.maximum(at, generator=seeded()).sum()

    g = torch.zeros(1, SIZE, dtype=torch.float64)
    g[0, 1] = 1
    expected = func.hessian(lambda at: (layer(at, generator=seeded()) * g).sum())(theta)
    found = 0
    for transforms in itertools.product(ORDERS.values(), repeat=3):
        outer, middle, inner = transforms
        try:
            third = outer(middle(inner(maximum)))(theta)
        except RuntimeError as error:
            if "third derivatives" not in str(error):
                raise
            continue
        found += 1
        torch.testing.assert_close(third[0, 1, 0, :, 0], expected[0, :, 0])
    assert found > 0


def test_second_derivatives_of_the_maximum_form_raise():
    layer = layer_of("array", form="maximum")
    with pytest.raises(RuntimeError, match='with form="maximum", where the solution'):
        func.hessian(lambda at: layer(at).sum())(scores())


@routes
def test_gradients_in_the_temperature(route):
    layer, theta, g = layer_of(route), scores(), scores(seed=1)

    def product(theta, eps):
        y = layer(theta, generator=seeded(), temperature=eps)
        return (y * g).sum()

    eps = torch.full((ROWS,), 0.7, dtype=torch.float64)
    each = func.grad(product, 1)(theta, eps)
    assert each.abs().min() > 0
    shared = func.grad(product, 1)(theta, torch.tensor(0.7, dtype=torch.float64))
    torch.testing.assert_close(shared, each.sum())
    # Mixed second derivatives are symmetric.
    mixed = func.jacrev(func.grad(product, 1), 0)(theta, eps)
    other = func.jacrev(func.grad(product, 0), 1)(theta, eps)
    torch.testing.assert_close(mixed, other.movedim(2, 0))
    assert mixed.abs().max() > 0


def test_solvers_on_the_host_under_transforms():
    function = solver(lambda theta: np.sort(theta, axis=-1)[:, :2], out_shape=(2,))
    layer = Perturbed(function, temperature=0.5, num_samples=5)
    theta = scores()

    def smoothed(at):
        return layer(at, generator=seeded())

    full = func.jacrev(smoothed)(theta)
    assert full.shape == (ROWS, 2, ROWS, SIZE)
    torch.testing.assert_close(full, func.jacfwd(smoothed)(theta))
    y = func.vmap(layer, randomness="different")(theta)
    assert y.shape == (ROWS, 2)


HOST_OPTIONS = {
    "leave-one-out": {},
    "none": {"baseline": "none"},
    "point": {"baseline": "point"},
    "independent": {"backward": "independent"},
    "symmetric": {"symmetric": True, "noise": "gumbel"},
    "multiplicative": {"perturbation": "multiplicative"},
}


@pytest.mark.parametrize("options", HOST_OPTIONS.values(), ids=HOST_OPTIONS)
def test_the_host_route_has_the_array_routes_derivatives(options):
    """From the same draws, to second order, in scores and temperature."""
    base = solver(Ranking(), linear=True, native=True)
    host = solver(Ranking(), linear=True)
    theta, g = scores().abs() + 0.2, scores(seed=1)
    target = Ranking()(scores(seed=3))
    found = []
    for made, route in ((base, "array"), (host, "host")):
        layer = Perturbed(made, num_samples=6, route=route, **options)
        loss = FenchelYoungLoss(layer)
        at = theta.clone().requires_grad_()
        eps = torch.full((ROWS,), 0.7, dtype=torch.float64, requires_grad=True)
        given = {"temperature": eps}
        numbers = [layer.jacobian(at, generator=seeded(), **given).detach()]
        for value in (
            (layer(at, generator=seeded(), **given) * g).sum(),
            layer.maximum(at, generator=seeded(), **given).sum(),
            loss(at, target, generator=seeded(), **given),
        ):
            first = torch.autograd.grad(value, (at, eps), create_graph=True)
            total = (first[0] * g).sum() + first[1].sum()
            second = torch.autograd.grad(total, (at, eps))
            numbers += [value.detach(), *(part.detach() for part in first), *second]
        found.append(numbers)
    assert len(found[0]) == 16
    for left, right in zip(*found, strict=True):
        assert left.abs().max() > 0
        torch.testing.assert_close(left, right)


@routes
def test_double_backward_of_vectors(route):
    """The derivative of a vjp in its vector is the jvp."""
    layer, theta = layer_of(route), scores().requires_grad_()
    y = layer(theta, generator=seeded())
    u = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, theta, u, create_graph=True)
    v = scores(seed=2)
    (pushed,) = torch.autograd.grad(pulled, u, v)
    expected = func.jvp(lambda at: layer(at, generator=seeded()), (scores(),), (v,))[1]
    torch.testing.assert_close(pushed, expected)
