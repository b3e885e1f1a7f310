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
from softsolve.compiled.lane_arithmetic import above, lowest_bit, placed, where_marked
from softsolve.compiled.lanes import LANES, fill, join, load, store
from softsolve.compiled.native import borrowed


@numba.njit(nogil=True, error_model="numpy")
def evenly_spaced(table):
    """Tell whether the table's numbers are whole and one step apart."""
    for place in range(1, table.size):
        if table[place] != table[0] + place * (table[1] - table[0]):
            return False
    return True


def encode_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of ``encode(y, table, codes)``: (n, d) into (n, width)."""
    solutions = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    codes = types.Array(types.uint8, 2, "C")
    table = types.Array(types.float64, 1, "C")
    return types.int64(solutions, table, codes)


def encode_lanes_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of ``encode(y, codes)`` for lanes of bytes (d, LANES)."""
    lanes = types.Array(types.uint8, 2, "C")
    return types.int64(lanes, lanes)


def decode_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of ``decode(codes, table, y)``, the inverse of encoding."""
    solutions = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    codes = types.Array(types.uint8, 2, "C")
    table = types.Array(types.float64, 1, "C")
    return types.int64(codes, table, solutions)


class Encode(Kernel):
    """Turns solutions into bytes."""

    signature = staticmethod(encode_signature)


class EncodeLanes(Kernel):
    """Turns solutions side by side into bytes."""

    signature = staticmethod(encode_lanes_signature)


class Decode(Kernel):
    """Turns bytes into solutions."""

    signature = staticmethod(decode_signature)


def encode_bits(y, table, codes):
    """Keep entries that are 0 or 1 as bits."""
    y, codes = borrowed(y), borrowed(codes)
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
        for byte in range((size + 7) // 8, codes.shape[1]):
            codes[row, byte] = 0
    return 0


def decode_bits(codes, table, y):
    """Undo :func:`encode_bits`."""
    codes, y = borrowed(codes), borrowed(y)
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


def encode_int16(y, table, codes):
    """Keep whole numbers as int16."""
    y, codes = borrowed(y), borrowed(codes)
    kept = codes.view(np.int16)
    for row in range(y.shape[0]):
        for entry in range(y.shape[1]):
            kept[row, entry] = np.int16(y[row, entry])
    return 0


def decode_int16(codes, table, y):
    """Undo :func:`encode_int16`."""
    codes, y = borrowed(codes), borrowed(y)
    kept = codes.view(np.int16)
    for row in range(y.shape[0]):
        for entry in range(y.shape[1]):
            y[row, entry] = kept[row, entry]
    return 0


def encode_reals(y, table, codes):
    """Keep numbers as they are."""
    y, codes = borrowed(y), borrowed(codes)
    codes.view(y.dtype)[:] = y
    return 0


def decode_reals(codes, table, y):
    """Undo :func:`encode_reals`."""
    codes, y = borrowed(codes), borrowed(y)
    y[:] = codes.view(y.dtype)
    return 0


def encode_bit_lanes(y, codes):
    """Do what :func:`encode_bits` does with solutions side by side."""
    y, codes = borrowed(y), borrowed(codes)
    words = np.empty(LANES, np.uint32)
    kept = codes.view(np.uint32)
    size = y.shape[0]
    for first in range(0, size, 32):
        bits = fill(np.uint32(0))
        for shift in range(min(32, size - first)):
            marks = load(y, (first + shift) * LANES)
            bits = join(bits, placed(marks, fill(np.uint32(shift))))
        store(words, 0, bits)
        for lane in range(codes.shape[0]):
            kept[lane, first // 32] = words[lane]
    return 0


def encode_positions(y, table, codes):
    """Keep where the ones are."""
    y, codes = borrowed(y), borrowed(codes)
    kept = codes.view(np.int32)
    size = y.shape[1]
    whole = size - size % LANES
    for row in range(y.shape[0]):
        solution = y[row]
        count = 0
        for start in range(0, whole, LANES):
            mask = above(solution, start, y.dtype.type(0))
            while mask:
                kept[row, count] = start + lowest_bit(mask)
                mask &= mask - 1
                count += 1
        for entry in range(whole, size):
            if solution[entry] != 0:
                kept[row, count] = entry
                count += 1
    return 0


def encode_position_lanes(y, codes):
    """Keep where the only one is, of solutions side by side."""
    y, codes = borrowed(y), borrowed(codes)
    words = np.empty(LANES, np.uint32)
    kept = codes.view(np.uint32)
    position = fill(np.uint32(0))
    for entry in range(y.shape[0]):
        marks = load(y, entry * LANES)
        position = where_marked(marks, fill(np.uint32(entry)), position)
    store(words, 0, position)
    for lane in range(codes.shape[0]):
        kept[lane, 0] = words[lane]
    return 0


def decode_positions(codes, table, y):
    """Read the positions of the entries that are 1, all others being 0."""
    codes, y = borrowed(codes), borrowed(y)
    kept = codes.view(np.int32)
    y[:] = 0
    for row in range(y.shape[0]):
        for position in kept[row]:
            y[row, position] = 1
    return 0


def encode_ranks(y, table, codes):
    """Keep each entry's place in the table, in one byte or two."""
    y, codes, table = borrowed(y), borrowed(codes), borrowed(table)
    size = y.shape[1]
    for row in range(y.shape[0]):
        for entry in range(size):
            place = np.searchsorted(table, np.float64(y[row, entry]))
            if codes.shape[1] == size:
                codes[row, entry] = place
            else:
                codes[row].view(np.uint16)[entry] = place
    return 0


