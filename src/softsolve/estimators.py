r"""The estimators of the paper, from draws.

Definition 2.1 and Proposition 3.1 of Berthet et al. (2020), as functions of arrays of
any framework. With perturbed scores :math:`x_m` of noise :math:`z_m`, solutions
:math:`y_m = y^*(x_m)` and values :math:`F_m = \langle y_m, x_m\rangle`:

=====================================  =============================================
maximum :math:`F_\varepsilon`          mean of F
maximiser :math:`y_\varepsilon`        mean of y, or of :math:`F s/\varepsilon`
Jacobian of it                         mean of :math:`y s^\top/\varepsilon`, or of
                                       :math:`F (ss^\top - \nabla^2\nu)/\varepsilon^2`
=====================================  =============================================

The right-hand forms and all derivatives are derivatives of an expectation
:math:`E[f(x)]` by the density of x: first ones are :func:`vjp` and :func:`jvp`, second
ones :func:`hvp` and :func:`jjvp`. They hold for any f, so f is whatever array (B, M, k)
of samples is handed over: solutions, their values, or another function's outputs.
None of them builds a d×d matrix, and all are unbiased for vectors that do not depend
on the draws.

Shapes as in :mod:`softsolve.perturbation`; cotangents g are (B, k, K).
"""

from collections.abc import Callable
from typing import Any, Literal

from array_api_compat import array_namespace

from softsolve._arrays import inner
from softsolve.noise import Noise
from softsolve.perturbation import DensityDerivatives, Perturbation, Point

Array = Any
Direction = tuple[Array, Array]
Baseline = Literal["none", "point", "leave_one_out"]


def best_baseline(num_samples: int) -> Baseline:
    """Return the baseline that costs no further solve."""
    return "leave_one_out" if num_samples > 1 else "none"


class Samples:
    r"""Samples of a function of the perturbed scores, less a baseline.

    A baseline :math:`b_m` that does not depend on the noise of draw m leaves every
    derivative unbiased, because the score has expectation zero, and cuts its variance:

    - ``"none"``: 0;
    - ``"point"``: the function at the unperturbed scores, ``at_point`` (B, k); where
      that is not at hand, the best baseline that costs no further solve;
    - ``"leave_one_out"``: the average of the other draws, for which
      :math:`f_m - b_m = \frac{M}{M-1}(f_m - \bar f)`.

    Parameters
    ----------
    values
        :math:`f_m`, (B, M, k).
    """

    def __init__(
        self, values: Array, baseline: Baseline = "none", at_point: Array | None = None
    ) -> None:
        self.xp = array_namespace(values)
        self.values = values
        self.at_point = at_point
        self.count = values.shape[1]
        if baseline == "point" and at_point is None:
            baseline = best_baseline(self.count)
        self.baseline = baseline

    def mean(self) -> Array:
        """Return the average over draws, without baseline, (B, k)."""
        return self.xp.mean(self.values, axis=1)

    def along(self, g: Array) -> Array:
        r"""Return :math:`\langle f_m - b_m, g\rangle`, (B, M, K)."""
        along = self.values @ g
        if self.baseline == "point":
            return along - self.at_point[:, None, :] @ g  # type: ignore[index]
        return self._leave_one_out(along)

    def combine(self, weights: Array) -> Array:
        r"""Return :math:`\sum_m w_m (f_m - b_m)` for weights (B, M, K), (B, k, K)."""
        # Centring the weights is centring the samples, which are the larger array.
        combined = self.xp.matrix_transpose(self.values) @ self._leave_one_out(weights)
        if self.baseline == "point":
            total = self.xp.sum(weights, axis=1)[:, None, :]
            return combined - self.at_point[..., None] * total  # type: ignore[index]
        return combined

    def _leave_one_out(self, weights: Array) -> Array:
        if self.baseline != "leave_one_out":
            return weights
        average = self.xp.mean(weights, axis=1, keepdims=True)
        return (weights - average) * (self.count / (self.count - 1))


def vjp(
    derivatives: DensityDerivatives, samples: Samples, temperature: Array, g: Array
) -> tuple[Array, Array]:
    r"""Return the gradient of :math:`\langle E f, g\rangle`.

    :math:`\frac{1}{\varepsilon M}\sum_m \langle f_m - b_m, g\rangle s_m` (B, d, K)
    in :math:`\tau`, and (B, K) in the temperature.
    """
    scale = 1 / (temperature * samples.count)
    in_tau, in_temperature = derivatives.pull(samples.along(g))
    return in_tau * scale[:, None, None], in_temperature * scale[:, None]


