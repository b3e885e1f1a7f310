"""How solutions are kept between the forward and the backward pass.

Each sample's solution is a row of bytes: one bit an entry where entries are 0 or 1, an
int16 where they are whole numbers, the position of the one entry that is 1, ranks that
point into a table, or else the numbers themselves.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (what is compiled has its signature from Numba)

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types

from softsolve.compiled.kernel import Kernel


def encode_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of ``encode(y, codes)``: (n, d) into bytes (n, width)."""
    solutions = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    codes = types.Array(types.uint8, 2, "C")
    return types.int64(solutions, codes)


def decode_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of ``decode(codes, table, y)``, the inverse of encoding."""
    solutions = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    codes = types.Array(types.uint8, 2, "C")
    table = types.Array(types.float64, 1, "C")
    return types.int64(codes, table, solutions)


class Encode(Kernel):
    """Turns solutions into bytes."""

    signature = staticmethod(encode_signature)


class Decode(Kernel):
    """Turns bytes into solutions."""

    signature = staticmethod(decode_signature)


def encode_bits(y, codes):
    """Keep entries that are 0 or 1 as bits."""
    size = y.shape[1]
    whole = size // 8
    for row in range(y.shape[0]):
        for byte in range(whole):
            value = np.int64(0)
            for bit in range(8):
                value |= np.int64(y[row, 8 * byte + bit] != 0) << bit
            codes[row, byte] = value
        if 8 * whole < size:
            value = np.int64(0)
            for bit in range(size - 8 * whole):
                value |= np.int64(y[row, 8 * whole + bit] != 0) << bit
            codes[row, whole] = value
    return 0


def decode_bits(codes, table, y):
    """Undo :func:`encode_bits`."""
    size = y.shape[1]
    whole = size // 8
    for row in range(y.shape[0]):
        for byte in range(whole):
            value = codes[row, byte]
            for bit in range(8):
                y[row, 8 * byte + bit] = (value >> bit) & 1
        for entry in range(8 * whole, size):
            y[row, entry] = (codes[row, whole] >> (entry - 8 * whole)) & 1
    return 0


def encode_int16(y, codes):
    """Keep whole numbers as int16."""
    for row in range(y.shape[0]):
        kept = codes[row].view(np.int16)
        for entry in range(y.shape[1]):
            kept[entry] = np.int16(y[row, entry])
    return 0


def decode_int16(codes, table, y):
    """Undo :func:`encode_int16`."""
    for row in range(y.shape[0]):
        kept = codes[row].view(np.int16)
        for entry in range(y.shape[1]):
            y[row, entry] = kept[entry]
    return 0


def encode_reals(y, codes):
    """Keep numbers as they are."""
    for row in range(y.shape[0]):
        codes[row].view(y.dtype)[:] = y[row]
    return 0


def decode_reals(codes, table, y):
    """Undo :func:`encode_reals`."""
    for row in range(y.shape[0]):
        y[row] = codes[row].view(y.dtype)
    return 0


def decode_positions(codes, table, y):
    """Read the positions of the entries that are 1, all others being 0."""
    for row in range(y.shape[0]):
        y[row] = 0
        for position in codes[row].view(np.int32):
            y[row, position] = 1
    return 0


def decode_ranks(codes, table, y):
    """Read each entry's place in the table."""
    for row in range(y.shape[0]):
        kept = codes[row].view(np.int16)
        for entry in range(y.shape[1]):
            y[row, entry] = table[kept[entry]]
    return 0


@dataclass(frozen=True)
class Codec:
    """A way of keeping solutions: functions, and bytes a sample.

    ``encode`` is ``None`` where solutions are never dense to begin with.
    """

    encode: Encode | None
    decode: Decode
    width: int


_ENCODE_BITS, _DECODE_BITS = Encode(encode_bits), Decode(decode_bits)
_ENCODE_INT16, _DECODE_INT16 = Encode(encode_int16), Decode(decode_int16)
_ENCODE_REALS, _DECODE_REALS = Encode(encode_reals), Decode(decode_reals)
_DECODE_POSITIONS, _DECODE_RANKS = Decode(decode_positions), Decode(decode_ranks)


def codec_for(solution: str, size: int, dtype: np.dtype[Any]) -> Codec:
    """Return how solutions of ``size`` entries of a kind are kept.

    ``solution`` is a :class:`~softsolve.solvers.base.KernelSolver`'s attribute.
    """
    if solution == "binary":
        return Codec(_ENCODE_BITS, _DECODE_BITS, (size + 7) // 8)
    if solution == "integer":
        return Codec(_ENCODE_INT16, _DECODE_INT16, 2 * size)
    return Codec(_ENCODE_REALS, _DECODE_REALS, dtype.itemsize * size)


def positions_codec(count: int) -> Codec:
    """Return how solutions with ``count`` ones, all else 0, are kept: by position."""
    return Codec(None, _DECODE_POSITIONS, 4 * count)


def ranks_codec(size: int) -> Codec:
    """Return how places in a table of ``size`` entries are kept, at most 32,767."""
    return Codec(None, _DECODE_RANKS, 2 * size)