def encode_byte_lanes(y, codes):
    """Keep bytes as they are, of solutions side by side."""
    y, codes = borrowed(y), borrowed(codes)
    for lane in range(codes.shape[0]):
        for entry in range(y.shape[0]):
            codes[lane, entry] = y[entry, lane]
    return 0


def decode_ranks(codes, table, y):
    """Undo :func:`encode_ranks`."""
    codes, y, table = borrowed(codes), borrowed(y), borrowed(table)
    size = y.shape[1]
    evenly = evenly_spaced(table)
    offset = y.dtype.type(table[0])
    slope = y.dtype.type(table[1] - table[0]) if size > 1 else offset
    for row in range(y.shape[0]):
        if codes.shape[1] == size and evenly:
            for entry in range(size):
                y[row, entry] = offset + slope * y.dtype.type(codes[row, entry])
        elif codes.shape[1] == size:
            for entry in range(size):
                y[row, entry] = table[codes[row, entry]]
        else:
            kept = codes[row].view(np.uint16)
            for entry in range(size):
                y[row, entry] = table[kept[entry]]
    return 0


@dataclass(frozen=True)
class Codec:
    """A way of keeping solutions: functions, and bytes a sample."""

    encode: Encode
    decode: Decode
    width: int
    encode_lanes: EncodeLanes | None = None


_ENCODE_BITS, _DECODE_BITS = Encode(encode_bits), Decode(decode_bits)
_ENCODE_INT16, _DECODE_INT16 = Encode(encode_int16), Decode(decode_int16)
_ENCODE_REALS, _DECODE_REALS = Encode(encode_reals), Decode(decode_reals)
_ENCODE_POSITIONS = Encode(encode_positions)
_DECODE_POSITIONS = Decode(decode_positions)
_ENCODE_RANKS, _DECODE_RANKS = Encode(encode_ranks), Decode(decode_ranks)
_BIT_LANES = EncodeLanes(encode_bit_lanes)
_POSITION_LANES = EncodeLanes(encode_position_lanes)
_BYTE_LANES = EncodeLanes(encode_byte_lanes)


def codec_for(solution: str, size: int, dtype: np.dtype[Any]) -> Codec:
    """Return how solutions of ``size`` entries of a kind are kept.

    ``solution`` is a :class:`~softsolve.solvers.base.KernelSolver`'s attribute.
    """
    if solution == "binary":
        return Codec(_ENCODE_BITS, _DECODE_BITS, 4 * ((size + 31) // 32), _BIT_LANES)
    if solution == "integer":
        return Codec(_ENCODE_INT16, _DECODE_INT16, 2 * size)
    return Codec(_ENCODE_REALS, _DECODE_REALS, dtype.itemsize * size)


def positions_codec(count: int) -> Codec:
    """Return how solutions with ``count`` ones, all else 0, are kept: by position."""
    lanes = _POSITION_LANES if count == 1 else None
    return Codec(_ENCODE_POSITIONS, _DECODE_POSITIONS, 4 * count, lanes)


def ranks_codec(size: int) -> Codec:
    """Return how places in a table of ``size`` entries, at most 65,536, are kept."""
    if size <= 256:
        return Codec(_ENCODE_RANKS, _DECODE_RANKS, size, _BYTE_LANES)
    return Codec(_ENCODE_RANKS, _DECODE_RANKS, 2 * size)
