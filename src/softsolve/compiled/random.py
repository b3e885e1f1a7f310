r"""Counter-based noise: (key of the row, sample, coordinate) → draw.

Every draw is a pure function of its place, so results depend neither on threads nor on
how rows and samples are split, and a backward pass draws the noise of its forward pass
again instead of keeping it.

The 64-bit key of a row and the number of a sample are mixed (SplitMix64) into the key
of a stream; coordinates are the stream's counters, hashed with that key
(:func:`softsolve.compiled.hashing.pair_of_words`): for float32 two rounds of a 32-bit
finaliser on the way to each word, for float64 SplitMix64. Within a stream each word is
a bijection of its counter, so draws are as even as their bits can be; streams that
differ in any bit of row or sample are unrelated. That passes tests of uniformity,
correlation and collision between neighbouring coordinates, samples, keys and bits far
beyond what an average of solutions could show. It is not cryptographic.

Coordinates j and j + ⌈d/2⌉ share a pair of words. Gaussian draws are the two of a
Box-Muller transform; the others invert their distribution function. A word keeps its
whole precision towards both ends of the unit interval, so no draw is infinite: the
largest are 6.8 (float32) or 9.4 (float64) for Gaussian noise, 22.9 or 45 for the
others.

With antithetic draws the samples 2p and 2p + 1 share a stream, the second with u
replaced by 1 - u (for a symmetric distribution: z by -z).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001, ARG005 (what is compiled has its signature from Numba)

import math
from typing import Any

import numba
import numpy as np
from numba import types

from softsolve.compiled.elementary import (
    cosine_and_sine,
    negative_log,
    negative_log_unit,
    one_minus,
    unit_interval,
    with_sign_of,
    without_top_bit,
)
from softsolve.compiled.hashing import (
    exclusive_or,
    half_words,
    inverted,
    mix64,
    pair_of_words,
)
from softsolve.compiled.kernel import Kernel
from softsolve.compiled.native import call_address, overload
from softsolve.parallel import run_ranges

# Loops of this length become whole vectors without a remainder.
TILE = 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# A call in a loop keeps the loop from becoming vectors.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_inlined = numba.njit(**_OPTIONS, forceinline=True)


def stream_words(stream, z):
    """Return the key words of a stream in the width of z's numbers."""


@overload(stream_words)
def _stream_words(stream, z):
    if z.dtype == types.float32:
        return lambda stream, z: half_words(stream)
    return lambda stream, z: (stream, stream)


def all_bits(flip, z):
    """Return a word of the width of z's numbers: all ones if ``flip``, else zero."""


@overload(all_bits)
def _all_bits(flip, z):
    if z.dtype == types.float32:
        return lambda flip, z: np.uint32(0xFFFFFFFF) if flip else np.uint32(0)
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    return lambda flip, z: ones if flip else np.uint64(0)


def stream_arrays(samples, z):
    """Return three arrays for the words of streams: two keys and the bits of a flip."""


@overload(stream_arrays)
def _stream_arrays(samples, z):
    word = np.uint32 if z.dtype == types.float32 else np.uint64

    def arrays(samples, z):
        return np.empty(samples, word), np.empty(samples, word), np.empty(samples, word)

    return arrays


@_inlined
def tile_arrays(z):
    """Return four arrays for a tile of draws."""
    return (
        np.empty(TILE, z.dtype),
        np.empty(TILE, z.dtype),
        np.empty(TILE, z.dtype),
        np.empty(TILE, z.dtype),
    )


@_inlined
def row_key(low, high):
    """Return the generator's key of a row from the two int32 that name it."""
    key = (np.uint64(high) << np.uint64(32)) | (np.uint64(low) & np.uint64(0xFFFFFFFF))
    return mix64(key + _GOLDEN)


@_inlined
def _stream(key, sample, antithetic):
    """Return the stream of a sample, and whether it is the mirrored one of a pair."""
    if antithetic:
        return mix64(key + np.uint64(sample >> 1) * _GOLDEN), sample & 1 == 1
    return mix64(key + np.uint64(sample) * _GOLDEN), False


# Each returns z1, s1, z2, s2: two draws and the scores at them.
@_inlined
def _normal(first, second, index, flip):
    one, two = pair_of_words(first, second, index)
    energy = negative_log_unit(one)
    radius = with_sign_of(math.sqrt(energy + energy), flip)
    cosine, sine = cosine_and_sine(two)
    return radius * cosine, radius * cosine, radius * sine, radius * sine


@_inlined
def _gumbel_of(word):
    exponential = negative_log_unit(word)
    return negative_log(exponential), one_minus(exponential)


