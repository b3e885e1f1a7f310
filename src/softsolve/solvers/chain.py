r"""Chains: the best sequence of states, by Viterbi's algorithm."""

from typing import Any

import numba
import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant
from softsolve.compiled.kernel import OK, kernel
from softsolve.solvers.base import Array, KernelSolver, Shape, whole_number
from softsolve.solvers.lengths import check_lengths_given, pack_lengths

# From this many states on, a loop over the next states is worth vectorising.
LONG_LOOP = 24


@numba.njit(nogil=True)
def _extend_few(best, unary, pairwise, states, length):  # type: ignore[no-untyped-def]
    # Plain indices: slices at every position would cost more than the work there.
    edge = 0
    for t in range(1, length):
        here = t * states
        before = here - states
        for j in range(states):
            highest = best[before] + pairwise[edge + j]
            for i in range(1, states):
                value = best[before + i] + pairwise[edge + i * states + j]
                highest = value if value > highest else highest
            best[here + j] = highest + unary[here + j]
        edge += states * states


@numba.njit(nogil=True)
def _improve(value, pairwise, best):  # type: ignore[no-untyped-def]
    for j in range(best.size):
        extended = value + pairwise[j]
        best[j] = extended if extended > best[j] else best[j]


@numba.njit(nogil=True)
def _extend_many(best, unary, pairwise, states, length):  # type: ignore[no-untyped-def]
    edge = 0
    for t in range(1, length):
        here = t * states
        after = best[here : here + states]
        after[:] = -np.inf
        for i in range(states):
            _improve(best[here - states + i], pairwise[edge : edge + states], after)
            edge += states
        for j in range(states):
            after[j] += unary[here + j]


@kernel
def solve_chain(theta, ints, reals, context, state, y):  # type: ignore[no-untyped-def]
    """Extend the best prefixes position by position and read the sequence back.

    ``ints`` holds the length and the number of states; a ``context`` holds the length
    of the instance instead.
    """
    longest, states = ints[0], ints[1]
    length = np.int64(context[0]) if context.size else longest
    unary, pairwise = theta[: longest * states], theta[longest * states :]
    best = np.empty(length * states, theta.dtype)
    best[:states] = unary[:states]
    if states < LONG_LOOP:
        _extend_few(best, unary, pairwise, states, length)
    else:
        _extend_many(best, unary, pairwise, states, length)

    y[:] = 0
    before = (length - 1) * states
    last = int(np.argmax(best[before:]))
    y[before + last] = 1
    # Without pointers to follow: the best predecessor is sought again, for the states
    # of one sequence only.
    for t in range(length - 1, 0, -1):
        before -= states
        edge = (t - 1) * states * states + last
        previous = 0
        highest = best[before] + pairwise[edge]
        for i in range(1, states):
            value = best[before + i] + pairwise[edge + i * states]
            if value > highest:
                highest = value
                previous = i
        y[longest * states + edge + previous * states] = 1
        y[before + previous] = 1
        last = previous
    return OK


