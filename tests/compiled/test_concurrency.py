"""Layers on several threads, from several threads, and in forked processes at once."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import softsolve as ss
from softsolve import parallel
from softsolve.torch import FenchelYoungLoss, Perturbed


@ss.compiled(solution="binary")
def above_mean(theta, y):
    """Mark the scores above their mean."""
    mean = theta.mean()
    for j in range(theta.size):
        y[j] = theta[j] > mean


# Large enough for several threads.
LAYERS = {
    "argmax": (ss.solvers.OneHot(), (300, 10), 100),
    "ranking of one row": (ss.solvers.Ranking(), (1, 100), 3000),
    "top of many": (ss.solvers.TopK(5), (9, 1000), 40),
    "grid": (ss.solvers.GridPath(), (40, 6, 7), 50),
    "assignment": (ss.solvers.Assignment(), (20, 8, 8), 30),
    "of one's own": (above_mean, (50, 20), 100),
}


@pytest.fixture
def threads():
    before = parallel.get_num_threads()
    yield parallel.set_num_threads
    parallel.set_num_threads(before)


def everything(solver, shape, samples):
    """Return values and gradients of a layer and its loss, from the same draws."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(shape, generator=generator).requires_grad_()
    temperature = torch.full((shape[0],), 0.7, requires_grad=True)
    layer = Perturbed(solver, num_samples=samples)
    assert "fused" in repr(layer)
    y = solver(theta.detach().numpy()) if layer.settings.host else solver(theta)
    target = torch.as_tensor(y, dtype=torch.float32).detach().roll(1, 0)
    mean = layer(theta, temperature=temperature, generator=generator)
    loss = FenchelYoungLoss(layer, reduction="none")
    value = loss(theta, target, temperature=temperature, generator=generator)
    (mean.square().sum() + value.sum()).backward()
    return [t.detach().numpy() for t in (mean, value, theta.grad, temperature.grad)]


@pytest.mark.parametrize("name", LAYERS)
def test_any_number_of_threads_gives_the_same_bits(name, threads):
    threads(1)
    expected = everything(*LAYERS[name])
    for number in (2, 4):
        threads(number)
        for actual, one in zip(everything(*LAYERS[name]), expected, strict=True):
            np.testing.assert_array_equal(actual, one)


def test_two_threads_and_forks_use_a_layer_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, threading, warnings
            import numpy as np
            import torch
            import softsolve.numpy as ssn
            from softsolve import parallel, solvers
            from softsolve.torch import Perturbed

            parallel.set_num_threads(3)
            torch.set_num_threads(1)
            theta = np.random.default_rng(0).normal(size=(30, 50)).astype("float32")
            layer = Perturbed(solvers.Ranking(), num_samples=200)
            plain = ssn.Perturbed(solvers.Ranking(), num_samples=200)

            def solve(backward):
                x = torch.from_numpy(theta).requires_grad_(backward)
                mean = layer(x, generator=torch.Generator().manual_seed(0))
                found = [mean.detach().numpy(), plain.vjp(theta, theta, rng=0).theta]
                if backward:
                    mean.square().sum().backward()
                    found.append(x.grad.numpy())
                return found

            def same(found):
                return all(np.array_equal(a, b) for a, b in zip(found, expected))

            expected = solve(True)
            results = []

            def work():
                for _ in range(30):
                    results.append(same(solve(True)))

            workers = [threading.Thread(target=work) for _ in range(2)]
            for worker in workers:
                worker.start()
            warnings.simplefilter("ignore")  # of Python 3.12 about threads
            for _ in range(3):
                child = os.fork()
                if child == 0:  # torch has no backward pass here: its engine is gone
                    os._exit(0 if same(solve(False)) else 1)
                assert os.waitpid(child, 0)[1] == 0
            for worker in workers:
                worker.join()
            assert results == [True] * 60
            print("done")
            """
        )
    )
    command = [sys.executable, str(script)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == "done\n"