def jvp(
    derivatives: DensityDerivatives,
    samples: Samples,
    temperature: Array,
    direction: Direction,
) -> Array:
    r"""Return the derivative of :math:`E f` along (v, e), (B, k, K).

    :math:`\frac{1}{\varepsilon M}\sum_m (f_m - b_m) S_m(v, e)`.
    """
    scale = 1 / (temperature * samples.count)
    return samples.combine(derivatives.along(*direction)) * scale[:, None, None]


def jacobian(
    derivatives: DensityDerivatives, samples: Samples, temperature: Array
) -> Array:
    r"""Return :math:`\frac{1}{\varepsilon M}\sum_m (f_m - b_m) s_m^\top`, (B, k, d)."""
    scale = 1 / (temperature * samples.count)
    return samples.combine(derivatives.score) * scale[:, None, None]


def hvp(
    derivatives: DensityDerivatives,
    samples: Samples,
    temperature: Array,
    g: Array,
    direction: Direction,
) -> tuple[Array, Array]:
    r"""Return the derivative of :func:`vjp` along (v, e), (B, d, K) and (B, K).

    :math:`\frac{1}{\varepsilon^2 M}\sum_m \langle f_m - b_m, g\rangle
    (s_m s_m^\top - \nabla^2\nu(z_m))v`, and the terms of the temperature.
    """
    scale = 1 / (temperature**2 * samples.count)
    in_tau, in_temperature = derivatives.pull_both(samples.along(g), *direction)
    return in_tau * scale[:, None, None], in_temperature * scale[:, None]


def jjvp(
    derivatives: DensityDerivatives,
    samples: Samples,
    temperature: Array,
    direction: Direction,
    other: Direction,
) -> Array:
    r"""Return the derivative of :func:`jvp` along another direction, (B, k, K)."""
    scale = 1 / (temperature**2 * samples.count)
    weights = derivatives.along_both(*direction, *other)
    return samples.combine(weights) * scale[:, None, None]


def symmetric_projection(
    product: Callable[[Array], Array],
    transposed_product: Callable[[Array], Array],
    project: Callable[[Array], Array],
    vector: Array,
) -> Array:
    r"""Return :math:`P\,\tfrac12(J + J^\top)P\,v`.

    For an exact linear solver under additive noise the Jacobian is symmetric and
    vanishes off the directions of the polytope, on which P projects: this is the same
    number in expectation, with less variance as a matrix.
    """
    projected = project(vector)
    return project(0.5 * (product(projected) + transposed_product(projected)))


def scores_reached(x: Array, *, clips: bool) -> Array:
    r"""Return what a solver maximises: x, or min(x, 0) if it clips costs at zero."""
    xp = array_namespace(x)
    return xp.minimum(x, xp.zeros_like(x)) if clips else x


def maximum_gradients(
    perturbation: Perturbation, y: Array, x: Array, *, clips: bool
) -> Array:
    r"""Return the gradient of each sampled maximum in :math:`\tau`, (B, M, d).

    :math:`y_m` under additive noise, :math:`y_m \odot x_m` under multiplicative noise,
    and zero where a cost was clipped. Each is a function of :math:`x_m` alone, so the
    second derivatives of the maximum are first derivatives of their expectation.
    """
    xp = array_namespace(x)
    gradients = perturbation.slope(x, y)
    return xp.where(x < 0, gradients, xp.zeros_like(gradients)) if clips else gradients


def moment(derivatives: DensityDerivatives, gradients: Array) -> Array:
    r"""Return :math:`\partial F_\varepsilon/\partial\varepsilon`, (B,).

    :math:`E\langle y, Z\rangle` under additive noise; in general the average of
    :math:`\langle f_m, t_m\rangle` over the :func:`maximum_gradients` f and tilts t.
    """
    xp = derivatives.xp
    return xp.mean(inner(gradients, derivatives.tilt), axis=1)


