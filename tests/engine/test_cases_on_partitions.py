"""A specification on partitions, moved by Spark's watermark and rebuilt from its log, gives the rows that it gives on
Arrow batches: all of tests/cases says so, played on two partitions as Spark would run them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import cases_runner as cases
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from known_answers import differences, load_cases

import gpuwin as gw
from gpuwin.planning.plan import plan_of
from gpuwin.vocabulary.specification_json import write_specification
from gpuwin_spark.service import aggregation_partition
from gpuwin_spark.service.aggregation_partition import AggregationPartition
from gpuwin_spark.service.aggregation_spec import AggregationSpec
from gpuwin_spark.service.partition import BatchTimes
from gpuwin_spark.stream_aggregate import delay_ms, runs_as

PARTITIONS = 2


def stream_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def encoded(schema: pa.Schema) -> str:
    return b64encode(bytes(schema.serialize())).decode()


def service_spec(spec: gw.WindowedAggregation, schema: pa.Schema) -> AggregationSpec:
    text, code = write_specification(spec)
    assert not code
    return AggregationSpec.parse(
        {
            "window": "specified",
            "specification": text,
            "input": encoded(schema),
            "output": encoded(plan_of(spec, schema).schema),
            "follows": runs_as(spec).follows,
            "delay": delay_of(spec),
            "code": None,
        }
    )


def delay_of(spec: gw.WindowedAggregation) -> int:
    """How far Spark's watermark is behind the largest time, in microseconds."""
    by_rows = runs_as(spec).follows and isinstance(spec.watermark, gw.BoundedOutOfOrderness)
    return delay_ms(spec) * 1000 if by_rows else 0


class Cluster:
    """What Spark does with the operator of a case: partitions by key, a watermark in milliseconds that is known one
    batch later, a batch without data when it has moved, a log, and tasks that may find no resident state."""

    def __init__(self, spec: gw.WindowedAggregation, clock: Callable[[], int], resident: bool) -> None:
        self.spec, self.clock, self.resident = spec, clock, resident
        self.count = 1 if runs_as(spec).together else PARTITIONS
        self.service: AggregationSpec | None = None
        self.logs: list[list[list[bytes]]] = [[] for _ in range(self.count)]
        self.states: list[AggregationPartition] = []
        self.newest = self.applied = 0

    def process(self, table: pa.Table) -> pa.Table:
        read = table.select(self.spec.input_names)
        if self.service is None:
            self.service = service_spec(self.spec, read.schema)
            self.states = [AggregationPartition.rebuilt(self.service, [], "cpu") for _ in range(self.count)]
        placed = read.append_column("place", pa.array(np.arange(len(read))))
        group = np.array([hash(key) % self.count for key in table["key"].to_pylist()], np.int64)
        emitted = self.batch([placed.filter(pa.array(group == i)) for i in range(self.count)], data=True)
        if self.spec.time in read.column_names and isinstance(self.spec.watermark, gw.BoundedOutOfOrderness):
            last = pc.max(read[self.spec.time].cast(pa.int64())).as_py()
            self.newest = max(self.newest, (last or 0) // 1000 * 1000 - delay_of(self.spec))
        return pa.concat_tables([emitted, self.caught_up()])

    def caught_up(self) -> pa.Table:
        """The batch without data that Spark runs once the watermark has moved."""
        if self.newest == self.applied or self.service is None:
            return self.output_schema.empty_table()
        return self.batch([self.service.input.empty_table()] * self.count, data=False)

    def batch(self, parts: list[pa.Table], data: bool) -> pa.Table:
        assert self.service is not None
        self.applied, emitted = self.newest, []
        for i, rows in enumerate(parts):
            chunks = [stream_bytes(rows[at : at + 3][::-1]) for at in range(0, len(rows), 3)]  # a shuffle mixes rows
            if not self.resident:
                self.states[i] = AggregationPartition.rebuilt(self.service, self.logs[i], "cpu")
            outcome = self.states[i].batch(chunks, BatchTimes(None, self.newest, None, self.clock(), data), 2)
            logged = list(outcome.logged)
            if logged:
                self.logs[i] = [*([] if outcome.replaces else self.logs[i]), logged]
            emitted += outcome.windows
            self.states[i] = outcome.after
        return pa.Table.from_batches(emitted, self.output_schema)

    def advance_watermark(self, time: int) -> pa.Table:
        self.newest = max(self.newest, time)
        return self.caught_up()

    def finish(self) -> pa.Table:
        return pa.concat_tables([state.operator.finish() for state in self.states])

    @property
    def output_schema(self) -> pa.Schema:
        assert self.service is not None
        return self.service.output

    @property
    def watermark(self) -> int | None:
        return None


def playable() -> list[Any]:
    found = []
    for case in load_cases():
        if case.get("kind", "window_agg") != "window_agg" or "agg" not in case or "window" not in case:
            continue
        if beyond_spark(case) is None:
            found.append(pytest.param(case, id=case["id"]))
    return found


def beyond_spark(case: dict[str, Any]) -> str | None:
    """Why Spark cannot come into the situation of a case: its watermark starts at 0, and follows rows."""
    entries = [entry for batch in case["batches"] for entry in batch]
    if any(entry.get("watermark_ms", 0) < 0 for entry in entries):
        return "a watermark before 1970"
    first = entries[0] if entries else {}
    return "a watermark before the first row" if "watermark_ms" in first else None


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "rebuilt"])
@pytest.mark.parametrize("case", playable())
def test_cases_on_partitions(case: dict[str, Any], resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation_partition, "LEAST_BYTES", 3000)  # a snapshot now and then
    play = cases.Play(case)
    play.op = Cluster(play.spec, lambda: play.now, resident)  # type: ignore[assignment]
    kept = [[entry for entry in entries if "restart" not in entry] for entries in case["batches"]]
    found = [play.batch(number, entries) for number, entries in enumerate(kept)]
    expected = [cases.without(rows, cases.told_by_operator(case)) for rows in case["expected"]]
    assert not differences({"expected": expected}, {"expected": found})


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "rebuilt"])
def test_late_first_rows_of_a_partition(resident: bool) -> None:
    """A partition without rows has a watermark, too, also when it is rebuilt from a log."""
    seconds = 1_000_000
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"),
        keys=["key"],
        time="ts",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness("10 seconds"),
        semantics=gw.Semantics(late_filter="previous"),
    )
    cluster = Cluster(spec, lambda: 0, resident)
    rows = [(0, 100), (0, 200), (0, 300), (1, 50), (0, 400), (1, 500)]
    found = []
    for key, second in rows:
        ts = pa.array([second * seconds], pa.timestamp("us"))
        found += cluster.process(pa.table({"key": pa.array([key]), "ts": ts})).to_pylist()
    assert [(row["key"], row["n"]) for row in found] == [(0, 1)] * 3
    assert [state.metrics.rows_late for state in cluster.states[:2]] == [0, 1]


def test_no_row_ends_the_stream_of_a_partition() -> None:
    """Not where its watermark, stated inclusively, would come to the largest int64."""
    semantics = gw.Semantics(watermark_inclusive=True, watermark_precision="ms")
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 second"), time="t", aggregates={"n": gw.count()}, semantics=semantics
    )
    service = service_spec(spec, pa.schema({"t": pa.timestamp("us")}))
    last_milli = ((1 << 63) - 1) // 1_000 * 1_000
    op = spec.start()
    op.advance_watermark(service.watermark(last_milli))
    assert op.watermark == last_milli - 1_000
