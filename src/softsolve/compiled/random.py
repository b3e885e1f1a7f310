r"""Counter-based noise: (key of the row, sample, coordinate) → draw.

Every draw is a pure function of its place, so results depend neither on threads nor on
how rows and samples are split, and a backward pass draws the noise of its forward pass
again instead of keeping it.

The 64-bit key of a row and the number of a sample are mixed (SplitMix64) into the key
of a stream; coordinates are the stream's counters, hashed with that key
(:func:`softsolve.compiled.hashing.emit_pair`): for float32 a Weyl sequence with both
halves of the key in it and a 32-bit finaliser for each word, for float64 SplitMix64.
Within a stream each word is
a bijection of its counter, so draws are as even as their bits can be; streams that
differ in any bit of row or sample are unrelated. That passes tests of uniformity,
correlation and collision between neighbouring coordinates, samples, keys and bits far
beyond what an average of solutions could show. It is not cryptographic.

Coordinates j and j + ⌈d/2⌉ share a pair of words. Gaussian draws are the two of a
Box-Muller transform; the others invert their distribution function, with a word's whole
precision towards both ends of the unit interval. No draw is infinite: the
largest are 6.8 (float32) or 9.4 (float64) for Gaussian noise, 22.9 or 45 for the
others.

With antithetic draws the samples 2p and 2p + 1 share a stream, the second with u
replaced by 1 - u (for a symmetric distribution: z by -z).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001, ARG005 (what is compiled has its signature from Numba)

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from softsolve.compiled.elementary import Emitter
from softsolve.compiled.hashing import (
    GOLDEN_64,
    SPLIT_MIX_64,
    constant,
    emit_mix,
    emit_pair,
    half_words,
    mix64,
)
from softsolve.compiled.kernel import Kernel
from softsolve.compiled.lane_arithmetic import advance, offsets, store_first
from softsolve.compiled.lanes import LANES, Lanes, store
from softsolve.compiled.lanes import fill as lanes_of
from softsolve.compiled.native import call_address, intrinsic, overload
from softsolve.parallel import run_ranges

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_inlined = numba.njit(**_OPTIONS, forceinline=True)


def _normal(emit: Emitter, one: Any, two: Any, flip: Any) -> tuple[Any, ...]:
    builder = emit.builder
    # Near u = 1 steps of u are steps of the radius, 3e-4 at zero: no digits are missed.
    energy = emit.negative_log(emit.unit(one))
    radius = emit.square_root(builder.fadd(energy, energy))
    radius = emit.with_sign_of(radius, flip)
    cosine, sine = emit.point_on_circle(two)
    z1, z2 = builder.fmul(radius, cosine), builder.fmul(radius, sine)
    return z1, z1, z2, z2


def _gumbel(emit: Emitter, one: Any, two: Any, flip: Any) -> tuple[Any, ...]:
    builder, draws = emit.builder, []
    for word in (one, two):
        exponential = emit.negative_log_unit(builder.xor(word, flip))
        draws.append(emit.negative_log(exponential))
        draws.append(builder.fsub(emit.real(1.0), exponential))
    return tuple(draws)


def _logistic(emit: Emitter, one: Any, two: Any, flip: Any) -> tuple[Any, ...]:
    builder, draws = emit.builder, []
    for word in (one, two):
        opposite = builder.not_(word)
        low, high = emit.negative_log_unit(word), emit.negative_log_unit(opposite)
        score = builder.fsub(emit.unit(word), emit.unit(opposite))
        draws.append(emit.with_sign_of(builder.fsub(high, low), flip))
        draws.append(emit.with_sign_of(score, flip))
    return tuple(draws)


def _laplace(emit: Emitter, one: Any, two: Any, flip: Any) -> tuple[Any, ...]:
    builder, draws = emit.builder, []
    for word in (one, two):
        # The top bit is the sign, the others are the size.
        size = emit.negative_log_unit(builder.shl(word, emit.whole(1)))
        sign = builder.xor(word, flip)
        draws.append(emit.with_sign_of(size, sign))
        draws.append(emit.with_sign_of(emit.real(1.0), sign))
    return tuple(draws)


def _pair_drawer(emit_draws: Callable[..., tuple[Any, ...]]) -> Any:
    """Return a function that draws at the indices of streams: z1, s1, z2, s2."""

    @intrinsic
    def pair(typing_context, first, second, index, flip):
        floats = types.float32 if first.dtype == types.uint32 else types.float64

        def lower(context, builder, signature, values):
            first, second, index, flip = values
            emit = Emitter(builder, first.type)
            words = emit_pair(builder, first, second, index)
            draws = emit_draws(emit, *words, flip)
            return context.make_tuple(builder, signature.return_type, draws)

        return types.Tuple([Lanes(floats)] * 4)(first, second, index, flip), lower

    return pair


_PAIR = {
    "normal": _pair_drawer(_normal),
    "gumbel": _pair_drawer(_gumbel),
    "logistic": _pair_drawer(_logistic),
    "laplace": _pair_drawer(_laplace),
}


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


def word_of(number, z):
    """Return a whole number as a word of the width of z's numbers."""


@overload(word_of)
def _word_of(number, z):
    if z.dtype == types.float32:
        return lambda number, z: np.uint32(number)
    return lambda number, z: np.uint64(number)


