"""Snapshots: what is refused and why, and going on in another process."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin import snapshots
from gpuwin.snapshot_parts import MARK_OF_AGGREGATION, packed, stream_of, unpacked


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.SlidingWindow("10 seconds", "5 seconds"),
        "keys": ["key"],
        "time": "time",
        "aggregates": {"total": gw.sum("value"), "name": gw.max("key"), "all": gw.collect_list("value")},
        "collect_late": True,
    }
    return gw.WindowedAggregation(**{**given, **more})


def rows(*times: int) -> pa.Table:
    return pa.table(
        {"key": [f"k{t % 3}" for t in times], "time": pa.array(times, pa.timestamp("s")), "value": list(times)}
    )


def taken() -> bytes:
    op = spec().start()
    op.process(rows(1, 2, 30))
    op.process(rows(3, 31))
    return op.snapshot()


def test_one_flipped_bit_is_refused() -> None:
    data = taken()
    for at in range(0, len(data), max(1, len(data) // 97)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(gw.SnapshotError):
            spec().restore(bytes(damaged))


@pytest.mark.parametrize("cut", [0, 1, 39, 1_000])
def test_a_payload_cut_short_is_refused(cut: int) -> None:
    data = taken()
    with pytest.raises(gw.SnapshotError):
        spec().restore(data[:-cut] if cut else b"")


def test_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "VERSION", 7)
    data = taken()
    monkeypatch.undo()
    with pytest.raises(gw.SnapshotError, match=r"version 7.*upgrade gpuwin"):
        spec().restore(data)


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 called some parts of a state otherwise."""
    monkeypatch.setattr(snapshots, "VERSION", 1)
    data = taken()
    monkeypatch.undo()
    with pytest.raises(gw.SnapshotError, match=r"version 1, .*no longer reads.*gpuwin that took it"):
        spec().restore(data)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"window": gw.SlidingWindow("10 seconds", "2 seconds")}, "window"),
        ({"keys": []}, "keys"),
        ({"aggregates": {"total": gw.max("value")}}, "aggregates"),
        ({"semantics": gw.Semantics.SPARK}, "semantics"),
        ({"emit": gw.OnUpdate()}, "emit"),
    ],
)
def test_another_specification_is_refused_and_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(gw.SnapshotError, match=f"another specification: {named}"):
        spec(**change).restore(taken())


def test_what_is_not_a_snapshot_is_refused() -> None:
    body = stream_of(rows(1).to_batches()[0])
    forged = body + MARK_OF_AGGREGATION + hashlib.sha256(body).digest()
    for data in (b"", b"gpuwin", body, forged, "text", None):
        with pytest.raises(gw.SnapshotError):
            spec().restore(data)  # type: ignore[arg-type]


def test_a_snapshot_of_a_join_is_called_one() -> None:
    join = gw.HashJoin(["k"])
    with pytest.raises(gw.SnapshotError, match="this is a snapshot of a join, and not of a WindowedAggregation"):
        spec().restore(join.start().snapshot())
    with pytest.raises(gw.SnapshotError, match="this is a snapshot of a WindowedAggregation, and not of a join"):
        join.restore(spec().start().snapshot())


def test_limits_may_change_and_late_rows_come_along() -> None:
    op = spec(limits=gw.Limits(max_open_windows=10)).restore(taken())
    assert op.late_rows()["value"].to_pylist() == [3]
    assert op.late_rows().num_rows == 0


def test_late_rows_that_did_not_come_have_columns() -> None:
    late = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), time="t", aggregates={"n": gw.count()}, collect_late=True
    )
    op = late.start()
    op.process(pa.table({"t": pa.array([1], pa.timestamp("s")), "v": [1]}))
    assert late.restore(op.snapshot()).late_rows().schema == op.late_rows().schema


def test_a_restored_operator_is_the_original_for_late_rows() -> None:
    late = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), time="t", aggregates={"n": gw.count()}, collect_late=True
    )
    coded = pa.array(["x"]).dictionary_encode()

    def batch(second: int, more: pa.Array) -> pa.Table:
        return pa.table({"t": pa.array([second], pa.timestamp("s")), "more": more})

    for second in (100, 1):  # no row is late, or one
        op = late.start()
        op.process(batch(100, coded))
        op.process(batch(second, coded))
        again = late.restore(op.snapshot())
        assert again.snapshot() == op.snapshot()
        for _ in range(2):
            assert op.late_rows().equals(wanted := again.late_rows())
            assert wanted.schema == batch(1, coded).schema
        again = late.restore(op.snapshot())
        again.process(batch(1, pa.array([[1]])))  # of another type, which nothing forbids
        assert again.late_rows()["more"].to_pylist() == [[1]]


