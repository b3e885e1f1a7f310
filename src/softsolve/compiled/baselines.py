"""Baselines that need no memory of their own."""

from typing import NamedTuple


class LeaveOneOut(NamedTuple):
    """How the mean becomes the baseline that leaves each sample out."""

    scale: float
    mixing: float


def leave_one_out(num_samples: int, *, antithetic: bool = False) -> LeaveOneOut:
    r"""Return what to pass with ``center=mean`` for a leave-one-out baseline.

    Independent draws: :math:`y_m - b_m = \tfrac{M}{M-1} (y_m - \bar y)`. Antithetic
    draws: :math:`b_m` is the mean of the P - 1 other pairs, so that with the mean
    :math:`\bar y_p` of the sample's own pair

    .. math::

        y_m - b_m = (y_m - \bar y) + \tfrac{1}{P - 1} (\bar y_p - \bar y).
    """
    if antithetic:
        return LeaveOneOut(1.0, 1 / (num_samples - 2))
    return LeaveOneOut(num_samples / (num_samples - 1), 0.0)
