"""Vectors of lanes: the same operation on many instances at once, in block kernels.

Whether LLVM turns a loop over the lanes into vector instructions depends on what it can
prove about the arrays. These say it outright: a ``Lanes`` value is a vector of
:data:`LANES` numbers that lives in registers, loaded from a flat array at a position
and stored back. Block kernels lay their arrays out coordinate-major, so coordinate
``v`` of all lanes starts at ``v * LANES``.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: ARG001 (what is compiled has its signature from Numba)

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, register_model

# Declared here as what type checkers cannot see through.
intrinsic: Any = extending.intrinsic

LANES = 32

# Bytes that a cache brings in at once. Vectors across two of them take twice as long,
# and Numba's arrays begin in the middle of one.
CACHE_LINE = 64


@numba.njit(nogil=True, error_model="numpy")
def lane_buffer(count, dtype):
    """Return a flat array of any content that begins with a line of the cache."""
    whole = np.empty(count + CACHE_LINE, dtype)
    beyond = -whole.ctypes.data & (CACHE_LINE - 1)
    start = beyond // whole.itemsize
    return whole[start : start + count]


@numba.njit(nogil=True, error_model="numpy")
def lane_rows(rows, dtype):
    """Return an array (rows, LANES) of any content that does."""
    return lane_buffer(rows * LANES, dtype).reshape((rows, LANES))


class Lanes(types.Type):
    """The Numba type of a vector of :data:`LANES` numbers of type ``dtype``."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """A ``Lanes`` value is an LLVM vector."""

    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, LANES))


def _address(
    context: Any, builder: Any, array_type: Any, array: Any, start: Any
) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    vector = ir.VectorType(data.type.pointee, LANES)
    return builder.bitcast(builder.gep(data, [start]), vector.as_pointer())


def _extremum(builder, name, left, right):
    # A comparison with a select would do, but LLVM makes a masked store of it where the
    # result goes back to where one side was loaded, and those are slow.
    width = {"float": 32, "double": 64}[str(left.type.element)]
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(left.type, [left.type, left.type]),
        f"{name}.v{LANES}f{width}",
    )
    return builder.call(function, [left, right], fastmath=("nnan", "nsz"))


@intrinsic
def load(typing_context: Any, array: Any, start: Any) -> Any:
    """Return the lanes from position ``start`` on of an array, taken as flat."""

    def lower(context, builder, signature, values):
        address = _address(context, builder, signature.args[0], *values)
        return builder.load(address, align=signature.args[0].dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.intp), lower


@intrinsic
def store(typing_context: Any, array: Any, start: Any, lanes: Any) -> Any:
    """Set ``array[start : start + LANES]``; integers are cut to the array's type."""

    def lower(context, builder, signature, values):
        address = _address(context, builder, signature.args[0], *values[:2])
        value = values[2]
        if value.type != address.type.pointee:
            value = builder.trunc(value, address.type.pointee)
        builder.store(value, address, align=signature.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), lower


@intrinsic
def fill(typing_context: Any, number: Any) -> Any:
    """Return lanes that all hold ``number``."""

    def lower(context, builder, signature, values):
        (scalar,) = values
        vector = ir.VectorType(scalar.type, LANES)
        unset = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(unset, scalar, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, unset, zeros)

    return Lanes(number)(number), lower


@intrinsic
def minimum(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the smaller number in each lane; neither may be NaN."""

    def lower(context, builder, signature, values):
        return _extremum(builder, "llvm.minnum", *values)

    return left(left, right), lower


@intrinsic
def maximum(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the larger number in each lane; neither may be NaN."""

    def lower(context, builder, signature, values):
        return _extremum(builder, "llvm.maxnum", *values)

    return left(left, right), lower


@intrinsic
def add(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the sum in each lane."""

    def lower(context, builder, signature, values):
        return builder.fadd(*values)

    return left(left, right), lower


@intrinsic
def join(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the bits set in either integer, in each lane."""

    def lower(context, builder, signature, values):
        return builder.or_(*values)

    return left(left, right), lower


@intrinsic
def negative(typing_context: Any, lanes: Any) -> Any:
    """Return the number with its sign changed, in each lane."""

    def lower(context, builder, signature, values):
        return builder.fneg(values[0])

    return lanes(lanes), lower


@intrinsic
def where_less(typing_context: Any, left: Any, right: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` in the lanes where ``left < right``, and ``no`` elsewhere."""

    def lower(context, builder, signature, values):
        left, right, yes, no = values
        return builder.select(builder.fcmp_ordered("<", left, right), yes, no)

    return yes(left, right, yes, no), lower


@intrinsic
def any_improves(typing_context: Any, new: Any, old: Any, bound: Any) -> Any:
    """Tell whether ``new < old`` and ``new <= bound`` in any lane."""

    def lower(context, builder, signature, values):
        new, old, bound = values
        improves = builder.fcmp_ordered("<", new, old)
        matters = builder.fcmp_ordered("<=", new, bound)
        bits = builder.bitcast(builder.and_(improves, matters), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(new, old, bound), lower
