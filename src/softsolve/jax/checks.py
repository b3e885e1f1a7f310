"""Checks of values that may be traced: at once, or by a callback when they run."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


def require(good: Array, report: Callable[..., NoReturn], *values: Array) -> Array:
    """Return 0.0, or call ``report(row, *values[row])`` for the first bad row.

    ``good`` is (B,) and each of the values (B, …). The zero must be added to what the
    check guards, or a compiler drops the check.
    """
    operands = (good, *values)
    if not len(good):
        return jnp.zeros(())
    if not any(isinstance(operand, jax.core.Tracer) for operand in operands):
        _report_first(report, operands)
        return jnp.zeros(())
    first = jnp.argmin(good)
    # Only the first bad row travels to the host.
    row = (jnp.all(good), first, *(value[first] for value in values))

    def on_host(fine: Array, index: Array, *details: Array) -> np.ndarray:
        flat = np.ravel(fine)
        if not flat.all():
            mapped = int(np.argmin(flat))
            at = [
                np.reshape(detail, (flat.size, *np.shape(detail)[np.ndim(fine) :]))
                for detail in details
            ]
            report(int(np.ravel(index)[mapped]), *(detail[mapped] for detail in at))
        return np.zeros(np.shape(fine), dtype=np.float32)

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(on_host, shape, *row, vmap_method="broadcast_all")


def _report_first(report: Callable[..., NoReturn], operands: tuple[Array, ...]) -> None:
    good, *values = (np.asarray(operand) for operand in operands)
    if not good.all():
        row = int(np.argmin(good))
        report(row, *(value[row] for value in values))
