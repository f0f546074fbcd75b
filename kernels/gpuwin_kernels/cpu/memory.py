"""Unaligned loads from byte arrays and stores to them, the bits of floats, and copies of items: what Numba has no words
for, or long ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpuwin_kernels.cpu.code_cache import njit


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
def store_u64(typing_context: Any, array: Any, index: Any, word: Any) -> Any:
    """store_u64(bytes uint8[], i, word): the 8 bytes from i on, without a check of bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        builder.store(args[2], address, align=1)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.uint64), codegen


@intrinsic
def swap_bytes(typing_context: Any, word: Any) -> Any:
    """A uint64 with its bytes the other way round."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


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
    """Number of low bits of a uint64 that are zero; 64 for 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.uint64), codegen


@intrinsic
def ones(typing_context: Any, value: Any) -> Any:
    """Number of bits of a uint64 that are one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def fold_multiply(typing_context: Any, a: Any, b: Any) -> Any:
    """The product of two uint64, its upper 64 bits xor its lower ones: mixes well in one multiplication (wyhash)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        upper = builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))
        return builder.xor(upper, builder.trunc(product, ir.IntType(64)))

    return types.uint64(types.uint64, types.uint64), codegen


def _prefetcher(write: int) -> Any:
    @intrinsic
    def ask(typing_context: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            i32 = ir.IntType(32)
            pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
            )
            builder.call(function, [pointer, i32(write), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.none(array, types.uint64), codegen

    return ask


prefetch = _prefetcher(
    1
)  # prefetch(array, i): asks for the cache line of array[i] (i uint64, maybe out of bounds), ...
fetch = _prefetcher(0)  # ... to be written soon; or only to be read, which takes it from no other core


@njit(nogil=True, cache=True)
def copy_items(items, begin, n, out, at):  # type: ignore[no-untyped-def]
    """out[at : at + n] = items[begin : begin + n]; a loop, since Numba compiles an assignment of slices together with
    the text of an error on their shapes, which takes a second and more. No place counts from the end, so places are
    unsigned: with a question for each whether it is negative, items would be copied one by one.
    """
    for i in range(n):
        out[np.uint64(at + i)] = items[np.uint64(begin + i)]
