"""The derivatives of a layer as products with vectors, from its draws.

What the paper's estimators come to for the settings of a layer: its form and whether
its Jacobian is known to be symmetric. Shapes as in :mod:`softsolve.estimators`.
"""

import abc

from array_api_compat import array_namespace

from softsolve import estimators
from softsolve.estimators import Direction, Samples
from softsolve.layer import column_projector, identity_columns
from softsolve.perturbation import DensityDerivatives
from softsolve.settings import Settings
from softsolve.solvers.base import Array, Shape


class Products(abc.ABC):
    r"""Derivatives of the smoothed solution at one set of draws.

    A route says how it averages, and its four products with vectors of the samples'
    expectation; the settings decide what they are put together to.

    Parameters
    ----------
    settings, event_shape
        The layer's, and the shape of one instance.
    point
        Where: :math:`\tau` of each row (B, d), and its temperature (B,).
    """

    def __init__(
        self, settings: Settings, event_shape: Shape, point: tuple[Array, Array]
    ) -> None:
        self.xp = array_namespace(*point)
        self.settings = settings
        self.event_shape = event_shape
        self.tau, self.temperature = point

    @abc.abstractmethod
    def vjp(self, g: Array) -> tuple[Array, Array]:
        """Return :func:`softsolve.estimators.vjp` of g (B, k, K)."""

    @abc.abstractmethod
    def jvp(self, direction: Direction) -> Array:
        """Return :func:`softsolve.estimators.jvp` along (v, e)."""

    @abc.abstractmethod
    def hvp(self, g: Array, direction: Direction) -> tuple[Array, Array]:
        """Return :func:`softsolve.estimators.hvp` of g along (v, e)."""

    @abc.abstractmethod
    def jjvp(self, direction: Direction, other: Direction) -> Array:
        """Return :func:`softsolve.estimators.jjvp` along two directions."""

    def pull(self, g: Array) -> tuple[Array, Array]:
        """Return vector-Jacobian products of g (B, k, K): (B, d, K) and (B, K)."""
        still = self.xp.zeros_like(g[:, 0])
        if self.settings.form == "maximum":
            return self._second((g, still))
        pulled = self.vjp(g)
        if self.settings.symmetric:
            return self._symmetric(g), pulled[1]
        return pulled

    def push(self, direction: Direction) -> Array:
        """Return Jacobian-vector products, (B, k, K)."""
        if self.settings.form == "maximum":
            return self._second(direction)[0]
        if not self.settings.symmetric:
            return self.jvp(direction)
        v, e = direction
        return self._symmetric(v) + self.jvp((self.xp.zeros_like(v), e))

    def jacobian(self) -> Array:
        r"""Return the Jacobian in :math:`\tau`, (B, k, d)."""
        columns = identity_columns(self.tau)
        return self.push((columns, self.xp.zeros_like(columns[:, 0])))

    def hessian(self, g: Array) -> Array:
        r"""Return the Hessian in :math:`\tau` of ⟨E f, g⟩ (B, d, d), g (B, k, 1)."""
        columns = identity_columns(self.tau)
        rows, _, count = columns.shape
        spread = self.xp.broadcast_to(g, (rows, g.shape[1], count))
        still = self.xp.zeros_like(columns[:, 0])
        if not self.settings.symmetric:
            return self.hvp(spread, (columns, still))[0]
        return estimators.symmetric_projection(
            lambda u: self.jjvp((u, still), (columns, still)),
            lambda u: self.hvp(u, (columns, still))[0],
            column_projector(self.settings, self.event_shape),
            spread,
        )

    def _second(self, direction: Direction) -> tuple[Array, Array]:
        return self.hvp(self._one(direction[0].shape[-1]), direction)

    def _one(self, columns: int) -> Array:
        one = self.xp.ones_like(self.temperature)[:, None, None]
        return self.xp.broadcast_to(one, (one.shape[0], 1, columns))

    def _symmetric(self, v: Array) -> Array:
        return estimators.symmetric_projection(
            lambda u: self.jvp((u, self.xp.zeros_like(u[:, 0]))),
            lambda u: self.vjp(u)[0],
            column_projector(self.settings, self.event_shape),
            v,
        )


class ArrayProducts(Products):
    """Derivatives from noise and samples.

    Parameters
    ----------
    settings, event_shape, point
        See :class:`Products`.
    z
        The noise (B, M, d).
    samples
        Solutions, or with ``form="maximum"`` their values, with their baseline.
    """

    def __init__(
        self,
        settings: Settings,
        event_shape: Shape,
        point: tuple[Array, Array],
        z: Array,
        samples: Samples,
    ) -> None:
        super().__init__(settings, event_shape, point)
        self.samples = samples
        self.derivatives = DensityDerivatives(
            settings.noise, settings.perturbation, self.temperature, z
        )

    def mean(self) -> Array:
        """Return the smoothed solution, (B, k)."""
        if self.settings.form == "solution":
            return self.samples.mean()
        return self.vjp(self._one(1))[0][..., 0]

    def vjp(self, g: Array) -> tuple[Array, Array]:
        """Return vector-Jacobian products of the expectation of the samples."""
        return estimators.vjp(self.derivatives, self.samples, self.temperature, g)

    def jvp(self, direction: Direction) -> Array:
        """Return Jacobian-vector products of the expectation of the samples."""
        return estimators.jvp(
            self.derivatives, self.samples, self.temperature, direction
        )

    def hvp(self, g: Array, direction: Direction) -> tuple[Array, Array]:
        """Return derivatives of :meth:`vjp` along a direction."""
        return estimators.hvp(
            self.derivatives, self.samples, self.temperature, g, direction
        )

    def jjvp(self, direction: Direction, other: Direction) -> Array:
        """Return derivatives of :meth:`jvp` along another direction."""
        return estimators.jjvp(
            self.derivatives, self.samples, self.temperature, direction, other
        )

    def jacobian(self) -> Array:
        r"""Return the Jacobian in :math:`\tau`, (B, k, d)."""
        if self.settings.form == "solution" and not self.settings.symmetric:
            return estimators.jacobian(self.derivatives, self.samples, self.temperature)
        return super().jacobian()
