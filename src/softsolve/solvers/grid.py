"""Shortest paths on grids whose cells have costs."""

from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from softsolve._arrays import constant
from softsolve.solvers._paths import (
    PATH_FAILURES,
    Negative,
    check_count,
    check_negative,
    pack_endpoints,
)
from softsolve.solvers.base import Array, KernelSolver, Shape
from softsolve.solvers.grid_kernels import grid_path
from softsolve.solvers.grid_sweeps import grid_paths

_ENDPOINTS = ("start row", "start column", "end row", "end column")


class GridPath(KernelSolver):
    r"""Cheapest path between two cells of a grid, moving to neighbouring cells.

    .. math:: y^*(\theta) = \operatorname*{argmax}
        \{ \langle y, \min(\theta, 0)\rangle : y \text{ marks the cells of a path}\},

    where a cell costs :math:`-\theta` and both end cells belong to the path. Scores are
    (rows, height, width), and so are solutions, 1 on the path and 0 elsewhere.

    Parameters
    ----------
    neighbours
        8 to move to any surrounding cell, 4 for no diagonal moves.
    negative
        What to do with negative costs, as noise makes them: ``"clip"`` takes them as
        zero, so that the solver maximises :math:`\langle y, \min(\theta, 0)\rangle`;
        ``"raise"`` fails.
    endpoints
        Whether each instance has its own ends, given as context: integers (rows, 4),
        each row (start row, start column, end row, end column). Otherwise paths go from
        the first cell, (0, 0), to the last.
    obstacles
        Whether each instance has cells that no path may enter, given as context after
        the endpoints if there are any: booleans (rows, height, width).

    Notes
    -----
    The polytope is the convex hull of the simple paths, of which only the part that
    nonnegative costs can reach matters. For an instance, a search over buckets in
    :math:`O(hw \log hw)` at worst, near :math:`O(hw)` for costs of one scale [1]_;
    blocks of samples are solved by sweeps over the rows, all in step.

    Distances are sums in the type of ``theta``. From the end, the path goes back to the
    nearest neighbour to the start, the one of lowest flat index among equals; over
    cells that cost nothing, it takes the fewest steps to where one is nearer.

    References
    ----------
    .. [1] B. V. Cherkassky, A. V. Goldberg, C. Silverstein. Buckets, heaps, lists, and
       monotone priority queues. SIAM Journal on Computing, 1999.

    Examples
    --------
    >>> theta = -np.array([[[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [9.0, 1.0, 1.0]]])
    >>> GridPath()(theta)
    array([[[1., 0., 0.],
            [1., 0., 0.],
            [0., 1., 1.]]])
    >>> GridPath(neighbours=4, endpoints=True)(theta, np.array([[0, 0, 0, 2]]))
    array([[[1., 1., 1.],
            [0., 0., 0.],
            [0., 0., 0.]]])
    """

    event_ndim = 2
    kernel = grid_path
    block = grid_paths
    solution = "binary"
    failures = PATH_FAILURES
    clips_scores = True

    def __init__(
        self,
        *,
        neighbours: Literal[4, 8] = 8,
        negative: Negative = "clip",
        endpoints: bool = False,
        obstacles: bool = False,
    ) -> None:
        if neighbours not in (4, 8):
            msg = f"GridPath(neighbours=...) must be 4 or 8; got {neighbours!r}."
            raise ValueError(msg)
        check_negative("GridPath", negative)
        self.neighbours = neighbours
        self.negative = negative
        self.endpoints = endpoints
        self.obstacles = obstacles

    def __repr__(self) -> str:
        return (
            f"GridPath(neighbours={self.neighbours}, negative={self.negative!r}, "
            f"endpoints={self.endpoints}, obstacles={self.obstacles})"
        )

    def check(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Raise unless instances are grids and the declared context is there."""
        if len(event_shape) != 2 or 0 in event_shape:
            msg = (
                f"{self!r} must get a grid of scores for each instance, an event of "
                f"shape (height, width) with cells in it; got {tuple(event_shape)}."
            )
            raise ValueError(msg)
        declared = (("endpoints", self.endpoints), ("obstacles", self.obstacles))
        check_count(self, [name for name, given in declared if given], context)

    def structure(
        self, event_shape: Shape
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the grid's shape and the settings."""
        settings = (
            self.neighbours == 8,
            self.negative == "raise",
            self.endpoints,
            self.obstacles,
        )
        return np.array([*event_shape, *settings], dtype=np.int64), np.zeros(0)

    def pack_context(
        self, rows: int, event_shape: Shape, *context: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the endpoints (rows, 4), then the obstacles (rows, height * width)."""
        self.check(event_shape, context)
        height, width = event_shape
        packed = [np.zeros((rows, 0))]
        if self.endpoints:
            limits = (height, width, height, width)
            packed.append(pack_endpoints(self, context[0], rows, _ENDPOINTS, limits))
        if self.obstacles:
            blocked = np.asarray(context[-1])
            if blocked.shape != (rows, height, width) or blocked.dtype != np.bool_:
                msg = (
                    f"obstacles for {self!r} must be booleans of shape "
                    f"{(rows, height, width)}, true where no path may go; got "
                    f"{blocked.dtype} of shape {blocked.shape}."
                )
                raise ValueError(msg)
            packed.append(blocked.reshape(rows, -1).astype(np.float64))
        return np.concatenate(packed, axis=1)

    def project(self, x: Array) -> Array:
        """Project on the directions of the polytope of all paths on the empty grid.

        Both ends are on every path. Where cells have four neighbours, paths alternate
        between two colours, as on a chessboard, so the marked cells of one colour less
        those of the other are as many for all paths. Where instances have their own
        ends this is the identity.
        """
        if self.endpoints:
            return x
        height, width = x.shape[-2:]
        if min(height, width) == 1:
            return 0 * x
        free = np.ones((height, width))
        free[0, 0] = free[-1, -1] = 0
        x = x * constant(free, x)
        if self.neighbours == 4:
            xp = array_namespace(x)
            colour = free * (1 - 2 * (np.indices((height, width)).sum(axis=0) % 2))
            along = constant(colour, x)
            share = xp.sum(x * along, axis=(-2, -1), keepdims=True)
            x = x - share * (along / float(np.abs(colour).sum()))
        return x

    def feasible(self, y: Array, *context: Array) -> np.ndarray[Any, Any]:
        """Tell for each row of ``y`` whether it marks a path between its ends.

        The marked cells must hang together, hold both ends and avoid obstacles, and
        none but an end may have fewer than two marked neighbours.
        """
        from scipy import ndimage

        y = np.asarray(y)
        rows, height, width = y.shape
        packed = self.pack_context(rows, (height, width), *context)
        touching = np.ones((3, 3), dtype=np.int64)
        if self.neighbours == 4:
            touching = ndimage.generate_binary_structure(2, 1).astype(np.int64)
        result = np.zeros(rows, dtype=bool)
        for row in range(rows):
            marked = y[row] == 1
            ends = packed[row, :4] if self.endpoints else (0, 0, height - 1, width - 1)
            start, end = np.asarray(ends, dtype=np.int64).reshape(2, 2)
            walls = packed[row, 4 * self.endpoints :]
            degree = ndimage.convolve(
                marked.astype(np.int64), touching, mode="constant"
            )
            loose = marked & (degree < 3)
            loose[tuple(start)] = loose[tuple(end)] = False
            result[row] = (
                np.all(marked | (y[row] == 0))
                and marked[tuple(start)]
                and marked[tuple(end)]
                and ndimage.label(marked, touching)[1] == 1
                and not np.any(loose)
                and not np.any(walls[marked.reshape(-1)[: walls.size]])
            )
        return result
