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


@intrinsic
def compare(typing_context: Any, a: Any, b: Any, a_rank: Any, b_rank: Any) -> Any:
    """Return the ranks, int32 lanes, a's plus 1 and b's minus 1 where b ≤ a."""

    def lower(context, builder, signature, values):
        a, b, a_rank, b_rank = values
        holds = builder.sext(builder.fcmp_ordered("<=", b, a), a_rank.type)
        ranks = [builder.sub(a_rank, holds), builder.add(b_rank, holds)]
        return context.make_tuple(builder, signature.return_type, ranks)

    return types.Tuple([a_rank, b_rank])(a, b, a_rank, b_rank), lower


@intrinsic
def equal(typing_context: Any, left: Any, right: Any) -> Any:
    """Return uint8 lanes: 1 where two integers agree, else 0."""

    def lower(context, builder, signature, values):
        same = builder.icmp_unsigned("==", *values)
        return builder.zext(same, ir.VectorType(ir.IntType(8), LANES))

    return Lanes(types.uint8)(left, right), lower


@intrinsic
def where_equal(typing_context: Any, left: Any, right: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` in the lanes where two integers agree, and ``no`` elsewhere."""

    def lower(context, builder, signature, values):
        left, right, yes, no = values
        return builder.select(builder.icmp_unsigned("==", left, right), yes, no)

    return yes(left, right, yes, no), lower


@intrinsic
def count_equal(typing_context: Any, left: Any, right: Any, mask: Any) -> Any:
    """Return in how many of the lanes whose bit is set in ``mask`` integers agree."""

    def lower(context, builder, signature, values):
        left, right, mask = values
        same = builder.icmp_unsigned("==", left, right)
        bits = builder.zext(builder.bitcast(same, ir.IntType(LANES)), ir.IntType(64))
        return builder.ctpop(builder.and_(bits, mask))

    return types.int64(left, right, types.int64), lower


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


def _exceeding(context, builder, kind, values, operator=">"):
    """Emit which of ``array[start : start + LANES]`` exceed the bound."""
    array, start, bound = values
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(data.type.pointee, LANES)
    address = builder.bitcast(builder.gep(data, [start]), vector.as_pointer())
    scores = builder.load(address, align=kind.dtype.bitwidth // 8)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, bound, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    bounds = builder.shuffle_vector(first, undefined, zeros)
    return builder.fcmp_ordered(operator, scores, bounds)


@intrinsic
def above(typing_context: Any, array: Any, start: Any, bound: Any) -> Any:
    """Return a mask of which of ``array[start : start + LANES]`` exceed the bound."""

    def lower(context, builder, signature, values):
        holds = _exceeding(context, builder, signature.args[0], values)
        bits = builder.bitcast(holds, ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(array, types.intp, array.dtype), lower


@intrinsic
def not_below(typing_context: Any, array: Any, start: Any, bound: Any) -> Any:
    """Return a mask of which of them reach the bound."""

    def lower(context, builder, signature, values):
        holds = _exceeding(context, builder, signature.args[0], values, ">=")
        bits = builder.bitcast(holds, ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(array, types.intp, array.dtype), lower


@intrinsic
def marks_above(typing_context: Any, array: Any, start: Any, bound: Any) -> Any:
    """Return how many of them exceed the bound."""

    def lower(context, builder, signature, values):
        holds = _exceeding(context, builder, signature.args[0], values)
        bits = builder.bitcast(holds, ir.IntType(LANES))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(array, types.intp, array.dtype), lower


@intrinsic
def mark_above(
    typing_context: Any, array: Any, marks: Any, start: Any, bound: Any
) -> Any:
    """Set ``marks`` to 1 where the same exceed the bound, else 0; return how many."""

    def lower(context, builder, signature, values):
        array, marks, start, bound = values
        kind = signature.args[1]
        holds = _exceeding(context, builder, signature.args[0], (array, start, bound))
        data = context.make_array(kind)(context, builder, marks).data
        vector = ir.VectorType(data.type.pointee, LANES)
        address = builder.bitcast(builder.gep(data, [start]), vector.as_pointer())
        ones = builder.uitofp(holds, vector)
        builder.store(ones, address, align=kind.dtype.bitwidth // 8)
        bits = builder.bitcast(holds, ir.IntType(LANES))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(array, marks, types.intp, array.dtype), lower


@intrinsic
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the position of the lowest set bit of a mask that is not 0."""

    def lower(context, builder, signature, values):
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.int64(types.int64), lower


@intrinsic
def least(typing_context: Any, lanes: Any) -> Any:
    """Return the smallest number of the lanes."""

    def smaller(builder, low, high):
        return builder.select(builder.fcmp_ordered("<", low, high), low, high)

    return _folded(lanes, smaller)


@intrinsic
def total(typing_context: Any, lanes: Any) -> Any:
    """Return the sum over the lanes, in a fixed order."""
    return _folded(lanes, lambda builder, low, high: builder.fadd(low, high))


def _folded(lanes, join):
    def lower(context, builder, signature, values):
        (vector,) = values
        width = LANES
        while width > 1:
            width //= 2
            index = ir.VectorType(ir.IntType(32), width)
            low, high = (
                builder.shuffle_vector(
                    vector,
                    vector,
                    ir.Constant(index, list(range(start, start + width))),
                )
                for start in (0, width)
            )
            vector = join(builder, low, high)
        return builder.extract_element(vector, ir.IntType(32)(0))

    return lanes.dtype(lanes), lower


@intrinsic
def offsets(typing_context: Any, like: Any) -> Any:
    """Return the lanes 0, 1, 2, … as words of the kind of ``like``."""

    def lower(context, builder, signature, values):
        kind = values[0].type
        return ir.Constant(kind, list(range(LANES)))

    return like(like), lower


@intrinsic
def advance(typing_context: Any, words: Any, step: Any) -> Any:
    """Return the words plus a whole number."""

    def lower(context, builder, signature, values):
        words, step = values
        if words.type.element.width == 32:
            step = builder.trunc(step, ir.IntType(32))
        unset = ir.Constant(words.type, ir.Undefined)
        first = builder.insert_element(unset, step, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.add(words, builder.shuffle_vector(first, unset, zeros))

    return words(words, types.int64), lower


@intrinsic
def store_first(
    typing_context: Any, array: Any, start: Any, lanes: Any, count: Any
) -> Any:
    """Set ``array[start : start + count]`` to the first lanes."""

    def lower(context, builder, signature, values):
        array, start, lanes, count = values
        kind = signature.args[0]
        data = context.make_array(kind)(context, builder, array).data
        address = builder.bitcast(builder.gep(data, [start]), lanes.type.as_pointer())
        index = ir.VectorType(ir.IntType(32), LANES)
        unset = ir.Constant(index, ir.Undefined)
        short = builder.trunc(count, ir.IntType(32))
        first = builder.insert_element(unset, short, ir.IntType(32)(0))
        zeros = ir.Constant(index, [0] * LANES)
        bound = builder.shuffle_vector(first, unset, zeros)
        order = ir.Constant(index, list(range(LANES)))
        mask = builder.icmp_signed("<", order, bound)
        width = kind.dtype.bitwidth
        name = f"llvm.masked.store.v{LANES}f{width}.p0"
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(
                ir.VoidType(), [lanes.type, address.type, ir.IntType(32), mask.type]
            ),
            name,
        )
        align = ir.IntType(32)(width // 8)
        builder.call(function, [lanes, address, align, mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, types.int64), lower


@intrinsic
def add_where_equal(
    typing_context: Any,
    sums: Any,
    to: Any,
    places: Any,
    place: Any,
    values: Any,
    start: Any,
    step: Any,
    blocks: Any,
    width: Any,
) -> Any:
    """Add the lanes of blocks whose place it is to lanes in ``sums``, ``width`` rows.

    Row r of block b begins at ``start + b * step + r * LANES`` in ``values``; its sums
    are those of the r-th row from ``to`` on. They stay in registers meanwhile.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value

    def lower(context, builder, signature, arguments):
        to, place, start, step, blocks = (arguments[i] for i in (1, 3, 5, 6, 7))

        def data_of(position):
            kind = signature.args[position]
            return context.make_array(kind)(context, builder, arguments[position]).data

        def lanes_at(data, position):
            vector = ir.VectorType(data.type.pointee, LANES)
            return builder.bitcast(builder.gep(data, [position]), vector.as_pointer())

        whole = blocks.type
        row_size = signature.args[0].dtype.bitwidth // 8
        data, noise, where = data_of(0), data_of(4), data_of(2)
        rows = [builder.add(to, whole(row * LANES)) for row in range(count)]
        totals = [
            cgutils.alloca_once_value(
                builder, builder.load(lanes_at(data, row), align=row_size)
            )
            for row in rows
        ]
        vector = ir.VectorType(place.type, LANES)
        unset = ir.Constant(vector, ir.Undefined)
        wanted = builder.insert_element(unset, place, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        wanted = builder.shuffle_vector(wanted, unset, zeros)
        with cgutils.for_range(builder, blocks) as loop:
            own = lanes_at(where, builder.mul(loop.index, whole(LANES)))
            won = builder.icmp_unsigned("==", builder.load(own, align=4), wanted)
            first = builder.add(start, builder.mul(loop.index, step))
            for row, total_of in enumerate(totals):
                at = lanes_at(noise, builder.add(first, whole(row * LANES)))
                before = builder.load(total_of)
                after = builder.fadd(before, builder.load(at, align=row_size))
                builder.store(builder.select(won, after, before), total_of)
        for row, total_of in zip(rows, totals, strict=True):
            builder.store(builder.load(total_of), lanes_at(data, row), align=row_size)
        return context.get_dummy_value()

    intp = types.intp
    kinds = (sums, intp, places, types.uint32, values, intp, intp, intp, width)
    return types.void(*kinds), lower


add_where_equal.prefer_literal = True
