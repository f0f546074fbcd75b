"""Compiles the kernels before anything is timed: Numba does it once on a machine, and keeps the result on disk."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pyarrow as pa

from gpuwin_spark.service.operator_spec import Merge, OperatorSpec
from gpuwin_spark.service.partition import Partition, Watermarks

from .queries import DemoQuery

_BATCHES = 4


def compile_kernels(query: DemoQuery) -> float:
    """Runs a few cells through what a device service does for this query; returns the seconds that it took."""
    begin = time.monotonic()
    size, slide = (d // timedelta(microseconds=1) for d in (query.size, query.slide))
    sums = [Merge("sum", (i,), wrap=i != 1, nullable=i == 1, precision=0) for i in range(4)]
    buffers = (pa.int64(), pa.float64(), pa.int64(), pa.int64())  # count, average's sum and count, count
    keys = len(query.keys)
    spec = OperatorSpec(size, slide, 0, "append", (*[pa.string()] * keys, pa.int64(), *buffers), keys, tuple(sums))
    partition, through = Partition.empty(spec), None
    for number in range(_BATCHES):
        time_of = number * size // 2
        panes = [time_of - time_of % spec.grid.width + i * spec.grid.width for i in range(3)]
        values: list[list[Any]] = [["a", "b", None]] * keys
        values += [panes, [1, 2, 3], [0.5, None, 1.5], [1, 0, 1], [1, 1, 1]]
        columns = [pa.array(v, t) for v, t in zip(values, spec.types, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=spec.cell_schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        chunks = [sink.getvalue().to_pybytes()]
        done = partition.batch(chunks, Watermarks(late=through, evict=time_of, through=through), 1000)
        for _ in done.windows:
            pass
        partition, through = done.after, time_of
    return time.monotonic() - begin
