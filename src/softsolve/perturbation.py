r"""How noise perturbs scores, and the derivatives of the density of what comes out.

A perturbation maps scores :math:`\theta` and noise :math:`z` to perturbed scores
:math:`x`. Every derivative of an expectation :math:`E[f(x)]` follows from the density
:math:`p(x; \tau, \varepsilon)` of :math:`x` (Proposition 3.1):

.. math::

    D\,E[f(x)] = E[f(x)\,D\log p], \qquad
    D^2 E[f(x)] = E[f(x)\,(D\log p\,D\log p^\top + D^2\log p)],

where derivatives are taken in the *point* :math:`(\tau, \varepsilon)`: the temperature
is one more coordinate, so that its derivatives, mixed ones too, come with the others.
:math:`\tau` is :math:`\theta` for additive noise and :math:`\log|\theta|` for
multiplicative noise, in which both are shifts of :math:`x` or :math:`\log|x|`.

Shapes, here and in :mod:`softsolve.estimators`: theta (B, d), temperature (B,), noise
z (B, M, d); directions v (B, d, K) in :math:`\tau` and e (B, K) in
:math:`\varepsilon`, K of them at once.
"""

import abc
from typing import Any

from array_api_compat import array_namespace

from softsolve._arrays import inner
from softsolve.noise import Noise

Array = Any
Point = tuple[Array, Array]


class Perturbation(abc.ABC):
    """A map from scores and noise to perturbed scores."""

    name: str

    @abc.abstractmethod
    def coordinates(self, theta: Array) -> Array:
        r"""Return :math:`\tau(\theta)`, in which the perturbation is a shift."""

    @abc.abstractmethod
    def perturb(self, theta: Array, temperature: Array, z: Array) -> Array:
        """Return the perturbed scores x (B, M, d)."""

    @abc.abstractmethod
    def drifted_noise(self, z: Array, start: Point, end: Point) -> Array:
        r"""Return the noise that leads from ``end`` to where z leads from ``start``.

        A point is :math:`(\tau, \varepsilon)`; where both are the same, this is z.
        """

    @abc.abstractmethod
    def slope(self, x: Array, factor: Array) -> Array:
        r"""Return ``factor`` times :math:`\partial x/\partial\tau`, elementwise."""

    @abc.abstractmethod
    def tilt(self, z: Array, temperature: Array) -> Array:
        r"""Return how fast :math:`\varepsilon` moves x, as a shift of :math:`\tau`."""

    @abc.abstractmethod
    def bend(self, z: Array, temperature: Array) -> Array:
        r"""Return :math:`\varepsilon^2\,\partial^2_\varepsilon z` at fixed x."""


class Additive(Perturbation):
    r"""Additive noise, :math:`x = \theta + \varepsilon z`: the paper's."""

    name = "additive"

    def coordinates(self, theta: Array) -> Array:
        """Return theta."""
        return theta

    def perturb(self, theta: Array, temperature: Array, z: Array) -> Array:
        """Return θ + εz."""
        return theta[:, None, :] + temperature[:, None, None] * z

    def drifted_noise(self, z: Array, start: Point, end: Point) -> Array:
        """Return (τ₀ + ε₀z − τ)/ε."""
        (tau0, temperature0), (tau, temperature) = start, end
        shift = (tau0 - tau) / temperature[:, None]
        return z * (temperature0 / temperature)[:, None, None] + shift[:, None, :]

    def slope(self, x: Array, factor: Array) -> Array:
        """Return the factor: x moves as τ does."""
        return factor

    def tilt(self, z: Array, temperature: Array) -> Array:
        """Return z."""
        return z

    def bend(self, z: Array, temperature: Array) -> Array:
        """Return 2z."""
        return 2 * z


ADDITIVE = Additive()


class Multiplicative(Perturbation):
    r"""Multiplicative noise, :math:`x=\theta\odot\exp(\varepsilon z-\varepsilon^2/2)`.

    Signs are kept and :math:`E[x] = \theta`, for Gaussian noise only. No score may be
    zero. The perturbed maximum is then 1-homogeneous in θ, so a Fenchel-Young loss can
    be made small by shrinking θ whatever the targets: normalise θ, or bound its norm
    from below, where a model produces it.
    """

    name = "multiplicative"

    def coordinates(self, theta: Array) -> Array:
        """Return log|θ|."""
        xp = array_namespace(theta)
        return xp.log(xp.abs(theta))

    def perturb(self, theta: Array, temperature: Array, z: Array) -> Array:
        """Return θ·exp(εz − ε²/2)."""
        xp = array_namespace(theta, z)
        scale = temperature[:, None, None]
        return theta[:, None, :] * xp.exp(scale * (z - 0.5 * scale))

    def drifted_noise(self, z: Array, start: Point, end: Point) -> Array:
        """Return (τ₀ + ε₀z − ε₀²/2 − τ)/ε + ε/2."""
        (_, temperature0), (_, temperature) = start, end
        centred = z - 0.5 * temperature0[:, None, None]
        drifted = ADDITIVE.drifted_noise(centred, start, end)
        return drifted + 0.5 * temperature[:, None, None]

    def slope(self, x: Array, factor: Array) -> Array:
        """Return factor ⊙ x."""
        return factor * x

    def tilt(self, z: Array, temperature: Array) -> Array:
        """Return z − ε."""
        return z - temperature[:, None, None]

    def bend(self, z: Array, temperature: Array) -> Array:
        """Return 2z − ε."""
        return 2 * z - temperature[:, None, None]


