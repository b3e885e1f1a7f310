"""What looks at values in torch: solving on the host, and checks."""

from typing import Any

import torch

from softsolve import layer
from softsolve.array_route import Starts, first_bad_row, must_look_at_solutions
from softsolve.settings import Settings

Tensor = torch.Tensor


def solve_on_host(
    settings: Settings,
    theta: Tensor,
    context: tuple[Tensor, ...],
    starts: Starts = None,
) -> Tensor:
    """Call a solver of NumPy arrays, with one start a row if there are any."""
    given = {} if starts is None else {"starts": starts}
    solution = settings.solver(*arrays_on_host((theta, *context)), **given)
    y = torch.as_tensor(solution, device=theta.device)
    if must_look_at_solutions(settings):
        check_values(settings, y, len(theta))
    return y


def arrays_on_host(tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Return tensors as NumPy arrays."""
    return tuple(tensor.detach().cpu().numpy() for tensor in tensors)


def check_values(settings: Settings, y: Tensor, rows: int) -> None:
    """Raise for solutions that are not finite."""
    if y.ndim and len(y) == rows:
        row = first_bad_row(y)
        if row is not None:
            layer.raise_bad_solution(settings.name, row)


def check_point(
    theta: Tensor, temperature: Tensor, *, multiplicative: bool = False
) -> None:
    """Raise for scores or temperatures that cannot be used."""
    row = first_bad_row(theta)
    if row is not None:
        layer.raise_not_finite(row, theta[row].tolist())
    row = first_bad_row(1 / theta) if multiplicative else None
    if row is not None:
        layer.raise_zero_score(row, theta[row].tolist())
    good = (temperature > 0) & torch.isfinite(temperature)
    if not bool(good.all()):
        row = int((~good).to(torch.int8).argmax())
        layer.raise_bad_temperature(row, float(temperature[row]))


def check_target(target: Tensor | None) -> None:
    """Raise for targets that are not finite."""
    row = None if target is None else first_bad_row(target)
    if target is not None and row is not None:
        layer.raise_not_finite(row, target[row].tolist(), "y")
