"""The Fenchel-Young loss in NumPy."""

from typing import Literal

import numpy as np

from softsolve import estimators, layer
from softsolve.array_route import chunk_sizes, first_bad_row
from softsolve.numpy.layers import Draws, Gradients, Perturbed, Rng, Rows
from softsolve.perturbation import DensityDerivatives


class FenchelYoungLoss:
    r"""The Fenchel-Young loss of a perturbed solver, with its gradient.

    For targets y among the solutions, the exact nonnegative value

    .. math::

        L_\varepsilon(\theta; y) = E[\max_{y'}\langle y', \theta+\varepsilon Z\rangle
            - \langle y, \theta + \varepsilon Z\rangle]

    whose gradient in θ is :math:`y_\varepsilon(\theta) - y`. For targets inside the
    hull it is an upper bound, off by a constant in θ.

    Parameters
    ----------
    perturbed
        The layer, with a linear solver.
    reduction
        ``"mean"`` or ``"sum"`` over the batch, or ``"none"``.
    gradient
        ``"exact"``; or ``"difference"`` for :math:`\bar y - y` where a solver clips
        costs, the surrogate of the paper's shortest-path experiment.

    Examples
    --------
    >>> from softsolve.solvers import OneHot
    >>> soft = Perturbed(OneHot(), num_samples=100_000, noise="gumbel")
    >>> loss = FenchelYoungLoss(soft)
    >>> theta, y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    >>> round(float(loss(theta, y, rng=0)), 2)  # cross-entropy is 1.313
    1.32
    """

    def __init__(
        self,
        perturbed: Perturbed,
        *,
        reduction: Literal["none", "mean", "sum"] = "mean",
        gradient: Literal["exact", "difference"] = "exact",
    ) -> None:
        layer.check_type(
            perturbed, Perturbed, "perturbed", "Wrap the solver in Perturbed(solver)."
        )
        layer.check_loss(perturbed.settings, reduction, gradient)
        self.perturbed = perturbed
        self.reduction = reduction
        self.gradient = gradient

    def __call__(
        self,
        theta: np.ndarray,
        y: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the loss."""
        return self.value_and_gradients(
            theta, y, *context, rng=rng, temperature=temperature
        )[0]

    def value_and_gradients(
        self,
        theta: np.ndarray,
        y: np.ndarray,
        *context: np.ndarray,
        rng: Rng = None,
        temperature: float | np.ndarray | None = None,
    ) -> tuple[np.ndarray, Gradients]:
        """Return the loss and its gradients in θ and the temperature of each row."""
        perturbed = self.perturbed
        rows = perturbed._rows(theta, context, temperature)
        full_shape = rows.batch_shape + rows.event_shape
        y = np.asarray(y)
        if y.shape != full_shape:
            layer.raise_bad_target(y.shape, full_shape)
        target = y.astype(rows.theta.dtype, copy=False).reshape(rows.theta.shape)
        row = first_bad_row(target)
        if row is not None:
            layer.raise_not_finite(row, target[row], "y")
        generator = perturbed._generator(rng)
        if perturbed._fused(rows, maximum=True):
            terms = perturbed._fused_maxima(rows, generator, target)
        else:
            terms = self._means(rows, generator, target)
        value, in_theta, in_temperature = terms
        scale = 1.0
        if self.reduction == "mean":
            scale = 1 / max(1, len(rows.theta))
        # Reduced before it is cast: half precision cannot add many numbers.
        if self.reduction == "none":
            reduced = perturbed._unflatten(rows, value, ())
        else:
            reduced = np.asarray(value.sum() * scale, dtype=rows.dtype)
        gradients = Gradients(
            perturbed._unflatten(rows, in_theta * scale, rows.event_shape),
            perturbed._unflatten(rows, in_temperature * scale, ()),
        )
        return reduced, gradients

    def _means(
        self, rows: Rows, generator: np.random.Generator, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the loss and its gradients, a chunk of samples at a time."""
        settings = self.perturbed.settings
        parts = []
        for count in chunk_sizes(settings, rows.theta):
            draws = self.perturbed._draw(rows, generator, count)
            parts.append(
                count
                * np.concatenate(self._terms(draws, target), axis=1)
                / settings.num_samples
            )
        value, in_theta, in_temperature = np.split(
            np.sum(parts, axis=0), [1, 1 + rows.theta.shape[1]], axis=1
        )
        if self.gradient == "exact":
            in_theta = in_theta * self.perturbed._chain(rows)
        return value[:, 0], in_theta, in_temperature[:, 0]

    def _terms(
        self, draws: Draws, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        settings = self.perturbed.settings
        retained = self.perturbed._retained(draws, 1)
        y = retained.replace(draws.y, target)
        difference = y - target[:, None, :]
        reached = estimators.scores_reached(draws.x, clips=settings.clips)
        gaps = np.vecdot(difference, reached)
        layer.check_gaps(settings, gaps, y, target, draws.x)
        gaps, difference = retained.weigh(gaps), retained.weigh(difference)
        in_tau = estimators.maximum_gradients(
            settings.perturbation, difference, draws.x, clips=settings.clips
        )
        derivatives = DensityDerivatives(
            settings.noise, settings.perturbation, draws.rows.temperature, draws.z
        )
        in_temperature = estimators.moment(derivatives, in_tau)
        shown = difference if self.gradient == "difference" else in_tau
        return (
            gaps.mean(axis=1, keepdims=True),
            shown.mean(axis=1),
            in_temperature[:, None],
        )

    def __repr__(self) -> str:
        return f'FenchelYoungLoss({self.perturbed!r}, reduction="{self.reduction}")'