class Chain(KernelSolver):
    r"""Viterbi: the best sequence of states, with scores of states and transitions.

    .. math:: \max_{s_1, \dots, s_L} \;
        \sum_{t=1}^{L} u_t[s_t] + \sum_{t=1}^{L-1} p_t[s_t, s_{t+1}]

    Events are vectors of all scores: the unary ones u (L, S), then the pairwise ones
    p (L − 1, S, S), flattened. So the solver is linear in all of them, and
    :math:`y = (1\{s_t = i\}, 1\{s_t = i, s_{t+1} = j\})`: smoothed, the marginals of
    states and of transitions. :meth:`pack` builds theta, :meth:`unpack` takes y apart.
    Ties go to the lowest state, from the last position to the first.

    Parameters
    ----------
    states
        Number of states S. The length L follows from the size of theta.
    lengths
        Whether rows come with lengths of their own, ``solver(theta, lengths)`` with
        lengths (rows,): y is zero beyond them.

    Notes
    -----
    A dynamic program, O(L S²) for an instance [1]_. The polytope is the marginal
    polytope of the chain, of dimension L (S − 1) + (L − 1)(S − 1)² [2]_. For a fixed
    transition matrix, pass it to :meth:`pack` once: it is repeated along the chain,
    and each copy is perturbed on its own.

    References
    ----------
    .. [1] A. Viterbi. Error bounds for convolutional codes and an asymptotically
       optimum decoding algorithm. IEEE Transactions on Information Theory, 1967.
    .. [2] M. Wainwright, M. Jordan. Graphical models, exponential families, and
       variational inference. Foundations and Trends in Machine Learning, 2008.

    Examples
    --------
    >>> unary = np.array([[1.0, 0.0], [0.0, 0.5], [2.0, 0.0]])
    >>> stay = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> solver = Chain(states=2)
    >>> states, transitions = solver.unpack(solver(solver.pack(unary, stay)[None]))
    >>> states[0]
    array([[1., 0.],
           [1., 0.],
           [1., 0.]])
    >>> transitions.shape
    (1, 2, 2, 2)
    """

    kernel = solve_chain
    solution = "binary"

    def __init__(self, states: int, *, lengths: bool = False) -> None:
        states = whole_number("Chain(states=...)", states)
        if states < 1:
            msg = f"Chain(states=...) must be at least 1; got {states}."
            raise ValueError(msg)
        self.states = states
        self.lengths = lengths

    def __repr__(self) -> str:
        return f"Chain({self.states}{', lengths=True' if self.lengths else ''})"

    @staticmethod
    def pack(unary: Array, pairwise: Array) -> Array:
        """Return theta (..., d) from unary (..., L, S) and pairwise scores.

        ``pairwise`` is (..., L − 1, S, S), or broadcasts to it: a matrix (S, S) serves
        for all positions. Differentiable in every framework.
        """
        xp = array_namespace(unary, pairwise)
        *batch, length, states = unary.shape
        shape = (*batch, length - 1, states, states)
        everywhere = xp.broadcast_to(pairwise, shape)
        parts = [
            xp.reshape(unary, (*batch, length * states)),
            xp.reshape(everywhere, (*batch, (length - 1) * states * states)),
        ]
        return xp.concat(parts, axis=-1)

    def unpack(self, y: Array) -> tuple[Array, Array]:
        """Return the states (..., L, S) and transitions (..., L − 1, S, S) of ``y``."""
        xp = array_namespace(y)
        *batch, d = y.shape
        length = self._length(d)
        cut = length * self.states
        unary = xp.reshape(y[..., :cut], (*batch, length, self.states))
        shape = (*batch, length - 1, self.states, self.states)
        return unary, xp.reshape(y[..., cut:], shape)

    def _length(self, d: int) -> int:
        """Return the L for which d = L·S + (L − 1)·S²."""
        edges = self.states**2
        length, rest = divmod(d + edges, self.states + edges)
        if rest or length < 1:
            msg = (
                f"{self!r} must get L·S + (L − 1)·S² scores for a chain of length L; "
                f"got {d}. Build theta with Chain.pack(unary, pairwise)."
            )
            raise ValueError(msg)
        return length

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless events are chains' scores and lengths come as declared."""
        if len(event_shape) != 1:
            msg = (
                f"{self!r} must get a vector of scores for each row; got an event of "
                f"shape {tuple(event_shape)}. Build theta with Chain.pack(unary, "
                "pairwise)."
            )
            raise ValueError(msg)
        self._length(event_shape[0])
        check_lengths_given(self, self.lengths, context)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the length and the number of states."""
        return np.array([self._length(event_shape[0]), self.states]), np.zeros(0)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the lengths (rows, 1), or (rows, 0) if all rows are full."""
        self.check(event_shape, context)
        if not context:
            return np.zeros((rows, 0))
        return pack_lengths(self, rows, (self._length(event_shape[0]),), context[0])

    def project(self, x: Array) -> Array:
        r"""Project on the differences of marginals that agree with each other.

        Those are u with :math:`\sum_i u_t[i] = 0` and p with row sums :math:`u_t` and
        column sums :math:`u_{t+1}`: doubly centred matrices plus
        :math:`(u_t \otimes 1 + 1 \otimes u_{t+1}) / S`. The two parts are orthogonal,
        and least squares in u separates over positions. Where rows have lengths of
        their own, row sums may also be those of a chain that ends: they are free.
        """
        xp = array_namespace(x)
        unary, pairwise = self.unpack(x)
        length, states = unary.shape[-2:]
        mean = xp.mean(pairwise, axis=(-2, -1), keepdims=True)
        rows = xp.mean(pairwise, axis=-1, keepdims=True) - mean
        columns = xp.mean(pairwise, axis=-2, keepdims=True) - mean
        if self.lengths:
            rows = xp.zeros_like(rows)

        nothing = xp.zeros_like(unary[..., :1, :])
        leaving = xp.concat([rows[..., :, 0], nothing], axis=-2)
        arriving = xp.concat([nothing, columns[..., 0, :]], axis=-2)
        links = np.full((length, 1), 2.0 - self.lengths)
        links[0] -= 1
        links[-1] -= not self.lengths
        shrink = constant(states / (states + links), x)
        centred = unary - xp.mean(unary, axis=-1, keepdims=True)
        u = (centred + leaving + arriving) * shrink

        p = pairwise - mean - rows - columns + u[..., 1:, None, :] / states
        if not self.lengths:
            p = p + u[..., :-1, :, None] / states
        return self.pack(u, p)

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is a sequence (NumPy arrays)."""
        y = np.asarray(y)
        packed = self.pack_context(len(y), y.shape[1:], *context)
        unary, pairwise = self.unpack(y)
        length = unary.shape[1]
        ends = packed if packed.size else np.full((len(y), 1), length)
        one_state = np.sum(unary, axis=2) == (np.arange(length) < ends)
        agree = pairwise == unary[:, :-1, :, None] * unary[:, 1:, None, :]
        return np.asarray(
            np.all((y == 0) | (y == 1), axis=1)
            & np.all(one_state, axis=1)
            & np.all(agree, axis=(1, 2, 3))
        )
