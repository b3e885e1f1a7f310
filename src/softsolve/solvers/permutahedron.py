r"""Ranking: the permutahedron of a reference vector."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant, subtract_mean
from softsolve.solvers.base import Array, Shape, Solver


class Ranking(Solver):
    r"""The ranks of the scores, or any reference vector put in the scores' order.

    Maximises :math:`\langle y, \theta\rangle` over the permutations of the reference
    v, whose hull is the permutahedron of v: the largest score gets the largest entry.
    With the default :math:`v = (1, \dots, d)` these are **ascending ranks**, d for the
    largest score. Descending ranks (1 = best) are :math:`d + 1 - y`, an affine map on
    top; turn targets with rank 1 = best into :math:`d + 1 - \text{rank}` before a
    Fenchel-Young loss. Among equal scores the first counts as the largest.

    Cost O(d log d).

    >>> Ranking()(np.array([[0.3, -1.0, 2.0]]))
    array([[2., 1., 3.]])
    >>> Ranking([0, 0, 1])(np.array([[0.3, -1.0, 2.0]]))
    array([[0., 0., 1.]])
    """

    family: Literal["ranking"] = "ranking"

    def __init__(self, reference: Sequence[float] | np.ndarray | None = None) -> None:
        self.reference: np.ndarray | None = None
        self._listed = ""
        if reference is not None:
            values = np.asarray(reference, dtype=float)
            if values.ndim != 1 or not np.isfinite(values).all():
                msg = (
                    "Ranking(reference) needs a vector of finite numbers; "
                    f"got {reference!r}."
                )
                raise ValueError(msg)
            self.reference = np.sort(values)
            # Made here: torch.compile can read it, but not make it.
            listed = self.reference.tolist()
            self._listed = str(listed) if len(listed) <= 6 else f"{len(listed)} values"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise if the reference vector has another length than the rows."""
        super().check(event_shape, context)
        if self.reference is not None and len(self.reference) != event_shape[0]:
            msg = (
                f"{self!r} needs {len(self.reference)} scores in each row; got "
                f"{event_shape[0]}. Pass a reference vector of that length."
            )
            raise ValueError(msg)

    def family_parameters(self, event_shape: Shape) -> np.ndarray:
        """Return the reference vector in ascending order."""
        if self.reference is None:
            return np.arange(1.0, event_shape[0] + 1)
        return self.reference

    def __call__(self, theta: Array) -> Array:
        """Return the reference vector in the order of each row's scores."""
        self.check_batch(theta)
        xp = array_namespace(theta)
        order = xp.argsort(theta, axis=-1, descending=True, stable=True)
        places = xp.argsort(order, axis=-1)
        descending = self.family_parameters(theta.shape[1:])[::-1].copy()
        y = xp.take(constant(descending, theta), xp.reshape(places, (-1,)), axis=0)
        return xp.reshape(y, theta.shape)

    def project(self, x: Array) -> Array:
        """Project on the vectors that sum to zero; on 0 if all entries are equal."""
        if self.reference is not None and np.ptp(self.reference) == 0:
            return array_namespace(x).zeros_like(x)
        return subtract_mean(x)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell which rows are permutations of the reference vector."""
        xp = array_namespace(y)
        reference = constant(self.family_parameters(y.shape[1:]), y)
        return xp.all(xp.sort(y, axis=-1) == reference, axis=-1)

    def __repr__(self) -> str:
        return f"Ranking({self._listed})"
