"""More operations on vectors of lanes, for the passes around block kernels."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (what is compiled has its signature from Numba)

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from softsolve.compiled.lanes import LANES, Lanes
from softsolve.compiled.native import intrinsic


def _fused(builder, a, b, c):
    kind = a.type
    width = {"float": 32, "double": 64}[str(kind.element)]
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind] * 3),
        f"llvm.fmuladd.v{LANES}f{width}",
    )
    return builder.call(function, [a, b, c])


@intrinsic
def fmuladd(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c in each lane, in one rounding where the CPU can."""

    def lower(context, builder, signature, values):
        return _fused(builder, *values)

    return a(a, b, c), lower


@intrinsic
def scaled(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c in each lane, with both roundings."""

    def lower(context, builder, signature, values):
        a, b, c = values
        return builder.fadd(builder.fmul(a, b), c)

    return a(a, b, c), lower


@intrinsic
def subtract(typing_context: Any, a: Any, b: Any) -> Any:
    """Return a - b in each lane."""

    def lower(context, builder, signature, values):
        return builder.fsub(*values)

    return a(a, b), lower


@intrinsic
def numbers(typing_context: Any, integers: Any, like: Any) -> Any:
    """Return integer lanes as floats of the type of the scalar ``like``."""

    def lower(context, builder, signature, values):
        kind = context.get_value_type(like)
        return builder.uitofp(values[0], ir.VectorType(kind, LANES))

    return Lanes(like)(integers, like), lower


def _count(operator, count, left, right):
    def lower(context, builder, signature, values):
        count, left, right = values
        holds = builder.fcmp_ordered(operator, left, right)
        return builder.sub(count, builder.sext(holds, count.type))

    return count(count, left, right), lower


@intrinsic
def count_less(typing_context: Any, count: Any, left: Any, right: Any) -> Any:
    """Return ``count``, int32 lanes, plus 1 in the lanes where left < right."""
    return _count("<", count, left, right)


@intrinsic
def count_at_most(typing_context: Any, count: Any, left: Any, right: Any) -> Any:
    """Return ``count``, int32 lanes, plus 1 in the lanes where left ≤ right."""
    return _count("<=", count, left, right)


@intrinsic
def equal(typing_context: Any, left: Any, right: Any) -> Any:
    """Return uint8 lanes: 1 where two integers agree, else 0."""

    def lower(context, builder, signature, values):
        same = builder.icmp_unsigned("==", *values)
        return builder.zext(same, ir.VectorType(ir.IntType(8), LANES))

    return Lanes(types.uint8)(left, right), lower


@intrinsic
def where_marked(typing_context: Any, marks: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` in the lanes whose mark, a uint8, is not 0, else ``no``."""

    def lower(context, builder, signature, values):
        marks, yes, no = values
        zero = ir.Constant(marks.type, [0] * LANES)
        return builder.select(builder.icmp_unsigned("!=", marks, zero), yes, no)

    return yes(marks, yes, no), lower


@intrinsic
def placed(typing_context: Any, marks: Any, shift: Any) -> Any:
    """Return uint32 lanes: each mark, a uint8, shifted left."""

    def lower(context, builder, signature, values):
        kind = ir.VectorType(ir.IntType(32), LANES)
        marks, shift = values
        return builder.shl(builder.zext(marks, kind), shift)

    return Lanes(types.uint32)(marks, shift), lower


@intrinsic
def above(typing_context: Any, array: Any, start: Any, bound: Any) -> Any:
    """Return a mask of which of ``array[start : start + LANES]`` exceed the bound."""

    def lower(context, builder, signature, values):
        array, start, bound = values
        data = context.make_array(signature.args[0])(context, builder, array).data
        vector = ir.VectorType(data.type.pointee, LANES)
        address = builder.bitcast(builder.gep(data, [start]), vector.as_pointer())
        width = signature.args[0].dtype.bitwidth // 8
        scores = builder.load(address, align=width)
        first = builder.insert_element(
            ir.Constant(vector, ir.Undefined), bound, ir.IntType(32)(0)
        )
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        bounds = builder.shuffle_vector(first, first, zeros)
        bits = builder.bitcast(
            builder.fcmp_ordered(">", scores, bounds), ir.IntType(LANES)
        )
        return builder.zext(bits, ir.IntType(64))

    return types.int64(array, types.intp, array.dtype), lower


@intrinsic
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the position of the lowest set bit of a mask that is not 0."""

    def lower(context, builder, signature, values):
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.int64(types.int64), lower


@intrinsic
def total(typing_context: Any, lanes: Any) -> Any:
    """Return the sum over the lanes, in a fixed order."""

    def lower(context, builder, signature, values):
        (vector,) = values
        width = LANES
        while width > 1:
            width //= 2
            index = ir.VectorType(ir.IntType(32), width)
            low = builder.shuffle_vector(
                vector, vector, ir.Constant(index, list(range(width)))
            )
            high = builder.shuffle_vector(
                vector, vector, ir.Constant(index, list(range(width, 2 * width)))
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.IntType(32)(0))

    return lanes.dtype(lanes), lower