def test_a_snapshot_without_the_schema_of_its_batches() -> None:
    """Those of before had a table of late rows without a row instead."""
    late = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), time="t", aggregates={"n": gw.count()}, collect_late=True
    )
    op = late.start()
    batch = pa.table({"t": pa.array([1], pa.timestamp("s")), "v": [1]})
    op.process(batch)
    table = unpacked(op.snapshot(), MARK_OF_AGGREGATION)
    parts = {name: data for name, data in table.parts().items() if name != "batches"}
    parts["late.0"] = stream_of(batch.schema.empty_table())
    again = late.restore(packed(parts, table.metadata, MARK_OF_AGGREGATION))
    assert again.late_rows().schema == again.late_rows().schema == batch.schema
    assert again.snapshot() == op.snapshot()


def test_a_null_key_has_the_same_bytes_after_a_batch_that_failed() -> None:
    """Keys that only the failed batch had are dropped, and the null is numbered anew."""
    for keys in (["key"], ["key", "other"]):
        summed = spec(aggregates={"total": gw.sum("value")}, keys=keys)
        key = pa.array([7, None], pa.int64())
        first = pa.table(
            {"time": pa.array([1, 1], pa.timestamp("s")), "key": key, "other": [0.5, None], "value": [1, 2]}
        )
        many = pa.array(range(5), pa.int64())
        at = pa.array([1] * 5, pa.timestamp("s"))
        second = pa.table({"time": at, "key": many, "other": many.cast(pa.float64()), "value": [2**63 - 1] * 5})
        op = summed.start()
        op.process(first)
        before = op.snapshot()
        with pytest.raises(gw.OverflowError):
            op.process(pa.concat_tables([second, second]))
        assert op.snapshot() == before == summed.restore(before).snapshot()


def test_it_is_an_ordinary_arrow_stream() -> None:
    table = pa.ipc.open_stream(taken()).read_all()
    assert table.schema.metadata[b"format"] == b"gpuwin snapshot"
    assert "input" in table["part"].to_pylist()


def test_restored_in_another_process() -> None:
    """The same rows, whatever the hash seed and the addresses of that process are."""
    op = spec().restore(taken())
    op.process(rows(32, 40))
    expected = op.finish()
    script = (
        "import pickle, sys, pyarrow as pa\n"
        "spec, data, table = pickle.loads(sys.stdin.buffer.read())\n"
        "op = spec.restore(data)\n"
        "op.process(table)\n"
        "sys.stdout.buffer.write(pickle.dumps(op.finish()))\n"
    )
    sent = pickle.dumps((spec(), taken(), rows(32, 40)))
    done = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=True)
    assert pickle.loads(done.stdout) == expected


@pytest.mark.parametrize("policy", ["min", "max"])
def test_a_restart_on_spark_s_terms_drops_how_far_each_input_was(policy: str) -> None:
    """Spark 4.3 was run for the numbers: it keeps the watermark, and a source counts again from its first row."""
    inputs = gw.MultipleInputs([gw.BoundedOutOfOrderness("10 seconds")] * 2, policy=policy)  # type: ignore[arg-type]

    def after(semantics: gw.Semantics) -> list[int]:
        merged = spec(watermark=inputs, semantics=semantics, aggregates={"n": gw.count()})
        op = merged.start()
        op.process(rows(200), source=0)
        op.process(rows(195), source=1)
        op = merged.restore(op.snapshot())
        found = [op.watermark]
        for source, times in ((0, []), (1, [200]), (0, [201])):
            op.process(rows(*times) if times else rows(0).slice(0, 0), source=source)
            found.append(op.watermark)
        return [w // 1_000_000 for w in found if w is not None]

    if policy == "min":
        assert after(gw.Semantics.SPARK) == [185, 185, 185, 190]
        assert after(gw.Semantics()) == [185, 185, 190, 190]
    else:
        assert after(gw.Semantics.SPARK) == after(gw.Semantics()) == [190, 190, 190, 191]


def test_what_is_known_after_a_restart_is_for_the_restart_to_say() -> None:
    """So snapshots of earlier versions under the presets are read, and the field may change."""
    semantics = gw.Semantics(restored_inputs="dropped")
    op = spec(semantics=semantics).restore(taken())
    assert op.late_rows().num_rows == 1
    assert "restored_inputs" not in snapshots.described(spec(semantics=gw.Semantics.SPARK))["semantics"]