@_inlined
def _gumbel(first, second, index, flip):
    one, two = pair_of_words(first, second, index)
    z1, s1 = _gumbel_of(exclusive_or(one, flip))
    z2, s2 = _gumbel_of(exclusive_or(two, flip))
    return z1, s1, z2, s2


@_inlined
def _logistic_of(word, flip):
    opposite = inverted(word)
    z = negative_log_unit(opposite) - negative_log_unit(word)
    s = unit_interval(word) - unit_interval(opposite)
    return with_sign_of(z, flip), with_sign_of(s, flip)


@_inlined
def _logistic(first, second, index, flip):
    one, two = pair_of_words(first, second, index)
    z1, s1 = _logistic_of(one, flip)
    z2, s2 = _logistic_of(two, flip)
    return z1, s1, z2, s2


@_inlined
def _laplace_of(word, flip):
    size = negative_log_unit(without_top_bit(word))
    sign = exclusive_or(word, flip)
    return with_sign_of(size, sign), with_sign_of(one_minus(size - size), sign)


@_inlined
def _laplace(first, second, index, flip):
    one, two = pair_of_words(first, second, index)
    z1, s1 = _laplace_of(one, flip)
    z2, s2 = _laplace_of(two, flip)
    return z1, s1, z2, s2


_PAIR = {
    "normal": _normal,
    "gumbel": _gumbel,
    "logistic": _logistic,
    "laplace": _laplace,
}


def fill_rows(noise, key, first, antithetic, z, s):
    """Draw z (samples, d) and the scores s there, from sample ``first`` on."""


def fill_lanes(noise, keys, numbers, antithetic, z, s):
    """Draw z (d, lanes) and the scores s there: each lane a row's key and a sample."""


@overload(fill_rows, jit_options=_OPTIONS, prefer_literal=True)
def _fill_rows(noise, key, first, antithetic, z, s):
    if not isinstance(noise, types.StringLiteral):
        return None
    pair = _PAIR[noise.literal_value]
    scored = noise.literal_value != "normal"

    def fill(noise, key, first, antithetic, z, s):
        samples, size = z.shape
        half = (size + 1) // 2
        whole = half - half % TILE
        left = size - half - whole
        z1, s1, z2, s2 = tile_arrays(z)
        for row in range(samples):
            stream, mirrored = _stream(key, first + row, antithetic)
            one, two = stream_words(stream, z)
            flip = all_bits(mirrored, z)
            za, zb = z[row, :whole], z[row, half : half + whole]
            sa, sb = s[row, :whole], s[row, half : half + whole]
            for index in range(whole):
                draw = pair(one, two, index, flip)
                za[index], zb[index] = draw[0], draw[2]
                if scored:
                    sa[index], sb[index] = draw[1], draw[3]
            if whole == half:
                continue
            for lane in range(TILE):
                draw = pair(one, two, whole + lane, flip)
                z1[lane], s1[lane], z2[lane], s2[lane] = draw
            z[row, whole:half] = z1[: half - whole]
            z[row, half + whole :] = z2[:left]
            if scored:
                s[row, whole:half] = s1[: half - whole]
                s[row, half + whole :] = s2[:left]
        return 0

    return fill


@overload(fill_lanes, jit_options=_OPTIONS, prefer_literal=True)
def _fill_lanes(noise, keys, numbers, antithetic, z, s):
    if not isinstance(noise, types.StringLiteral):
        return None
    pair = _PAIR[noise.literal_value]
    scored = noise.literal_value != "normal"

    def fill(noise, keys, numbers, antithetic, z, s):
        size, samples = z.shape
        half = (size + 1) // 2
        ones, twos, flips = stream_arrays(samples, z)
        spare = np.empty((2, samples), z.dtype)
        for lane in range(samples):
            stream, mirrored = _stream(keys[lane], numbers[lane], antithetic)
            ones[lane], twos[lane] = stream_words(stream, z)
            flips[lane] = all_bits(mirrored, z)
        for index in range(half):
            za, sa, zb, sb = z[index], s[index], spare[0], spare[1]
            if half + index < size:
                zb, sb = z[half + index], s[half + index]
            for lane in range(samples):
                draw = pair(ones[lane], twos[lane], index, flips[lane])
                za[lane], zb[lane] = draw[0], draw[2]
                if scored:
                    sa[lane], sb[lane] = draw[1], draw[3]
        return 0

    return fill


def normal_rows(key, first, antithetic, z, s):
    """Fill rows with Gaussian draws."""
    return fill_rows("normal", key, first, antithetic, z, s)


def gumbel_rows(key, first, antithetic, z, s):
    """Fill rows with Gumbel draws."""
    return fill_rows("gumbel", key, first, antithetic, z, s)


def logistic_rows(key, first, antithetic, z, s):
    """Fill rows with logistic draws."""
    return fill_rows("logistic", key, first, antithetic, z, s)


