"""The perturbed solver in JAX."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softsolve import layer
from softsolve.fused_route import takes_fused_route, usual_route
from softsolve.jax import fused
from softsolve.jax.checks import require
from softsolve.jax.derivatives import (
    attach,
    attach_maximum,
    smoothed_jacobian,
    solution_from_maximum,
)
from softsolve.jax.random import check_key
from softsolve.jax.sampling import Call
from softsolve.noise import Noise
from softsolve.settings import DEFAULT_MEMORY_BUDGET, Settings

Array = Any


class Distribution(NamedTuple):
    """Distinct solutions (n, *event) of one row and how often each was drawn (n,)."""

    solutions: np.ndarray
    frequencies: np.ndarray


@dataclass(frozen=True)
class Rows:
    """A call's scores as rows (B, d) with their temperatures (B,) and context."""

    theta: Array
    temperature: Array
    context: tuple[Array, ...]
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    dtype: Any
    nonzero: bool

    @property
    def finite(self) -> Array:
        """Zero, if all scores are finite, and none is zero that must not be."""
        theta = jax.lax.stop_gradient(self.theta)
        good = jnp.isfinite(theta).all(axis=1)
        zero = require(good, layer.raise_not_finite, theta)
        if self.nonzero:
            good = jnp.isfinite(1 / theta).all(axis=1)
            zero = zero + require(good, layer.raise_zero_score, theta)
        return zero.astype(theta.dtype)

    @property
    def fixed(self) -> tuple[Array, Array]:
        """Scores and temperatures, outside of differentiation, checked."""
        theta = jax.lax.stop_gradient(self.theta)
        temperature = jax.lax.stop_gradient(self.temperature)
        good = (temperature > 0) & jnp.isfinite(temperature)
        positive = require(good, layer.raise_bad_temperature, temperature)
        zero = self.finite + positive.astype(theta.dtype)
        return theta + zero, temperature + zero

    @property
    def point(self) -> tuple[Array, Array]:
        """Scores and temperatures."""
        return self.theta, self.temperature

    def restore(self, values: Array, shape: tuple[int, ...]) -> Array:
        """Give results (B, k) the batch's shape and the scores' type."""
        return values.reshape(self.batch_shape + shape).astype(self.dtype)


