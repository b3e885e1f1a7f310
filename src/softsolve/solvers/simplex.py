r"""The simplex and its like: one of d, k of d, one of a set of things."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import is_binary, one_hot, subtract_mean
from softsolve.solvers.base import Array, Shape, Solver, whole_number


class OneHot(Solver):
    r"""The argmax as a one-hot vector.

    Polytope: the unit simplex :math:`\{y \ge 0, \mathbf 1^\top y = 1\}`. Cost O(d).
    Among equal scores the first wins. With Gumbel noise its perturbed maximiser is
    softmax(θ/ε).

    >>> OneHot()(np.array([[0.1, 2.0, -1.0]]))
    array([[0., 1., 0.]])
    """

    family: Literal["argmax"] = "argmax"

    def __call__(self, theta: Array) -> Array:
        """Return 1 at the largest score of each row, the first one of equals."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        return one_hot(xp.argmax(theta, axis=-1), theta.shape[-1], theta)

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if there is nothing to choose from."""
        super().check(event_shape, context)
        if event_shape[0] == 0:
            msg = f"{self!r} needs at least one score in each row; got shape (…, 0)."
            raise ValueError(msg)

    def family_parameters(self, event_shape: Shape) -> np.ndarray:
        """Return what the compiled route needs to know: nothing."""
        return np.zeros(0)

    def project(self, x: Array) -> Array:
        """Project on the vectors that sum to zero."""
        return subtract_mean(x)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are one-hot."""
        xp = array_namespace(y)
        return is_binary(y) & (xp.sum(y, axis=-1) == 1)

    def __repr__(self) -> str:
        return "OneHot()"


class TopK(Solver):
    r"""The indicator of the k largest scores.

    Polytope: :math:`\{0 \le y \le 1, \mathbf 1^\top y = k\}`. Cost O(d log d) as a
    function of arrays, O(d) on the compiled route. Among equal scores the first are
    taken.

    >>> TopK(2)(np.array([[0.1, 2.0, -1.0, 0.1]]))
    array([[1., 1., 0., 0.]])
    """

    family: Literal["topk"] = "topk"

    def __init__(self, k: int) -> None:
        k = whole_number("TopK(k)", k)
        if k < 0:
            msg = f"TopK(k) needs k ≥ 0; got {k}."
            raise ValueError(msg)
        self.k = k

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if there are fewer than k scores."""
        super().check(event_shape, context)
        if event_shape[0] < self.k:
            msg = (
                f"TopK({self.k}) needs at least {self.k} scores in each row; "
                f"got {event_shape[0]}."
            )
            raise ValueError(msg)

    def __call__(self, theta: Array) -> Array:
        """Return 1 at the k largest scores of each row, the first ones of equals."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        if self.k == 0:
            return xp.zeros_like(theta)
        threshold = xp.sort(theta, axis=-1, descending=True)[:, self.k - 1, None]
        above = theta > threshold
        equal = theta == threshold
        places_left = self.k - xp.sum(xp.astype(above, xp.int32), axis=-1)[:, None]
        turn = xp.cumulative_sum(xp.astype(equal, xp.int32), axis=-1)
        return xp.astype(above | (equal & (turn <= places_left)), theta.dtype)

    def family_parameters(self, event_shape: Shape) -> np.ndarray:
        """Return k, for the compiled route."""
        return np.array([float(self.k)])

    def project(self, x: Array) -> Array:
        """Project on the vectors that sum to zero; on 0 if there is no choice."""
        if self.k in (0, x.shape[-1]):
            return array_namespace(x).zeros_like(x)
        return subtract_mean(x)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows have k ones and zeros otherwise."""
        xp = array_namespace(y)
        return is_binary(y) & (xp.sum(y, axis=-1) == self.k)

    def __repr__(self) -> str:
        return f"TopK({self.k})"


class ScoredSet(OneHot):
    r"""One of a finite set of things, each with a score of its own.

    Any discrete problem :math:`\max_{y \in \mathcal Y} s(y)` in the paper's general
    form: θ lists the scores :math:`s(y)`, the solution is one-hot over the set, and
    the polytope is the simplex in :math:`\mathbb R^{|\mathcal Y|}`. Cost O(d); among
    equal scores the first wins.

    >>> colours = ScoredSet(["red", "green", "blue"])
    >>> colours.choices(colours(np.array([[0.0, 3.0, 1.0]])))
    ['green']
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)
        if not self.items:
            msg = "ScoredSet(items) needs at least one item; got none."
            raise ValueError(msg)

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if there is not one score an item."""
        super().check(event_shape, context)
        if event_shape[0] != len(self.items):
            msg = (
                f"{self!r} needs one score for each of its {len(self.items)} items; "
                f"got {event_shape[0]} scores in a row."
            )
            raise ValueError(msg)

    def choices(self, y: Array) -> list[Any]:
        """Return the item that each one-hot row stands for."""
        return [
            self.items[int(index)] for index in array_namespace(y).argmax(y, axis=-1)
        ]

    def __repr__(self) -> str:
        return f"ScoredSet({len(self.items)} items)"
