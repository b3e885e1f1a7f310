r"""Any finite set, given by its points."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant
from softsolve.solvers.base import Array, Shape, Solver


class FiniteSet(Solver):
    r"""The best of a list of points.

    Maximises :math:`\langle y, \theta\rangle` over the rows of ``vertices`` (n, d) by
    trying them all, at a cost of O(nd); among equals the first wins. Polytope: their
    hull.

    >>> triangle = FiniteSet([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> triangle(np.array([[0.2, 0.7], [-1.0, -1.0]]))
    array([[0., 1.],
           [0., 0.]])
    """

    def __init__(self, vertices: Any) -> None:
        self.vertices = np.array(vertices, dtype=float)
        if self.vertices.ndim != 2 or 0 in self.vertices.shape:
            msg = (
                "FiniteSet(vertices) needs an array (n, d) with one point a row; got "
                f"shape {self.vertices.shape}."
            )
            raise ValueError(msg)
        if not np.isfinite(self.vertices).all():
            row = int(np.flatnonzero(~np.isfinite(self.vertices).all(axis=1))[0])
            msg = (
                "FiniteSet(vertices) needs finite points; got "
                f"{self.vertices[row]} in row {row}."
            )
            raise ValueError(msg)
        differences = self.vertices - self.vertices[0]
        _, sizes, directions = np.linalg.svd(differences, full_matrices=False)
        rank = int(np.sum(sizes > 1e-10 * max(float(sizes.max()), 1e-300)))
        self._directions = directions[:rank]

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if the rows have another length than the points."""
        super().check(event_shape, context)
        if event_shape[0] != self.vertices.shape[1]:
            msg = (
                f"{self!r} needs {self.vertices.shape[1]} scores in each row, as its "
                f"points have; got {event_shape[0]}."
            )
            raise ValueError(msg)

    def __call__(self, theta: Array) -> Array:
        """Return the point with the largest product with each row."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        vertices = constant(self.vertices, theta)
        best = xp.argmax(theta @ xp.matrix_transpose(vertices), axis=-1)
        return xp.take(vertices, best, axis=0)

    def project(self, x: Array) -> Array:
        """Project on the span of the differences of the points."""
        directions = constant(self._directions, x)
        return (x @ array_namespace(x).matrix_transpose(directions)) @ directions

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are among the points."""
        xp = array_namespace(y)
        distance = xp.abs(y[:, None, :] - constant(self.vertices, y)[None, :, :])
        scale = 1e-5 * (1 + float(np.abs(self.vertices).max()))
        return xp.any(xp.max(distance, axis=-1) <= scale, axis=-1)

    def __repr__(self) -> str:
        points, size = self.vertices.shape
        return f"FiniteSet({points} points in {size} dimensions)"
