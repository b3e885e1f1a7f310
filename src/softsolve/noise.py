r"""Noise distributions: densities proportional to :math:`\exp(-\nu(z))`.

All functions are pure, elementwise functions of arrays of any framework; coordinates
of the noise are independent. What the estimators need of a noise is its *score*
:math:`\nabla\nu` and, for second derivatives, its *curvature*, the diagonal of
:math:`\nabla^2\nu`.

To add a noise, describe it to :class:`CustomNoise`.
"""

import abc
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from array_api_compat import array_namespace
from scipy import integrate

__all__ = [
    "EULER_GAMMA",
    "NOISES",
    "CustomNoise",
    "Gumbel",
    "Laplace",
    "Logistic",
    "Noise",
    "Normal",
]

Array = Any
Elementwise = Callable[[Array], Array]

EULER_GAMMA = 0.57721566490153286


class Noise(abc.ABC):
    r"""A distribution with density :math:`\propto \exp(-\nu(z))`, per coordinate.

    Attributes
    ----------
    name
        What the noise is called in ``noise="…"``.
    mean, variance
        Of one coordinate.
    symmetric
        Whether :math:`Z` and :math:`-Z` have the same distribution.
    smooth
        Whether :math:`\nu` has a second derivative everywhere.
    """

    name: str
    mean: float
    variance: float
    symmetric: bool = True
    smooth: bool = True

    @abc.abstractmethod
    def nu(self, z: Array) -> Array:
        r"""Return :math:`\nu(z)`, the negative log-density up to a constant."""

    @abc.abstractmethod
    def score(self, z: Array) -> Array:
        r"""Return :math:`\nu'(z)`. Its expectation is zero."""

    @abc.abstractmethod
    def curvature(self, z: Array) -> Array:
        r"""Return :math:`\nu''(z)`; raise where ν has no second derivative."""

    @abc.abstractmethod
    def quantile(self, u: Array) -> Array:
        """Return the z with :math:`P(Z < z) = u`, for u strictly between 0 and 1."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


class Normal(Noise):
    r"""Standard Gaussian noise, :math:`\nu(z) = z^2/2`.

    >>> Normal().score(np.array([-1.0, 2.0]))
    array([-1.,  2.])
    """

    name = "normal"
    mean = 0.0
    variance = 1.0

    def nu(self, z: Array) -> Array:
        """Return z²/2."""
        return 0.5 * z * z

    def score(self, z: Array) -> Array:
        """Return z."""
        return z

    def curvature(self, z: Array) -> Array:
        """Return ones."""
        return array_namespace(z).ones_like(z)

    def quantile(self, u: Array) -> Array:
        r"""Return :math:`\Phi^{-1}(u)`; for NumPy arrays only."""
        from scipy.special import ndtri  # the array API has no inverse error function

        return ndtri(u)


class Gumbel(Noise):
    r"""Gumbel noise, :math:`\nu(z) = z + e^{-z}`: softmax and log-sum-exp on a simplex.

    It is not centred: its mean is Euler's constant.

    >>> Gumbel().score(np.array([0.0]))
    array([0.])
    """

    name = "gumbel"
    mean = EULER_GAMMA
    variance = math.pi**2 / 6
    symmetric = False

    def nu(self, z: Array) -> Array:
        """Return z + exp(−z)."""
        return z + array_namespace(z).exp(-z)

    def score(self, z: Array) -> Array:
        """Return 1 − exp(−z)."""
        return -array_namespace(z).expm1(-z)

    def curvature(self, z: Array) -> Array:
        """Return exp(−z)."""
        return array_namespace(z).exp(-z)

    def quantile(self, u: Array) -> Array:
        """Return −log(−log u)."""
        xp = array_namespace(u)
        return -xp.log(-xp.log(u))


class Logistic(Noise):
    r"""Logistic noise, :math:`\nu(z) = z + 2\log(1 + e^{-z})`.

    >>> Logistic().quantile(np.array([0.5]))
    array([0.])
    """

    name = "logistic"
    mean = 0.0
    variance = math.pi**2 / 3

    def nu(self, z: Array) -> Array:
        """Return |z| + 2·log(1 + exp(−|z|)), which does not overflow."""
        xp = array_namespace(z)
        size = xp.abs(z)
        return size + 2 * xp.log1p(xp.exp(-size))

    def score(self, z: Array) -> Array:
        """Return tanh(z/2)."""
        return array_namespace(z).tanh(z / 2)

    def curvature(self, z: Array) -> Array:
        """Return (1 − tanh²(z/2))/2."""
        return 0.5 * (1 - array_namespace(z).tanh(z / 2) ** 2)

    def quantile(self, u: Array) -> Array:
        """Return log(u/(1 − u))."""
        xp = array_namespace(u)
        return xp.log(u) - xp.log1p(-u)


class Laplace(Noise):
    r"""Laplace noise, :math:`\nu(z) = |z|`. First derivatives only.

    >>> Laplace().curvature(np.array([1.0]))
    Traceback (most recent call last):
    ...
    ValueError: Laplace noise has no second derivative of ν: ...
    """

    name = "laplace"
    mean = 0.0
    variance = 2.0
    smooth = False

    def nu(self, z: Array) -> Array:
        """Return |z|."""
        return array_namespace(z).abs(z)

    def score(self, z: Array) -> Array:
        """Return sign(z)."""
        return array_namespace(z).sign(z)

    def curvature(self, z: Array) -> NoReturn:
        """Raise: ν'' is zero almost everywhere, which would be silently wrong."""
        msg = (
            "Laplace noise has no second derivative of ν: its curvature is zero almost "
            "everywhere, so second-order forms would be silently wrong. Use "
            'noise="normal", "gumbel" or "logistic" for second derivatives and for '
            'form="maximum" Jacobians.'
        )
        raise ValueError(msg)

    def quantile(self, u: Array) -> Array:
        """Return log(2u) below the median and −log(2(1 − u)) above."""
        xp = array_namespace(u)
        tail = xp.where(u < 0.5, u, 1 - u)
        return xp.where(u < 0.5, xp.log(2 * tail), -xp.log(2 * tail))


class CustomNoise(Noise):
    r"""A noise of your own: give its log-density, and its quantiles to sample it.

    The score and the curvature are derived from the log-density: by automatic
    differentiation in PyTorch and JAX, by central differences in float64 in NumPy.

    The density must be positive wherever it matters for :math:`E[\nabla\nu(Z)] = 0`
    (an exponential's jump at 0 breaks it), and the mean finite; both are checked by
    quadrature here, and so is that the quantiles belong to the density.

    Parameters
    ----------
    log_density
        Elementwise, up to a constant, on arrays of each framework that it is used
        with (:func:`array_api_compat.array_namespace` finds the right functions).
    quantile
        Elementwise inverse of the distribution function, on the same arrays.
    name
        How the noise shows in ``repr``.
    score, curvature
        Exact derivatives of :math:`\nu = -\log` density, where you have them.
    smooth
        False if the log-density has no second derivative somewhere (a kink): second
        derivatives then raise.

    Examples
    --------
    >>> def log_density(z):  # Student's t with three degrees of freedom
    ...     return -2 * array_namespace(z).log1p(z**2 / 3)
    >>> from scipy.stats import t
    >>> student = CustomNoise(log_density, quantile=t(3).ppf, name="student")
    >>> student.score(np.array([1.0])).round(6)
    array([1.])
    """

    def __init__(
        self,
        log_density: Elementwise,
        *,
        quantile: Elementwise,
        name: str = "custom",
        score: Elementwise | None = None,
        curvature: Elementwise | None = None,
        smooth: bool = True,
    ) -> None:
        self.name = name
        self.smooth = smooth
        self._log_density = log_density
        self._quantile = quantile
        self._score = score
        self._curvature = curvature
        self.mean, self.variance, self.symmetric = self._checked_moments()

    def nu(self, z: Array) -> Array:
        """Return minus the log-density."""
        return -self._log_density(z)

    def score(self, z: Array) -> Array:
        """Return the derivative of ν, as given or derived."""
        return self._score(z) if self._score else derivative(self.nu, z)

    def curvature(self, z: Array) -> Array:
        """Return the second derivative of ν, as given or derived."""
        if not self.smooth:
            msg = (
                f"noise {self.name!r} was declared with smooth=False: its ν has no "
                "second derivative. Use a smooth noise for second derivatives."
            )
            raise ValueError(msg)
        return self._curvature(z) if self._curvature else derivative(self.score, z)

    def quantile(self, u: Array) -> Array:
        """Return the quantile as given."""
        return self._quantile(u)

    def __repr__(self) -> str:
        return f"CustomNoise({self.name!r})"

    def _checked_moments(self) -> tuple[float, float, bool]:
        """Return mean, variance and symmetry by quadrature, or say what is wrong."""
        levels = np.array([1e-4, 0.03, 0.2, 0.4])
        lower = np.asarray(self._quantile(levels), dtype=float)
        upper = np.asarray(self._quantile(1 - levels), dtype=float)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            msg = f"noise {self.name!r}: quantile(u) must be finite for 0 < u < 1."
            raise ValueError(msg)
        self._check_quantile(np.concatenate([lower, upper[::-1]]), levels)
        self._check_finite_mean()
        expected_score = self._expectation(self.score)
        scale = math.sqrt(self._expectation(lambda z: self.score(z) ** 2))
        if abs(expected_score) > 1e-3 * max(scale, 1e-6):
            msg = (
                f"noise {self.name!r}: the score must have expectation 0, got "
                f"{expected_score:.4g}. A density that jumps at the edge of its "
                "support (an exponential's, a uniform's) cannot be used; take one "
                "that is positive and continuous on the whole line."
            )
            raise ValueError(msg)
        mean = self._expectation(lambda z: z)
        variance = self._expectation(lambda z: (z - mean) ** 2)
        symmetric = bool(np.allclose(lower, -upper, rtol=1e-6, atol=1e-9))
        return mean, variance, symmetric

    def _expectation(self, function: Elementwise, edge: float = 1e-10) -> float:
        def integrand(u: float) -> float:
            return float(function(np.asarray(self._quantile(np.array([u]))))[0])

        points = [1e-6, 1e-3, 0.03, 0.5, 0.97, 1 - 1e-3, 1 - 1e-6]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", integrate.IntegrationWarning)
            return float(
                integrate.quad(integrand, edge, 1 - edge, points=points, limit=400)[0]
            )

    def _check_finite_mean(self) -> None:
        size = [self._expectation(np.abs, edge=edge) for edge in (1e-4, 1e-7, 1e-10)]
        # Each further stretch of a convergent integral adds much less than the last.
        if size[2] - size[1] > 0.5 * (size[1] - size[0]) + 1e-9:
            msg = (
                f"noise {self.name!r}: its mean must be finite; E|Z| keeps growing "
                f"into the tails ({size[0]:.3g}, {size[1]:.3g}, {size[2]:.3g}, …). "
                "Take a distribution with lighter tails."
            )
            raise ValueError(msg)

    def _check_quantile(self, points: np.ndarray, levels: np.ndarray) -> None:
        expected = np.diff(np.concatenate([levels, 1 - levels[::-1]]))
        masses = np.array(
            [
                integrate.quad(
                    lambda z: math.exp(float(self._log_density(np.array([z]))[0])),
                    *interval,
                )[0]
                for interval in itertools.pairwise(points)
            ]
        )
        error = np.abs(masses / masses.sum() - expected / expected.sum()).max()
        if not error < 1e-4:
            msg = (
                f"noise {self.name!r}: quantile and log_density disagree by "
                f"{error:.3g} in probability. Give the inverse distribution function "
                "of the very density that log_density describes."
            )
            raise ValueError(msg)


def _central_difference(function: Elementwise, z: np.ndarray) -> np.ndarray:
    """Differentiate an elementwise function, to about ten digits, in float64."""
    at = np.asarray(z, dtype=np.float64)
    h = 1e-3 * np.maximum(1.0, np.abs(at))
    slope = (
        8 * (function(at + h) - function(at - h))
        - (function(at + 2 * h) - function(at - 2 * h))
    ) / (12 * h)
    return np.asarray(slope, dtype=z.dtype)


# How each framework differentiates an elementwise function; the frontends add theirs.
DERIVATIVES: dict[str, Callable[[Elementwise, Array], Array]] = {
    "numpy": _central_difference
}


def derivative(function: Elementwise, z: Array) -> Array:
    """Return the derivative of an elementwise function, in the framework of ``z``."""
    framework = type(z).__module__.partition(".")[0]
    return DERIVATIVES[framework.removesuffix("lib")](function, z)


NOISES: dict[str, Noise] = {
    noise.name: noise for noise in (Normal(), Gumbel(), Logistic(), Laplace())
}


def get_noise(noise: object) -> Noise:
    """Return a noise by its name, or as it is."""
    if isinstance(noise, Noise):
        return noise
    if isinstance(noise, str) and noise in NOISES:
        return NOISES[noise]
    names = ", ".join(f'"{name}"' for name in NOISES)
    msg = (
        f"noise= must be one of {names}, or a softsolve.noise.Noise; got {noise!r}. "
        "softsolve.noise.CustomNoise makes one of your own from a log-density."
    )
    raise ValueError(msg)
