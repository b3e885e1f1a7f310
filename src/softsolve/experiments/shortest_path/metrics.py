"""How good predicted paths are."""

import numpy as np
from scipy import ndimage

from softsolve.experiments.experiment import Values
from softsolve.solvers import GridPath

# Published costs are in half precision, which tells paths of one cost apart by up to
# 6e-4 of it; paths of different costs differ by more than 1e-3.
TIES = 1e-3


def are_lines(cells: np.ndarray) -> np.ndarray:
    """Tell for each row (n, h, w) whether its marked cells are a path with no others.

    Paths go from the first cell to the last and touch themselves nowhere: a path that
    does is longer than need be.
    """
    marked = cells.astype(np.int64)
    around = np.ones((1, 3, 3), dtype=np.int64)
    neighbours = ndimage.convolve(marked, around, mode="constant") - marked
    needed = 2 * marked
    needed[:, 0, 0] = needed[:, -1, -1] = 1
    result: np.ndarray = ((neighbours == needed) | (marked == 0)).all(axis=(1, 2))
    # Beside the path there may still be a ring, and the ends may be bare.
    result[result] = GridPath().feasible(cells[result])
    return result


class Judgement:
    """Predicted paths (n, h, w) at the true costs, against cheapest paths.

    A valid path is optimal if it costs what a cheapest one does, whichever it is.
    """

    def __init__(
        self,
        paths: np.ndarray,
        valid: np.ndarray,
        costs: np.ndarray,
        cheapest: np.ndarray,
    ) -> None:
        cost = (paths * costs).sum(axis=(1, 2), dtype=np.float64)
        least = (cheapest * costs).sum(axis=(1, 2), dtype=np.float64)
        self.valid = valid
        self.ratio = cost / least
        self.optimal = valid & (self.ratio <= 1 + TIES)

    def summary(self) -> Values:
        """Return the shares of optimal and valid paths, and the mean ratio of costs.

        The ratio is None where some prediction is not a path.
        """
        return {
            "optimal": float(self.optimal.mean()),
            "ratio": float(self.ratio.mean()) if self.valid.all() else None,
            "valid": float(self.valid.mean()),
        }