@intrinsic
def stream_lanes(typing_context, keys, numbers, start, antithetic, z):
    """Return the key words and the bits of a flip for each lane's key and sample.

    Those of the lanes are in ``keys`` and ``numbers`` from ``start`` on.
    """
    single = z.dtype == types.float32
    word = Lanes(types.uint32 if single else types.uint64)

    def lower(context, builder, signature, values):
        long = ir.VectorType(ir.IntType(64), LANES)
        key, number = (
            builder.load(
                builder.bitcast(
                    builder.gep(
                        context.make_array(kind)(context, builder, value).data,
                        [values[2]],
                    ),
                    long.as_pointer(),
                ),
                align=8,
            )
            for kind, value in zip(signature.args[:2], values[:2], strict=True)
        )
        pairs = builder.zext(values[3], ir.IntType(64))
        unset = ir.Constant(long, ir.Undefined)
        pairs = builder.insert_element(unset, pairs, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        pairs = builder.shuffle_vector(pairs, unset, zeros)
        step = builder.mul(builder.lshr(number, pairs), constant(long, GOLDEN_64))
        stream = emit_mix(builder, builder.add(key, step), SPLIT_MIX_64)
        odd = builder.and_(number, pairs)
        flip = builder.sub(constant(long, 0), odd)
        words = [stream, stream, flip]
        if single:
            short = ir.VectorType(ir.IntType(32), LANES)
            upper = builder.lshr(stream, constant(long, 32))
            words = [builder.trunc(part, short) for part in (stream, upper, flip)]
        return context.make_tuple(builder, signature.return_type, words)

    return types.Tuple([word] * 3)(keys, numbers, types.intp, antithetic, z), lower


@_inlined
def row_key(low, high):
    """Return the generator's key of a row from the two int32 that name it."""
    key = (np.uint64(high) << np.uint64(32)) | (np.uint64(low) & np.uint64(0xFFFFFFFF))
    return mix64(key + _GOLDEN)


@_inlined
def _stream(key, sample, antithetic):
    """Return the stream of a sample, and whether it is the mirrored one of a pair."""
    shift = np.int64(antithetic)
    stream = mix64(key + np.uint64(sample >> shift) * _GOLDEN)
    return stream, sample & shift != 0


def fill_rows(noise, key, first, antithetic, z, s):
    """Draw z (samples, d) and the scores s there, from sample ``first`` on."""


def fill_lanes(noise, keys, numbers, antithetic, z, s):
    """Draw z (blocks·d, lanes) and the scores s: each lane a row's key and a sample."""


@overload(fill_rows, jit_options=_OPTIONS, prefer_literal=True)
def _fill_rows(noise, key, first, antithetic, z, s):
    if not isinstance(noise, types.StringLiteral):
        return None
    pair = _PAIR[noise.literal_value]
    scored = noise.literal_value != "normal"

    def fill(noise, key, first, antithetic, z, s):
        samples, size = z.shape
        half = (size + 1) // 2
        for row in range(samples):
            stream, mirrored = _stream(key, first + row, antithetic)
            words = stream_words(stream, z)
            one, two = lanes_of(words[0]), lanes_of(words[1])
            flip = lanes_of(all_bits(mirrored, z))
            index = offsets(one)
            for start in range(0, half, LANES):
                at, other = row * size + start, row * size + half + start
                z1, s1, z2, s2 = pair(one, two, index, flip)
                index = advance(index, LANES)
                left, right = half - start, size - half - start
                if right >= LANES:
                    store(z, at, z1)
                    store(z, other, z2)
                    if scored:
                        store(s, at, s1)
                        store(s, other, s2)
                else:
                    store_first(z, at, z1, left)
                    store_first(z, other, z2, right)
                    if scored:
                        store_first(s, at, s1, left)
                        store_first(s, other, s2, right)
        return 0

    return fill


@overload(fill_lanes, jit_options=_OPTIONS, prefer_literal=True)
def _fill_lanes(noise, keys, numbers, antithetic, z, s):
    if not isinstance(noise, types.StringLiteral):
        return None
    pair = _PAIR[noise.literal_value]
    scored = noise.literal_value != "normal"

    def fill(noise, keys, numbers, antithetic, z, s):
        blocks = numbers.shape[0] // LANES
        size = z.shape[0] // blocks
        half = (size + 1) // 2
        for block in range(blocks):
            one, two, flip = stream_lanes(keys, numbers, block * LANES, antithetic, z)
            for at in range(half):
                # Not an index that is advanced by 1: LLVM subtracts a register of
                # ones, which it makes anew of whatever is in it, so that each step
                # would wait for the one before.
                index = lanes_of(word_of(at, z))
                z1, s1, z2, s2 = pair(one, two, index, flip)
                here = (block * size + at) * LANES
                store(z, here, z1)
                if scored:
                    store(s, here, s1)
                if half + at < size:
                    there = here + half * LANES
                    store(z, there, z2)
                    if scored:
                        store(s, there, s2)
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

    ``fill(keys, numbers, antithetic, z, s)`` draws for each lane the sample of
    that number under that row key; keys and numbers are (blocks · LANES,), z and s
    (blocks · d, LANES), the coordinates of one block after those of another.
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
