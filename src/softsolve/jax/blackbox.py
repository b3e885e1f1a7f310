"""The blackbox baseline: a solver differentiated by interpolation."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from softsolve import layer
from softsolve.jax.checks import require
from softsolve.jax.layers import Perturbed
from softsolve.jax.sampling import Call

Array = Any


class BlackBox:
    r"""A solver with the gradient proxy of Vlastelica et al. (2019), to compare with.

    The forward pass is the solver itself, :math:`y^*(\theta)`. The backward pass solves
    once more and returns, for an upstream gradient g,

    .. math:: \frac{1}{\lambda}\big(y^*(\theta) - y^*(\theta - \lambda g)\big),

    the gradient of a piecewise-affine interpolation of the loss: a biased proxy, from
    which no second derivatives and no forward mode follow.

    Parameters
    ----------
    solver
        One of :mod:`softsolve.solvers`, or any function of a batch of scores.
    interpolation
        :math:`\lambda > 0`, the length of the step that the backward pass takes.

    Examples
    --------
    >>> from softsolve.solvers import Ranking
    >>> import jax.numpy as jnp
    >>> rank = BlackBox(Ranking(), interpolation=5.0)
    >>> theta, target = jnp.array([0.3, -1.0, 2.0]), jnp.array([1.0, 2.0, 3.0])
    >>> jax.grad(lambda t: ((rank(t) - target) ** 2).sum())(theta)
    Array([ 0.2, -0.4,  0.2], dtype=float32)
    """

    def __init__(
        self, solver: Callable[..., Any], *, interpolation: float = 10.0
    ) -> None:
        layer.check_interpolation(interpolation)
        self.interpolation = interpolation
        self._layer = Perturbed(solver, num_samples=1)

    def __call__(self, theta: Array, *context: Array) -> Array:
        """Return the solution of each instance of ``theta``."""
        settings = self._layer.settings
        rows = self._layer.rows(theta, context, None)
        call = Call(settings, rows.event_shape)
        out_shape = settings.out_shape(rows.event_shape)
        settings.check_vector_output(out_shape, rows.event_shape)
        y = _solution(call, self.interpolation, rows.theta + rows.finite, rows.context)
        return rows.restore(y, out_shape)

    def __repr__(self) -> str:
        name = self._layer.settings.name
        return f"softsolve.jax.BlackBox({name}, interpolation={self.interpolation})"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solution(
    call: Call, length: float, theta: Array, context: tuple[Array, ...]
) -> Array:
    y, _ = call.solve(theta[:, None, :], context)
    return y[:, 0]


def _forward(
    call: Call, length: float, theta: Array, context: tuple[Array, ...]
) -> tuple[Array, Any]:
    y = _solution(call, length, theta, context)
    return y, (y, theta, context)


def _backward(call: Call, length: float, residuals: Any, g: Array) -> tuple[Any, ...]:
    y, theta, context = residuals
    step = jax.lax.stop_gradient(theta - length * g)
    good = jnp.isfinite(step).all(axis=1)
    zero = require(good, _raise_bad_step, step).astype(step.dtype)
    moved = _solution(call, length, step + zero, context)
    return _final((y - moved) / length, theta, g), None


_solution.defvjp(_forward, _backward)


def _raise_bad_step(row: int, values: Array) -> NoReturn:
    layer.raise_not_finite(row, values, "theta - interpolation * gradient")


@jax.custom_jvp
def _final(proxy: Array, theta: Array, g: Array) -> Array:
    """Return the proxy, which has no derivatives of its own."""
    return proxy


@_final.defjvp
def _final_jvp(primals: Any, tangents: Any) -> Any:
    msg = "BlackBox has no second derivatives: its gradient is piecewise constant."
    raise RuntimeError(msg)
