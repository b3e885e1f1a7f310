"""Vector code for one row of scores: what the assignment kernel spends its time in.

Both functions look for the best column of a row and keep :data:`LANES` columns side by
side, in one pass over padded arrays. They are written as LLVM vectors because a loop
that keeps the position of a minimum is not vectorised by the compiler.
"""

# mypy: disable-error-code="no-untyped-call"

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_COLUMNS = ir.VectorType(_INT32, LANES)
_NO_COLUMN = 2**31 - 1


class _Row:
    """Builds code over blocks of ``LANES`` entries of type ``scalar``."""

    def __init__(self, context: Any, builder: Any, scalar: Any) -> None:
        self.builder = builder
        self.real = context.get_value_type(scalar)
        self.reals = ir.VectorType(self.real, LANES)
        self.suffix = f"f{scalar.bitwidth}"
        self.alignment = {self.reals: scalar.bitwidth // 8, _COLUMNS: 4}

    def splat(self, value: Any, vector: Any) -> Any:
        """Return a vector with ``value`` in every lane."""
        undefined = ir.Constant(vector, ir.Undefined)
        one = self.builder.insert_element(undefined, value, _INT32(0))
        everywhere = ir.Constant(_COLUMNS, [0] * LANES)
        return self.builder.shuffle_vector(one, undefined, everywhere)

    def pointer(self, data: Any, index: Any, vector: Any) -> Any:
        """Return the address of a block that starts at ``index``."""
        address = self.builder.gep(data, [index])
        return self.builder.bitcast(address, vector.as_pointer())

    def load(self, pointer: Any, vector: Any) -> Any:
        """Load a block that is aligned like its entries."""
        value = self.builder.load(pointer)
        value.align = self.alignment[vector]
        return value

    def store(self, value: Any, pointer: Any) -> None:
        """Store a block that is aligned like its entries."""
        self.builder.store(value, pointer).align = self.alignment[value.type]

    def variable(self, vector: Any, start: float) -> Any:
        """Return a vector variable that holds ``start`` in every lane."""
        initial = ir.Constant(vector, [start] * LANES)
        return cgutils.alloca_once_value(self.builder, initial)

    def extremum(self, name: str, first: Any, second: Any) -> Any:
        """Return the lane-wise ``minnum`` or ``maxnum`` of two vectors."""
        kind = ir.FunctionType(self.reals, [self.reals, self.reals])
        function = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.{name}.v{LANES}{self.suffix}"
        )
        return self.builder.call(function, [first, second], fastmath=("nnan", "nsz"))

    def reduce(self, name: str, vector: Any) -> Any:
        """Return the ``fmin`` or ``fmax`` of the lanes of a vector."""
        kind = ir.FunctionType(self.real, [self.reals])
        function = cgutils.get_or_insert_function(
            self.builder.module,
            kind,
            f"llvm.vector.reduce.{name}.v{LANES}{self.suffix}",
        )
        return self.builder.call(function, [vector], fastmath=("nnan",))

    def columns(self, base: Any) -> Any:
        """Return the column numbers of the block that starts at ``base``."""
        start = self.splat(self.builder.trunc(base, _INT32), _COLUMNS)
        return self.builder.add(start, ir.Constant(_COLUMNS, list(range(LANES))))

    def lowest_column(self, where: Any, chosen: Any) -> Any:
        """Return the lowest of the columns in the ``chosen`` lanes of ``where``."""
        kind = ir.FunctionType(_INT32, [_COLUMNS])
        function = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.vector.reduce.umin.v{LANES}i32"
        )
        nothing = ir.Constant(_COLUMNS, [_NO_COLUMN] * LANES)
        return self.builder.call(
            function, [self.builder.select(chosen, where, nothing)]
        )


