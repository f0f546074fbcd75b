"""The host's time of a warm batch on the device, with nothing behind the launches; and what the batch launches.

    python benchmarks/gpu_host_time.py [--keys 10000] [--batches 12] [--repeat 5] [--only NAME] [--json FILE]

Runs in Numba's simulator, and needs no GPU. A stream is processed once as it is, and what the host has read is written
down. Then it is processed again by a new operator, with kernels, sorts, scans and fills that do nothing, and reads that
give what was written down: so the host goes the same way, and its time is that of our own Python, with the copies of
rows into pinned memory. What Numba and the driver take for a launch or an array of a device is not in it, and comes on
top for each that is counted: `gpu_check.py` measures the whole of it, on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before Numba is imported

import numpy as np
import pyarrow as pa
from gpu_warm_batches import SHAPES, Shape
from numba.cuda.simulator.kernel import FakeCUDAKernel

from gpuwin_kernels.cuda import counted, primitives, runtime
from gpuwin_kernels.cuda.runtime import empty, sent


class Tape:
    """What the host has read, in order."""

    def __init__(self) -> None:
        self.read: list[np.ndarray] = []
        self._at = 0
        self._to_host = runtime.to_host

    def write(self, array: Any) -> np.ndarray:
        self.read.append(self._to_host(array))
        return self.read[-1]

    def give(self, _: Any) -> np.ndarray:
        self._at += 1
        return self.read[self._at - 1]


def patched_everywhere(name: str, by: Any) -> list[Any]:
    """Patches of a function of `runtime` in all modules that have imported it by name."""
    was = getattr(runtime, name)
    modules = [m for n, m in sys.modules.items() if n.startswith("gpuwin") and getattr(m, name, None) is was]
    return [mock.patch.object(module, name, by) for module in modules]


@contextmanager
def all_of(patches: list[Any]) -> Iterator[None]:
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def nothing_behind() -> list[Any]:
    """Patches of all that stands for work of the device."""

    def do_nothing(*_: Any) -> None: ...

    def sort_pairs(keys: Any, values: Any, bits: int = 64, first: int = 0) -> tuple[Any, Any]:
        sent.launches["sort"] += 1
        empty(16 * len(keys), np.uint8)
        return empty(len(keys), np.uint64), empty(len(keys), values.dtype)

    def running_sum(values: Any) -> Any:
        sent.launches["scan"] += 1
        return values

    def buffer(_: Any, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def full(n: int, value: Any, dtype: Any) -> Any:
        sent.launches["fill"] += n > 0
        return empty(n, dtype)

    return [
        mock.patch.object(FakeCUDAKernel, "__call__", do_nothing),
        mock.patch.object(primitives, "sort_pairs", sort_pairs),
        mock.patch.object(primitives, "running_sum", running_sum),
        mock.patch.object(counted.SimulatedPool, "buffer", buffer),
        *patched_everywhere("full", full),
    ]


def measured(shape: Shape, tables: list[pa.Table], repeat: int) -> dict[str, Any]:
    shape.specification().start(device="cuda").process(tables[0])  # imports what there is to patch
    tape, op = Tape(), shape.specification().start(device="cuda")
    counts: list[dict[str, Any]] = []
    with all_of(patched_everywhere("to_host", tape.write)):
        for table in tables:
            launches, arrays, moved, waits = sent.launches.copy(), sent.arrays, sent.moved, runtime.waits()
            op.process(table)
            kinds = dict(sent.launches - launches)
            here = {"launches": sum(kinds.values()), "arrays": sent.arrays - arrays, "moved": sent.moved - moved}
            counts.append({**here, "waits": runtime.waits() - waits, "kinds": kinds})
    half = len(tables) // 2
    seconds = []
    for _ in range(repeat):
        again, op = Tape(), shape.specification().start(device="cuda")
        again.read = tape.read
        with all_of([*patched_everywhere("to_host", again.give), *nothing_behind()]):
            took = []
            gc.collect()
            for table in tables:
                began = time.thread_time()  # of the processor: other load hardly moves it
                op.process(table)
                took.append(time.thread_time() - began)
        seconds += took[half:]
    most = max(counts[half:], key=lambda c: c["launches"])
    return {
        "host_ms": 1000 * statistics.median(seconds),
        "least_host_ms": 1000 * min(seconds),
        "launches": most["launches"],
        "arrays": max(c["arrays"] for c in counts[half:]),
        "copies_from_host": max(c["moved"] for c in counts[half:]),
        "waits": max(c["waits"] for c in counts[half:]),
        "kinds": most["kinds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of a shape")
    parser.add_argument("--text", action="store_true", help="keys are texts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for shape in SHAPES:
        if options.only not in shape.name:
            continue
        tables = list(shape.batches(options.keys, options.batches, options.text))
        found[shape.name] = row = measured(shape, tables, options.repeat)
        print(
            f"{shape.name:18} host {row['host_ms']:5.2f} ms, least {row['least_host_ms']:5.2f}; "
            f"{row['launches']:2} launches, {row['arrays']:2} arrays, {row['copies_from_host']} copies from the host, "
            f"{row['waits']} waits",
            flush=True,
        )
    if options.json:
        whole = {"load": os.getloadavg()[0], "keys": options.keys, "shapes": found}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
