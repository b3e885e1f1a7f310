"""Calling compiled code by its address."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ARG001 (what is compiled has its signature from Numba)

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

# Declared here as what type checkers cannot see through.
intrinsic: Any = extending.intrinsic
overload: Any = extending.overload


def _call(result, typing_context, address, arguments):
    def lower(context, builder, signature, values):
        kinds = tuple(signature.args[1])
        function_type = context.call_conv.get_function_type(result, kinds)
        pointer = builder.inttoptr(values[0], function_type.as_pointer())
        unpacked = cgutils.unpack_tuple(builder, values[1], len(kinds))
        status, value = context.call_conv.call_function(
            builder, pointer, result, kinds, unpacked
        )
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return value

    return result(types.int64, arguments), lower


@intrinsic
def call_address(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the compiled function at ``address`` with a tuple of arguments.

    The function returns int64 and takes exactly the types in the tuple. Handing on an
    address costs nothing, where unboxing a first-class function costs 20 µs.
    """
    return _call(types.int64, typing_context, address, arguments)


@intrinsic
def call_void(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Do the same for a function that returns nothing."""
    return _call(types.none, typing_context, address, arguments)


@intrinsic
def read_int64(typing_context: Any, address: Any, index: Any) -> Any:
    """Return the int64 at a place in an array that starts at ``address``."""

    def lower(context, builder, signature, values):
        kind = ir.IntType(64)
        start = builder.inttoptr(values[0], kind.as_pointer())
        return builder.load(builder.gep(start, [values[1]]))

    return types.int64(types.int64, types.int64), lower


@intrinsic
def borrowed(typing_context: Any, array: Any) -> Any:
    """Return the array without a count of its references.

    Slices of it, and calls that it is handed to, then cost no atomic operations, which
    would take longer than a small block. Something else has to keep it alive: the
    caller, or :func:`hold`.
    """

    def lower(context, builder, signature, values):
        source = context.make_array(array)(context, builder, values[0])
        view = context.make_array(array)(context, builder)
        null = cgutils.get_null_value(view.meminfo.type)
        for field in ("data", "nitems", "itemsize", "shape", "strides"):
            setattr(view, field, getattr(source, field))
        view.meminfo = null
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), lower


@intrinsic
def hold(typing_context: Any, arrays: Any) -> Any:
    """Keep a tuple of arrays alive up to here."""

    def lower(context, builder, signature, values):
        return context.get_dummy_value()

    return types.void(arrays), lower
