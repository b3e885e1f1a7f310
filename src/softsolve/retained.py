r"""Averages over the draws that were solved, where failed ones are dropped.

A solver that drops returns NaN in rows whose solve failed. Of M draws of an instance
let M' be left, those where the solver succeeds, :math:`x_m \in S`. Their average
estimates the expectation given success, and since S is a set of perturbed scores, the
derivative of that by the density of x is a covariance:

.. math::

    \nabla E[f(x) \mid S] = \frac{1}{\varepsilon}\,\mathrm{Cov}(f, s \mid S)
        \approx \frac{1}{\varepsilon (M' - 1)} \sum_m (f_m - \bar f)\, s_m .

This is leave-one-out over the draws that are left; without it, or with another
baseline, it is not an estimate of the derivative, because :math:`E[s \mid S] \ne 0`.
"""

from typing import NoReturn

from array_api_compat import array_namespace

from softsolve.errors import SolverError
from softsolve.settings import Settings
from softsolve.solvers.base import Array


class Retained:
    """Which draws of each instance are left.

    Where a solver does not drop draws, all are, and arrays pass through.

    Parameters
    ----------
    settings
        The layer's.
    y
        Solutions (B, M, k), NaN where a draw was dropped.
    """

    def __init__(self, settings: Settings, y: Array) -> None:
        self.settings = settings
        if not settings.drops:
            return
        xp = self.xp = array_namespace(y)
        self.total = y.shape[1]
        self.kept = ~xp.any(xp.isnan(y), axis=-1)
        self.count = xp.sum(xp.astype(self.kept, y.dtype), axis=1)

    def require(self, least: int) -> None:
        """Raise if fewer draws are left of an instance, for concrete arrays."""
        if not self.settings.drops:
            return
        few = self.count < least
        if bool(self.xp.any(few)):
            row = int(self.xp.argmax(self.xp.astype(few, self.xp.int32)))
            raise_too_few(self.settings, row, int(self.count[row]))

    def replace(self, y: Array, target: Array | None) -> Array:
        """Return solutions with targets (B, k), or zeros, for those dropped."""
        if not self.settings.drops:
            return y
        xp = self.xp
        stand_in = xp.zeros_like(y) if target is None else target[:, None, :]
        return xp.where(self.kept[..., None], y, stand_in)

    def weigh(self, values: Array) -> Array:
        """Return values (B, M, …) whose mean over all M is that of the draws left."""
        if not self.settings.drops:
            return values
        xp = self.xp
        share = self.total / xp.where(self.count > 0, self.count, 1.0)
        over = (..., *(None,) * (values.ndim - 2))
        weighed = values * share[:, None][over]
        return xp.where(self.kept[over], weighed, xp.zeros_like(values))

    def fill(self, values: Array) -> Array:
        r"""Return values (B, M, k) of which all estimates are those of the draws left.

        Dropped ones become the mean of the others, and the others' differences from it
        grow by :math:`(M - 1)/(M' - 1)`: so the mean of all, and leave-one-out over all
        of them, are those over the draws that are left. NaN where only one is.
        """
        if not self.settings.drops:
            return values
        xp = self.xp
        mean = xp.mean(self.weigh(values), axis=1, keepdims=True)
        spread = xp.where(self.count > 1, self.count - 1, xp.nan)
        scale = ((self.total - 1) / spread)[:, None, None]
        kept = self.kept[..., None]
        return mean + scale * xp.where(kept, values - mean, xp.zeros_like(values))


def raise_too_few(settings: Settings, row: int, left: int) -> NoReturn:
    """Raise for an instance with too few draws left."""
    what = "an average needs one" if left == 0 else "derivatives need two"
    msg = (
        f"{settings.name} failed on {settings.num_samples - left} of the "
        f"{settings.num_samples} draws of instance {row}, and {what}. Draw more "
        'samples, or pass on_failure="raise" to see why solves fail.'
    )
    raise SolverError(msg)
