"""Unaligned loads from byte arrays, and the bits of floats, which Numba has no words for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, array: Any, index: Any) -> Any:
        signature = result(array, types.int64)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            address = builder.gep(data, [args[1]])
            value = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value

        return signature, codegen

    return load


load_u64 = _loader(64, types.uint64)  # load_u64(bytes uint8[], i): the 8 bytes from i on, without a check of bounds
load_u32 = _loader(32, types.uint64)  # 4 bytes, widened


@intrinsic
def float_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float64 as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def bits_float(typing_context: Any, value: Any) -> Any:
    """The float64 with these bits (int64)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """How many low bits of a uint64 are zero; 64 for 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.uint64), codegen


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of array[index], to be written soon. The index (uint64) may be out of bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        i32 = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        )
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(array, types.uint64), codegen
