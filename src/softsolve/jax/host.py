"""Functions of rows that run on the host, with derivative rules of their own.

A :func:`jax.pure_callback` has no derivatives, and neither of JAX's own rules for a
function gives what a product with vectors needs: to be linear in them, transposable,
and differentiable in the rest. A primitive has all of these.
"""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from softsolve.jax.callbacks import call_host

Array = Any
Shapes = tuple[jax.ShapeDtypeStruct, ...]


class HostWork(abc.ABC):
    """A function of arrays with rows first, hashable by what it does.

    Attributes
    ----------
    vectors
        Positions of the operands that are vectors in columns: (B, …, K), to be worked
        off independently. All outputs have these columns too, if there are any.
    """

    vectors: tuple[int, ...] = ()

    @abc.abstractmethod
    def shapes(self, *operands: Any) -> Shapes:
        """Return the shapes and types of what :meth:`run` returns."""

    @abc.abstractmethod
    def run(self, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        """Do the work."""

    def tangents(
        self, primals: tuple[Array, ...], tangents: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return the outputs' tangents; tangents that are zero are None."""
        raise NotImplementedError

    def cotangents(
        self, operands: tuple[Any, ...], outputs: tuple[Array, ...]
    ) -> dict[int, Array]:
        """Return the cotangents of the operands that are None, by position."""
        raise NotImplementedError


def run_on_host(work: HostWork, *operands: Array) -> tuple[Array, ...]:
    """Do the work, now or when traced code runs."""
    return tuple(_host.bind(*operands, work=work))


_host = Primitive("softsolve")
_host.multiple_results = True


def _run_now(*operands: Array, work: HostWork) -> list[Array]:
    outputs = work.run(*(np.asarray(operand) for operand in operands))
    return [jnp.asarray(output) for output in outputs]


_host.def_impl(_run_now)


def _abstract(*operands: Any, work: HostWork) -> list[Any]:
    return [
        jax.core.ShapedArray(output.shape, output.dtype)
        for output in work.shapes(*operands)
    ]


_host.def_abstract_eval(_abstract)


def _run_later(*operands: Array, work: HostWork) -> list[Array]:
    return call_host(work.run, work.shapes(*operands), *operands)


mlir.register_lowering(_host, mlir.lower_fun(_run_later, multiple_results=True))


def _differentiate(
    primals: tuple[Array, ...], tangents: tuple[Any, ...], *, work: HostWork
) -> tuple[list[Array], list[Array]]:
    known = tuple(None if _is_zero(tangent) else tangent for tangent in tangents)
    outputs = _host.bind(*primals, work=work)
    return outputs, list(work.tangents(primals, known))


ad.primitive_jvps[_host] = _differentiate


def _transpose(
    cotangents: list[Any], *operands: Any, work: HostWork
) -> list[Array | None]:
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    known = tuple(
        None if undefined else operand
        for operand, undefined in zip(operands, linear, strict=True)
    )
    found = work.cotangents(known, tuple(map(ad.instantiate_zeros, cotangents)))
    return [found.get(position) for position in range(len(operands))]


ad.primitive_transposes[_host] = _transpose


def _map(
    operands: tuple[Array, ...], dims: tuple[Any, ...], *, work: HostWork
) -> tuple[list[Array], list[int]]:
    size = next(
        operand.shape[dim]
        for operand, dim in zip(operands, dims, strict=True)
        if dim is not None
    )
    mapped = {position for position, dim in enumerate(dims) if dim is not None}
    first = [
        operand[None] if dim is None else jnp.moveaxis(operand, dim, 0)
        for operand, dim in zip(operands, dims, strict=True)
    ]
    if mapped <= set(work.vectors):
        return _map_columns(first, size, work)
    folded = [_fold_rows(operand, size) for operand in first]
    outputs = _host.bind(*folded, work=work)
    return [
        output.reshape(size, output.shape[0] // size, *output.shape[1:])
        for output in outputs
    ], [0] * len(outputs)


def _map_columns(
    operands: list[Array], size: int, work: HostWork
) -> tuple[list[Array], list[int]]:
    """Work off mapped vectors as further columns: nothing else is repeated."""
    folded = [
        _fold_columns(operand, size) if position in work.vectors else operand[0]
        for position, operand in enumerate(operands)
    ]
    outputs = _host.bind(*folded, work=work)
    unfolded = [
        output.reshape(*output.shape[:-1], size, output.shape[-1] // size)
        for output in outputs
    ]
    return unfolded, [output.ndim - 2 for output in unfolded]


def _fold_rows(operand: Array, size: int) -> Array:
    shape = operand.shape[1:]
    full = jnp.broadcast_to(operand, (size, *shape))
    return full.reshape(math.prod(full.shape[:2]), *shape[1:])


def _fold_columns(operand: Array, size: int) -> Array:
    shape = operand.shape[1:]
    full = jnp.broadcast_to(operand, (size, *shape))
    return jnp.moveaxis(full, 0, -2).reshape(*shape[:-1], size * shape[-1])


batching.primitive_batchers[_host] = _map


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero
