"""Deduplications in the service, against a dictionary of keys: late rows, eviction, batches that fail, the log."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from gpuwin.state.keys import dead_keys
from gpuwin_spark.service import deduplication_partition
from gpuwin_spark.service.cell_tables import streamed
from gpuwin_spark.service.deduplication_partition import DeduplicationPartition
from gpuwin_spark.service.deduplication_spec import KEYS, ROWS, DeduplicationSpec
from gpuwin_spark.service.log_segments import LogSegment
from gpuwin_spark.service.partition import BatchTimes
from gpuwin_spark.service.protocol import ProtocolError
from gpuwin_spark.service.states import merged, parse_state_spec, rebuilt

NEVER = (1 << 63) - 1
Row = tuple[bytes, int | None, bytes]
SPECS = {
    "within": DeduplicationSpec(delay=7, evicts=True),
    "by time": DeduplicationSpec(delay=None, evicts=True),
    "for ever": DeduplicationSpec(delay=None, evicts=False),
}


def chunks_of(rows: list[Row], size: int) -> list[bytes]:
    def batch(some: list[Row]) -> pa.RecordBatch:
        columns = zip(zip(*some, strict=True), ROWS.types, strict=True)
        return pa.record_batch([pa.array(values, type_) for values, type_ in columns], schema=ROWS)

    return [chunk for at in range(0, len(rows), size) for chunk in streamed(ROWS, [batch(rows[at : at + size])])]


class Spark:
    """What Spark's operators do, key by key."""

    def __init__(self, spec: DeduplicationSpec) -> None:
        self.spec = spec
        self.state: dict[bytes, int] = {}

    def batch(self, rows: list[Row], late: int | None, evict: int | None) -> tuple[list[bytes], int, int]:
        out, dropped = [], 0
        for key, time, row in rows:
            if time is not None and late is not None and time <= late:
                dropped += 1
            elif key not in self.state:
                out.append(row)
                delay = self.spec.delay
                until = NEVER if time is None else time
                self.state[key] = NEVER if not self.spec.evicts else until if delay is None else (time or 0) + delay
        before = len(self.state)
        if evict is not None and self.spec.evicts:
            self.state = {key: until for key, until in self.state.items() if until > evict}
        return out, dropped, before - len(self.state)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(6))
