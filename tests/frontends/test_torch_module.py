"""The layer as a torch module: state, precision, randomness, shapes."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from softsolve.noise import NOISES
from softsolve.solvers import OneHot, Ranking, TopK
from softsolve.torch import FenchelYoungLoss, Perturbed

routes = pytest.mark.parametrize("route", ["array", "auto"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def scores(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float32).to(dtype)


class TestState:
    def test_round_trips(self):
        made = nn.Sequential(
            nn.Linear(4, 4),
            Perturbed(Ranking(), temperature=nn.Parameter(torch.tensor(0.3))),
        )
        other = nn.Sequential(
            nn.Linear(4, 4),
            Perturbed(Ranking(), temperature=nn.Parameter(torch.tensor(2.0))),
        )
        state = io.BytesIO()
        torch.save(made.state_dict(), state)
        state.seek(0)
        other.load_state_dict(torch.load(state))
        x = scores(3, 4)
        for twin in (other, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            torch.manual_seed(0)
            expected = made(x)
            torch.manual_seed(0)
            torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
        assert list(made.state_dict()) == ["0.weight", "0.bias", "1.temperature"]

    def test_a_copy_does_not_share_its_temperature(self):
        layer = Perturbed(OneHot(), temperature=nn.Parameter(torch.tensor(0.3)))
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            twin.temperature.fill_(2.0)
        assert layer.temperature.item() == pytest.approx(0.3)

    def test_a_number_is_no_state(self):
        layer = Perturbed(OneHot(), temperature=0.3)
        assert not layer.state_dict()
        assert not list(layer.parameters())

    def test_a_tensor_is_a_buffer_that_moves(self):
        layer = Perturbed(OneHot(), temperature=torch.tensor([0.3, 0.9]))
        assert not list(layer.parameters())
        assert list(layer.state_dict()) == ["temperature"]
        assert layer.to(torch.float64).temperature.dtype == torch.float64
        assert layer.to("meta").temperature.device.type == "meta"

    def test_a_parameter_trains(self):
        """The temperature at which a smoothed rank has a given value is found."""
        torch.manual_seed(0)
        layer = Perturbed(
            OneHot(),
            temperature=nn.Parameter(torch.tensor(3.0)),
            num_samples=2000,
            noise="gumbel",
        )
        theta = torch.tensor([[1.0, 0.0]])
        target = torch.sigmoid(torch.tensor(1 / 0.8))
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            (layer(theta)[0, 0] - target).square().backward()
            optimizer.step()
        assert layer.temperature.item() == pytest.approx(0.8, abs=0.15)

    def test_repr(self):
        layer = Perturbed(
            TopK(2),
            temperature=nn.Parameter(torch.tensor(1.0)),
            noise="gumbel",
            num_samples=7,
        )
        text = repr(layer)
        for fact in ("TopK(2)", "num_samples=7", 'noise="gumbel"', "route=", "learned"):
            assert fact in text
        assert "reduction" in repr(FenchelYoungLoss(layer))


class TestRandomness:
    @routes
    def test_manual_seed_and_generators(self, route):
        layer = Perturbed(Ranking(), num_samples=3, route=route)
        theta = scores(20, 5)
        torch.manual_seed(7)
        first, second = layer(theta), layer(theta)
        torch.manual_seed(7)
        torch.testing.assert_close(layer(theta), first, rtol=0, atol=0)
        assert not torch.equal(first, second)
        state = torch.get_rng_state()
        given = layer(theta, generator=seeded(3))
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(
            layer(theta, generator=seeded(3)), given, rtol=0, atol=0
        )
        assert not torch.equal(layer(theta, generator=seeded(4)), given)

    @routes
    @pytest.mark.parametrize("noise", NOISES)
    def test_layers_and_rows_do_not_share_noise(self, route, noise):
        torch.manual_seed(7)
        layers = [
            Perturbed(Ranking(), num_samples=2, noise=noise, route=route)
            for _ in range(2)
        ]
        theta = torch.zeros(40, 5)
        first, second = (layer(theta) for layer in layers)
        assert not torch.equal(first, second)
        assert (first != second).any(dim=1).float().mean() > 0.8
        assert len(torch.unique(first, dim=0)) > 20

    @routes
    def test_rows_of_equal_keys_do_not_depend_on_the_batch(self, route):
        """A backward pass sees the noise of its own forward pass."""
        layer = Perturbed(Ranking(), num_samples=4, temperature=0.5, route=route)
        theta = scores(6, 4).requires_grad_()
        first = layer(theta, generator=seeded(1))
        layer(theta, generator=seeded(2))  # does not disturb the other's draws
        (pulled,) = torch.autograd.grad(first, theta, torch.ones_like(first) * theta)
        again = layer(theta, generator=seeded(1))
        (expected,) = torch.autograd.grad(again, theta, torch.ones_like(again) * theta)
        torch.testing.assert_close(pulled, expected, rtol=0, atol=0)

    def test_generators_must_be_generators(self):
        layer = Perturbed(Ranking(), num_samples=3)
        with pytest.raises(
            TypeError, match=r"generator must be a torch.Generator; got int"
        ):
            layer(scores(2, 4), generator=0)


class TestRanks:
    """Data-parallel training: processes with parts of a batch each."""

    @pytest.fixture(autouse=True)
    def _group(self, tmp_path):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()

    def drawn(self, monkeypatch, rank, layer):
        """Return the outputs of a process with that rank of four, all seeded alike."""
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        torch.manual_seed(0)
        theta = torch.zeros(30, 5)
        first, second = layer(theta), layer(theta)
        value = layer.maximum(theta)
        given = layer(theta, generator=seeded(1))
        return first, second, value, layer.sample(theta), given, torch.rand(1)

    @routes
    @pytest.mark.parametrize("noise", NOISES)
    def test_each_draws_its_own_noise(self, monkeypatch, route, noise):
        layer = Perturbed(Ranking(), num_samples=2, noise=noise, route=route)
        ranks = [self.drawn(monkeypatch, rank, layer) for rank in range(4)]
        again = self.drawn(monkeypatch, 0, layer)
        for left, right in zip(ranks[0], again, strict=True):
            assert torch.equal(left, right)
        for rank in range(1, 4):
            for left, right in zip(ranks[0][:4], ranks[rank][:4], strict=True):
                assert (left != right).any()
            # A generator that is given is used; the default one stays in step.
            for left, right in zip(ranks[0][4:], ranks[rank][4:], strict=True):
                assert torch.equal(left, right)
        assert not torch.equal(ranks[0][0], ranks[0][1])

    @routes
    def test_mapped_calls(self, route):
        layer = Perturbed(Ranking(), num_samples=2, route=route)
        gradient = torch.func.grad(lambda theta: layer(theta)[0])
        for randomness, distinct in (("same", 1), ("different", 10)):
            mapped = torch.func.vmap(gradient, randomness=randomness)
            made = mapped(torch.zeros(30, 5))
            assert len(torch.unique(made, dim=0)) >= distinct
            assert (distinct > 1) or (made == made[:1]).all()


class TestPrecision:
    @routes
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_solved_in_single(self, route, dtype):
        layer = Perturbed(Ranking(), num_samples=50, temperature=0.5, route=route)
        loss = FenchelYoungLoss(layer)
        theta = scores(4, 5, dtype=dtype).requires_grad_()
        y = layer(theta, generator=seeded())
        assert y.dtype == dtype
        whole = theta.detach().float().requires_grad_()
        expected = layer(whole, generator=seeded())
        torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
        (pulled,) = torch.autograd.grad((y * y.detach()).sum(), theta)
        g = y.detach().float()
        (in_single,) = torch.autograd.grad((expected * g).sum(), whole)
        assert pulled.dtype == dtype
        torch.testing.assert_close(pulled, in_single.to(dtype))
        assert layer.maximum(theta).dtype == dtype
        assert loss(theta, y.detach()).dtype == dtype
        assert layer.sample(theta).dtype == dtype
        assert layer.jacobian(theta).dtype == dtype

    @routes
    def test_autocast(self, route):
        layer = Perturbed(Ranking(), num_samples=50, temperature=0.5, route=route)
        loss = FenchelYoungLoss(layer)
        linear = nn.Linear(5, 5)
        x = scores(4, 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            theta = linear(x)
            assert theta.dtype == torch.bfloat16
            y = layer(theta, generator=seeded())
            assert y.dtype == torch.bfloat16
            value = loss(theta, Ranking()(x), generator=seeded())
        (y.float().square().sum() + value.float()).backward()
        assert linear.weight.grad.dtype == torch.float32
        assert torch.isfinite(linear.weight.grad).all()
        # Inside, products keep single precision.
        plain = scores(4, 5).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(plain, generator=seeded())
            assert y.dtype == torch.float32
            (cast,) = torch.autograd.grad((y * x).sum(), plain)
            jacobian = layer.jacobian(plain, generator=seeded())
        y = layer(plain, generator=seeded())
        (exact,) = torch.autograd.grad((y * x).sum(), plain)
        torch.testing.assert_close(cast, exact, rtol=0, atol=0)
        expected = layer.jacobian(plain, generator=seeded())
        torch.testing.assert_close(jacobian, expected, rtol=0, atol=0)

    @routes
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_types_are_kept(self, route, dtype):
        layer = Perturbed(Ranking(), num_samples=3, route=route)
        theta = scores(4, 5, dtype=dtype).requires_grad_()
        for made in (
            layer(theta),
            layer.maximum(theta),
            layer.jacobian(theta),
            layer.sample(theta),
            FenchelYoungLoss(layer)(theta, Ranking()(theta).detach()),
        ):
            assert made.dtype == dtype
        for solutions, frequencies in layer.distribution(theta):
            assert solutions.dtype == dtype
            assert frequencies.sum() == pytest.approx(1)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            assert frequencies.dtype == wide
        (pulled,) = torch.autograd.grad(layer(theta).sum(), theta)
        assert pulled.dtype == dtype

    @routes
    def test_half_precision_losses_are_reduced_in_single(self, route):
        """Sums and means of many losses do not overflow on their way."""
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        theta = scores(2000, 20)
        target = Ranking()(scores(2000, 20, seed=1))
        loss = FenchelYoungLoss(layer)
        half = loss(theta.half(), target.half(), generator=seeded())
        whole = loss(theta.half().float(), target, generator=seeded())
        assert half.dtype == torch.float16
        assert 2000 * whole > torch.finfo(torch.float16).max
        torch.testing.assert_close(half, whole.half(), rtol=0, atol=0)


class TestShapes:
    @routes
    @pytest.mark.parametrize(
        "shape", [(5,), (0, 5), (1, 5), (2, 3, 5), (2, 0, 5), (2, 1, 3, 5), (4, 1)]
    )
    @pytest.mark.parametrize("num_samples", [1, 4])
    def test_any_batch(self, route, shape, num_samples):
        layer = Perturbed(Ranking(), num_samples=num_samples, route=route)
        theta = scores(*shape).requires_grad_()
        y = layer(theta)
        assert y.shape == shape
        (pulled,) = torch.autograd.grad(y.square().sum(), theta)
        assert pulled.shape == shape
        assert layer.maximum(theta).shape == shape[:-1]
        assert layer.jacobian(theta).shape == (*shape, shape[-1])
        assert layer.sample(theta).shape == (num_samples, *shape)
        assert len(layer.distribution(theta)) == np.prod(shape[:-1], dtype=int)
        for reduction, wanted in (("none", shape[:-1]), ("mean", ()), ("sum", ())):
            if reduction == "mean" and 0 in shape:
                continue
            loss = FenchelYoungLoss(layer, reduction=reduction)
            value = loss(
                theta, Ranking()(theta.detach().reshape(-1, shape[-1])).reshape(shape)
            )
            assert value.shape == wanted

    @routes
    def test_strides_do_not_matter(self, route):
        layer = Perturbed(Ranking(), num_samples=4, temperature=0.5, route=route)
        base = scores(5, 6)
        for view in (
            base.T,
            base[::2, 1:5],
            base[:1].expand(4, 6),
            base.flip(0),
            base[None].transpose(0, 2),
        ):
            at = view.detach().requires_grad_()
            y = layer(at, generator=seeded())
            expected = layer(view.contiguous(), generator=seeded())
            torch.testing.assert_close(y, expected, rtol=0, atol=0)
            (pulled,) = torch.autograd.grad((y * view).sum(), at)
            dense = view.contiguous().clone().requires_grad_()
            y = layer(dense, generator=seeded())
            (expected,) = torch.autograd.grad((y * view).sum(), dense)
            torch.testing.assert_close(pulled, expected, rtol=0, atol=0)

    @routes
    def test_expanded_gradients(self, route):
        layer = Perturbed(Ranking(), num_samples=4, temperature=0.5, route=route)
        theta = scores(3, 4).requires_grad_()
        (pulled,) = torch.autograd.grad(layer(theta, generator=seeded()).sum(), theta)
        # Ranks always sum to the same: so does every sample.
        torch.testing.assert_close(pulled, torch.zeros(3, 4), atol=1e-5, rtol=0)

    @routes
    def test_temperatures_broadcast_over_the_batch(self, route):
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        theta = scores(2, 3, 4)
        full = torch.tensor([[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]])
        expected = layer(theta, generator=seeded(), temperature=full)
        column = torch.tensor([[0.5], [2.0]], requires_grad=True)
        y = layer(theta, generator=seeded(), temperature=column)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        (pulled,) = torch.autograd.grad((y * theta).sum(), column)
        assert pulled.shape == (2, 1)

    @routes
    def test_no_grad(self, route):
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        theta = scores(3, 4).requires_grad_()
        expected = layer(theta, generator=seeded())
        assert expected.requires_grad
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                y = layer(theta, generator=seeded())
                assert not y.requires_grad
                torch.testing.assert_close(y, expected.detach(), rtol=0, atol=0)
                maximum = layer.maximum(theta, generator=seeded())
                assert not maximum.requires_grad

    @routes
    def test_frozen_scores(self, route):
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        assert not layer(scores(3, 4)).requires_grad


class TestArguments:
    @routes
    def test_temperatures_of_every_kind(self, route):
        layer = Perturbed(Ranking(), num_samples=4, route=route)
        theta = scores(2, 3)
        expected = layer(theta, generator=seeded(), temperature=2.0)
        for kind in (2, np.float32(2), np.array(2.0), np.array([2.0, 2]), [2.0, 2.0]):
            for made in (
                layer(theta, generator=seeded(), temperature=kind),
                Perturbed(Ranking(), num_samples=4, route=route, temperature=kind)(
                    theta, generator=seeded()
                ),
            ):
                torch.testing.assert_close(made, expected, rtol=0, atol=0)
        assert list(
            Perturbed(Ranking(), temperature=np.array([1.0, 2.0])).state_dict()
        ) == ["temperature"]

    @pytest.mark.parametrize("temperature", [None, "1", "hot", [[1], [1, 2]]])
    def test_temperatures_that_are_no_numbers(self, temperature):
        with pytest.raises(TypeError, match="temperature must be a number or an array"):
            Perturbed(Ranking(), temperature=temperature)

    @routes
    def test_zero_scores_under_multiplicative_noise(self, route):
        layer = Perturbed(
            Ranking(), num_samples=3, perturbation="multiplicative", route=route
        )
        theta = scores(3, 4)
        theta[1, 2] = 0
        loss = FenchelYoungLoss(layer)
        for call in (layer, layer.maximum, lambda at: loss(at, theta)):
            with pytest.raises(ValueError, match=r"multiplicative .*; row 1 has \["):
                call(theta)

    def test_targets_of_other_types(self):
        loss = FenchelYoungLoss(Perturbed(Ranking(), num_samples=3))
        theta = scores(2, 3)
        with pytest.raises(TypeError, match=r"y must be a torch.Tensor; got ndarray"):
            loss(theta, np.ones((2, 3)))
        target = Ranking()(theta)
        with pytest.raises(ValueError, match="y must not require a gradient"):
            loss(theta, target.requires_grad_())
        with pytest.raises(ValueError, match="y must not require a gradient"):
            torch.func.grad(loss, 1)(theta, target.detach())
        # A target that is only passed along is a constant.
        torch.func.hessian(loss)(theta, target.detach())


class TestLoss:
    @routes
    def test_reductions(self, route):
        layer = Perturbed(Ranking(), num_samples=5, temperature=0.5, route=route)
        theta, target = (
            scores(2, 3, 4),
            Ranking()(scores(6, 4, seed=1)).reshape(2, 3, 4),
        )
        each = FenchelYoungLoss(layer, reduction="none")(
            theta, target, generator=seeded()
        )
        assert each.shape == (2, 3)
        assert (each >= 0).all()
        for reduction in ("mean", "sum"):
            loss = FenchelYoungLoss(layer, reduction=reduction)
            value = loss(theta, target, generator=seeded())
            torch.testing.assert_close(value, getattr(each, reduction)())

    @routes
    def test_gradient_is_the_difference_of_solutions(self, route):
        layer = Perturbed(Ranking(), num_samples=5, temperature=0.5, route=route)
        theta, target = scores(3, 4).requires_grad_(), Ranking()(scores(3, 4, seed=1))
        loss = FenchelYoungLoss(layer, reduction="sum")
        (pulled,) = torch.autograd.grad(loss(theta, target, generator=seeded()), theta)
        y = layer(theta, generator=seeded())
        torch.testing.assert_close(pulled, (y - target).detach())

    def test_integer_targets(self):
        layer = Perturbed(Ranking(), num_samples=5)
        theta = scores(3, 4)
        target = Ranking()(theta)
        loss = FenchelYoungLoss(layer)
        value = loss(theta, target.to(torch.int64), generator=seeded())
        torch.testing.assert_close(value, loss(theta, target, generator=seeded()))


@pytest.mark.parametrize("noise", ["normal", "gumbel"])
@pytest.mark.parametrize("options", [{}, {"baseline": "point"}, {"baseline": "none"}])
def test_sums_by_who_wins_stand_for_the_draws(options, noise):
    """Where only scores are differentiated, draws of few scores are not kept."""
    layer = Perturbed(OneHot(), num_samples=100, noise=noise, **options)
    g, h = scores(2, 4, 5, seed=1)
    found = []
    for learned in (False, True):
        theta = torch.linspace(-1, 1, 20).reshape(4, 5).requires_grad_()
        temperature = torch.ones(4, requires_grad=learned)
        y = layer(theta, temperature=temperature, generator=seeded())
        kept = {saved.dtype for saved in y.grad_fn.saved_tensors if saved is not None}
        assert (torch.uint8 in kept) == learned
        (first,) = torch.autograd.grad(y, theta, g, create_graph=True)
        (alone,) = torch.autograd.grad(y, theta, g, retain_graph=True)
        (second,) = torch.autograd.grad(first, theta, h)
        found.append((y.detach(), first.detach(), alone, second))
    for summed, drawn in zip(*found, strict=True):
        torch.testing.assert_close(summed, drawn, rtol=1e-4, atol=1e-5)
        assert drawn.abs().max() > 0
