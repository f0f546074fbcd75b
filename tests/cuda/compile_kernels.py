"""Compiles every CUDA kernel to PTX for sm_90, without a driver and without the simulator; prints a line of JSON each.

    python tests/cuda/compile_kernels.py

Generated kernels are compiled for sets of columns that have every merge and every form of input in them. All but some
of the many kinds of `ranges` are also assembled to machine code, by nvJitLink, which says what registers and memory
they take.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from types import SimpleNamespace

import numba.cuda.dispatcher
from cuda.bindings import nvjitlink
from numba import cuda

import gpuwin_kernels.cuda
from gpuwin_kernels.cpu.row_source import feed_of
from gpuwin_kernels.cuda import cells, many, packed, ranges, rows, runtime, watermark
from gpuwin_kernels.cuda.row_source import DeviceRowSpec
from gpuwin_kernels.layout import DTYPES, MERGE_DTYPES, MERGES, CellColumn

SM_90 = (9, 0)

#: (columns and the number and form of the input of each; the inputs: form, has nulls, dtype)
ROW_KERNELS = [
    (
        [("sum", "int64", 0, "count"), ("sum", "float64", 1, "float"), ("min", "float64", 1, "float")],
        [("count", False, ""), ("float", True, "float64")],
    ),
    (
        [
            ("sum", "int64", 0, "int"),
            ("sum", "int128", 1, "wide"),
            ("max", "int64", 0, "int"),
            ("sum", "int128", 2, "uint"),
        ],
        [("int", True, "int32"), ("wide", True, "int64"), ("uint", False, "uint64")],
    ),
    ([("sum", "float64", 0, "float"), ("max", "float64", 0, "float")], [("float", False, "float32")]),
    (
        [("sum", "float64", 1, "float"), ("sum", "int64", 0, "count"), ("min", "int64", 2, "int")],
        [("count", False, ""), ("float", False, "float64"), ("int", False, "int64")],
    ),
    ([("sum", "int128", 0, "int"), ("sum", "int64", 1, "count")], [("int", False, "int64"), ("count", True, "")]),
]


def generate() -> None:
    """Enters the generated kernels in the registry."""
    for columns, inputs in ROW_KERNELS:
        feeds = tuple(
            feed_of(CellColumn(str(k), merge, dtype, nullable=True), source, form)
            for k, (merge, dtype, source, form) in enumerate(columns)
        )
        forms, checked, dtypes = zip(*inputs, strict=True)
        rows.row_kernels(DeviceRowSpec(feeds, forms, checked), dtypes)
    for merge in MERGES:
        for dtype in DTYPES:
            if merge != "user" and dtype in MERGE_DTYPES[merge]:
                ranges.range_kernels((CellColumn("", merge, dtype),))
    several = (CellColumn("", "sum", "int64"), CellColumn("", "sum", "float64"), CellColumn("", "min", "int128"))
    for more in (False, True):
        ranges.range_kernels(several, more)
    cuts = [watermark.source_of((False, True), ahead) for ahead in (False, True)]
    spare = cells._spare_rows(*([()] * 4)).source
    for source in (*cuts, spare):
        many.beside_kernel(*source)
    packed.pack_kernel(("int64", "float64", "uint8"), 3)
    packed.pack_kernel(("int64", "float64", "uint8"), 3, (cuts[1], spare))
    packed.pack_kernel(("int64",), 12, (watermark.source_of((False,) * 13 + (True,), True), spare))
    for arrays, runs in ((3, 3), (4, 8), (18, 2)):  # as many as the arguments hold
        packed.merge_kernel(("int64", "float64", "uint8", *["float64"] * (arrays - 3)), runs)
    kinds = ("int64", "int32", "float64", "uint8", "uint64")
    for made in (many.gather_kernel, many.append_kernel, many.collect_kernel):
        made(kinds)
        made(("int64", "int32") + ("float64",) * (many.MOST - 2))
    many.part_kernel(kinds)
    many.part_kernel(("float64",) * many.MOST_OF_THREE)


#: Kinds of `ranges` that are assembled: what takes the most registers of each sort.
ASSEMBLED = ("sum_int128", "correlation_float64", "last_int128", "registers_int64", "max_bytes")


def assembled(ptx: str) -> dict[str, int]:
    """What the assembler says: registers of a thread, and bytes of its stack, of spills and of arguments."""
    data = ptx.encode()
    handle = nvjitlink.create(3, ["-arch=sm_90", "-verbose", "-Xptxas=-v"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    told = log.decode(errors="replace")

    def number(pattern: str) -> int:
        return max(int(found) for found in re.findall(pattern, told))

    return {
        "registers": number(r"[Uu]sed (\d+) registers"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spilled": number(r"(\d+) bytes spill stores"),
        "arguments": number(r"(\d+) bytes cmem\[0\]"),
    }


def main() -> None:
    # Functions called by kernels are compiled for the device at hand: here there is none.
    numba.cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=SM_90)
    for module in pkgutil.iter_modules(gpuwin_kernels.cuda.__path__):
        importlib.import_module(f"gpuwin_kernels.cuda.{module.name}")
    generate()
    for registered in runtime.REGISTRY.values():
        for signature in registered.signatures:
            ptx, _ = cuda.compile(registered.function, signature, cc=SM_90, device=False, abi="numba", output="ptx")
            divisions = re.findall(r"\b(?:div|rem)\.[us]64|call[^;]*\b__\w*(?:div|rem)\w*", ptx)
            kind = registered.name.partition("ranges.")[2].partition("[")[2][:-1]
            machine = assembled(ptx) if not kind or kind in ASSEMBLED else None
            print(
                json.dumps(
                    {
                        "kernel": registered.name,
                        "hot": registered.hot,
                        "bytes": len(ptx),
                        "target": ".target sm_90" in ptx,
                        "divisions": len(divisions),
                        "local": ".local" in ptx,
                        "to_float": len(re.findall(r"cvt\.rn\.f64\.[us]64", ptx)),
                        "machine": machine,
                    }
                )
            )


if __name__ == "__main__":
    main()
