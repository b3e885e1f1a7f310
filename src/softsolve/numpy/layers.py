"""The NumPy frontend: the paper's estimators with explicit derivatives."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from softsolve import estimators, layer
from softsolve.array_route import (
    Starts,
    chunk_sizes,
    first_bad_row,
    must_look_at_solutions,
    prime,
    solve_draws,
)
from softsolve.fused_products import FusedCall, FusedDraws, FusedProducts
from softsolve.fused_route import (
    DTYPES,
    pack_context,
    takes_fused_route,
    usual_route,
)
from softsolve.noise import Noise
from softsolve.numpy.random import draw, draw_keys
from softsolve.products import ArrayProducts, Products
from softsolve.retained import Retained
from softsolve.settings import DEFAULT_MEMORY_BUDGET, Settings
from softsolve.solvers.base import as_numbers

Rng = np.random.Generator | int | None


class Gradients(NamedTuple):
    """Gradients in the scores and in the temperature of each row."""

    theta: np.ndarray
    temperature: np.ndarray


class Distribution(NamedTuple):
    """Distinct solutions (n, *event) of one row and how often each was drawn (n,)."""

    solutions: np.ndarray
    frequencies: np.ndarray


@dataclass(frozen=True)
class Rows:
    """A call's scores as rows (B, d) with their temperatures (B,) and context."""

    theta: np.ndarray
    temperature: np.ndarray
    context: tuple[np.ndarray, ...]
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    dtype: np.dtype
    settings: Settings

    @cached_property
    def starts(self) -> Starts:
        """Where the solver may start for the draws of each row."""
        return prime(self.settings, self.theta, self.event_shape, self.context)


@dataclass(frozen=True)
class Draws:
    """Samples of a call: noise z and solutions y, (B, M, ·)."""

    rows: Rows
    z: np.ndarray
    x: np.ndarray
    y: np.ndarray
    out_shape: tuple[int, ...]