def laplace_rows(key, first, antithetic, z, s):
    """Fill rows with Laplace draws."""
    return fill_rows("laplace", key, first, antithetic, z, s)


def normal_lanes(keys, numbers, antithetic, z, s):
    """Fill lanes with Gaussian draws."""
    return fill_lanes("normal", keys, numbers, antithetic, z, s)


def gumbel_lanes(keys, numbers, antithetic, z, s):
    """Fill lanes with Gumbel draws."""
    return fill_lanes("gumbel", keys, numbers, antithetic, z, s)


def logistic_lanes(keys, numbers, antithetic, z, s):
    """Fill lanes with logistic draws."""
    return fill_lanes("logistic", keys, numbers, antithetic, z, s)


def laplace_lanes(keys, numbers, antithetic, z, s):
    """Fill lanes with Laplace draws."""
    return fill_lanes("laplace", keys, numbers, antithetic, z, s)


def fill_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of a function that fills rows with draws of ``dtype``.

    ``fill(key, first, antithetic, z, s)`` draws the samples from ``first`` on into z,
    and the scores at them into s, which may be z itself for Gaussian noise.
    """
    draws = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    return types.int64(types.uint64, types.int64, types.boolean, draws, draws)


def fill_lanes_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of a function that fills lanes with draws of ``dtype``.

    ``fill(keys, numbers, antithetic, z, s)`` draws for each lane the sample of that
    number under that row key; z and s are (d, lanes).
    """
    draws = types.Array(numba.from_dtype(np.dtype(dtype)), 2, "C")
    keys = types.Array(types.uint64, 1, "C")
    numbers = types.Array(types.int64, 1, "C")
    return types.int64(keys, numbers, types.boolean, draws, draws)


class Fill(Kernel):
    """A function that fills rows with draws; see :func:`fill_signature`."""

    signature = staticmethod(fill_signature)


class FillLanes(Kernel):
    """A function that fills lanes with draws; see :func:`fill_lanes_signature`."""

    signature = staticmethod(fill_lanes_signature)


FILL_ROWS = {
    "normal": Fill(normal_rows),
    "gumbel": Fill(gumbel_rows),
    "logistic": Fill(logistic_rows),
    "laplace": Fill(laplace_rows),
}
FILL_LANES = {
    "normal": FillLanes(normal_lanes),
    "gumbel": FillLanes(gumbel_lanes),
    "logistic": FillLanes(logistic_lanes),
    "laplace": FillLanes(laplace_lanes),
}


def export_signature(dtype: np.dtype[Any]) -> Any:
    """Return the signature of the loop over rows behind :func:`export_draws`."""
    draws = types.Array(numba.from_dtype(np.dtype(dtype)), 3, "C")
    keys = types.Array(types.int32, 2, "C")
    return types.int64(
        *(types.int64, keys, types.boolean, draws, types.int64, types.int64)
    )


class _Export(Kernel):
    signature = staticmethod(export_signature)


def _export(fill, keys, antithetic, z, start, stop):
    for row in range(start, stop):
        key = row_key(keys[row, 0], keys[row, 1])
        call_address(fill, (key, 0, antithetic, z[row], np.empty_like(z[row])))
    return 0


_EXPORT = _Export(_export)


def export_draws(
    noise: str,
    keys: np.ndarray[Any, Any],
    num_samples: int,
    size: int,
    dtype: Any,
    *,
    antithetic: bool = False,
) -> np.ndarray[Any, Any]:
    """Return the draws that a fused pass uses, (rows, num_samples, size).

    Parameters
    ----------
    noise
        ``"normal"``, ``"gumbel"``, ``"logistic"`` or ``"laplace"``.
    keys
        The rows' keys, int32 (rows, 2).
    num_samples, size
        Draws per row, and coordinates per draw.
    dtype
        float32 or float64: they are different streams.
    antithetic
        Whether samples 2p and 2p + 1 mirror each other.

    Examples
    --------
    >>> import numpy as np
    >>> from softsolve.compiled.random import export_draws
    >>> keys = np.array([[1, 2], [3, 4]], dtype=np.int32)
    >>> z = export_draws("gumbel", keys, 1000, 5, np.float64)
    >>> z.shape
    (2, 1000, 5)
    >>> bool(abs(z.mean() - 0.5772) < 0.05)
    True
    """
    keys = np.ascontiguousarray(keys, dtype=np.int32)
    z = np.empty((len(keys), num_samples, size), dtype=dtype)
    if z.size:
        fill = FILL_ROWS[noise].address(z.dtype)
        export = _EXPORT.compiled(z.dtype)

        def fill_rows(start: int, stop: int) -> None:
            export(fill, keys, antithetic, z, start, stop)

        run_ranges(fill_rows, len(keys))
    return z
