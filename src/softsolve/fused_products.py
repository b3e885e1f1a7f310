"""The fused route on NumPy arrays: averages, and products from compact draws."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from softsolve import layer
from softsolve.array_route import first_bad_row
from softsolve.compiled.fused import FusedPass
from softsolve.estimators import Direction
from softsolve.fused_route import baseline_scale, fused_pass, pack_context
from softsolve.products import Products
from softsolve.settings import Settings
from softsolve.solvers.base import Shape

Array = np.ndarray


@dataclass(frozen=True)
class FusedDraws:
    """What draws the samples again: keys (B, 2), their codes and baseline (B, d)."""

    keys: Array
    codes: Array
    center: Array | None

    @property
    def parts(self) -> tuple[tuple[Array], Array, Array | None]:
        """The samples, keys and baseline, as compiled passes take them."""
        center = None if self.center is None else _whole(self.center)
        return (_whole(self.codes),), _whole(self.keys), center


@dataclass(frozen=True)
class FusedCall:
    """A layer's compiled passes, for instances of a shape.

    Scores are (B, d), temperatures (B,), keys int32 (B, 2) and ``context`` the arrays
    of the call, a row for each instance. Vectors are columns, (B, d, K).
    """

    settings: Settings
    event_shape: Shape

    def work(self, dtype: np.dtype) -> FusedPass:
        """Return the compiled pass for scores of a type."""
        return fused_pass(self.settings, self.event_shape, dtype.name)

    def mean(
        self,
        theta: Array,
        temperature: Array,
        keys: Array,
        context: tuple[Array, ...],
        *,
        keep: bool,
    ) -> tuple[Array, Array | None]:
        """Return the mean solution (B, d), and the codes of all if they are kept."""
        packed = pack_context(self.settings, len(theta), self.event_shape, context)
        work = self.work(theta.dtype)
        result = work.forward(
            _whole(theta), _whole(temperature), _whole(keys), packed, keep=keep
        )
        return result.mean, result.samples[0] if keep else None

    def maxima(
        self,
        theta: Array,
        temperature: Array,
        target: Array | None,
        keys: Array,
        context: tuple[Array, ...],
    ) -> tuple[Array, Array, Array]:
        """Return the maximum (B,), its gradient (B, d) and moment (B,).

        All relative to a target (B, d), if there is one.
        """
        packed = pack_context(self.settings, len(theta), self.event_shape, context)
        goal = np.zeros_like(theta) if target is None else target
        result = self.work(theta.dtype).forward(
            _whole(theta),
            _whole(temperature),
            _whole(keys),
            packed,
            keep=False,
            target=_whole(goal),
        )
        assert result.loss is not None
        assert result.lowest is not None
        assert result.gap_moment is not None
        if target is None:
            return result.loss, result.mean, result.gap_moment
        layer.check_lowest(self.settings, result.lowest, theta, temperature, target)
        return result.loss, result.mean - target, result.gap_moment

    def solutions(self, codes: Array, dtype: np.dtype) -> Array:
        """Return the solutions (B, M, d) that codes stand for."""
        return self.work(dtype).solutions((_whole(codes),))

    @cached_property
    def scale(self) -> float:
        """Factor of samples less their baseline."""
        return baseline_scale(self.settings)

    def vjp(
        self, temperature: Array, g: Array, draws: FusedDraws
    ) -> tuple[Array, Array]:
        """Return vector-Jacobian products, (B, d, K) and (B, K)."""
        samples, keys, center = draws.parts
        in_theta, in_temperature = self.work(temperature.dtype).vjp(
            samples,
            keys,
            _whole(temperature),
            _rows(g),
            center=center,
            scale=self.scale,
        )
        return _columns(in_theta), in_temperature

    def jvp(self, temperature: Array, direction: Direction, draws: FusedDraws) -> Array:
        """Return Jacobian-vector products, (B, d, K)."""
        samples, keys, center = draws.parts
        v, e = direction
        pushed = self.work(temperature.dtype).jvp(
            samples,
            keys,
            _whole(temperature),
            _rows(v),
            _whole(e),
            center=center,
            scale=self.scale,
        )
        return _columns(pushed)

    def hvp(
        self, temperature: Array, g: Array, direction: Direction, draws: FusedDraws
    ) -> tuple[Array, Array]:
        """Return derivatives of vector-Jacobian products, (B, d, K) and (B, K)."""
        samples, keys, center = draws.parts
        v, e = direction
        in_theta, in_temperature = self.work(temperature.dtype).hvp(
            samples,
            keys,
            _whole(temperature),
            _rows(g),
            _rows(v),
            _whole(e),
            center=center,
            scale=self.scale,
        )
        return _columns(in_theta), in_temperature

    def jjvp(
        self,
        temperature: Array,
        direction: Direction,
        other: Direction,
        draws: FusedDraws,
    ) -> Array:
        """Return derivatives of Jacobian-vector products, (B, d, K)."""
        samples, keys, center = draws.parts
        (v, e), (w, f) = direction, other
        pushed = self.work(temperature.dtype).jjvp(
            samples,
            keys,
            _whole(temperature),
            _rows(v),
            _whole(e),
            _rows(w),
            _whole(f),
            center=center,
            scale=self.scale,
        )
        return _columns(pushed)


class FusedProducts(Products):
    """Derivatives from draws in compact form."""

    def __init__(
        self, call: FusedCall, point: tuple[Array, Array], draws: FusedDraws
    ) -> None:
        super().__init__(call.settings, call.event_shape, point)
        self.call = call
        self.draws = draws

    def vjp(self, g: Array) -> tuple[Array, Array]:
        """Return vector-Jacobian products of the mean solution."""
        return self.call.vjp(self.temperature, g, self.draws)

    def jvp(self, direction: Direction) -> Array:
        """Return Jacobian-vector products of the mean solution."""
        return self.call.jvp(self.temperature, direction, self.draws)

    def hvp(self, g: Array, direction: Direction) -> tuple[Array, Array]:
        """Return derivatives of :meth:`vjp` along a direction."""
        return self.call.hvp(self.temperature, g, direction, self.draws)

    def jjvp(self, direction: Direction, other: Direction) -> Array:
        """Return derivatives of :meth:`jvp` along another direction."""
        return self.call.jjvp(self.temperature, direction, other, self.draws)


def check_point(theta: Array, temperature: Array) -> None:
    """Raise for scores (B, d) or temperatures (B,) that cannot be used."""
    row = first_bad_row(theta)
    if row is not None:
        layer.raise_not_finite(row, theta[row])
    bad = np.flatnonzero(~((temperature > 0) & np.isfinite(temperature)))
    if bad.size:
        layer.raise_bad_temperature(int(bad[0]), float(temperature[bad[0]]))


def check_target(target: Array) -> None:
    """Raise for targets (B, d) that are not finite."""
    row = first_bad_row(target)
    if row is not None:
        layer.raise_not_finite(row, target[row], "y")


class _Memory:
    """An array's memory, with nothing said of who may write to it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _whole(array: Array) -> Array:
    """Return an array as compiled passes take it: contiguous, not marked read-only.

    They write to none of their operands, but are compiled for arrays that can be
    written to; copying what broadcasting or another framework marked read-only would
    cost more than some passes.
    """
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else np.asarray(_Memory(array))


def _rows(columns: Array) -> Array:
    """Turn vectors as columns (B, d, K) into rows (B, K, d)."""
    return _whole(np.swapaxes(columns, 1, 2))


def _columns(rows: Array) -> Array:
    """Turn vectors as rows (B, K, d) into columns (B, d, K)."""
    return np.swapaxes(rows, 1, 2)
