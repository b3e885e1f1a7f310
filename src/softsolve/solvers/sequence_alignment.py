r"""Global alignment of two sequences, with gaps: Needleman and Wunsch's."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers.base import Array, KernelSolver, Shape
from softsolve.solvers.lengths import check_lengths_given, pack_lengths


@kernel
def solve_sequence_alignment(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Fill the table of best scores of prefixes and read the alignment back.

    ``ints`` holds the event's shape, (n + 1, m + 1); a ``context`` holds the two
    lengths of the instance.
    """
    n, columns = ints[0] - 1, ints[1]
    height, width = n, columns - 1
    if context.size:
        height, width = np.int64(context[0]), np.int64(context[1])
    column_gap = theta[n * columns :]
    best = np.empty((height + 1, width + 1), theta.dtype)
    best[0, 0] = 0
    for j in range(width):
        best[0, j + 1] = best[0, j] + column_gap[j]
    for i in range(height):
        match = theta[i * columns : i * columns + width]
        row_gap = theta[i * columns + columns - 1]
        above, here = best[i], best[i + 1]
        left = above[0] + row_gap
        here[0] = left
        for j in range(match.size):
            matched, skipped = above[j] + match[j], above[j + 1] + row_gap
            value = skipped if skipped > matched else matched
            left = left + column_gap[j]
            left = left if left > value else value
            here[j + 1] = left

    y[:] = 0
    i, j = height, width
    while i > 0 or j > 0:
        row = (i - 1) * columns
        skip_row, skip_column = j == 0, i == 0
        if i > 0 and j > 0:
            matched = best[i - 1, j - 1] + theta[row + j - 1]
            skipped = best[i - 1, j] + theta[row + columns - 1]
            left = best[i, j - 1] + column_gap[j - 1]
            skip_column = left > matched and left > skipped
            skip_row = skipped > matched and not skip_column
        if skip_row:
            i -= 1
            y[row + columns - 1] = 1
        elif skip_column:
            j -= 1
            y[n * columns + j] = 1
        else:
            i -= 1
            j -= 1
            y[row + j] = 1
    return OK


