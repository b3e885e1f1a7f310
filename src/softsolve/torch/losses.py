"""The Fenchel-Young loss in torch."""

from typing import Literal

import torch
from torch import nn

from softsolve import layer
from softsolve.torch.layers import Perturbed
from softsolve.torch.precision import full_precision
from softsolve.torch.rows import Temperature

Tensor = torch.Tensor


class FenchelYoungLoss(nn.Module):
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
    >>> from softsolve.solvers import Ranking
    >>> from softsolve.torch import Perturbed
    >>> loss = FenchelYoungLoss(Perturbed(Ranking(), num_samples=100))
    >>> theta = torch.zeros(8, 3, requires_grad=True)
    >>> loss(theta, torch.tensor([[1.0, 2.0, 3.0]]).expand(8, 3)).backward()
    >>> (theta.grad[:, 0] > 0).all()
    tensor(True)
    """

    def __init__(
        self,
        perturbed: Perturbed,
        *,
        reduction: Literal["none", "mean", "sum"] = "mean",
        gradient: Literal["exact", "difference"] = "exact",
    ) -> None:
        super().__init__()
        layer.check_type(
            perturbed, Perturbed, "perturbed", "Wrap the solver in Perturbed(solver)."
        )
        layer.check_loss(perturbed.settings, reduction, gradient)
        self.perturbed = perturbed
        self.reduction = reduction
        self.gradient = gradient

    def forward(
        self,
        theta: Tensor,
        y: Tensor,
        *context: Tensor,
        generator: torch.Generator | None = None,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return the loss."""
        layer.check_type(y, torch.Tensor, "y", "Use torch.as_tensor.")
        rows = self.perturbed.rows(theta, context, temperature)
        full_shape = rows.batch_shape + rows.event_shape
        if tuple(y.shape) != full_shape:
            layer.raise_bad_target(tuple(y.shape), full_shape)
        if y.requires_grad:
            msg = (
                "y must not require a gradient: Fenchel-Young targets are constants. "
                "Pass y.detach()."
            )
            raise ValueError(msg)
        target = y.detach().to(rows.theta.dtype)
        if target.shape != rows.theta.shape:
            target = target.reshape(rows.theta.shape)
        with full_precision(rows.theta):
            value = self.perturbed.smoothed_maximum(
                rows, target, generator, difference=self.gradient == "difference"
            )
        if self.reduction == "none":
            return rows.restore(value, ())
        # Reduced before it is cast: half precision cannot add many numbers.
        total = value.mean() if self.reduction == "mean" else value.sum()
        return total.to(rows.dtype)

    def extra_repr(self) -> str:
        """Return the options, for ``repr``."""
        return f'reduction="{self.reduction}", gradient="{self.gradient}"'
