r"""Assignment: matching rows with columns."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from softsolve.compiled.kernel import Kernel
from softsolve.solvers.assignment_kernel import NOT_FINITE, assign
from softsolve.solvers.base import Array, KernelSolver, Shape


class Assignment(KernelSolver):
    r"""Match rows with columns at the largest total score.

    .. math::
        y^*(\theta) = \operatorname{argmax}_{y \in \mathcal{Y}} \sum_{ij} y_{ij}
        \theta_{ij}, \qquad \mathcal{Y} \subset \{0, 1\}^{n \times m}

    where every row and every column has at most one 1 and, unless ``partial``, every
    row of the shorter side has one. For :math:`n = m` the polytope is Birkhoff's, of
    the doubly stochastic matrices; a solution is a permutation matrix.

    Parameters
    ----------
    partial
        Whether rows and columns may stay unmatched. Then only cells of positive score
        are ever matched.

    Notes
    -----
    Scores are (rows, n, m). Exact in the arithmetic of the scores' dtype, by shortest
    augmenting paths: :math:`O(n^2 m)` for :math:`n \le m`, and far less on most
    instances. Among assignments of equal score it always returns the same one, whatever
    else is in the batch, but not necessarily the lexicographically first.

    Square assignments start warm from the prices of the unperturbed solution.

    References
    ----------
    R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and
    sparse linear assignment problems", Computing 38, 1987.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.solvers.assignment import Assignment
    >>> theta = np.array([[[1.0, 2.0], [4.0, 3.0]], [[2.0, -1.0], [3.0, -5.0]]])
    >>> Assignment()(theta)
    array([[[0., 1.],
            [1., 0.]],
           [[0., 1.],
            [1., 0.]]])
    >>> Assignment(partial=True)(theta)[1]
    array([[0., 0.],
           [1., 0.]])
    """

    event_ndim = 2
    kernel: Kernel = assign
    solution = "binary"
    failures: ClassVar[Mapping[int, str]] = {
        NOT_FINITE: "a score is not finite, or too large to add up (beyond 1e30 in "
        "float32, 1e300 in float64). Scale the scores down"
    }

    def __init__(self, *, partial: bool = False) -> None:
        self.partial = partial

    def __repr__(self) -> str:
        return f"Assignment(partial={self.partial})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless an instance is a matrix with at least one cell."""
        if len(event_shape) != 2 or 0 in event_shape:
            msg = (
                f"{self!r} takes scores of shape (rows, n, m) with n, m >= 1, but got "
                f"instances of shape {event_shape}. Reshape theta to (..., n, m)."
            )
            raise ValueError(msg)
        super().check(event_shape, context)

    def structure(self, event_shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel's ``ints``: n, m and whether partial."""
        return np.array([*event_shape, self.partial], dtype=np.int64), np.zeros(0)

    def state_size(self, event_shape: Shape) -> int:
        """Return the length of the warm start, which square assignments have."""
        # A column left over must cost nothing, which prices of other scores break.
        n, m = event_shape
        return 2 + 2 * m if n == m else 0

    def project(self, x: Array) -> Array:
        r"""Project ``x`` (..., n, m) on the directions of the polytope.

        The sums over the side that is always matched do not change: square assignments
        are centred both ways, rectangular ones along the longer axis, and partial ones
        have every direction.
        """
        n, m = x.shape[-2:]
        xp = array_namespace(x)
        if not self.partial and n <= m:
            x = x - xp.mean(x, axis=-1, keepdims=True)
        if not self.partial and n >= m:
            x = x - xp.mean(x, axis=-2, keepdims=True)
        return x

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` (rows, n, m) whether it is an assignment."""
        self.check(y.shape[1:], context)
        y = np.asarray(y)
        in_rows, in_columns = y.sum(axis=2), y.sum(axis=1)
        valid: Any = np.all((y == 0) | (y == 1), axis=(1, 2))
        valid &= np.all(in_rows <= 1, axis=1) & np.all(in_columns <= 1, axis=1)
        if not self.partial:
            valid &= y.sum(axis=(1, 2)) == min(y.shape[1:])
        return valid
