"""Whether what is timed is right: solutions are optimal, estimates agree."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from workloads import Ours, Workload

Array = np.ndarray[Any, Any]

# Standard errors by which means of two libraries may differ.
LIMIT = 5.0
# Perturbed instances of each workload whose solutions are compared with a reference.
SOLUTIONS = 60


@dataclass
class Estimates:
    """Estimates of repeated calls, (R, B·d) for arrays, (R, 1) for numbers."""

    mean: Array
    product: Array
    loss_gradient: Array


def estimates(layer: Any, g: Array, calls: int) -> Estimates:
    """Call a layer so often; the product is that of each gradient with g."""
    means, products, gradients = [], [], []
    for _ in range(calls):
        mean, gradient = layer.maximiser()
        means.append(np.array(mean).ravel())
        products.append(np.vdot(np.asarray(gradient), g.reshape(gradient.shape)))
        gradients.append(np.array(layer.loss_gradient()).ravel())
    return Estimates(np.array(means), np.array(products)[:, None], np.array(gradients))


def excess(first: Array, second: Array) -> float:
    """Return the squared difference of means in units of what chance explains, or 1."""
    variance = first.var(axis=0, ddof=1) / len(first)
    variance = variance + second.var(axis=0, ddof=1) / len(second)
    difference = first.mean(axis=0) - second.mean(axis=0)
    return float(np.sum(difference**2) / np.sum(variance))


def check_solver(workload: Workload, name: str, x: Array, y: Array) -> None:
    """Raise unless solutions (n, d) are worth what the reference's are."""
    worth = workload.values(y.astype(np.float64), x.astype(np.float64))
    best = workload.best(x)
    rounding = 1e-5 * np.abs(x).sum(axis=1) / np.sqrt(x.shape[1])
    wrong = np.abs(worth - best) > np.maximum(rounding, 1e-4 * np.abs(best))
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"{workload.text}: {name} has {wrong.sum()} of {len(x)} solutions that are "
            f"not optimal; the first, {row}, is worth {worth[row]:.6g} instead of "
            f"{best[row]:.6g}"
        )
        raise AssertionError(msg)


def disagreement(ours: Estimates, other: Estimates) -> str | None:
    """Say how two layers disagree in what they estimate, or return None."""
    for what, values in vars(ours).items():
        theirs = getattr(other, what)
        ratio = excess(values, theirs)
        # Of many entries, the mean of squares: 1 by chance, somewhat more where
        # variances come from few calls. Of one number, its square.
        if ratio > (LIMIT**2 * 2 if what == "product" else LIMIT / 2):
            scale = np.vdot(values.mean(axis=0), theirs.mean(axis=0))
            share = scale / np.vdot(values.mean(axis=0), values.mean(axis=0))
            return (
                f"its {what.replace('_', ' ')} is not that of the others, but about "
                f"{share:.2f} times it (squared difference {ratio:,.0f} times what "
                "chance explains)"
            )
    return None


def check(
    workload: Workload, ours: Ours, peers: list[Any], calls: int
) -> dict[str, str]:
    """Raise unless softsolve is right; return which peers are not, and how."""
    x, y = ours.draws(SOLUTIONS)
    check_solver(workload, ours.name, x, y)
    reference = estimates(ours, workload.g, calls)
    wrong, right = {}, 0
    for peer in peers:
        check_solver(workload, peer.name, x, peer.solve(x))
        few = 3 if peer.name.startswith("PyEPO") else calls
        found = estimates(peer, workload.g, few)
        reason = disagreement(reference, found)
        if reason is None:
            right += 1
        else:
            wrong[peer.name] = f"{peer.name}: {reason}."
    if 2 * right < len(peers):
        msg = f"{workload.text}: softsolve agrees with {right} of {len(peers)}: {wrong}"
        raise AssertionError(msg)
    return wrong
