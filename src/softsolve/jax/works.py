r"""What the fused route runs on the host: compiled passes, and products with vectors.

Second order closes with five works, which read the compact draws alone: the derivative
of the mean is :class:`Jvp` or its transpose :class:`Vjp`; those of Vjp are (Hvp, Vjp),
of Jvp (Jjvp, Jvp); Hvp and Jjvp are linear in each of their vectors.
"""

import functools
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from softsolve.estimators import Direction
from softsolve.fused_products import FusedCall, FusedDraws, check_point, check_target
from softsolve.jax.host import HostWork, Shapes, run_on_host

Array = Any
Point = tuple[Array, Array]
Host = np.ndarray
Hosts = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Mean(HostWork):
    """The mean solution (B, d), and codes of all (B, M, w) if they are kept."""

    call: FusedCall
    keep: bool

    def shapes(self, *operands: Any) -> Shapes:
        """Return the shapes of mean and codes."""
        theta = operands[0]
        mean = jax.ShapeDtypeStruct(theta.shape, theta.dtype)
        if not self.keep:
            return (mean,)
        width = self.call.work(theta.dtype).codec.width
        shape = (theta.shape[0], self.call.settings.num_samples, width)
        return mean, jax.ShapeDtypeStruct(shape, np.uint8)

    def run(self, *operands: Host) -> Hosts:
        """Draw, solve and average."""
        theta, temperature, keys, *context = operands
        check_point(theta, temperature)
        mean, codes = self.call.mean(
            theta, temperature, keys.view(np.int32), tuple(context), keep=self.keep
        )
        return (mean,) if codes is None else (mean, codes)


@dataclass(frozen=True)
class Maxima(HostWork):
    """The maximum (B,), its gradient (B, d) and moment (B,), relative to a target."""

    call: FusedCall
    targeted: bool

    def shapes(self, *operands: Any) -> Shapes:
        """Return the shapes of maximum, gradient and moment."""
        theta = operands[0]
        each = jax.ShapeDtypeStruct(theta.shape[:1], theta.dtype)
        return each, jax.ShapeDtypeStruct(theta.shape, theta.dtype), each

    def run(self, *operands: Host) -> Hosts:
        """Draw, solve and average."""
        theta, temperature, keys, *rest = operands
        check_point(theta, temperature)
        target = None
        if self.targeted:
            target, *rest = rest
            check_target(target)
        return self.call.maxima(
            theta, temperature, target, keys.view(np.int32), tuple(rest)
        )


@dataclass(frozen=True)
class Solutions(HostWork):
    """The solutions (B, M, d) drawn."""

    call: FusedCall

    def shapes(self, *operands: Any) -> Shapes:
        """Return the shape of the solutions."""
        theta = operands[0]
        rows, size = theta.shape
        shape = (rows, self.call.settings.num_samples, size)
        return (jax.ShapeDtypeStruct(shape, theta.dtype),)

    def run(self, *operands: Host) -> Hosts:
        """Draw and solve."""
        _, codes = Mean(self.call, keep=True).run(*operands)
        return (self.call.solutions(codes, operands[0].dtype),)