class SequenceAlignment(KernelSolver):
    r"""Global alignment of two sequences: which elements match, which are skipped.

    .. math:: y^*(\theta) = \operatorname*{argmax}_{y} \;
        \sum_{i<n,\,j<m} y_{ij}\theta_{ij} + \sum_{i<n} y_{im}\theta_{im}
        + \sum_{j<m} y_{nj}\theta_{nj}

    over matchings of two sequences of n and m elements that do not cross. Events have
    shape (n + 1, m + 1): :math:`\theta_{ij}` scores a match of i with j, the last
    column :math:`\theta_{im}` a gap opposite i, the last row :math:`\theta_{nj}` a gap
    opposite j; the corner is not used and y is 0 there. :meth:`pack` builds such
    scores and :meth:`unpack` takes solutions apart. Every element is matched once or
    skipped. Ties prefer a match, then a gap opposite the first sequence, from the ends
    of the sequences on.

    Parameters
    ----------
    lengths
        Whether rows come with lengths of their own, ``solver(theta, lengths)`` with
        lengths (rows, 2); y is zero beyond them.

    Notes
    -----
    A dynamic program, O(n m) for an instance [1]_. Gaps have a score for each element,
    whatever their length (no affine gaps). The polytope is the convex hull of the
    noncrossing matchings with their slacks, of dimension n m.

    References
    ----------
    .. [1] S. Needleman, C. Wunsch. A general method applicable to the search for
       similarities in the amino acid sequence of two proteins. J. Mol. Biol., 1970.

    Examples
    --------
    >>> first, second = np.array(list("GAT")), np.array(list("AT"))
    >>> match = np.where(first[:, None] == second, 2.0, -1.0)
    >>> solver = SequenceAlignment()
    >>> matched, skipped, _ = solver.unpack(solver(solver.pack(match[None], -1.0)))
    >>> matched[0]
    array([[0., 0.],
           [1., 0.],
           [0., 1.]])
    >>> skipped[0]
    array([1., 0., 0.])
    """

    event_ndim = 2
    kernel = solve_sequence_alignment
    solution = "binary"

    def __init__(self, *, lengths: bool = False) -> None:
        self.lengths = lengths

    def __repr__(self) -> str:
        return f"SequenceAlignment({'lengths=True' if self.lengths else ''})"

    @staticmethod
    def pack(match: Array, row_gap: Array, column_gap: Array | None = None) -> Array:
        """Return theta (..., n + 1, m + 1) from the scores of matches and of gaps.

        ``match`` is (..., n, m); ``row_gap`` scores a gap opposite each of the n
        elements and ``column_gap`` opposite each of the m, as numbers or arrays that
        broadcast to (..., n) and (..., m). Without ``column_gap``, ``row_gap`` must be
        a number and serves for both. Differentiable in every framework.
        """
        xp = array_namespace(match)
        rows = xp.zeros_like(match[..., :, 0]) + row_gap
        columns = xp.zeros_like(match[..., 0, :])
        columns = columns + (row_gap if column_gap is None else column_gap)
        corner = xp.zeros_like(match[..., :1, 0])
        bottom = xp.concat([columns, corner], axis=-1)[..., None, :]
        return xp.concat(
            [xp.concat([match, rows[..., :, None]], axis=-1), bottom], axis=-2
        )

    @staticmethod
    def unpack(y: Array) -> tuple[Array, Array, Array]:
        """Return matches (..., n, m) and who is skipped: (..., n) and (..., m)."""
        return y[..., :-1, :-1], y[..., :-1, -1], y[..., -1, :-1]

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless events are matrices and lengths come as declared."""
        if len(event_shape) != 2 or min(event_shape) < 2:
            msg = (
                f"{self!r} must get scores of shape (n + 1, m + 1) for each row, for "
                f"sequences of n, m >= 1 elements; got {tuple(event_shape)}. Build "
                "them with SequenceAlignment.pack(match, row_gap, column_gap)."
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
        longest = (event_shape[0] - 1, event_shape[1] - 1)
        return pack_lengths(self, rows, longest, context[0])

    def project(self, x: Array) -> Array:
        r"""Project on the matrices whose lines add up to zero, but for the corner.

        With line sums r (n) and c (m), the residual of least squares on the indicators
        of lines, :math:`x_{ij} - a_i - b_j`, where :math:`(m+1)a_i + \sum_j b_j = r_i`
        and :math:`(n+1)b_j + \sum_i a_i = c_j`.
        """
        xp = array_namespace(x)
        n, m = x.shape[-2] - 1, x.shape[-1] - 1
        r = xp.sum(x[..., :-1, :], axis=-1)
        c = xp.sum(x[..., :, :-1], axis=-2)
        sum_r = xp.sum(r, axis=-1, keepdims=True)
        sum_c = xp.sum(c, axis=-1, keepdims=True)
        sum_a = ((n + 1) * sum_r - n * sum_c) / (n + m + 1)
        sum_b = ((m + 1) * sum_c - m * sum_r) / (n + m + 1)
        a = (r - sum_b) / (m + 1)
        b = (c - sum_a) / (n + 1)
        matches, rows, columns = self.unpack(x)
        matches = matches - a[..., :, None] - b[..., None, :]
        return self.pack(matches, rows - a, columns - b)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is an alignment (NumPy arrays)."""
        y = np.asarray(y)
        packed = self.pack_context(len(y), y.shape[1:], *context)
        n, m = y.shape[1] - 1, y.shape[2] - 1
        ends = packed if packed.size else np.full((len(y), 2), (n, m))
        matches, _, _ = self.unpack(y)
        once = np.sum(y[:, :-1], axis=2) == (np.arange(n) < ends[:, :1])
        once_too = np.sum(y[:, :, :-1], axis=1) == (np.arange(m) < ends[:, 1:])
        partner = np.where(np.any(matches, axis=2), np.argmax(matches, axis=2), -1)
        reached = np.maximum.accumulate(partner, axis=1)[:, :-1]
        ordered = (partner[:, 1:] == -1) | (partner[:, 1:] > reached)
        return np.asarray(
            np.all((y == 0) | (y == 1), axis=(1, 2))
            & np.all(once, axis=1)
            & np.all(once_too, axis=1)
            & np.all(ordered, axis=1)
            & (y[:, -1, -1] == 0)
        )