def test_any_stream(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_keys.may_be_many, "__defaults__", (4,))  # so that keys leave the dictionary
    r, spec = random.Random(seed), SPECS[name]
    spark, ours = Spark(spec), DeduplicationPartition.rebuilt(spec, [], None)
    log: list[tuple[LogSegment, int]] = []
    late = through = None
    clock = emitted = smallest = 0
    for number in range(60):
        clock += r.randrange(6)
        times = [None if r.random() < 0.05 else clock + r.randrange(-12, 6) for _ in range(r.randrange(25))]
        keys = [b"%d %s" % (r.randrange(3), str(t).encode()) for t in times]
        if name != "by time":
            keys = [b"%d" % (r.randrange(40) + clock // 2) for _ in times]
        rows = [(key, time, b"row %d %d" % (number, i)) for i, (key, time) in enumerate(zip(keys, times, strict=True))]
        evict = None if number < 3 else clock - 8
        if r.random() < 0.3:  # a task that fails before it commits
            ours.batch(chunks_of([(b"lost %d" % number, clock, b"")], 1), BatchTimes(late, evict, through), 9)
        outcome = ours.batch(chunks_of(rows, r.choice([1, 7, 100])), BatchTimes(late, evict, through), r.choice([1, 5]))
        found = [row for batch in outcome.windows for row in batch.column(0).to_pylist()]
        expected, dropped, removed = spark.batch(rows, late, evict)
        assert found == expected
        assert (outcome.dropped, outcome.removed, outcome.updated) == (dropped, removed, len(expected))
        assert outcome.after.state.cells == len(spark.state)
        emitted += len(found)
        chunks = streamed(KEYS, list(outcome.logged))  # type: ignore[arg-type]
        assert outcome.logged_cells == len(expected)
        if chunks:
            log.append((LogSegment(chunks, None), outcome.logged_last))
        if outcome.first is not None:
            log = [(segment, last) for segment, last in log if last >= outcome.first]
        ours, through = outcome.after, evict
        late = evict
        smallest = min(smallest, len(ours.keys) - number)
        if r.random() < 0.2 and len(log) > 2:
            tables, total, last = merged(spec, [segment for segment, _ in log[-3:]], outcome.first or -NEVER, 9)
            chunks = streamed(KEYS, [pa.record_batch(t.columns, schema=KEYS) for t in tables])
            log[-3:] = [(LogSegment(chunks, None), last)] if total else []
        if r.random() < 0.2:
            state = rebuilt(spec, [segment for segment, _ in log], through)
            assert isinstance(state, DeduplicationPartition)
            ours = state
            assert ours.state.cells == len(spark.state)
    assert emitted > 100
    if name == "within":
        assert smallest < 0, "forgotten keys leave the dictionary"
        assert len(log) < 30, "segments whose keys are forgotten are dropped whole"


def test_ends_of_time() -> None:
    """The watermark, and keys, at the ends of 64 bits: a time that is the least is no key that is forgotten."""
    for spec in SPECS.values():
        ours = DeduplicationPartition.rebuilt(spec, [], None)
        rows = [(b"a", -NEVER - 1, b"1"), (b"b", NEVER, b"2"), (b"a", -NEVER - 1, b"3"), (b"b", NEVER, b"4")]
        outcome = ours.batch(chunks_of(rows, 4), BatchTimes(None, -NEVER, None), 9)
        assert [b.column(0).to_pylist() for b in outcome.windows] == [[b"1", b"2"]]
        assert outcome.after.state.cells == (1 if spec is SPECS["by time"] else 2)


def test_a_segment_of_more_keys_than_a_column_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks are read one by one: those of a segment may have more than 2 GiB of keys."""
    spec, read = SPECS["within"], deduplication_partition.read_chunks

    def one_chunk(chunks: list[bytes], schema: pa.Schema) -> pa.Table:
        assert len(chunks) == 1
        return read(chunks, schema)

    monkeypatch.setattr(deduplication_partition, "read_chunks", one_chunk)
    entries = [pa.record_batch([[b"a", b"b"], [1, 9]], schema=KEYS), pa.record_batch([[b"c"], [8]], schema=KEYS)]
    segments = [LogSegment([chunk for entry in entries for chunk in streamed(KEYS, [entry])], None)]
    assert DeduplicationPartition.rebuilt(spec, segments, 1).state.cells == 2
    tables, total, last = merged(spec, segments, 9, 9)
    assert ([t.to_pylist() for t in tables if t.num_rows], total, last) == ([[{"key": b"b", "until": 9}]], 1, 9)


def test_a_state_says_what_it_holds() -> None:
    spec = SPECS["for ever"]
    ours = DeduplicationPartition.rebuilt(spec, [], None)
    rows = [(b"%d" % i, None, b"") for i in range(1000)]
    after = ours.batch(chunks_of(rows, 300), BatchTimes(None, None, None), 100).after
    assert not after.is_on_device
    assert after.state.nbytes >= ours.state.nbytes + 8 * 1000
    with pytest.raises(pa.ArrowInvalid, match="were announced"):
        after.batch(streamed(KEYS, [pa.record_batch([[b"a"], [1]], schema=KEYS)]), BatchTimes(None, None, None), 1)


@pytest.mark.parametrize(
    "wrong", [{}, {"evicts": 1}, {"delay": -1}, {"delay": "7"}, {"delay": True}, {"delay": 7, "evicts": False}]
)
def test_a_malformed_specification(wrong: dict[str, Any]) -> None:
    fields = {"window": "duplicates", "delay": None, "evicts": True}
    assert parse_state_spec(fields) == SPECS["by time"]
    assert parse_state_spec(fields | {"delay": 7}) == replace(SPECS["by time"], delay=7)
    with pytest.raises(ProtocolError):
        parse_state_spec(fields | wrong if wrong else {"window": "duplicates"})