@dataclass(frozen=True)
class Product(HostWork):
    """A product with vectors, of operands (τ, ε, *vectors, keys, codes, baseline).

    The baseline is absent where there is none. The product does not depend on τ other
    than by its derivative.
    """

    call: FusedCall

    def _split(self, operands: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Return the point, the vectors and the draws."""
        end = 2 + len(self.vectors)
        return operands[:2], operands[2:end], operands[end:]

    def run(self, *operands: Host) -> Hosts:
        """Return the product."""
        (_, temperature), vectors, draws = self._split(operands)
        keys, codes, *center = draws
        kept = FusedDraws(keys.view(np.int32), codes, center[0] if center else None)
        return self.product(temperature, vectors, kept)

    def product(self, temperature: Host, vectors: Hosts, kept: FusedDraws) -> Hosts:
        """Return the product of NumPy arrays."""
        raise NotImplementedError


class Pull(Product):
    """A product that is a pair (B, d, K) and (B, K)."""

    def shapes(self, *operands: Any) -> Shapes:
        """Return the shapes of the pair."""
        rows, size, columns = operands[2].shape
        dtype = operands[1].dtype
        return (
            jax.ShapeDtypeStruct((rows, size, columns), dtype),
            jax.ShapeDtypeStruct((rows, columns), dtype),
        )


class Push(Product):
    """A product that is one array (B, d, K)."""

    def shapes(self, *operands: Any) -> Shapes:
        """Return the shape of the array."""
        return (jax.ShapeDtypeStruct(operands[2].shape, operands[1].dtype),)


class Vjp(Pull):
    """Vector-Jacobian products of g."""

    vectors = (2,)

    def product(self, temperature: Host, vectors: Hosts, kept: FusedDraws) -> Hosts:
        """Return the product of NumPy arrays."""
        (g,) = vectors
        return self.call.vjp(temperature, g, kept)

    def tangents(
        self, primals: tuple[Array, ...], tangents: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return Hvp along the point's tangent plus Vjp of the vector's."""
        point, (g,), draws = self._split(primals)
        parts = []
        along = _point_tangent(point, tangents, g.shape[-1])
        if along is not None:
            parts.append(run_on_host(Hvp(self.call), *point, g, *along, *draws))
        if tangents[2] is not None:
            parts.append(run_on_host(self, *point, tangents[2], *draws))
        return _sum(parts)

    def cotangents(
        self, operands: tuple[Any, ...], outputs: tuple[Array, ...]
    ) -> dict[int, Array]:
        """Return Jvp."""
        point, _, draws = self._split(operands)
        (in_g,) = run_on_host(Jvp(self.call), *point, *outputs, *draws)
        return {2: in_g}


class Jvp(Push):
    """Jacobian-vector products along (v, e)."""

    vectors = (2, 3)

    def product(self, temperature: Host, vectors: Hosts, kept: FusedDraws) -> Hosts:
        """Return the product of NumPy arrays."""
        v, e = vectors
        return (self.call.jvp(temperature, (v, e), kept),)

    def tangents(
        self, primals: tuple[Array, ...], tangents: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return Jjvp along the point's tangent plus Jvp along the direction's."""
        point, direction, draws = self._split(primals)
        parts = []
        along = _point_tangent(point, tangents, direction[0].shape[-1])
        if along is not None:
            work = Jjvp(self.call)
            parts.append(run_on_host(work, *point, *direction, *along, *draws))
        moved = _direction_tangent(direction, tangents[2:4])
        if moved is not None:
            parts.append(run_on_host(self, *point, *moved, *draws))
        return _sum(parts)

    def cotangents(
        self, operands: tuple[Any, ...], outputs: tuple[Array, ...]
    ) -> dict[int, Array]:
        """Return Vjp."""
        point, vectors, draws = self._split(operands)
        found = run_on_host(Vjp(self.call), *point, *outputs, *draws)
        return _wanted(vectors, 2, found)


class Hvp(Pull):
    """Derivatives of vector-Jacobian products of g along (v, e)."""

    vectors = (2, 3, 4)

    def product(self, temperature: Host, vectors: Hosts, kept: FusedDraws) -> Hosts:
        """Return the product of NumPy arrays."""
        g, v, e = vectors
        return self.call.hvp(temperature, g, (v, e), kept)

    def tangents(
        self, primals: tuple[Array, ...], tangents: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return Hvp of the vectors' tangents; raise for the point's."""
        _forbid_third(tangents)
        point, (g, *direction), draws = self._split(primals)
        parts = []
        if tangents[2] is not None:
            parts.append(run_on_host(self, *point, tangents[2], *direction, *draws))
        moved = _direction_tangent(direction, tangents[3:5])
        if moved is not None:
            parts.append(run_on_host(self, *point, g, *moved, *draws))
        return _sum(parts)

    def cotangents(
        self, operands: tuple[Any, ...], outputs: tuple[Array, ...]
    ) -> dict[int, Array]:
        """Return Jjvp for g, and Hvp for the direction: it is self-adjoint in it."""
        point, (g, *direction), draws = self._split(operands)
        if g is None:
            work = Jjvp(self.call)
            (in_g,) = run_on_host(work, *point, *direction, *outputs, *draws)
            return {2: in_g}
        found = run_on_host(self, *point, g, *outputs, *draws)
        return _wanted(direction, 3, found)


class Jjvp(Push):
    """Second derivatives along (v, e) and (w, f)."""

    vectors = (2, 3, 4, 5)

    def product(self, temperature: Host, vectors: Hosts, kept: FusedDraws) -> Hosts:
        """Return the product of NumPy arrays."""
        v, e, w, f = vectors
        return (self.call.jjvp(temperature, (v, e), (w, f), kept),)

    def tangents(
        self, primals: tuple[Array, ...], tangents: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return Jjvp of the directions' tangents; raise for the point's."""
        _forbid_third(tangents)
        point, vectors, draws = self._split(primals)
        first, second = vectors[:2], vectors[2:]
        parts = []
        moved = _direction_tangent(first, tangents[2:4])
        if moved is not None:
            parts.append(run_on_host(self, *point, *moved, *second, *draws))
        moved = _direction_tangent(second, tangents[4:6])
        if moved is not None:
            parts.append(run_on_host(self, *point, *first, *moved, *draws))
        return _sum(parts)

    def cotangents(
        self, operands: tuple[Any, ...], outputs: tuple[Array, ...]
    ) -> dict[int, Array]:
        """Return Hvp along the direction that is given."""
        point, vectors, draws = self._split(operands)
        first, second = vectors[:2], vectors[2:]
        missing_first = any(vector is None for vector in first)
        given = second if missing_first else first
        found = run_on_host(Hvp(self.call), *point, *outputs, *given, *draws)
        if missing_first:
            return _wanted(first, 2, found)
        return _wanted(second, 4, found)


def _point_tangent(
    point: Point, tangents: tuple[Any, ...], columns: int
) -> Direction | None:
    """Return the point's tangent for each column, or None if it is zero."""
    moved = _direction_tangent(point, tangents[:2])
    if moved is None:
        return None
    v, e = (jnp.broadcast_to(part[..., None], (*part.shape, columns)) for part in moved)
    return v, e


def _direction_tangent(
    direction: tuple[Array, ...] | list[Array], tangents: tuple[Any, ...]
) -> Direction | None:
    """Return the tangent of (v, e) with zeros filled in, or None if it is zero."""
    if all(tangent is None for tangent in tangents):
        return None
    v, e = (
        jnp.zeros_like(part) if tangent is None else tangent
        for part, tangent in zip(direction, tangents, strict=True)
    )
    return v, e


def _sum(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(functools.reduce(jnp.add, terms) for terms in zip(*parts, strict=True))


def _wanted(
    vectors: tuple[Any, ...] | list[Any], start: int, found: tuple[Array, ...]
) -> dict[int, Array]:
    return {
        start + index: cotangent
        for index, (vector, cotangent) in enumerate(zip(vectors, found, strict=True))
        if vector is None
    }


def _forbid_third(tangents: tuple[Any, ...]) -> None:
    if tangents[0] is not None or tangents[1] is not None:
        _raise_third()


def _raise_third() -> NoReturn:
    msg = (
        "third derivatives of a perturbed solver are not available on the fused route. "
        'Pass route="array" to Perturbed, which has derivatives of any order.'
    )
    raise NotImplementedError(msg)