def moment_gradient(
    derivatives: DensityDerivatives, samples: Samples, temperature: Array
) -> tuple[Array, Array]:
    r"""Return the gradient of :func:`moment`, (B, d) in :math:`\tau` and (B,) in ε.

    With :math:`h_m = \langle f_m, t_m\rangle`: in :math:`\tau` it is
    :math:`\partial E f/\partial\varepsilon`, by the symmetry of second derivatives;
    in ε it is :math:`E[(h - b)(\langle s, t\rangle - d) - \langle f, z\rangle]` over
    :math:`\varepsilon`.
    """
    xp = derivatives.xp
    ones = xp.ones_like(temperature)[:, None]
    in_tau = jvp(
        derivatives,
        samples,
        temperature,
        (xp.zeros_like(derivatives.z[:, 0, :, None]), ones),
    )[..., 0]
    products = inner(samples.values, derivatives.tilt)[..., None]
    baseline = best_baseline(samples.count)
    _, through_density = vjp(
        derivatives, Samples(products, baseline), temperature, ones[..., None]
    )
    through_tilt = xp.mean(inner(samples.values, derivatives.z), axis=1)
    return in_tau, through_density[:, 0] - through_tilt / temperature


class Surrogate:
    r"""Zeros with the derivatives of an expectation, of any order.

    For programs that a framework differentiates or compiles by itself. With
    :math:`\bot` the operator that stops gradients, the weights
    :math:`w = e^{\log p(x) - \bot\log p(x)} - 1` are zero and

    .. math:: D^n E[f(x)] = E[f(x)\,D^n w].

    Parameters
    ----------
    perturbation, z
        What perturbed the scores, and with which noise (B, M, d).
    point
        :math:`(\tau, \varepsilon)`, to be differentiated, (B, d) and (B,).
    nu
        The noise's ν in a form that the framework differentiates.
    stop_gradient
        The framework's :math:`\bot`.

    Attributes
    ----------
    noise
        The noise, as a function of the point at fixed perturbed scores.
    weights
        The weights w, (B, M, 1).
    """

    def __init__(
        self,
        perturbation: Perturbation,
        z: Array,
        point: Point,
        *,
        nu: Callable[[Array], Array],
        stop_gradient: Callable[[Array], Array],
    ) -> None:
        xp = array_namespace(z)
        tau, temperature = point
        self.perturbation = perturbation
        self.point = point
        self.start = (stop_gradient(tau), stop_gradient(temperature))
        self.noise = perturbation.drifted_noise(z, self.start, point)
        log_density = -xp.sum(nu(self.noise), axis=-1)
        log_density = log_density - z.shape[-1] * xp.log(temperature)[:, None]
        self.weights = (xp.exp(log_density - stop_gradient(log_density)) - 1)[..., None]

    def expectation(self, samples: Samples) -> Array:
        r"""Return zeros (B, k) with the derivatives of :math:`E f`."""
        return samples.combine(self.weights)[..., 0] / samples.count

    def gradient(self, noise: Noise, samples: Samples) -> Array:
        r"""Return :math:`E[F s]/\varepsilon` (B, d) from values F, with derivatives.

        The score is a function of the point at fixed x, so it is taken at
        :attr:`noise`.
        """
        temperature = self.point[1]
        one = array_namespace(temperature).ones_like(self.start[1])[:, None, None]
        derivatives = DensityDerivatives(
            noise, self.perturbation, temperature, self.noise
        )
        in_tau, _ = derivatives.pull(samples.along(one) * (1 + self.weights))
        return in_tau[..., 0] / (temperature * samples.count)[:, None]

    def moment(self, gradients: Array) -> Array:
        r"""Return :func:`moment` (B,) with its derivatives.

        Unlike f, the tilt depends on the point at fixed x, and is differentiated.
        """
        tilt = self.perturbation.tilt(self.noise, self.point[1])
        samples = Samples(
            inner(gradients, tilt)[..., None], best_baseline(gradients.shape[1])
        )
        return (samples.mean() + self.expectation(samples))[:, 0]

    def maximum(
        self,
        values: Samples,
        derivatives: DensityDerivatives,
        first: tuple[Array, Array],
    ) -> Array:
        r"""Return zeros (B,) with the derivatives of :math:`F_\varepsilon`.

        First derivatives are those given, the averages of :func:`maximum_gradients`
        (B, d) and the :func:`moment` (B,), held fixed; the others come from the sampled
        maxima (B, M, 1), through the weights less their linear part.
        """
        (tau, temperature), (tau0, temperature0) = self.point, self.start
        step, drift = tau - tau0, temperature - temperature0
        linear = derivatives.along(step[..., None], drift[:, None])
        beyond = self.weights - linear / temperature0[:, None, None]
        in_tau, in_temperature = first
        higher = values.combine(beyond)[:, 0, 0] / values.count
        return inner(in_tau, step) + in_temperature * drift + higher
