"""Hashes of machine words, from which all noise is made.

Numba widens 32-bit integers to 64 bits, which halves what a vector register holds;
these intrinsics keep the width of their arguments, uint32 or uint64.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (what is compiled has its signature from Numba)

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from softsolve.compiled.native import intrinsic

# Finalisers found by search for the least bias in how input bits flip output bits, as
# rounds of `word ^= word >> shift; word *= multiplier`.
Rounds = tuple[tuple[int, int | None], ...]
LOW_BIAS_32: Rounds = ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, None))
MURMUR_32: Rounds = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None))
SPLIT_MIX_64: Rounds = (
    (30, 0xBF58476D1CE4E5B9),
    (27, 0x94D049BB133111EB),
    (31, None),
)
GOLDEN_32, GOLDEN_64 = 0x9E3779B1, 0x9E3779B97F4A7C15


def constant(kind: Any, value: float) -> Any:
    """Return an LLVM constant of a scalar type, or of a vector type in each lane."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def emit_mix(builder: Any, word: Any, rounds: Rounds) -> Any:
    """Emit the rounds of a finaliser on a word or a vector of words."""
    for shift, multiplier in rounds:
        word = builder.xor(word, builder.lshr(word, constant(word.type, shift)))
        if multiplier is not None:
            word = builder.mul(word, constant(word.type, multiplier))
    return word


def emit_pair(builder: Any, first: Any, second: Any, index: Any) -> tuple[Any, Any]:
    """Emit the two random words at ``index`` of the streams (first, second).

    All are vectors of words. 32 bits: the index is added to the first key word and
    spread over all words by a multiplication; the second key word then enters in two
    different ways, each before a finaliser of its own. So streams that agree in one key
    word only have no more in common than others, and those whose ranges of indices
    overlap only if they agree in the second word, too.
    64 bits: SplitMix64 started at the first key word; the second is not needed.
    """
    kind = first.type
    if kind.element.width == 32:
        spread = constant(kind, GOLDEN_32)
        scattered = builder.mul(builder.add(index, first), spread)
        return (
            emit_mix(builder, builder.xor(scattered, second), LOW_BIAS_32),
            emit_mix(builder, builder.add(scattered, second), MURMUR_32),
        )
    step = constant(kind, 2 * GOLDEN_64 % 2**64)
    weyl = builder.add(first, builder.mul(index, step))
    after = builder.add(weyl, constant(kind, GOLDEN_64))
    return (
        emit_mix(builder, weyl, SPLIT_MIX_64),
        emit_mix(builder, after, SPLIT_MIX_64),
    )


@intrinsic
def mix64(typing_context: Any, word: Any) -> Any:
    """Return SplitMix64's finaliser of a uint64."""

    def lower(context, builder, signature, arguments):
        return emit_mix(builder, arguments[0], SPLIT_MIX_64)

    return types.uint64(types.uint64), lower


@intrinsic
def half_words(typing_context: Any, word: Any) -> Any:
    """Return the lower and the upper half of a uint64."""

    def lower(context, builder, signature, arguments):
        kind = ir.IntType(32)
        (word,) = arguments
        upper = builder.lshr(word, ir.Constant(word.type, 32))
        halves = [builder.trunc(word, kind), builder.trunc(upper, kind)]
        return cgutils.pack_array(builder, halves)

    return types.UniTuple(types.uint32, 2)(types.uint64), lower
