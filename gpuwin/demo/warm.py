"""Compiles the kernels before anything is timed: Numba does it once on a machine, and keeps the result on disk.

``python -m gpuwin.demo.warm QUERY ...`` does so in a process of its own, beside whatever else has to be prepared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final

from numpy.typing import ArrayLike

from gpuwin_kernels.tuning import SPLIT_ROWS

from .flights import DemoError
from .queries import QUERIES, DemoQuery

#: Cells of each batch, and its days of event time: the first ones are small, as the demo's are, and one is large enough
#: to be shared by all threads.
_CELLS: Final = ((300, 1), (600, 1), (1_200, 2), (2_400, 4), (5_000, 16), (5_000, 16), (SPLIT_ROWS, 64), (5_000, 16))
#: A power of two, so that a chunk of the result is full, as those of the flights are: it goes to all threads then.
_KEYS: Final = 16
#: Rows of a chunk of the result: the default of spark.gpuwin.chunk.rows.
_WINDOWS: Final = 1 << 16
_DAY: Final = 86_400_000_000  # microseconds


class Compilation:
    """A process that compiles the kernels of a query, and says its errors in a log; a context that ends with it."""

    def __init__(self, query: DemoQuery, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "gpuwin.demo.warm", query.name]
        with open(log, "wb") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def __enter__(self) -> Compilation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def done(self) -> bool:
        """Whether the kernels are there.

        Raises:
            DemoError: they cannot be compiled; says what Numba said.
        """
        ended = self._process.poll()
        if ended:
            said = self._log.read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit code {ended}"
            raise DemoError(f"The kernels could not be compiled ({last}). `gpuwin doctor` may say more.")
        return ended == 0


def compile_kernels(query: DemoQuery) -> None:
    """Runs batches like those of the flights through what a device service does for this query.

    That compiles each kernel that it will need: keys without nulls, cells in no order, more keys than a few, panes that
    an earlier batch had too, and enough windows at once for several threads.
    """
    import numpy as np  # here, since the demo itself only starts the process that needs all this
    import pyarrow as pa

    random, pane = np.random.default_rng(0), _pane(query)
    keys, batches = np.array([f"k{i}" for i in range(_KEYS)]), []
    begin = 0
    for many, days in _CELLS:
        span = days * _DAY
        # Cells of a batch are distinct, as Spark's shuffle brings them.
        first, last = (begin - span // 8) // pane, (begin + span) // pane
        cell = random.choice((last - first) * _KEYS, many, replace=False)
        total = pa.array(random.random(many), mask=random.random(many) < 0.1)
        ones = np.ones(many, np.int64)
        key = [keys[cell % _KEYS]] * len(query.keys)
        batches.append((begin, [*key, (first + cell // _KEYS) * pane, ones, total, ones, ones]))
        begin += span
    run_cells(query, batches)


def run_cells(query: DemoQuery, batches: Iterable[tuple[int, Sequence[ArrayLike]]]) -> None:
    """Runs batches of cells through the state of a query, as a device service does.

    Args:
        query: one of the demo's.
        batches: of each, the watermark in microseconds, and its columns: keys, panes in microseconds, and the buffers
            of Spark's aggregates, which are a count, a sum and a count for the average, and a count.
    """
    import pyarrow as pa

    from gpuwin_spark.service.operator_spec import GridSpec, Merge
    from gpuwin_spark.service.partition import BatchTimes, Partition

    size, slide = (d // timedelta(microseconds=1) for d in (query.size, query.slide))
    sums = [Merge("sum", (i,), wrap=i != 1, nullable=i == 1, precision=0) for i in range(4)]
    buffers = (pa.int64(), pa.float64(), pa.int64(), pa.int64())
    keys = len(query.keys)
    spec = GridSpec(size, slide, 0, "append", (*[pa.string()] * keys, pa.int64(), *buffers), keys, tuple(sums))
    partition, through = Partition.empty(spec), None
    for watermark, values in batches:
        columns = [pa.array(v, t) for v, t in zip(values, spec.types, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=spec.cell_schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        chunks = [sink.getvalue().to_pybytes()]
        done = partition.batch(chunks, BatchTimes(late=through, evict=watermark, through=through), _WINDOWS)
        for _ in done.windows:
            pass
        partition, through = done.after, watermark


def _pane(query: DemoQuery) -> int:
    """The width of the query's panes in microseconds: its slide, which divides its size."""
    return query.slide // timedelta(microseconds=1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compile_kernels(QUERIES[name])
