r"""Balls of atomic norms: groups, singular values, few nonzeros.

An atomic norm's unit ball is the convex hull of a set of atoms [1]_, and a linear
function is largest over it at an atom: the dual norm. The ℓ1 ball, whose atoms are
signed unit vectors, is :class:`~softsolve.solvers.L1Ball`. The balls here are no
polytopes, but for degenerate cases. What holds of the theory all the same:

- :math:`F(\theta) = \max_y \langle y, \theta\rangle` is a multiple of the dual norm,
  convex and differentiable almost everywhere. So :math:`F_\varepsilon` is smooth and
  convex, :math:`y_\varepsilon = \nabla F_\varepsilon`, and all estimators of values and
  derivatives are as for polytopes; Jacobians are symmetric.
- Every atom y is *exposed*: the only maximiser for some scores, such as :math:`\theta
  = y`. That is enough for :math:`\Omega(y) = -\langle y, E Z\rangle` at atoms, so
  Fenchel-Young losses are exact for targets that are atoms. But the loss at
  :math:`\theta = t y` falls as 1/t only, where for polytopes it falls like the tail of
  the noise.
- Within the ball, Ω is smaller than :math:`-\langle y, E Z\rangle`: losses for such
  targets are off by a constant in θ, as for polytopes.

What differs: the solution moves with the scores even where it does not jump. Its own
derivative is not zero, but misses the jumps from one face to another, so it does not
average to that of :math:`y_\varepsilon`; the layers do not use it.

References
----------
.. [1] V. Chandrasekaran, B. Recht, P. Parrilo, A. Willsky. The convex geometry of
   linear inverse problems. Foundations of Computational Mathematics, 2012.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant, indices
from softsolve.solvers.base import Array, Shape, Solver, whole_number
from softsolve.solvers.simplex import TopK

# Relative; a solution's norm is a few roundings off in single precision.
TOLERANCE = 1e-5


class _Ball(Solver):
    """A ball of some radius."""

    def __init__(self, radius: float) -> None:
        if not (np.isfinite(radius) and radius > 0):
            msg = (
                f"{type(self).__name__}(radius=...) must be positive and finite; got "
                f"{radius}."
            )
            raise ValueError(msg)
        self.radius = radius

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if there are no coordinates, or not in the right number of axes."""
        if len(event_shape) != self.event_ndim or 0 in event_shape:
            msg = (
                f"{self!r} must get scores with {self.event_ndim} axes in each row and "
                f"at least one entry; got an event of shape {tuple(event_shape)}."
            )
            raise ValueError(msg)
        super().check(event_shape, context)

    def _unit(self, theta: Array) -> Array:
        """Scale rows (rows, d) to largest entries of size 1; zeros become ±e_1.

        So that squares neither overflow nor vanish, and every row has a direction.
        """
        xp = array_namespace(theta)
        largest = xp.max(xp.abs(theta), axis=-1, keepdims=True)
        first = xp.astype(indices(theta.shape[-1], theta) == 0, theta.dtype)
        zero = largest == 0
        return xp.where(zero, first, theta / xp.where(zero, 1 + largest, largest))

    def _towards(self, kept: Array) -> Array:
        """Scale rows (rows, d) to the radius in the ℓ2 norm."""
        xp = array_namespace(kept)
        norm = xp.sqrt(xp.sum(kept * kept, axis=-1, keepdims=True))
        return self.radius * (kept / norm)

    def _on_sphere(self, y: Array) -> Array:
        """Tell which rows (rows, d) have the radius as ℓ2 norm, up to rounding."""
        xp = array_namespace(y)
        norm = xp.sqrt(xp.sum(y * y, axis=-1))
        return xp.abs(norm - self.radius) <= TOLERANCE * self.radius


class GroupBall(_Ball):
    r"""The scores of the group with the largest norm, scaled to the radius.

    Maximises :math:`\langle y, \theta\rangle` over :math:`\{\sum_g \|y_g\|_2 \le r\}`
    for a partition of the coordinates into groups g: the maximum is
    :math:`r \max_g \|\theta_g\|_2`, and the extreme points have norm r within one
    group and are zero elsewhere. With groups of one coordinate it is the ℓ1 ball (the
    only polytope among them), with a single group the ℓ2 ball. Cost O(d). Of equal
    groups the one with the lowest label wins; a row of zeros gives :math:`r e_1`.

    Parameters
    ----------
    groups
        A label for each coordinate, (d,): those with the same label are a group.
    radius
        :math:`r > 0`.

    Examples
    --------
    >>> GroupBall([0, 0, 1, 1])(np.array([[3.0, -4.0, 4.5, 1.0]]))
    array([[ 0.6, -0.8,  0. ,  0. ]])
    """

    def __init__(
        self, groups: Sequence[int] | np.ndarray[Any, Any], radius: float = 1.0
    ) -> None:
        super().__init__(radius)
        labels = np.asarray(groups)
        if labels.ndim != 1 or labels.size == 0:
            msg = (
                "GroupBall(groups=...) must be a vector with a label for each "
                f"coordinate; got shape {labels.shape}."
            )
            raise ValueError(msg)
        _, self.groups, sizes = np.unique(
            labels, return_inverse=True, return_counts=True
        )
        # Where the members of each group are, filled up with a place after the last.
        self._members = np.full((len(sizes), int(sizes.max())), labels.size)
        for group, places in enumerate(self._members):
            places[: sizes[group]] = np.flatnonzero(self.groups == group)

    def __repr__(self) -> str:
        return f"GroupBall({len(self._members)} groups, {self.radius:g})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there is a score for each label."""
        super().check(event_shape, context)
        if event_shape != self.groups.shape:
            msg = (
                f"{self!r} must get one score per label, an event of shape "
                f"{self.groups.shape}; got {tuple(event_shape)}."
            )
            raise ValueError(msg)

    def _group_sums(self, x: Array) -> Array:
        """Add up the entries of each group, (rows, d) to (rows, groups)."""
        xp = array_namespace(x)
        padded = xp.concat([x, xp.zeros_like(x[:, :1])], axis=-1)
        places = constant(self._members.reshape(-1), indices(1, x))
        members = xp.take(padded, places, axis=-1)
        return xp.sum(xp.reshape(members, (-1, *self._members.shape)), axis=-1)

    def __call__(self, theta: Array) -> Array:
        """Return the direction of the largest group, 0 elsewhere."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        unit = self._unit(theta)
        winner = xp.argmax(self._group_sums(unit * unit), axis=-1)
        inside = constant(self.groups, winner)[None, :] == winner[:, None]
        return self._towards(xp.where(inside, unit, xp.zeros_like(unit)))

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are extreme points: one group, at the radius."""
        xp = array_namespace(y)
        present = self._group_sums(xp.abs(y)) > 0
        one_group = xp.sum(xp.astype(present, y.dtype), axis=-1) == 1
        return one_group & self._on_sphere(y)