class Perturbed:
    r"""A smoothed solver, with its derivatives as methods.

    The perturbed maximiser :math:`y_\varepsilon(\theta) = E[y^*(\theta+\varepsilon Z)]`
    and maximum :math:`F_\varepsilon(\theta) = E[\max_y \langle y, \theta+\varepsilon
    Z\rangle]` (Definition 2.1), estimated from ``num_samples`` draws. Each call draws
    anew; pass generators with the same seed for the same noise.

    Parameters
    ----------
    solver
        One of :mod:`softsolve.solvers`, or any function of a batch of scores.
    temperature
        :math:`\varepsilon`, a float or an array that broadcasts over the batch.
    num_samples
        M, the number of draws.
    noise
        ``"normal"``, ``"gumbel"``, ``"logistic"``, ``"laplace"`` or a
        :class:`softsolve.noise.Noise`.
    perturbation
        ``"additive"``, or ``"multiplicative"`` for scores that must keep their sign.
    baseline
        What is subtracted from the samples in derivatives: ``"none"``, ``"point"``
        (the unperturbed solution: one more solve), ``"leave_one_out"`` or ``"auto"``
        (leave-one-out from two samples on).
    form
        ``"solution"`` averages solutions; ``"maximum"`` takes the other forms of
        Proposition 3.1, from sampled values of the maximum.
    symmetric
        Project derivatives on what is known of the Jacobian: symmetric, and zero off
        the directions of the polytope. For exact linear solvers.
    route
        ``"auto"``, ``"fused"``, ``"array"`` or ``"host"``.
    memory_budget
        Bytes that the draws solved at a time may take.

    Examples
    --------
    >>> from softsolve.solvers import OneHot
    >>> soft = Perturbed(OneHot(), temperature=0.5, num_samples=10**5, noise="gumbel")
    >>> theta = np.array([1.0, 0.0, -1.0])
    >>> soft(theta, rng=0).round(2)  # softmax(theta / 0.5)
    array([0.87, 0.12, 0.02])
    >>> soft.jacobian(theta, rng=0).shape
    (3, 3)
    """

    def __init__(
        self,
        solver: Callable[..., Any],
        *,
        temperature: float | np.ndarray = 1.0,
        num_samples: int = 10,
        noise: str | Noise = "normal",
        perturbation: Literal["additive", "multiplicative"] = "additive",
        baseline: Literal["auto", "none", "point", "leave_one_out"] = "auto",
        form: Literal["solution", "maximum"] = "solution",
        symmetric: bool = False,
        route: Literal["auto", "fused", "array", "host"] = "auto",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        self.settings = Settings.create(
            solver,
            num_samples=num_samples,
            noise=noise,
            perturbation=perturbation,
            baseline=baseline,
            form=form,
            backward="shared",
            symmetric=symmetric,
            route=route,
            memory_budget=memory_budget,
        )
        self.temperature = temperature
        layer.check_temperature(temperature)
        self._rng = np.random.default_rng()

    def __call__(
        self,
        theta: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the smoothed solution of each instance of ``theta``."""
        rows = self._rows(theta, context, temperature)
        generator = self._generator(rng)
        if self._fused(rows):
            mean, _, _ = self._average(rows, generator, keep=False)
            return self._unflatten(rows, mean, rows.event_shape)
        if self.settings.form == "maximum":
            draws = self._draw_all(rows, generator)
            mean = self._array_products(draws).mean()
            return self._unflatten(rows, mean, draws.out_shape)
        parts = []
        for count in chunk_sizes(self.settings, rows.theta):
            draws = self._draw(rows, generator, count)
            parts.append(self._retained(draws, 1).weigh(draws.y).sum(axis=1))
        mean = np.sum(parts, axis=0) / self.settings.num_samples
        return self._unflatten(rows, mean, draws.out_shape)

    def maximum(
        self,
        theta: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the perturbed maximum of each instance, of the batch's shape."""
        self.settings.require_linear("maximum")
        rows = self._rows(theta, context, temperature)
        generator = self._generator(rng)
        if self._fused(rows, maximum=True):
            value, _, _ = self._fused_maxima(rows, generator, None)
            return self._unflatten(rows, value, ())
        total = np.zeros(len(rows.theta), dtype=rows.theta.dtype)
        for count in chunk_sizes(self.settings, rows.theta):
            draws = self._draw(rows, generator, count)
            values = self._values(draws.y, draws.x)
            total = total + self._retained(draws, 1).weigh(values).sum(axis=1)
        return self._unflatten(rows, total / self.settings.num_samples, ())

    def vjp(
        self,
        theta: np.ndarray,
        g: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> Gradients:
        r"""Return the gradients of :math:`\langle y_\varepsilon(\theta), g\rangle`.

        In θ this is :math:`J^\top g`, from
        :math:`\frac{1}{\varepsilon M}\sum_m \langle y_m - b_m, g\rangle s_m`.
        """
        rows = self._rows(theta, context, temperature)
        self._check_early(rows, g)
        products, out_shape = self._products(rows, rng)
        vectors = self._vectors(rows, g, out_shape, "g")
        in_tau, in_temperature = products.pull(vectors)
        return Gradients(
            self._unflatten(rows, in_tau[..., 0] * self._chain(rows), rows.event_shape),
            self._unflatten(rows, in_temperature[:, 0], ()),
        )

    def jvp(
        self,
        theta: np.ndarray,
        v: np.ndarray,
        *context: np.ndarray,
        temperature_direction: float = 0.0,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        r"""Return :math:`J v`, and with it the derivative along the temperature."""
        rows = self._rows(theta, context, temperature)
        vectors = self._vectors(rows, v, rows.event_shape, "v")
        products, out_shape = self._products(rows, rng)
        e = np.full_like(rows.temperature, temperature_direction)[:, None]
        along = (vectors * self._chain(rows)[..., None], e)
        pushed = products.push(along)
        return self._unflatten(rows, pushed[..., 0], out_shape)

    def jacobian(
        self,
        theta: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the Jacobian of the smoothed solution, (*batch, *out, *event)."""
        rows = self._rows(theta, context, temperature)
        products, out_shape = self._products(rows, rng)
        matrix = products.jacobian() * self._chain(rows)[:, None, :]
        return self._unflatten(rows, matrix, out_shape + rows.event_shape)

    def hessian(
        self,
        theta: np.ndarray,
        g: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        r"""Return the Hessian in θ of :math:`\langle y_\varepsilon(\theta), g\rangle`.

        The average of :math:`\langle y_m - b_m, g\rangle (s_m s_m^\top-\nabla^2\nu)`
        over :math:`\varepsilon^2`, (*batch, *event, *event). Additive noise only.
        """
        if self.settings.perturbation.name != "additive":
            msg = "hessian is there for additive noise only."
            raise ValueError(msg)
        if self.settings.form == "maximum":
            msg = 'hessian needs form="solution": it is a second derivative already.'
            raise ValueError(msg)
        layer.check_second_derivatives(self.settings)
        rows = self._rows(theta, context, temperature)
        self._check_early(rows, g)
        products, out_shape = self._products(rows, rng)
        vectors = self._vectors(rows, g, out_shape, "g")
        matrix = products.hessian(vectors)
        return self._unflatten(rows, matrix, rows.event_shape + rows.event_shape)

    def sample(
        self,
        theta: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        r"""Draw solutions from :math:`p_\theta`, (num_samples, *batch, *event)."""
        rows = self._rows(theta, context, temperature)
        y, out_shape = self._solutions(rows, rng)
        shape = (self.settings.num_samples, *rows.batch_shape, *out_shape)
        drawn = np.moveaxis(y, 1, 0).reshape(shape)
        return drawn.astype(rows.dtype, copy=False)

    def distribution(
        self,
        theta: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> list[Distribution]:
        r"""Return the distinct solutions drawn from :math:`p_\theta`, by frequency.

        One :class:`Distribution` for each instance, in the order of the flattened
        batch, most frequent solutions first.
        """
        rows = self._rows(theta, context, temperature)
        y, out_shape = self._solutions(rows, rng)
        counted = layer.distributions(y.astype(rows.dtype), out_shape)
        return [Distribution(*pair) for pair in counted]

    def __repr__(self) -> str:
        route = usual_route(self.settings, on_cpu=True)
        facts = self.settings.describe(self.temperature, route)
        return f"softsolve.numpy.Perturbed({facts})"

    # What the methods are made of: rows, draws, samples and products with them.

    def _rows(
        self,
        theta: Any,
        context: tuple[Any, ...],
        temperature: float | np.ndarray | None,
    ) -> Rows:
        theta = np.asarray(theta)
        if not np.issubdtype(theta.dtype, np.floating):
            layer.raise_integer_theta(theta.dtype)
        batch_shape, event_shape = self.settings.split_shape(theta.shape)
        work = np.float32 if theta.dtype == np.float16 else theta.dtype
        count = math.prod(batch_shape)
        flat = theta.astype(work, copy=False).reshape(count, math.prod(event_shape))
        self._check_scores(flat)
        if temperature is None:
            temperature = self.temperature
        else:
            layer.check_temperature(temperature)
        with np.errstate(over="ignore"):
            cast = np.asarray(temperature, work)
        layer.check_temperature(cast)  # what is in range of float64 may not be here
        spread = layer.spread_temperature(cast, batch_shape)
        arrays = tuple(np.asarray(array) for array in context)
        rows = layer.flatten_context(batch_shape, arrays)
        self.settings.check_instances(event_shape, rows)
        return Rows(
            flat, spread, rows, batch_shape, event_shape, theta.dtype, self.settings
        )

    def _check_scores(self, theta: np.ndarray) -> None:
        row = first_bad_row(theta)
        if row is not None:
            layer.raise_not_finite(row, theta[row])
        if self.settings.perturbation.name == "multiplicative":
            with np.errstate(divide="ignore", over="ignore"):
                row = first_bad_row(1 / theta)
            if row is not None:
                layer.raise_zero_score(row, theta[row])

    def _generator(self, rng: Rng) -> np.random.Generator:
        return self._rng if rng is None else np.random.default_rng(rng)

    def _draw(self, rows: Rows, rng: np.random.Generator, count: int) -> Draws:
        size = rows.theta.shape[1]
        z = self._noise((len(rows.theta), count, size), rows.theta.dtype, rng)
        x = self.settings.perturbation.perturb(rows.theta, rows.temperature, z)
        y, out_shape = self._solve_draws(rows, x)
        return Draws(rows, z, x, y, out_shape)

    def _draw_all(self, rows: Rows, generator: np.random.Generator) -> Draws:
        parts = [
            self._draw(rows, generator, count)
            for count in chunk_sizes(self.settings, rows.theta)
        ]
        if len(parts) == 1:
            return parts[0]
        z, x, y = (
            np.concatenate([getattr(part, name) for part in parts], axis=1)
            for name in ("z", "x", "y")
        )
        return Draws(rows, z, x, y, parts[0].out_shape)

    def _noise(
        self, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator
    ) -> np.ndarray:
        return draw(self.settings.noise, shape, dtype, rng)

    def _retained(self, draws: Draws, least: int) -> Retained:
        """Tell which draws are left, if failed ones are dropped; at least so many."""
        retained = Retained(self.settings, draws.y)
        retained.require(least)
        return retained

    def _solve(
        self, theta: np.ndarray, *context: np.ndarray, **starts: list[Any]
    ) -> np.ndarray:
        solution = self.settings.solver(theta, *context, **starts)
        y = as_numbers(solution, self.settings.name)
        if must_look_at_solutions(self.settings) and y.ndim and len(y) == len(theta):
            row = first_bad_row(y)
            if row is not None:
                layer.raise_bad_solution(self.settings.name, row)
        return y

    def _values(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.vecdot(y, estimators.scores_reached(x, clips=self.settings.clips))

    def _products(self, rows: Rows, rng: Rng) -> tuple[Products, tuple[int, ...]]:
        """Draw; return the products of the samples, and the shape of a solution."""
        generator = self._generator(rng)
        if not self._fused(rows):
            draws = self._draw_all(rows, generator)
            return self._array_products(draws), draws.out_shape
        mean, codes, keys = self._average(rows, generator, keep=True)
        center = None
        if self.settings.baseline == "leave_one_out":
            center = mean
        elif self.settings.baseline == "point":
            center = self._solve_draws(rows, rows.theta[:, None, :])[0][:, 0]
        point = (rows.theta, rows.temperature)
        call = FusedCall(self.settings, rows.event_shape)
        products = FusedProducts(call, point, FusedDraws(keys, codes, center))
        return products, rows.event_shape

    def _solutions(self, rows: Rows, rng: Rng) -> tuple[np.ndarray, tuple[int, ...]]:
        """Draw solutions (B, M, k), and return the shape of one."""
        generator = self._generator(rng)
        if not self._fused(rows):
            draws = self._draw_all(rows, generator)
            return draws.y, draws.out_shape
        _, codes, _ = self._average(rows, generator, keep=True)
        call = FusedCall(self.settings, rows.event_shape)
        return call.solutions(codes, rows.theta.dtype), rows.event_shape

    def _fused(self, rows: Rows, *, maximum: bool = False) -> bool:
        compiled = rows.theta.dtype.name in DTYPES
        return compiled and takes_fused_route(
            self.settings, on_cpu=True, maximum=maximum
        )

    def _average(
        self, rows: Rows, generator: np.random.Generator, *, keep: bool
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Draw on the fused route: the mean, codes of the solutions if kept, keys."""
        keys = self._keys(rows, generator)
        call = FusedCall(self.settings, rows.event_shape)
        mean, codes = call.mean(
            rows.theta, rows.temperature, keys, rows.context, keep=keep
        )
        return mean, codes, keys

    def _keys(self, rows: Rows, generator: np.random.Generator) -> np.ndarray:
        """Draw the key of each row's noise, once the context is known to be good."""
        if rows.context:
            pack_context(self.settings, len(rows.theta), rows.event_shape, rows.context)
        return draw_keys(len(rows.theta), generator)

    def _fused_maxima(
        self, rows: Rows, generator: np.random.Generator, target: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the maximum relative to a target, its gradient and moment."""
        keys = self._keys(rows, generator)
        call = FusedCall(self.settings, rows.event_shape)
        return call.maxima(rows.theta, rows.temperature, target, keys, rows.context)

    def _array_products(self, draws: Draws) -> ArrayProducts:
        settings, rows = self.settings, draws.rows
        at_point = None
        values = self._averaged(draws.y, draws.x)
        if settings.baseline == "point":
            point = rows.theta[:, None, :]
            y, _ = self._solve_draws(rows, point)
            at_point = self._averaged(y, point)[:, 0]
        values = self._retained(draws, 2).fill(values)
        samples = estimators.Samples(values, settings.baseline, at_point)
        at = (rows.theta, rows.temperature)
        return ArrayProducts(settings, rows.event_shape, at, draws.z, samples)

    def _solve_draws(
        self, rows: Rows, x: np.ndarray
    ) -> tuple[np.ndarray, tuple[int, ...]]:
        return solve_draws(
            self.settings, self._solve, x, rows.event_shape, rows.context, rows.starts
        )

    def _averaged(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return what the form of the layer averages: solutions or their values."""
        return self._values(y, x)[..., None] if self.settings.form == "maximum" else y

    def _chain(self, rows: Rows) -> np.ndarray:
        """Return dτ/dθ, elementwise."""
        if self.settings.perturbation.name == "additive":
            return np.ones_like(rows.theta)
        return 1 / rows.theta

    def _check_early(self, rows: Rows, g: Any) -> None:
        """Check the shape of g before anything is drawn, where solutions' is known."""
        if self.settings.linear:
            full = (*rows.batch_shape, *rows.event_shape)
            layer.check_vector(np.shape(g), full, "g")

    def _vectors(
        self, rows: Rows, vector: Any, shape: tuple[int, ...], name: str
    ) -> np.ndarray:
        full = (*rows.batch_shape, *shape)
        vector = np.asarray(vector, dtype=rows.theta.dtype)
        layer.check_vector(vector.shape, full, name)
        return vector.reshape(len(rows.theta), math.prod(shape), 1)

    def _unflatten(
        self, rows: Rows, values: np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        return values.reshape(rows.batch_shape + shape).astype(rows.dtype, copy=False)
