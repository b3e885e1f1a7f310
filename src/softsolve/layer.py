"""What the layers of all frontends share besides their settings: checks and shapes."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant, inner
from softsolve.errors import SolverError
from softsolve.settings import Settings, check_choice
from softsolve.solvers.base import Array, Shape, Solver
from softsolve.solvers.function import FunctionSolver


def accepts_any_function(solver: object) -> bool:
    """Tell whether a solver is a user's, whose solutions must be looked at."""
    return isinstance(solver, FunctionSolver) or not isinstance(solver, Solver)


def flatten_context(
    batch_shape: Shape, context: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Give each context array one row for each instance, (B, …)."""
    return tuple(
        _flatten_one(batch_shape, array, position)
        for position, array in enumerate(context)
    )


def _flatten_one(batch_shape: Shape, array: Array, position: int) -> Array:
    xp = array_namespace(array)
    ndim = len(batch_shape)
    leading = tuple(array.shape[:ndim])
    if len(leading) != ndim or not _broadcasts(leading, batch_shape):
        msg = (
            f"context argument {position + 1} must have one entry for each instance: "
            f"its first axes must be the batch shape {batch_shape} (or 1 to share); "
            f"got shape {tuple(array.shape)}."
        )
        raise ValueError(msg)
    rest = tuple(array.shape[ndim:])
    full = xp.broadcast_to(array, (*batch_shape, *rest))
    return xp.reshape(full, (math.prod(batch_shape), *rest))


def _broadcasts(shape: Shape, wanted: Shape) -> bool:
    """Tell whether an array of a shape can be given the wanted one."""
    if len(shape) > len(wanted):
        return False
    last = wanted[len(wanted) - len(shape) :]
    # Comparisons one by one: sizes may be symbols while torch compiles.
    return all(
        got == 1 or got == size  # noqa: PLR1714
        for got, size in zip(shape, last, strict=True)
    )


def repeat_rows(array: Array, count: int) -> Array:
    """Repeat each row (B, …) ``count`` times in a row, (B·count, …)."""
    xp = array_namespace(array)
    rows, rest = array.shape[0], tuple(array.shape[1:])
    spread = xp.broadcast_to(array[:, None, ...], (rows, count, *rest))
    return xp.reshape(spread, (rows * count, *rest))


def raise_not_finite(row: int, values: Any, what: str = "theta") -> NoReturn:
    """Raise for scores that are NaN or infinite, naming the first bad row."""
    msg = (
        f"{what} must be finite; row {row} has {values}. Look for a division by zero, "
        "an overflow or an exploding gradient where it is computed."
    )
    raise ValueError(msg)


def raise_zero_score(row: int, values: Any) -> NoReturn:
    """Raise for scores of zero under multiplicative noise, naming the first bad row."""
    msg = (
        "theta must not be zero anywhere under multiplicative perturbation, which "
        f"leaves zeros as they are and has no derivative there; row {row} has {values}."
        ' Use perturbation="additive", or keep scores away from zero.'
    )
    raise ValueError(msg)


def raise_bad_temperature(row: int, value: float) -> NoReturn:
    """Raise for a temperature that is not positive, naming the first bad row."""
    msg = (
        f"temperature must be positive and finite; got {value:g} in row {row}. A "
        "learned temperature stays positive as exp or softplus of a parameter; for no "
        "smoothing, call the solver itself."
    )
    raise ValueError(msg)


def raise_bad_solution(name: str, row: int) -> NoReturn:
    """Raise for a solver that returned NaN or an infinity."""
    msg = (
        f"{name} must return finite solutions; its solution of row {row} (samples "
        "included) has NaN or an infinity. softsolve.testing.check_solver finds out on "
        "which scores."
    )
    raise SolverError(msg)


def raise_missed_maximum(name: str, row: int, gap: float) -> NoReturn:
    """Raise for a solver whose solution was worse than the target."""
    msg = (
        f"{name} missed the maximum: on a sample of row {row} the target is better "
        f"than its solution by {-gap:.3g}. Fenchel-Young losses need an exact solver, "
        "and targets inside its polytope. Check the solver with "
        "softsolve.testing.check_solver and that targets are solutions (in the same "
        "convention: maximise, costs as theta = -costs)."
    )
    raise SolverError(msg)


def raise_integer_theta(dtype: object) -> NoReturn:
    """Raise for scores that have no derivative."""
    msg = (
        f"theta must be of a floating type, to have derivatives; got {dtype}. Convert "
        "it first, e.g. theta.float() in torch or theta.astype(float) elsewhere."
    )
    raise TypeError(msg)


def check_layer_for_loss(settings: Settings) -> None:
    """Raise unless a layer can have a Fenchel-Young loss."""
    settings.require_linear("FenchelYoungLoss")
    if settings.form != "solution":
        msg = (
            "FenchelYoungLoss differentiates the perturbed maximum by its solutions; "
            'give it a layer with form="solution".'
        )
        raise ValueError(msg)


def raise_bad_target(y_shape: Shape, theta_shape: Shape) -> NoReturn:
    """Raise for targets of another shape than the scores."""
    msg = (
        f"y must be solutions for theta, of its shape {tuple(theta_shape)}; got "
        f"{tuple(y_shape)}. Class indices must be made one-hot, and ranks of the best "
        "label = 1 turned into d + 1 - rank."
    )
    raise ValueError(msg)


def check_second_derivatives(settings: Settings) -> None:
    """Raise for a solver that drops draws: second derivatives would be wrong."""
    if settings.drops:
        msg = (
            f"{settings.name} drops failed draws, and what is averaged then, an "
            "expectation given success, has no estimate of its second derivatives "
            'here. Pass on_failure="raise" to softsolve.solver.'
        )
        raise RuntimeError(msg)


def raise_samples_not_kept(settings: Settings, size: int) -> NoReturn:
    """Say why second derivatives are not to be had, and what to do."""
    check_second_derivatives(settings)
    msg = (
        f"second derivatives of this maximum or loss need its {size:,} bytes of "
        f"samples, which were not kept beyond memory_budget={settings.memory_budget:,}."
        " Pass a larger memory_budget= to Perturbed, or fewer samples."
    )
    raise RuntimeError(msg)


def check_temperature(temperature: object) -> None:
    """Raise unless a concrete temperature is positive and finite everywhere."""
    if isinstance(temperature, float | int):
        if not 0 < temperature < math.inf:
            raise_bad_temperature(0, float(temperature))
        return
    try:
        if temperature is None or isinstance(temperature, str):
            raise TypeError  # NumPy makes numbers of them
        values = np.atleast_1d(np.asarray(temperature, dtype=float)).reshape(-1)
    except (TypeError, ValueError):
        msg = f"temperature must be a number or an array of them; got {temperature!r}."
        raise TypeError(msg) from None
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if bad.size:
        raise_bad_temperature(int(bad[0]), float(values[bad[0]]))


def spread_temperature(temperature: Array, batch_shape: Shape) -> Array:
    """Give each row its temperature, (B,)."""
    xp = array_namespace(temperature)
    if not _broadcasts(tuple(temperature.shape), batch_shape):
        msg = (
            "temperature must broadcast over the batch of theta, of shape "
            f"{batch_shape}; got shape {tuple(temperature.shape)}."
        )
        raise ValueError(msg)
    full = xp.broadcast_to(temperature, batch_shape)
    return xp.reshape(full, (math.prod(batch_shape),))


def column_projector(
    settings: Settings, event_shape: Shape
) -> Callable[[Array], Array]:
    """Return the projector on the polytope's directions, for columns (B, d, K)."""

    def project(v: Array) -> Array:
        xp = array_namespace(v)
        rows, size, columns = v.shape
        instances = xp.reshape(xp.matrix_transpose(v), (rows, columns, *event_shape))
        projected = xp.reshape(settings.project(instances), (rows, columns, size))
        return xp.matrix_transpose(projected)

    return project


def check_vector(shape: Shape, wanted: Shape, name: str) -> None:
    """Raise unless a vector of a product has the shape of what it multiplies."""
    if tuple(shape) != wanted:
        msg = f"{name} must have shape {wanted}, batch included; got {tuple(shape)}."
        raise ValueError(msg)


def check_loss(settings: Settings, reduction: str, gradient: str) -> None:
    """Raise unless a layer can have a Fenchel-Young loss with these options."""
    check_layer_for_loss(settings)
    check_choice("reduction", reduction, ("none", "mean", "sum"))
    check_choice("gradient", gradient, ("exact", "difference"))
    if gradient == "difference" and settings.perturbation.name != "additive":
        msg = 'gradient="difference" is for additive noise; use gradient="exact".'
        raise ValueError(msg)


def gap_tolerance(y: Array, target: Array, x: Array) -> Array:
    r"""Return how far below zero rounding may put a sampled loss, (B, M).

    A few units of rounding of the sums :math:`\sum_j |y_j x_j|` that are compared.
    """
    xp = array_namespace(x)
    size = inner(xp.abs(y) + xp.abs(target)[:, None, :], xp.abs(x))
    return 16 * xp.finfo(x.dtype).eps * size


def check_gaps(
    settings: Settings, gaps: Array, y: Array, target: Array, x: Array
) -> None:
    """Raise if a sample's target was better than the solution, on concrete arrays."""
    xp = array_namespace(gaps)
    if not bool(xp.any(gaps < 0)):
        return
    missed = gaps + gap_tolerance(y, target, x)
    if bool(xp.any(missed < 0)):
        lowest = xp.min(gaps, axis=1)
        row = int(xp.argmin(xp.min(missed, axis=1)))
        raise_missed_maximum(settings.name, row, float(lowest[row]))


def identity_columns(like: Array) -> Array:
    """Return the identity as columns for each row of an array (B, d), (B, d, d)."""
    xp = array_namespace(like)
    rows, size = like.shape
    return xp.broadcast_to(constant(np.eye(size), like), (rows, size, size))


def raise_clipped_second_order(settings: Settings) -> NoReturn:
    """Raise for a second derivative that the fused route does not have."""
    msg = (
        f"second derivatives of the maximum of {settings.name}, which clips its "
        'scores, are not there on the fused route. Pass route="host" to Perturbed.'
    )
    raise RuntimeError(msg)


def check_type(value: object, kind: type, name: str, advice: str) -> None:
    """Raise unless an argument is of a type."""
    if not isinstance(value, kind):
        module = kind.__module__.removesuffix(".layers").removesuffix("._C")
        wanted = f"{module}.{kind.__name__}"
        msg = f"{name} must be a {wanted}; got {type(value).__name__}. {advice}"
        raise TypeError(msg)


def distributions(
    y: np.ndarray, out_shape: Shape
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Count the distinct solutions of each row of samples (B, M, k).

    Samples of NaN are draws that were dropped.
    """
    found = []
    for drawn in y:
        samples = drawn[~np.isnan(drawn).any(axis=1)]
        solutions, counts = np.unique(samples, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        shaped = solutions[order].reshape(-1, *out_shape)
        found.append((shaped, counts[order] / len(samples)))
    return found


def check_interpolation(length: object) -> None:
    """Raise unless the step of the blackbox baseline is a positive number."""
    number = int | float | np.integer | np.floating
    if isinstance(length, bool) or not isinstance(length, number):
        msg = f"BlackBox(interpolation=...) must be a number; got {length!r}."
        raise TypeError(msg)
    if not 0 < length < math.inf:
        msg = f"BlackBox(interpolation=...) must be positive and finite; got {length}."
        raise ValueError(msg)


def check_lowest(
    settings: Settings, lowest: Array, theta: Array, temperature: Array, target: Array
) -> None:
    """Raise if the lowest sampled loss of a row (B,) is below what rounding explains.

    For routes that keep neither solutions nor scores: the rounding of sums of
    :math:`|y_j x_j|` is bounded by sizes of the row instead.
    """
    if not np.count_nonzero(lowest < 0):
        return
    xp = array_namespace(lowest)
    # Noise beyond six standard deviations is not worth a false alarm.
    reach = np.abs(np.asarray(theta)) + 6 * np.asarray(temperature)[:, None]
    size = 1 + np.max(np.abs(np.asarray(target)), axis=1)
    tolerance = 32 * xp.finfo(lowest.dtype).eps * np.sum(reach, axis=1) * size
    missed = lowest + tolerance
    if bool(xp.any(missed < 0)):
        row = int(xp.argmin(missed))
        raise_missed_maximum(settings.name, row, float(lowest[row]))
