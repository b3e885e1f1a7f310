"""The derivatives of a layer as products with vectors, from its draws.

What the paper's estimators come to for the settings of a layer: its form and whether
its Jacobian is known to be symmetric. Shapes as in :mod:`softsolve.estimators`.
"""

from array_api_compat import array_namespace

from softsolve import estimators
from softsolve.estimators import Direction, Samples
from softsolve.layer import Settings, column_projector, identity_columns
from softsolve.perturbation import DensityDerivatives
from softsolve.solvers.base import Array, Shape


class Products:
    """Derivatives of the smoothed solution at one set of draws.

    Parameters
    ----------
    settings, event_shape
        The layer's, and the shape of one instance.
    temperature, z
        Of each row (B,), and the noise (B, M, d).
    samples
        Solutions, or with ``form="maximum"`` their values, with their baseline.
    """

    def __init__(
        self,
        settings: Settings,
        event_shape: Shape,
        temperature: Array,
        z: Array,
        samples: Samples,
    ) -> None:
        self.xp = array_namespace(z)
        self.settings = settings
        self.event_shape = event_shape
        self.temperature = temperature
        self.z = z
        self.samples = samples
        self.derivatives = DensityDerivatives(
            settings.noise, settings.perturbation, temperature, z
        )

    def mean(self) -> Array:
        """Return the smoothed solution, (B, k)."""
        if self.settings.form == "solution":
            return self.samples.mean()
        in_tau, _ = estimators.vjp(
            self.derivatives, self.samples, self.temperature, self._one(1)
        )
        return in_tau[..., 0]

    def pull(self, g: Array) -> tuple[Array, Array]:
        """Return vector-Jacobian products of g (B, k, K): (B, d, K) and (B, K)."""
        still = self.xp.zeros_like(g[:, 0])
        if self.settings.form == "maximum":
            return self._second((g, still))
        pulled = estimators.vjp(self.derivatives, self.samples, self.temperature, g)
        if self.settings.symmetric:
            return self._symmetric(g), pulled[1]
        return pulled

    def push(self, direction: Direction) -> Array:
        """Return Jacobian-vector products, (B, k, K)."""
        if self.settings.form == "maximum":
            return self._second(direction)[0]
        if not self.settings.symmetric:
            return self._push(*direction)
        v, e = direction
        return self._symmetric(v) + self._push(self.xp.zeros_like(v), e)

    def jacobian(self) -> Array:
        r"""Return the Jacobian in :math:`\tau`, (B, k, d)."""
        if self.settings.form == "solution" and not self.settings.symmetric:
            return estimators.jacobian(self.derivatives, self.samples, self.temperature)
        columns = identity_columns(self.z[:, 0, :])
        return self.push((columns, self.xp.zeros_like(columns[:, 0])))

    def hessian(self, g: Array) -> Array:
        r"""Return the Hessian in :math:`\tau` of ⟨E f, g⟩ (B, d, d), g (B, k, 1)."""
        columns = identity_columns(self.z[:, 0, :])
        rows, _, count = columns.shape
        matrix, _ = estimators.hvp(
            self.derivatives,
            self.samples,
            self.temperature,
            self.xp.broadcast_to(g, (rows, g.shape[1], count)),
            (columns, self.xp.zeros_like(columns[:, 0])),
        )
        return matrix

    def _push(self, v: Array, e: Array) -> Array:
        return estimators.jvp(self.derivatives, self.samples, self.temperature, (v, e))

    def _second(self, direction: Direction) -> tuple[Array, Array]:
        ones = self._one(direction[0].shape[-1])
        return estimators.hvp(
            self.derivatives, self.samples, self.temperature, ones, direction
        )

    def _one(self, columns: int) -> Array:
        one = self.xp.ones_like(self.temperature)[:, None, None]
        return self.xp.broadcast_to(one, (one.shape[0], 1, columns))

    def _symmetric(self, v: Array) -> Array:
        return estimators.symmetric_projection(
            lambda u: self._push(u, self.xp.zeros_like(u[:, 0])),
            lambda u: estimators.vjp(
                self.derivatives, self.samples, self.temperature, u
            )[0],
            column_projector(self.settings, self.event_shape),
            v,
        )