class KSupportBall(_Ball):
    r"""The k scores that are largest in absolute value, scaled to the radius.

    Maximises :math:`\langle y, \theta\rangle` over the ball of the k-support norm [1]_,
    the convex hull of the vectors with at most k nonzeros and ℓ2 norm r: the maximum is
    r times the ℓ2 norm of the k largest scores in absolute value. With k = 1 it is the
    ℓ1 ball (the only polytope among them), with k = d the ℓ2 ball. Cost O(d log d). Of
    equals the first are taken; a row of zeros gives :math:`r e_1`.

    Parameters
    ----------
    k
        Number of nonzeros, at least 1.
    radius
        :math:`r > 0`.

    References
    ----------
    .. [1] A. Argyriou, R. Foygel, N. Srebro. Sparse prediction with the k-support
       norm. NIPS, 2012.

    Examples
    --------
    >>> KSupportBall(2)(np.array([[3.0, -1.0, -4.0]]))
    array([[ 0.6,  0. , -0.8]])
    """

    def __init__(self, k: int, radius: float = 1.0) -> None:
        super().__init__(radius)
        k = whole_number("KSupportBall(k=...)", k)
        if k < 1:
            msg = f"KSupportBall(k=...) must be at least 1; got {k}."
            raise ValueError(msg)
        self.k = k
        self._largest = TopK(k)

    def __repr__(self) -> str:
        return f"KSupportBall({self.k}, {self.radius:g})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless there are k scores."""
        super().check(event_shape, context)
        if event_shape[0] < self.k:
            msg = (
                f"{self!r} must get at least {self.k} scores in each row; got "
                f"{event_shape[0]}."
            )
            raise ValueError(msg)

    def __call__(self, theta: Array) -> Array:
        """Return the direction of the k largest scores, 0 elsewhere."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        unit = self._unit(theta)
        kept = self._largest(xp.abs(unit)) > 0
        return self._towards(xp.where(kept, unit, xp.zeros_like(unit)))

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are extreme points: at most k nonzeros, at the radius."""
        xp = array_namespace(y)
        nonzeros = xp.sum(xp.astype(y != 0, y.dtype), axis=-1)
        return (nonzeros <= self.k) & self._on_sphere(y)


class NuclearBall(_Ball):
    r"""The outer product of the leading singular vectors, scaled to the radius.

    Maximises :math:`\langle y, \theta\rangle` over the matrices whose singular values
    add up to at most r: the maximum is r times the largest singular value of θ, and
    the extreme points are the matrices of rank one and norm r. The product
    :math:`r u_1 v_1^\top` has no ambiguity of sign. Of equal singular values, the one
    counts that the framework's decomposition puts first; a matrix of zeros gives
    :math:`r e_1 e_1^\top`. Cost O(n m min(n, m)). With one row or column it is the ℓ2
    ball.

    Parameters
    ----------
    radius
        :math:`r > 0`.

    Examples
    --------
    >>> y = NuclearBall()(np.array([[[0.0, 0.0], [-3.0, 4.0]]]))
    >>> np.round(y[0], 6) + 0.0
    array([[ 0. ,  0. ],
           [-0.6,  0.8]])
    """

    event_ndim = 2

    def __init__(self, radius: float = 1.0) -> None:
        super().__init__(radius)

    def __repr__(self) -> str:
        return f"NuclearBall({self.radius:g})"

    def __call__(self, theta: Array) -> Array:
        """Return the leading singular vectors' product."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        unit = xp.reshape(self._unit(_flat(theta)), theta.shape)
        left, _, right = xp.linalg.svd(unit, full_matrices=False)
        return self.radius * (left[:, :, :1] * right[:, :1, :])

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are extreme points: rank one, at the radius."""
        xp = array_namespace(y)
        values = xp.linalg.svdvals(y)
        rest = xp.sum(values[:, 1:], axis=-1)
        return (rest <= TOLERANCE * self.radius) & self._on_sphere(_flat(y))


def _flat(matrices: Array) -> Array:
    rows, n, m = matrices.shape
    return array_namespace(matrices).reshape(matrices, (rows, n * m))