@jax.tree_util.register_pytree_node_class
class Perturbed:
    r"""A smoothed, differentiable solver.

    The perturbed maximiser :math:`y_\varepsilon(\theta) = E[y^*(\theta+\varepsilon Z)]`
    (Definition 2.1), estimated from ``num_samples`` draws, with unbiased derivatives of
    any order in the scores and in the temperature (Proposition 3.1). It works under
    jit, vmap, grad, jacfwd, jacrev, hessian and inside lax.scan. Calls take a ``key``;
    the same key gives the same noise. The layer is a pytree whose one leaf is its
    temperature.

    Gradients are unbiased for losses that are linear in the output; for others the
    output and its Jacobian share their draws, and the gradient has a bias that shrinks
    as 1/M. ``backward="independent"`` draws afresh for the Jacobian and has none.

    Parameters
    ----------
    solver
        One of :mod:`softsolve.solvers`, or any function of a batch of scores.
    temperature
        :math:`\varepsilon`: a float or an array that broadcasts over the batch.
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
    backward
        ``"shared"``, or ``"independent"`` to draw afresh for derivatives.
    symmetric
        Project derivatives on what is known of the Jacobian: symmetric, and zero off
        the directions of the polytope. For exact linear solvers.
    route
        ``"auto"``, ``"fused"``, ``"array"`` or ``"host"``.
    memory_budget
        Bytes that the draws solved at a time may take.

    Examples
    --------
    >>> from softsolve.solvers import Ranking
    >>> soft_rank = Perturbed(Ranking(), temperature=0.1, num_samples=100)
    >>> theta = jnp.array([[0.3, -1.0, 2.0]])
    >>> key = jax.random.key(0)
    >>> gradient = jax.grad(lambda t: (soft_rank(t, key=key) ** 2).sum())(theta)
    >>> gradient.shape
    (1, 3)
    """

    def __init__(
        self,
        solver: Callable[..., Any],
        *,
        temperature: float | Array = 1.0,
        num_samples: int = 10,
        noise: str | Noise = "normal",
        perturbation: Literal["additive", "multiplicative"] = "additive",
        baseline: Literal["auto", "none", "point", "leave_one_out"] = "auto",
        form: Literal["solution", "maximum"] = "solution",
        backward: Literal["shared", "independent"] = "shared",
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
            backward=backward,
            symmetric=symmetric,
            route=route,
            memory_budget=memory_budget,
        )
        self.temperature = temperature
        if not isinstance(temperature, jax.core.Tracer):
            layer.check_temperature(temperature)

    def tree_flatten(self) -> tuple[tuple[Any], Settings]:
        """Return the temperature, and the settings as what is static."""
        return (self.temperature,), self.settings

    @classmethod
    def tree_unflatten(cls, settings: Settings, leaves: tuple[Any]) -> "Perturbed":
        """Make a layer of what :meth:`tree_flatten` returned."""
        made = object.__new__(cls)
        made.settings = settings
        (made.temperature,) = leaves
        return made

    def __call__(
        self,
        theta: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> Array:
        """Return the smoothed solution of each instance of ``theta``."""
        check_key(key)
        settings = self.settings
        rows = self.rows(theta, context, temperature)
        call = Call(settings, rows.event_shape)
        if self._fused(rows):
            mean = fused.smoothed(
                call, *rows.point, self._keys(rows, key), rows.context
            )
            return rows.restore(mean, rows.event_shape)
        fixed = rows.fixed
        tau = settings.perturbation.coordinates(rows.theta)
        z, values, out_shape = call.samples(*fixed, rows.context, key)
        mean = values.mean(axis=1)
        if settings.independent_backward:
            fresh = jax.random.fold_in(key, 1)
            z, values, _ = call.samples(*fixed, rows.context, fresh)
        draws = (z, values, call.at_point(fixed[0], rows.context))
        if settings.form == "maximum":
            mean = solution_from_maximum(call, tau, rows.temperature, draws)
        else:
            mean = attach(call, mean, tau, rows.temperature, draws)
        return rows.restore(mean, out_shape)

    def maximum(
        self,
        theta: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> Array:
        """Return the perturbed maximum of each instance, of the batch's shape."""
        check_key(key)
        self.settings.require_linear("maximum")
        rows = self.rows(theta, context, temperature)
        return rows.restore(self.smoothed_maximum(rows, None, key), ())

    def jacobian(
        self,
        theta: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> Array:
        """Return the Jacobian of the smoothed solution, (*batch, *out, *event).

        It has derivatives itself.
        """
        check_key(key)
        rows = self.rows(theta, context, temperature)
        call = Call(self.settings, rows.event_shape)
        if self._fused(rows):
            keys = fused.draw_keys(key, len(rows.theta))
            products = fused.products(call, *rows.point, keys, rows.context)
            return rows.restore(products.jacobian(), 2 * rows.event_shape)
        fixed = rows.fixed
        z, values, out_shape = call.samples(*fixed, rows.context, key)
        draws = (z, values, call.at_point(fixed[0], rows.context))
        tau = self.settings.perturbation.coordinates(rows.theta)
        matrix = smoothed_jacobian(call, tau, rows.temperature, draws)
        if self.settings.perturbation.name == "multiplicative":
            matrix = matrix / rows.theta[:, None, :]
        return rows.restore(matrix, out_shape + rows.event_shape)

    def sample(
        self,
        theta: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> Array:
        r"""Draw solutions from :math:`p_\theta`, (num_samples, *batch, *event)."""
        rows, y, out_shape = self._solutions(theta, context, key, temperature)
        shape = (self.settings.num_samples, *rows.batch_shape, *out_shape)
        return jnp.moveaxis(y, 1, 0).reshape(shape).astype(rows.dtype)

    def distribution(
        self,
        theta: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> list[Distribution]:
        r"""Return the distinct solutions drawn from :math:`p_\theta`, by frequency.

        One :class:`Distribution` of NumPy arrays for each instance, in the order of the
        flattened batch, most frequent solutions first. Not for use under jit.
        """
        rows, y, out_shape = self._solutions(theta, context, key, temperature)
        counted = layer.distributions(np.asarray(y, rows.dtype), out_shape)
        return [Distribution(*pair) for pair in counted]

    def __repr__(self) -> str:
        route = usual_route(self.settings, on_cpu=jax.default_backend() == "cpu")
        facts = self.settings.describe(self.temperature, route)
        return f"softsolve.jax.Perturbed({facts})"

    # What the methods, and the losses of this package, are made of.

    def rows(
        self,
        theta: Array,
        context: tuple[Array, ...],
        temperature: float | Array | None,
    ) -> Rows:
        """Check a call's arguments and lay them out as rows."""
        theta = jnp.asarray(theta)
        if not jnp.issubdtype(theta.dtype, jnp.floating):
            layer.raise_integer_theta(theta.dtype)
        batch_shape, event_shape = self.settings.split_shape(theta.shape)
        half = theta.dtype in (jnp.float16, jnp.bfloat16)
        work = jnp.float32 if half else theta.dtype
        count, size = math.prod(batch_shape), math.prod(event_shape)
        flat = theta.astype(work).reshape(count, size)
        if temperature is None:
            temperature = self.temperature
        elif not isinstance(temperature, jax.Array):
            layer.check_temperature(temperature)
        spread = layer.spread_temperature(jnp.asarray(temperature, work), batch_shape)
        arrays = tuple(jnp.asarray(array) for array in context)
        contexts = layer.flatten_context(batch_shape, arrays)
        self.settings.check_instances(event_shape, contexts)
        nonzero = self.settings.perturbation.name == "multiplicative"
        return Rows(
            flat, spread, contexts, batch_shape, event_shape, theta.dtype, nonzero
        )

    def smoothed_maximum(
        self, rows: Rows, target: Array | None, key: Array, *, difference: bool = False
    ) -> Array:
        """Return the maximum (B,) relative to a target (B, d), with derivatives.

        With ``difference``, its gradient is that of a solver that does not clip costs.
        """
        settings = self.settings
        call = Call(settings, rows.event_shape, difference)
        if self._fused(rows, maximum=True):
            keys = fused.draw_keys(key, len(rows.theta))
            return fused.smoothed_maximum(call, *rows.point, target, keys, rows.context)
        tau = settings.perturbation.coordinates(rows.theta)
        if target is not None:
            good = jnp.isfinite(target).all(axis=1)
            report = functools.partial(layer.raise_not_finite, what="y")
            target = target + require(good, report, target).astype(target.dtype)
        means, draws = call.maxima(*rows.fixed, target, rows.context, key)
        kept = None if draws is None else (*draws, None)
        return attach_maximum(call, means, tau, rows.temperature, kept)

    def _fused(self, rows: Rows, *, maximum: bool = False) -> bool:
        return takes_fused_route(
            self.settings, on_cpu=_on_cpu(rows.theta), maximum=maximum
        )

    def _keys(self, rows: Rows, key: Array) -> tuple[Array, ...]:
        """Return the keys of the mean's rows and those of its derivatives'."""
        keys = fused.draw_keys(key, len(rows.theta))
        if not self.settings.independent_backward:
            return (keys,)
        return keys, fused.draw_keys(jax.random.fold_in(key, 1), len(rows.theta))

    def _solutions(
        self,
        theta: Array,
        context: tuple[Array, ...],
        key: Array,
        temperature: float | Array | None,
    ) -> tuple[Rows, Array, tuple[int, ...]]:
        check_key(key)
        rows = self.rows(theta, context, temperature)
        settings = self.settings.with_form("solution")
        call = Call(settings, rows.event_shape)
        if self._fused(rows):
            keys = fused.draw_keys(key, len(rows.theta))
            y = fused.solutions(call, *rows.point, keys, rows.context)
            return rows, y, rows.event_shape
        _, y, out_shape = call.samples(*rows.fixed, rows.context, key, fill=False)
        return rows, y, out_shape


def _on_cpu(array: Array) -> bool:
    """Tell whether a computation on an array runs on the CPU."""
    if jax.default_backend() != "cpu":
        return False
    if isinstance(array, jax.core.Tracer):
        return True
    return all(device.platform == "cpu" for device in array.devices())
