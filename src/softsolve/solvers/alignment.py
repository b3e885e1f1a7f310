r"""Dynamic time warping: the best monotone alignment of two series."""

from typing import Any

import numba
import numpy as np

from softsolve._arrays import constant
from softsolve.compiled.kernel import OK, block_kernel, kernel
from softsolve.compiled.lanes import LANES, add, lane_buffer, load, maximum, store
from softsolve.solvers.base import Array, KernelSolver, Shape
from softsolve.solvers.lengths import check_lengths_given, pack_lengths

# The table holds in cell (i + 1, j + 1) the best score of an alignment that ends at
# (i, j), bordered by -inf but for a 0 before the start. Solvers of one instance and of
# LANES side by side share its layout, with one lane or LANES as the last axis.


@numba.njit(nogil=True)
def _border(best, columns, lanes):  # type: ignore[no-untyped-def]
    row = (columns + 1) * lanes
    best[:row] = -np.inf
    best[:lanes] = 0
    for start in range(row, best.size, row):
        best[start : start + lanes] = -np.inf


@numba.njit(nogil=True)
def _read_back(best, columns, height, width, lanes, lane, y):  # type: ignore[no-untyped-def]
    i, j = height - 1, width - 1
    y[(i * columns + j) * lanes + lane] = 1
    while i > 0 or j > 0:
        corner = (i * (columns + 1) + j) * lanes + lane
        diagonal = best[corner]
        above = best[corner + lanes]
        left = best[corner + (columns + 1) * lanes]
        # Sums that overflow compare with nothing: the first two keep inside the table.
        if i == 0:
            j -= 1
        elif j == 0 or (above > diagonal and above >= left):
            i -= 1
        elif left > diagonal:
            j -= 1
        else:
            i -= 1
            j -= 1
        y[(i * columns + j) * lanes + lane] = 1