def _operands(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Return the data pointers of the array arguments and the other arguments."""
    return [
        cgutils.create_struct_proxy(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


def _bid_row(typingctx, scores, start, prices, blocks):  # type: ignore[no-untyped-def]
    r"""Return the column of the largest :math:`s_j - p_j` and its lead on the second.

    ``scores[start:]`` is the row, of ``blocks * LANES`` columns. Ties go to the lowest
    column, with a lead of 0.
    """
    scalar = scores.dtype
    signature = types.Tuple((types.int64, scalar))(
        scores, types.int64, prices, types.int64
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scores, start, prices, blocks = _operands(context, builder, signature, args)
        row = _Row(context, builder, scalar)
        best = row.variable(row.reals, float("-inf"))
        second = row.variable(row.reals, float("-inf"))
        where = row.variable(_COLUMNS, 0)
        with cgutils.for_range(builder, blocks) as loop:
            base = builder.mul(loop.index, _INT64(LANES))
            score = row.load(
                row.pointer(scores, builder.add(start, base), row.reals), row.reals
            )
            price = row.load(row.pointer(prices, base, row.reals), row.reals)
            gain = builder.fsub(score, price)
            leader = builder.load(best)
            higher = builder.fcmp_ordered(">", gain, leader)
            loser = row.extremum("minnum", gain, leader)
            builder.store(row.extremum("maxnum", builder.load(second), loser), second)
            builder.store(row.extremum("maxnum", gain, leader), best)
            column = builder.select(higher, row.columns(base), builder.load(where))
            builder.store(column, where)
        leaders, seconds = builder.load(best), builder.load(second)
        columns = builder.load(where)
        largest = row.reduce("fmax", leaders)
        tied = builder.fcmp_ordered("==", leaders, row.splat(largest, row.reals))
        winner = row.lowest_column(columns, tied)
        won = builder.and_(
            tied, builder.icmp_unsigned("==", columns, row.splat(winner, _COLUMNS))
        )
        rest = row.reduce("fmax", builder.select(won, seconds, leaders))
        result = [builder.zext(winner, _INT64), builder.fsub(largest, rest)]
        return context.make_tuple(builder, signature.return_type, result)

    return signature, codegen


bid_row: Any = intrinsic(_bid_row)


def _relax_row(typingctx, scores, start, prices, distance, via, row, offset, blocks):  # type: ignore[no-untyped-def]
    r"""Relax the distances to all columns through one row; return the nearest column.

    Sets :math:`d_j \leftarrow \min(d_j, o - (s_j - p_j))` for the offset :math:`o`, and
    ``via[j] = row`` where that is less than before. Returns the least distance and its
    column, the lowest where several tie.
    """
    scalar = scores.dtype
    signature = types.Tuple((scalar, types.int64))(
        *(scores, types.int64, prices, distance, via, types.int32, scalar, types.int64)
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scores, start, prices, distance, via, number, offset, blocks = _operands(
            context, builder, signature, args
        )
        row = _Row(context, builder, scalar)
        numbers = row.splat(number, _COLUMNS)
        offsets = row.splat(offset, row.reals)
        least = row.variable(row.reals, float("inf"))
        where = row.variable(_COLUMNS, 0)
        with cgutils.for_range(builder, blocks) as loop:
            base = builder.mul(loop.index, _INT64(LANES))
            score = row.load(
                row.pointer(scores, builder.add(start, base), row.reals), row.reals
            )
            price = row.load(row.pointer(prices, base, row.reals), row.reals)
            known_at = row.pointer(distance, base, row.reals)
            known = row.load(known_at, row.reals)
            via_at = row.pointer(via, base, _COLUMNS)
            through = builder.fsub(offsets, builder.fsub(score, price))
            closer = builder.fcmp_ordered("<", through, known)
            nearest = row.extremum("minnum", through, known)
            row.store(nearest, known_at)
            row.store(
                builder.select(closer, numbers, row.load(via_at, _COLUMNS)), via_at
            )
            leader = builder.load(least)
            lower = builder.fcmp_ordered("<", nearest, leader)
            builder.store(row.extremum("minnum", nearest, leader), least)
            column = builder.select(lower, row.columns(base), builder.load(where))
            builder.store(column, where)
        leaders = builder.load(least)
        smallest = row.reduce("fmin", leaders)
        tied = builder.fcmp_ordered("==", leaders, row.splat(smallest, row.reals))
        nearest = row.lowest_column(builder.load(where), tied)
        result = [smallest, builder.zext(nearest, _INT64)]
        return context.make_tuple(builder, signature.return_type, result)

    return signature, codegen


relax_row: Any = intrinsic(_relax_row)
