"""The Fenchel-Young loss in JAX."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from softsolve import layer
from softsolve.jax.layers import Perturbed
from softsolve.jax.random import check_key

Array = Any


@jax.tree_util.register_pytree_node_class
class FenchelYoungLoss:
    r"""The Fenchel-Young loss of a perturbed solver.

    For targets y among the solutions, the exact nonnegative value

    .. math::

        L_\varepsilon(\theta; y) = E[\max_{y'}\langle y', \theta+\varepsilon Z\rangle
            - \langle y, \theta + \varepsilon Z\rangle]

    whose gradient in θ is :math:`y_\varepsilon(\theta) - y`: no Jacobian is needed. For
    targets inside the hull it is an upper bound, off by a constant in θ. Targets are
    constants: they get no gradient.

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
    >>> from softsolve.jax import Perturbed
    >>> from softsolve.solvers import OneHot
    >>> loss = FenchelYoungLoss(Perturbed(OneHot(), noise="gumbel", num_samples=1000))
    >>> theta, y = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    >>> bool(loss(theta, y, key=jax.random.key(0)) > 1)  # cross-entropy is 1.313
    True
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

    def tree_flatten(self) -> tuple[tuple[Any], tuple[str, str]]:
        """Return the layer, and the options as what is static."""
        return (self.perturbed,), (self.reduction, self.gradient)

    @classmethod
    def tree_unflatten(
        cls, options: tuple[Any, Any], leaves: tuple[Any]
    ) -> "FenchelYoungLoss":
        """Make a loss of what :meth:`tree_flatten` returned."""
        made = object.__new__(cls)
        (made.perturbed,) = leaves
        made.reduction, made.gradient = options
        return made

    def __call__(
        self,
        theta: Array,
        y: Array,
        *context: Array,
        key: Array,
        temperature: float | Array | None = None,
    ) -> Array:
        """Return the loss."""
        check_key(key)
        rows = self.perturbed.rows(theta, context, temperature)
        full_shape = rows.batch_shape + rows.event_shape
        y = jnp.asarray(y)
        if y.shape != full_shape:
            layer.raise_bad_target(y.shape, full_shape)
        target = jax.lax.stop_gradient(y).astype(rows.theta.dtype)
        value = self.perturbed.smoothed_maximum(
            rows,
            target.reshape(rows.theta.shape),
            key,
            difference=self.gradient == "difference",
        )
        if self.reduction == "none":
            return rows.restore(value, ())
        # Reduced before it is cast: half precision cannot add many numbers.
        total = value.mean() if self.reduction == "mean" else value.sum()
        return total.astype(rows.dtype)

    def __repr__(self) -> str:
        return f'FenchelYoungLoss({self.perturbed!r}, reduction="{self.reduction}")'
