"""One partition of an operator that runs a whole `gw.WindowedAggregation`: its state, and the log that rebuilds it.

An operator has kinds of state that no table of cells can hold (triggers that wait, values in order of arrival), and one
thing in common: the same batches lead to the same state. So the log keeps the rows of each batch as they came, with the
watermark and the time of the batch, and once these take more room than the state, a snapshot of the state instead of
all before. A row is thus written twice or so, whatever the number of windows it is in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import pyarrow as pa

from gpuwin.metrics import Metrics
from gpuwin.operator import WindowOperator

from .aggregation_spec import AggregationSpec, Event
from .partition import BatchTimes, Outcome, StateSize
from .protocol import ProtocolError

log = logging.getLogger("gpuwin")

_SNAPSHOT: Final = b"S"
_BATCH: Final = b"B"
_NOTE: Final = b"gpuwin.batch"
#: Rows are kept until they take this many bytes, however small the state.
LEAST_BYTES: Final = 1 << 20
#: Batches are replayed when a state is rebuilt, so there are not too many of them.
MOST_BATCHES: Final = 256
#: A record is cut into values of the state store of this size.
PIECE: Final = 1 << 24


@dataclass(frozen=True)
class AggregationPartition:
    """The running operator of one partition. A batch makes a branch of it and leaves it as it is.

    logged: bytes that the log holds since the last snapshot. snapshot: bytes of that snapshot. batches: how many
    records there are since.
    """

    spec: AggregationSpec
    operator: WindowOperator
    logged: int = 0
    snapshot: int = 0
    batches: int = 0

    @classmethod
    def rebuilt(cls, spec: AggregationSpec, segments: list[list[bytes]], device: str) -> AggregationPartition:
        """The state that the segments of a log hold, oldest first. ``device``: as for `WindowedAggregation.start`."""
        partition = cls(spec, WindowOperator(spec.partial, device=device, schema=spec.input))
        for chunks in segments:
            record = b"".join(chunks)
            if record[:1] == _SNAPSHOT:
                operator = WindowOperator.restored(spec.partial, record[1:], device=device)
                partition = cls(spec, operator, 0, len(record), 0)
            elif record[:1] == _BATCH:
                event = _read_event(record)
                operator, _ = event.apply(spec, partition.operator)
                partition = partition._after(operator, len(record))
            else:
                raise ProtocolError("a segment of the log is not one of this operator's")
        return partition

    @property
    def state(self) -> StateSize:
        """Size of the state."""
        return StateSize(self.metrics.cells, self.metrics.state_bytes)

    @cached_property
    def metrics(self) -> Metrics:
        """The operator's counters, for which it has to look at all of its state."""
        return self.operator.metrics

    @property
    def is_on_device(self) -> bool:
        """Whether the operator works on a GPU."""
        return self.operator.device == "cuda"

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[AggregationPartition]:
        """Applies one batch.

        Args:
            chunks: Arrow streams of rows.
            times: the watermarks and the time of the batch.
            rows: the most results in one emitted record batch.

        Raises:
            gpuwin.OverflowError, gpuwin.LimitExceeded: as `WindowOperator.process`; the state is as it was.
        """
        event = Event(times.evict, times.now, times.data, self.spec.rows(chunks))
        operator, emitted = event.apply(self.spec, self.operator)
        after = replace(self, operator=operator)
        logged: tuple[bytes, ...] = ()
        replaces = False
        if self._is_news(event, operator, emitted):
            record = _write_event(event)
            after = self._after(operator, len(record))
            if after.logged > max(LEAST_BYTES, after.snapshot) or after.batches > MOST_BATCHES:
                record, replaces = _SNAPSHOT + operator.snapshot(), True
                after = AggregationPartition(self.spec, operator, 0, len(record), 0)
            logged = tuple(record[at : at + PIECE] for at in range(0, len(record), PIECE))
        before, now = self.metrics, after.metrics
        dropped = now.rows_late - before.rows_late
        rejected = dropped + now.rows_unassigned - before.rows_unassigned + now.rows_null_time - before.rows_null_time
        return Outcome(
            after,
            self._tables(emitted, rows),
            updated=event.rows.num_rows - rejected,
            removed=max(0, before.cells - now.cells),
            dropped=dropped,
            first=None,
            logged=logged,
            logged_cells=max(1, event.rows.num_rows) if logged else 0,
            replaces=replaces,
        )

    def _after(self, operator: WindowOperator, record: int) -> AggregationPartition:
        return replace(self, operator=operator, logged=self.logged + record, batches=self.batches + 1)

    def _is_news(self, event: Event, operator: WindowOperator, emitted: list[pa.Table]) -> bool:
        """Whether the log must know of the batch: an empty one may have changed nothing."""
        if event.rows.num_rows or any(table.num_rows for table in emitted):
            return True
        if operator.watermark != self.operator.watermark and self.spec.lags:
            return True  # the next batch's rows are late by it, also where they are the partition's first
        quiet = operator.watermark == self.operator.watermark and not self.spec.reads_clock
        return self.metrics.rows_in > 0 and not quiet

    def _tables(self, emitted: list[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
        for table in emitted:
            if table.num_rows:
                yield from self.spec.results(table).combine_chunks().to_batches(max_chunksize=rows)


def _write_event(event: Event) -> bytes:
    note = {"spark": event.spark, "now": event.now, "data": event.data}
    schema = event.rows.schema.with_metadata({_NOTE: json.dumps(note).encode()})
    sink = pa.BufferOutputStream()
    sink.write(_BATCH)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(event.rows.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def _read_event(record: bytes) -> Event:
    with pa.ipc.open_stream(pa.py_buffer(record)[1:]) as reader:
        rows = reader.read_all()
    try:
        note = json.loads((rows.schema.metadata or {})[_NOTE])
        spark, now, data = note["spark"], int(note["now"]), bool(note["data"])
    except (KeyError, TypeError, ValueError) as e:
        raise ProtocolError("a batch in the log does not say when it was") from e
    return Event(spark, now, data, rows.replace_schema_metadata(None))
