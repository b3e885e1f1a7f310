r"""The travelling salesman: the best closed tour, exactly or by local search."""

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse.csgraph import connected_components

from softsolve._arrays import constant
from softsolve.solvers.base import Array, KernelSolver, Shape
from softsolve.solvers.held_karp import MOST_CITIES, solve_tour
from softsolve.solvers.tour_search import search_tour


class _Tours(KernelSolver):
    """What solvers share whose solutions are closed tours of n cities."""

    event_ndim = 2
    solution = "binary"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless events are square matrices."""
        if len(event_shape) != 2 or len(set(event_shape)) != 1 or 0 in event_shape:
            msg = (
                f"{self!r} must get a square matrix of scores for each row, shape "
                f"(n, n); got an event of shape {tuple(event_shape)}."
            )
            raise ValueError(msg)
        super().check(event_shape, context)

    def project(self, x: Array) -> Array:
        r"""Project on the symmetric matrices of zero diagonal and zero row sums.

        From the symmetric part without diagonal, with row sums r, take
        :math:`a_i + a_j` off, :math:`(n - 2) a_i + \sum_j a_j = r_i`.
        """
        xp = array_namespace(x)
        n = x.shape[-1]
        if n < 4:
            return xp.zeros_like(x)
        outside = constant(1 - np.eye(n), x)
        symmetric = outside * (x + xp.matrix_transpose(x)) / 2
        r = xp.sum(symmetric, axis=-1)
        a = (r - xp.sum(r, axis=-1, keepdims=True) / (2 * n - 2)) / (n - 2)
        return outside * (symmetric - a[..., :, None] - a[..., None, :])

    def feasible(self, y: Array, *context: Array) -> Array:
        """Tell for each row of ``y`` whether it is one closed tour (NumPy arrays)."""
        y = np.asarray(y)
        n = y.shape[-1]
        degree = min(n - 1, 2)
        regular = (
            np.all((y == 0) | (y == 1), axis=(1, 2))
            & np.all(y == np.swapaxes(y, 1, 2), axis=(1, 2))
            & np.all(np.diagonal(y, axis1=1, axis2=2) == 0, axis=1)
            & np.all(np.sum(y, axis=2) == degree, axis=1)
        )
        connected = [connected_components(tour, return_labels=False) == 1 for tour in y]
        return regular & np.array(connected, dtype=bool)


class SalesmanExact(_Tours):
    r"""Travelling salesman: the best closed tour of a few cities, exactly.

    .. math:: y^*(\theta) = \operatorname*{argmax}_{y \in \mathcal{T}_n}
        \sum_{ij} y_{ij}\theta_{ij}

    where :math:`\mathcal{T}_n` holds the symmetric adjacency matrices of closed tours:
    :math:`y_{ij} = y_{ji} = 1` if i and j are neighbours on the tour. For distances D
    pass :math:`\theta = -D`; each edge counts in both directions, so
    :math:`-\langle y, \theta\rangle` is twice the tour's length. Scores need not be
    symmetric: only :math:`\theta_{ij} + \theta_{ji}` matters, and the diagonal does
    not. One city has the empty tour; two have one edge.

    Notes
    -----
    The recursion of Held and Karp [1]_, O(2ⁿ n²) time and 2ⁿ⁺³ numbers of memory for
    an instance: 13 cities take some 0.2 ms, and 17 are the most it takes. The polytope
    is that of the symmetric travelling salesman, of dimension n(n − 3)/2 for n ≥ 3.
    Of several best tours, it is a fixed one, read back along cities of lowest index.

    References
    ----------
    .. [1] M. Held, R. Karp. A dynamic programming approach to sequencing problems.
       Journal of the SIAM, 1962.

    Examples
    --------
    >>> cities = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> distance = np.linalg.norm(cities[:, None] - cities, axis=-1)
    >>> SalesmanExact()(-distance[None])[0]
    array([[0., 0., 1., 1.],
           [0., 0., 1., 1.],
           [1., 1., 0., 0.],
           [1., 1., 0., 0.]])
    """

    kernel = solve_tour

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless events are square matrices, for few enough cities."""
        super().check(event_shape, context)
        if event_shape[0] > MOST_CITIES:
            msg = (
                f"{self!r} must get at most {MOST_CITIES} cities, for its cost doubles "
                f"with each; got {event_shape[0]}. Use the local search, Salesman()."
            )
            raise ValueError(msg)


class Salesman(_Tours):
    r"""Travelling salesman: a good closed tour of many cities, by local search.

    Scores, solutions and polytope are those of :class:`SalesmanExact`. The search
    starts at the tour of nearest neighbours from city 0 and makes 2-opt and Or-opt
    moves until none helps [1]_: the tour is a local optimum, usually within a few
    percent of the best, which it need not be. Under noise it starts from the tour of
    the unperturbed scores.

    It is not exact: the smoothed solution and its Jacobian are those of the heuristic
    as a function, which the score-function estimators differentiate rightly. But the
    value :math:`\langle y, \theta\rangle` only bounds the maximum from below,
    Fenchel-Young gradients are not gradients of a convex function, a Fenchel-Young
    sample may be negative where the target is better than the tour that was found, and
    Jacobians need not be symmetric.

    Notes
    -----
    Each round of moves costs O(n²): some 0.07 ms for 100 cities from nearest
    neighbours, and less than half of that for noise that changes little.

    References
    ----------
    .. [1] J. Bentley. Fast algorithms for geometric traveling salesman problems. ORSA
       Journal on Computing, 1992.

    Examples
    --------
    >>> angle = np.array([0.0, 2.0, 4.0, 1.0, 3.0, 5.0])
    >>> cities = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    >>> distance = np.linalg.norm(cities[:, None] - cities, axis=-1)
    >>> Salesman()(-distance[None])[0]
    array([[0., 0., 0., 1., 0., 1.],
           [0., 0., 0., 1., 1., 0.],
           [0., 0., 0., 0., 1., 1.],
           [1., 1., 0., 0., 0., 0.],
           [0., 1., 1., 0., 0., 0.],
           [1., 0., 1., 0., 0., 0.]])
    """

    exact = False
    kernel = search_tour

    def state_size(self, event_shape: Shape) -> int:
        """Return the size of the warm start: a flag and the tour."""
        return 1 + event_shape[0]
