"""Small helpers for arrays of any framework."""

from typing import Any

from array_api_compat import array_namespace, device, is_jax_array, is_torch_array

Array = Any


def constant(values: Any, like: Array) -> Array:
    """Return ``values`` as an array with the framework, dtype and device of another."""
    xp = array_namespace(like)
    if is_jax_array(like):  # a traced array has no device; JAX places constants itself
        return xp.asarray(values, dtype=like.dtype)
    return xp.asarray(values, dtype=like.dtype, device=device(like))


def indices(size: int, like: Array) -> Array:
    """Return 0, …, size − 1 in the framework and on the device of another array."""
    xp = array_namespace(like)
    if is_jax_array(like):
        return xp.arange(size)
    return xp.arange(size, device=device(like))


def one_hot(index: Array, size: int, like: Array) -> Array:
    """Return 1 at ``index`` (rows,) and 0 elsewhere, (rows, size), as ``like``."""
    xp = array_namespace(like)
    return xp.astype(index[:, None] == indices(size, like)[None, :], like.dtype)


def subtract_mean(x: Array) -> Array:
    """Project on the vectors whose entries sum to zero."""
    xp = array_namespace(x)
    return x - xp.mean(x, axis=-1, keepdims=True)


def is_binary(y: Array) -> Array:
    """Tell for each row whether all its entries are 0 or 1."""
    xp = array_namespace(y)
    return xp.all((y == 0) | (y == 1), axis=-1)


def inner(a: Array, b: Array) -> Array:
    """Return the inner products of the last axes."""
    if is_torch_array(a):
        # torch's vecdot is the same two passes, by way of views that vmap cannot take.
        return (a * b).sum(-1)
    return array_namespace(a).vecdot(a, b)
