"""Compiles the kernels before anything is timed: Numba does it once on a machine, and keeps the result on disk.

``python -m gpuwin.demo.warm QUERY ...`` does so in a process of its own, beside whatever else has to be prepared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import timedelta
from types import TracebackType
from typing import Any



from .flights import DemoError
from .queries import QUERIES, DemoQuery

_BATCHES = 4


class Compilation:
    """A process that compiles the kernels of a query; a context that leaves no process behind."""

    def __init__(self, query: DemoQuery) -> None:
        self._said = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "gpuwin.demo.warm", query.name]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said)

    def __enter__(self) -> Compilation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def done(self) -> bool:
        """Whether the kernels are there.

        Raises:
            DemoError: they cannot be compiled; says what Numba said.
        """
        ended = self._process.poll()
        if ended:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit code {ended}"
            raise DemoError(f"The kernels could not be compiled ({last}). `gpuwin doctor` may say more.")
        return ended == 0


def compile_kernels(query: DemoQuery) -> None:
    """Runs a few cells through what a device service does for this query, which compiles each kernel that it needs."""
    import pyarrow as pa  # here, since the demo itself only starts the process that needs all this

    from gpuwin_spark.service.operator_spec import Merge, OperatorSpec
    from gpuwin_spark.service.partition import Partition, Watermarks

    size, slide = (d // timedelta(microseconds=1) for d in (query.size, query.slide))
    sums = [Merge("sum", (i,), wrap=i != 1, nullable=i == 1, precision=0) for i in range(4)]
    buffers = (pa.int64(), pa.float64(), pa.int64(), pa.int64())  # count, average's sum and count, count
    keys = len(query.keys)
    spec = OperatorSpec(size, slide, 0, "append", (*[pa.string()] * keys, pa.int64(), *buffers), keys, tuple(sums))
    partition, through = Partition.empty(spec), None
    for number in range(_BATCHES):
        time_of = number * size // 2
        panes = [time_of - time_of % spec.pane + i * spec.pane for i in range(3)]
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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compile_kernels(QUERIES[name])
