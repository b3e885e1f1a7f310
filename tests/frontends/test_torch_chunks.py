"""The memory budget decides how draws are solved, and nothing else."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softsolve import array_route, solver
from softsolve.solvers import OneHot, Ranking
from softsolve.torch import FenchelYoungLoss, Perturbed

ROWS, SIZE, SAMPLES = 3, 4, 11
NUMBERS = ROWS * SIZE
SAMPLE_BYTES = 4 * 8 * NUMBERS  # what the solving of one sample is taken to need


def seeded():
    return torch.Generator().manual_seed(0)


THETA = torch.randn(ROWS, SIZE, generator=seeded(), dtype=torch.float64)
TARGET = Ranking()(THETA.flip(0))


def measured(layer):
    """Return all that a layer computes at one set of draws."""
    theta = THETA.clone().requires_grad_()
    eps = torch.full((ROWS,), 0.6, dtype=torch.float64, requires_grad=True)
    given = {"temperature": eps}
    y = layer(theta, generator=seeded(), **given)
    value = layer.maximum(theta, generator=seeded(), **given)
    loss = FenchelYoungLoss(layer)(theta, TARGET, generator=seeded(), **given)
    with torch.no_grad():
        plain = layer(theta, generator=seeded(), **given)
        drawn = layer.sample(theta, generator=seeded(), **given)
        jacobian = layer.jacobian(theta, generator=seeded(), **given)
    found = [y, value, loss, plain, drawn, jacobian]
    for made in (y, value, loss):
        found += torch.autograd.grad((made * made.detach()).sum(), (theta, eps))
    return [tensor.detach() for tensor in found]


@pytest.mark.parametrize("block", [1, 2 * NUMBERS, 5 * NUMBERS, array_route.BLOCK])
@pytest.mark.parametrize("options", [{}, {"baseline": "point"}, {"noise": "gumbel"}])
def test_numbers_do_not_depend_on_the_budget(monkeypatch, block, options):
    monkeypatch.setattr(array_route, "BLOCK", block)
    results = []
    for samples in (0.1, 1, 2, 3, 5, 10, 11, 1000):
        budget = max(1, int(samples * SAMPLE_BYTES))
        layer = Perturbed(
            Ranking(),
            num_samples=SAMPLES,
            route="array",
            memory_budget=budget,
            **options,
        )
        results.append(measured(layer))
    assert results[0][0].abs().max() > 0
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize("block", [2 * NUMBERS, array_route.BLOCK])
@pytest.mark.parametrize("samples", [1, 3, 5, 100])
def test_no_more_is_solved_at_a_time_than_the_budget_allows(
    monkeypatch, block, samples
):
    monkeypatch.setattr(array_route, "BLOCK", block)
    solved = []

    @solver(linear=True)
    def counted(theta):
        solved.append(len(theta))
        return OneHot()(theta)

    layer = Perturbed(
        counted, num_samples=SAMPLES, memory_budget=samples * SAMPLE_BYTES
    )
    layer(THETA)
    assert max(solved) <= ROWS * min(samples, SAMPLES)
    assert sum(solved) == ROWS * SAMPLES
    assert len(solved) <= np.ceil(SAMPLES / min(samples, SAMPLES)) + 2


def test_many_chunks_do_not_lose_digits():
    """In single precision, the rounding of a sum of thousands would show."""
    total, plain = array_route.RunningSum(), torch.zeros(1)
    parts = torch.rand(20_000, 1, generator=seeded()) + 100
    for part in parts:
        total.add(part)
        plain = plain + part
    exact = parts.double().sum(0)
    assert (total.total - exact).abs() / exact < 1e-7
    assert (plain - exact).abs() / exact > 1e-7


class Largest(TorchDispatchMode):
    """Watch how large the tensors are that operations return, in bytes."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.nbytes)
        return result


@pytest.mark.parametrize("method", ["forward", "maximum"])
def test_memory_of_a_large_average(monkeypatch, method):
    """No tensor is larger than a block of noise, or the budget's part for one."""
    monkeypatch.setattr(array_route, "BLOCK", 2**12)
    rows, size, samples = 10, 50, 10_000
    together = rows * size * samples * 4
    layer = Perturbed(OneHot(), num_samples=samples, route="array", memory_budget=2**16)
    with torch.no_grad(), Largest() as watched:
        getattr(layer, method)(torch.zeros(rows, size))
    assert watched.size <= 2**14 < together / 1000
    larger = Perturbed(OneHot(), num_samples=samples, route="array")
    with torch.no_grad(), Largest() as watched:
        getattr(larger, method)(torch.zeros(rows, size))
    assert watched.size >= together  # where there is room, all at once
