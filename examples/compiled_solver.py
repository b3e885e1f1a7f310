"""Compile a solver of your own: a dynamic program of one instance, fused with noise.

The solver here picks jobs that do not overlap in time, those of the largest total value
(weighted interval scheduling). ``softsolve.compiled`` makes it a solver: noise, dynamic
program and average then run in one compiled pass, on all threads. When the jobs take
place differs from row to row: that is the context. What jobs are worth is learned from
schedules that somebody chose.
"""

import itertools
import time

import numpy as np
import torch

import softsolve as ss
from softsolve.testing import check_solver
from softsolve.torch import FenchelYoungLoss, Perturbed

JOBS, FEATURES = 10, 4


@ss.compiled(solution="binary")
def schedule(theta, context, y):
    """Mark the jobs of the largest total value of which no two overlap."""
    size = theta.size
    starts, ends = context[:size], context[size:]
    order = np.argsort(ends)
    before = np.zeros(size, np.int64)  # how many jobs end before each one starts
    best = np.zeros(size + 1)  # of the first jobs to end
    for i in range(size):
        while before[i] < i and ends[order[before[i]]] <= starts[order[i]]:
            before[i] += 1
        best[i + 1] = max(best[i], theta[order[i]] + best[before[i]])
    i = size
    while i > 0:
        if best[i] > best[i - 1]:
            y[order[i - 1]] = 1
            i = before[i - 1]
        else:
            i -= 1


def some_jobs(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return starts and ends of jobs, (rows, 2 JOBS)."""
    starts = rng.random((rows, JOBS))
    ends = starts + rng.uniform(0.05, 0.5, (rows, JOBS))
    return np.concatenate([starts, ends], axis=1)


def feasible(y: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Tell which rows of ``y`` have no two jobs that overlap."""
    starts, ends = np.split(context, 2, axis=1)
    overlap = (starts[:, :, None] < ends[:, None]) & (
        starts[:, None] < ends[:, :, None]
    )
    both = (y[:, :, None] * y[:, None]) > 0
    return ~(overlap & both & ~np.eye(y.shape[1], dtype=bool)).any(axis=(1, 2))


def by_trying_all(theta: np.ndarray, context: np.ndarray) -> float:
    """Return the largest total value for one row, the slow way."""
    sets = np.array(list(itertools.product([0, 1], repeat=len(theta))))
    allowed = feasible(sets, np.broadcast_to(context, (len(sets), len(context))))
    return float((sets[allowed] @ theta).max())


def train(steps: int) -> tuple[float, float]:
    """Learn what jobs are worth; return the share of it reached before and after."""
    torch.manual_seed(0)
    jobs = torch.from_numpy(some_jobs(500, np.random.default_rng(0)))
    x = torch.randn(500, JOBS, FEATURES)
    worth = 1 + x @ torch.randn(FEATURES)
    y = torch.from_numpy(schedule(worth.numpy(), jobs.numpy()))
    model = torch.nn.Linear(FEATURES, 1)
    loss_function = FenchelYoungLoss(Perturbed(schedule, num_samples=10))

    def share() -> float:
        with torch.no_grad():
            theta = model(x[400:]).squeeze(-1).numpy()
        chosen = schedule(theta, jobs[400:].numpy())
        return float((worth[400:].numpy() * chosen).sum() / (worth * y)[400:].sum())

    before = share()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        batch = torch.randint(400, (32,))
        loss = loss_function(model(x[batch]).squeeze(-1), y[batch], jobs[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before, share()


def gain() -> float:
    """Return how much longer the same function takes if Python calls it."""

    def one_schedule(theta: np.ndarray, context: np.ndarray) -> np.ndarray:
        y = np.zeros_like(theta)
        schedule.function(theta, context, y)
        return y

    jobs = torch.from_numpy(some_jobs(32, np.random.default_rng(0)))
    theta = torch.ones(32, JOBS, requires_grad=True)
    seconds = []
    for solver in (schedule, ss.solver(one_schedule, batched=False, linear=True)):
        layer = Perturbed(solver, num_samples=100)
        layer(theta, jobs).sum().backward()  # compiles
        began = time.perf_counter()
        layer(theta, jobs).sum().backward()
        seconds.append(time.perf_counter() - began)
    return seconds[1] / seconds[0]


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    scores, when = rng.normal(size=(20, JOBS)), some_jobs(20, rng)
    print(check_solver(schedule, scores, when, feasible=feasible))
    reached = np.vecdot(schedule(scores, when), scores)
    print(
        "equal to the best of all sets:",
        np.allclose(reached, list(map(by_trying_all, scores, when))),
    )
    print("share of the value: {:.2f} before, {:.2f} after".format(*train(100)))
    print(f"times faster than the same function called by Python: {gain():.0f}")
