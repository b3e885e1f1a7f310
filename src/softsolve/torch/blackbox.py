"""The blackbox baseline: a solver differentiated by interpolation."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd import Function

from softsolve import layer
from softsolve.fused_route import takes_fused_route
from softsolve.torch.fused import SolveFused
from softsolve.torch.host import check_point
from softsolve.torch.layers import Perturbed
from softsolve.torch.rows import Rows
from softsolve.torch.sampling import Call, Constant, fold_rows

Tensor = torch.Tensor


class BlackBox(nn.Module):
    r"""A solver with the gradient proxy of Vlastelica et al. (2019), to compare with.

    The forward pass is the solver itself, :math:`y^*(\theta)`. The backward pass solves
    once more and returns, for an upstream gradient g,

    .. math:: \frac{1}{\lambda}\big(y^*(\theta) - y^*(\theta - \lambda g)\big),

    the gradient of a piecewise-affine interpolation of the loss: a biased proxy, from
    which no second derivatives and no forward mode follow.

    Parameters
    ----------
    solver
        One of :mod:`softsolve.solvers`, or any function of a batch of scores.
    interpolation
        :math:`\lambda > 0`, the length of the step that the backward pass takes.

    Examples
    --------
    >>> from softsolve.solvers import Ranking
    >>> theta = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    >>> ranks = BlackBox(Ranking(), interpolation=5.0)(theta)
    >>> ranks
    tensor([[2., 1., 3.]], grad_fn=...)
    >>> (ranks - torch.tensor([[1.0, 2.0, 3.0]])).square().sum().backward()
    >>> theta.grad
    tensor([[ 0.2000, -0.4000,  0.2000]])
    """

    def __init__(
        self, solver: Callable[..., Any], *, interpolation: float = 10.0
    ) -> None:
        super().__init__()
        layer.check_interpolation(interpolation)
        self.interpolation = interpolation
        self._layer = Perturbed(solver, num_samples=1)

    def forward(self, theta: Tensor, *context: Tensor) -> Tensor:
        """Return the solution of each instance of ``theta``."""
        if torch.compiler.is_compiling():
            msg = (
                "BlackBox cannot be compiled: its gradient would be lost. Call it "
                "outside of torch.compile."
            )
            raise RuntimeError(msg)
        rows = self._layer.rows(theta, context, None)
        call = Call(self._layer.settings, rows.event_shape, generator=None, keep=False)
        solve = self._solve(rows)
        (y,) = solve.apply(call, rows.theta.detach(), *rows.context)
        self._layer.settings.check_vector_output(call.out_shape, rows.event_shape)
        stepper = _Stepper(solve, call, self.interpolation)
        y = _Interpolate.apply(y, rows.theta, stepper, *rows.context)
        return rows.restore(y, call.out_shape)

    def _solve(self, rows: Rows) -> type[Constant]:
        on_cpu = rows.theta.device.type == "cpu"
        settings = self._layer.settings
        fused = takes_fused_route(settings, on_cpu=on_cpu, maximum=False)
        return SolveFused if fused else _Solve

    def extra_repr(self) -> str:
        """Return the options, for ``repr``."""
        return f"{self._layer.settings.name}, interpolation={self.interpolation}"


class _Stepper:
    def __init__(self, solve: type[Constant], call: Call, length: float) -> None:
        self.solve = solve
        self.call = call
        self.length = length

    def __call__(
        self, y: Tensor, theta: Tensor, g: Tensor, context: tuple[Tensor, ...]
    ) -> Tensor:
        (moved,) = self.solve.apply(self.call, theta - self.length * g, *context)
        return (y - moved) / self.length


class _Solve(Constant):
    """The solution of each row (B, k)."""

    @staticmethod
    def forward(call: Call, theta: Tensor, *context: Tensor) -> tuple[Tensor]:
        check_point(theta, torch.ones_like(theta[:, 0]))
        return (call.at_point(theta, context),)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *operands: Any) -> Any:
        return fold_rows(_Solve, info, in_dims, operands)


class _Interpolate(Function):
    """The solution, with the proxy as its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        y: Tensor, theta: Tensor, stepper: _Stepper, *context: Tensor
    ) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        y, theta, ctx.stepper, *context = inputs
        ctx.save_for_backward(y, theta, *context)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, theta, *context = ctx.saved_tensors
        proxy = ctx.stepper(y, theta.detach(), gradients[0].detach(), tuple(context))
        final = _Final.apply(proxy, theta, gradients[0])
        return (None, final, None, *(None for _ in context))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        msg = "BlackBox has no forward-mode derivative: its proxy is a backward pass."
        raise RuntimeError(msg)


class _Final(Function):
    """The proxy, which has no derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(proxy: Tensor, theta: Tensor, g: Tensor) -> Tensor:
        return proxy.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        msg = "BlackBox has no second derivatives: its gradient is piecewise constant."
        raise RuntimeError(msg)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        _Final.backward(ctx)
        raise AssertionError