PERTURBATIONS: dict[str, Perturbation] = {
    perturbation.name: perturbation for perturbation in (ADDITIVE, Multiplicative())
}


def get_perturbation(name: str, noise: Noise) -> Perturbation:
    """Return the perturbation of that name, if it goes with the noise."""
    if name not in PERTURBATIONS:
        msg = f'perturbation= must be "additive" or "multiplicative"; got {name!r}.'
        raise ValueError(msg)
    if name == "multiplicative" and noise.name != "normal":
        msg = (
            "multiplicative perturbation needs Gaussian noise, for which "
            f'E[exp(εZ − ε²/2)] = 1; got noise={noise.name!r}. Pass noise="normal".'
        )
        raise ValueError(msg)
    return PERTURBATIONS[name]


class DensityDerivatives:
    r"""Derivatives of :math:`\log p(x;\tau,\varepsilon)` at the draws of x.

    With the score s, the curvature C (diagonal), the tilt t and the bend r of a draw,
    and for directions p = (v, e) and q = (w, f):

    .. math::

        \varepsilon\,D_p \log p &= \langle s, v\rangle + (\langle s, t\rangle - d)\,e
            =: S_p \\
        \varepsilon^2 (D_p\log p\,D_q\log p + D^2_{pq}\log p) &= S_p S_q
            - \langle v + et, C(w + ft)\rangle
            - f\langle s, v\rangle - e\langle s, w\rangle
            - ef\,(\langle s, r\rangle - d) =: Q_{pq}

    The powers of :math:`\varepsilon` are left to the estimators. Methods give these
    numbers (``along``, ``along_both``) and, weighted and summed over the draws, their
    gradients in p (``pull``, ``pull_both``).
    """

    def __init__(
        self, noise: Noise, perturbation: Perturbation, temperature: Array, z: Array
    ) -> None:
        self.xp = array_namespace(z)
        self.noise = noise
        self.z = z
        self.score = noise.score(z)
        self.tilt = perturbation.tilt(z, temperature)
        # ⟨s, t⟩ − d (B, M): the score of the temperature.
        self.temperature_score = inner(self.score, self.tilt) - z.shape[-1]
        self._temperature = temperature
        self._perturbation = perturbation

    def along(self, v: Array, e: Array) -> Array:
        """Return S_p for each draw (B, M, K)."""
        return self.score @ v + self.temperature_score[..., None] * e[:, None, :]

    def pull(self, weights: Array) -> tuple[Array, Array]:
        """Return the gradient of Σ_m weights·S_p in p, for weights (B, M, K)."""
        xp = self.xp
        in_tau = xp.matrix_transpose(self.score) @ weights
        in_temperature = self.temperature_score[:, None, :] @ weights
        return in_tau, in_temperature[:, 0, :]

    def along_both(self, v: Array, e: Array, w: Array, f: Array) -> Array:
        """Return Q_pq for each draw (B, M, K)."""
        both = self.along(v, e) * self.along(w, f)
        e, f = e[:, None, :], f[:, None, :]
        curvature = self.noise.curvature(self.z)
        turning = curvature * self.tilt + self.score
        return (
            both
            - curvature @ (v * w)
            - f * (turning @ v)
            - e * (turning @ w)
            - e * f * self._temperature_curvature(curvature)
        )

    def pull_both(self, weights: Array, v: Array, e: Array) -> tuple[Array, Array]:
        """Return the gradient of Σ_m weights·Q_pq in q at p = (v, e)."""
        xp = self.xp
        in_tau, in_temperature = self.pull(weights * self.along(v, e))
        curvature = self.noise.curvature(self.z)
        turning = curvature * self.tilt + self.score
        in_tau = (
            in_tau
            - v * (xp.matrix_transpose(curvature) @ weights)
            - e[:, None, :] * (xp.matrix_transpose(turning) @ weights)
        )
        along = turning @ v + e[:, None, :] * self._temperature_curvature(curvature)
        return in_tau, in_temperature - xp.sum(weights * along, axis=1)

    def _temperature_curvature(self, curvature: Array) -> Array:
        """Return ⟨t, Ct⟩ + ⟨s, r⟩ − d, (B, M, 1)."""
        bend = self._perturbation.bend(self.z, self._temperature)
        curved = curvature * self.tilt * self.tilt + self.score * bend
        return (self.xp.sum(curved, axis=-1) - self.z.shape[-1])[..., None]