@kernel
def solve_alignment(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Fill the table row by row and read the alignment back from its end.

    ``ints`` holds the shape; a ``context`` holds the two lengths of the instance.
    """
    rows, columns = ints[0], ints[1]
    height, width = rows, columns
    if context.size:
        height, width = np.int64(context[0]), np.int64(context[1])
    best = np.empty((height + 1) * (columns + 1), theta.dtype)
    _border(best, columns, 1)
    for i in range(height):
        score = theta[i * columns : i * columns + width]
        above = best[i * (columns + 1) :]
        here = best[(i + 1) * (columns + 1) :]
        left = here[0]
        for j in range(score.size):
            value = above[j + 1] if above[j + 1] > above[j] else above[j]
            left = (left if left > value else value) + score[j]
            here[j + 1] = left
    y[:] = 0
    _read_back(best, columns, height, width, 1, 0, y)
    return OK


@block_kernel(LANES)
def solve_alignments(theta, ints, reals, context, y, status):  # type: ignore[no-untyped-def]
    """Do what :func:`solve_alignment` does for LANES instances side by side."""
    rows, columns = ints[0], ints[1]
    best = lane_buffer((rows + 1) * (columns + 1) * LANES, theta.dtype)
    _border(best, columns, LANES)
    scores = theta.reshape(theta.size)
    for i in range(rows):
        above, here = i * (columns + 1) * LANES, (i + 1) * (columns + 1) * LANES
        diagonal, left = load(best, above), load(best, here)
        for j in range(columns):
            up = load(best, above + (j + 1) * LANES)
            value = maximum(maximum(diagonal, up), left)
            left = add(value, load(scores, (i * columns + j) * LANES))
            store(best, here + (j + 1) * LANES, left)
            diagonal = up
    y[:] = 0
    flat = y.reshape(y.size)
    for lane in range(LANES):
        height, width = rows, columns
        if context.shape[1]:
            height, width = np.int64(context[lane, 0]), np.int64(context[lane, 1])
        _read_back(best, columns, height, width, LANES, lane, flat)
        status[lane] = OK


class Alignment(KernelSolver):
    r"""Dynamic time warping: the best monotone path through a matrix of scores.

    .. math:: y^*(\theta) = \operatorname*{argmax}_{y \in \mathcal{A}_{n,m}}
        \sum_{ij} y_{ij} \theta_{ij}

    where :math:`\mathcal{A}_{n,m} \subset \{0,1\}^{n \times m}` holds the cells of all
    paths from (0, 0) to (n−1, m−1) with steps down, right and diagonally down right.
    For series a and b with distances D, pass :math:`\theta = -D`: the path aligns
    them, and :math:`-\langle y, \theta \rangle` is their warping distance. Scores may
    have any sign. Among equally good predecessors of a cell, the path takes the one
    with the lowest index: the diagonal one, then the one above, then the left one.

    Parameters
    ----------
    lengths
        Whether rows come with lengths of their own, ``solver(theta, lengths)`` with
        lengths (rows, 2): the path then ends at (length[0] − 1, length[1] − 1), and
        y is zero beyond.

    Notes
    -----
    A dynamic program, O(n m) for an instance [1]_. The vertices of the polytope are
    the paths; its dimension is n m − 2 if n, m ≥ 2, and 0 otherwise. Smoothing it by
    perturbation differs from soft-DTW [2]_, the log-sum-exp over paths, which is what
    independent noise on every path, rather than on cells, would give.

    References
    ----------
    .. [1] H. Sakoe, S. Chiba. Dynamic programming algorithm optimization for spoken
       word recognition. IEEE Transactions on ASSP, 1978.
    .. [2] M. Cuturi, M. Blondel. Soft-DTW. ICML, 2017.

    Examples
    --------
    >>> a, b = np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.0, 1.0, 3.0])
    >>> theta = -np.abs(a[:, None] - b)
    >>> Alignment()(theta[None])[0]
    array([[1., 1., 0., 0.],
           [0., 0., 1., 0.],
           [0., 0., 0., 1.]])
    """

    event_ndim = 2
    kernel = solve_alignment
    block = solve_alignments
    solution = "binary"

    def __init__(self, *, lengths: bool = False) -> None:
        self.lengths = lengths

    def __repr__(self) -> str:
        return f"Alignment({'lengths=True' if self.lengths else ''})"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless events are matrices and lengths come as declared."""
        if len(event_shape) != 2 or 0 in event_shape:
            msg = (
                f"{self!r} must get a matrix of scores for each row, with at least one "
                f"entry; got an event of shape {tuple(event_shape)}."
            )
            raise ValueError(msg)
        check_lengths_given(self, self.lengths, context)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the lengths (rows, 2), or (rows, 0) if all rows are full."""
        self.check(event_shape, context)
        if not context:
            return np.zeros((rows, 0))
        return pack_lengths(self, rows, event_shape, context[0])

    def project(self, x: Array) -> Array:
        """Drop what no path can change: the two ends, or all if there is one path."""
        n, m = x.shape[-2:]
        free = np.full((n, m), fill_value=min(n, m) > 1)
        free[0, 0] = free[-1, -1] = False
        return x * constant(free, x)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is a path (NumPy arrays)."""
        y = np.asarray(y)
        n, m = y.shape[1:]
        packed = self.pack_context(len(y), (n, m), *context)
        ends = packed.astype(int) if packed.size else np.full((len(y), 2), (n, m))
        # In every line of the matrix a path fills an interval; the next one begins
        # where it ends or one further.
        first = np.argmax(y, axis=2)
        last = m - 1 - np.argmax(y[:, :, ::-1], axis=2)
        filled = np.sum(y, axis=2)
        inside = np.arange(n) < ends[:, :1]
        interval = (filled > 0) & (filled == last - first + 1)
        step = first[:, 1:] - last[:, :-1]
        joined = (step == 0) | (step == 1) | ~inside[:, 1:]
        at_end = np.take_along_axis(last, ends[:, :1] - 1, axis=1)[:, 0]
        return np.asarray(
            np.all((y == 0) | (y == 1), axis=(1, 2))
            & np.all(np.where(inside, interval, filled == 0), axis=1)
            & np.all(joined, axis=1)
            & (first[:, 0] == 0)
            & (at_end == ends[:, 1] - 1)
        )
