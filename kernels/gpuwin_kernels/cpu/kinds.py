"""Merges of two cells of a partial column, as lines of source: the part that generated kernels differ in.

Lines work on expressions `d` (the target's words, assignable) and `s` (the source's words). `bad` is an int64 that
turns negative for good where an exact sum leaves its type. `heap_offsets`, `heap_data` and `user_merge` are names in
the scope of the generated function.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwin_kernels.layout import (
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    FIRST,
    LAST,
    MAX,
    MIN,
    REGISTERS,
    STATISTICS,
    SUM,
    CellColumn,
)

IMPORTS = """from gpuwin_kernels.cpu.scalar import bytes_before, float_before, moments_add, wide_add, wide_before
from gpuwin_kernels.cpu.statistics import comoments_add, correlation_add, moments3_add, moments4_add, registers_max"""
"""What a module needs for any of the lines."""
_BITWISE = {BIT_AND: "&", BIT_OR: "|", BIT_XOR: "^"}


def kind_name(column: CellColumn) -> str:
    """A name for what is compiled: columns of one kind share their kernels."""
    if column.user is not None:
        return f"user_{'_'.join(column.user.fields)}"
    return f"{column.merge}_{column.dtype}{'_wrap' if column.wrap and column.merge == SUM else ''}"


def _assign(d: Sequence[str], s: Sequence[str]) -> list[str]:
    return [f"{', '.join(d)} = {', '.join(s)}"]


def _before(column: CellColumn, a: Sequence[str], b: Sequence[str]) -> str:
    """The expression a < b for the values of a column of this dtype."""
    if column.dtype == "int64":
        return f"{a[0]} < {b[0]}"
    if column.dtype == "float64":
        return f"float_before({a[0]}, {b[0]})"
    if column.dtype == "int128":
        return f"wide_before({a[0]}, {a[1]}, {b[0]}, {b[1]})"
    return f"bytes_before(heap_offsets, heap_data, {a[0]}, {b[0]})"


def merge_lines(column: CellColumn, d: Sequence[str], s: Sequence[str]) -> list[str]:
    """Merges s into d, both of which hold a value."""
    if column.merge == SUM:
        if column.dtype == "float64" or column.wrap:
            if column.dtype == "int128":
                return [f"{d[0]}, {d[1]}, _ = wide_add({d[0]}, {d[1]}, {s[0]}, {s[1]})"]
            return [f"{d[0]} += {s[0]}"]
        if column.dtype == "int64":
            return [
                f"total = {d[0]} + {s[0]}",
                f"bad |= ({d[0]} ^ total) & ({s[0]} ^ total)",
                f"{d[0]} = total",
            ]
        return [f"{d[0]}, {d[1]}, over = wide_add({d[0]}, {d[1]}, {s[0]}, {s[1]})", "bad |= over"]
    if column.merge == MIN:
        return [f"if {_before(column, s, d)}:", *(f"    {x}" for x in _assign(d, s))]
    if column.merge == MAX:
        return [f"if {_before(column, d, s)}:", *(f"    {x}" for x in _assign(d, s))]
    if column.merge in STATISTICS:
        return [f"{', '.join(d)} = {column.merge}_add(({', '.join(d)}), ({', '.join(s)}))"]
    if column.merge in _BITWISE:
        return [f"{d[0]} {_BITWISE[column.merge]}= {s[0]}"]
    if column.merge == REGISTERS:
        return [f"{d[0]} = registers_max({d[0]}, {s[0]})"]
    if column.merge in (FIRST, LAST):
        sign = "<" if column.merge == FIRST else ">"
        return [
            f"if {s[0]} {sign} {d[0]} or ({s[0]} == {d[0]} and {s[1]} {sign} {d[1]}):",
            *(f"    {x}" for x in _assign(d, s)),
        ]
    if len(d) == 1:
        return [f"{d[0]} = user_merge({d[0]}, {s[0]})[0]"]
    return [f"{', '.join(d)} = user_merge({', '.join(d)}, {', '.join(s)})"]
