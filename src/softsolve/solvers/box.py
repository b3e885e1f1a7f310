r"""Balls of the ℓ∞ and ℓ1 norms: signs, subsets, signed one-hot vectors."""

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import one_hot
from softsolve.solvers.base import Array, Shape, Solver


class Hypercube(Solver):
    r"""The sign of each score, or the indicator of the positive ones.

    Polytope: :math:`[-1, 1]^d`, or :math:`[0, 1]^d` with ``signed=False``. Cost O(d).
    A score of exactly 0, a tie, gets the lower value.

    >>> Hypercube()(np.array([[0.5, -2.0]]))
    array([[ 1., -1.]])
    >>> Hypercube(signed=False)(np.array([[0.5, -2.0]]))
    array([[1., 0.]])
    """

    def __init__(self, *, signed: bool = True) -> None:
        self.signed = signed

    def __call__(self, theta: Array) -> Array:
        """Return the upper value where a score is positive, the lower one elsewhere."""
        self.check_batch(theta)
        positive = array_namespace(theta).astype(theta > 0, theta.dtype)
        return 2 * positive - 1 if self.signed else positive

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows have only the two values."""
        lower = -1 if self.signed else 0
        return array_namespace(y).all((y == lower) | (y == 1), axis=-1)

    def __repr__(self) -> str:
        return f"Hypercube(signed={self.signed})"


class L1Ball(Solver):
    r"""The sign of the largest score in absolute value, at its place.

    Polytope: the ℓ1 ball :math:`\{\|y\|_1 \le r\}`, with the 2d vertices
    :math:`\pm r e_i`; the maximum is :math:`r\|\theta\|_\infty`. Cost O(d). Among
    equals the first wins; a row of zeros gives :math:`+r e_1`.

    >>> L1Ball()(np.array([[0.5, -2.0, 1.0]]))
    array([[ 0., -1.,  0.]])
    """

    def __init__(self, radius: float = 1.0) -> None:
        if not (np.isfinite(radius) and radius > 0):
            msg = f"L1Ball(radius) needs a positive radius; got {radius}."
            raise ValueError(msg)
        self.radius = radius

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if there are no coordinates."""
        super().check(event_shape, context)
        if event_shape[0] == 0:
            msg = f"{self!r} needs at least one score in each row; got shape (…, 0)."
            raise ValueError(msg)

    def __call__(self, theta: Array) -> Array:
        """Return ±radius at the largest score in absolute value, 0 elsewhere."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        place = one_hot(xp.argmax(xp.abs(theta), axis=-1), theta.shape[-1], theta)
        negative = xp.sum(place * theta, axis=-1, keepdims=True) < 0
        value = self.radius * xp.where(negative, -place, place)
        return xp.where(place == 0, xp.zeros_like(theta), value)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are vertices of the ball."""
        xp = array_namespace(y)
        nonzero = xp.astype(y != 0, y.dtype)
        largest = xp.max(xp.abs(y), axis=-1)
        return (xp.sum(nonzero, axis=-1) == 1) & (
            xp.abs(largest - self.radius) <= 1e-6 * self.radius
        )

    def __repr__(self) -> str:
        return f"L1Ball({self.radius:g})"
