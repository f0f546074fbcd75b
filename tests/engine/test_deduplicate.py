"""Deduplication: known answers, a loop over lists under any split into batches, what is kept, wrong use."""

from __future__ import annotations

import copy
import itertools
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin.deduplication import remembered_keys
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary

MIN = np.iinfo(np.int64).min
SECOND = 1_000_000
Row = tuple[int | None, int | None]


def rows(*of: Row) -> pa.Table:
    """Rows of a key and a time in seconds, numbered."""
    times = pa.array([time for _, time in of], pa.timestamp("s"))
    return pa.table(
        {"k": pa.array([key for key, _ in of], pa.int64()), "t": times, "n": pa.array(range(len(of)), pa.int64())}
    )


def numbers(table: pa.Table) -> list[int]:
    return table["n"].to_pylist()  # type: ignore[no-any-return]


def expected(batches: list[list[Row]], within: int | None, delay: int) -> list[Row]:
    """Rows that come out, one after the other, from every key that ever came."""
    until: dict[int | None, float] = {}
    watermark, out = -np.inf, []
    for batch in batches:
        for key, time in batch:
            if time is None or time < watermark:
                continue
            if until.get(key, -np.inf) < time:
                until[key] = np.inf if within is None else time + within
                out.append((key, time))
        times = [time for _, time in batch if time is not None]
        watermark = max(watermark, max(times, default=-np.inf) - delay)
    return out


ROWS = st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 60)), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    ROWS, st.lists(st.integers(0, 40), max_size=4), st.none() | st.integers(0, 30), st.integers(0, 20), st.booleans()
)
def test_rows_are_those_of_a_loop(of: list[Row], cuts: list[int], within: Any, delay: int, restored: bool) -> None:
    edges = [0, *sorted(min(cut, len(of)) for cut in cuts), len(of)]
    batches = [of[lo:hi] for lo, hi in itertools.pairwise(edges)]
    span = None if within is None else timedelta(seconds=within)
    spec = gw.Deduplicate(["k"], "t", span, watermark=gw.BoundedOutOfOrderness(timedelta(seconds=delay)))
    op, found = spec.start(), []
    for batch in batches:
        table = op.process(rows(*batch))
        found += [(row["k"], int(row["t"].timestamp())) for row in _in_utc(table)]
        if restored:
            op = spec.restore(op.snapshot())
    assert found == expected(batches, within, delay)
    assert op.metrics.rows_in == len(of)
    assert op.metrics.rows_out == len(found)
    assert op.finish().num_rows == 0


def _in_utc(table: pa.Table) -> list[dict[str, Any]]:
    return table.set_column(1, "t", table["t"].cast(pa.timestamp("s", "UTC"))).to_pylist()  # type: ignore[no-any-return]


def test_a_row_later_than_within_is_a_first_row_again_and_an_earlier_one_is_not() -> None:
    op = gw.Deduplicate(["k"], "t", "10 seconds", watermark=gw.BoundedOutOfOrderness("1 hour")).start()
    assert numbers(op.process(rows((1, 100), (1, 110), (1, 111), (1, 3), (1, 121), (1, 122)))) == [0, 2, 5]


def test_rows_without_a_time_column_are_remembered_for_ever() -> None:
    op = gw.Deduplicate(["k", "t"]).start()
    assert numbers(op.process(rows((1, 5), (1, 5), (1, None), (None, 5), (1, None)))) == [0, 2, 3]
    assert op.advance_watermark(1 << 60).num_rows == 0
    assert numbers(op.process(rows((1, 5), (1, 6)))) == [1]
    assert op.output_watermark is None
    assert op.watermark is None
    assert op.metrics.keys == 4


def test_late_rows_and_rows_without_a_time_are_dropped_and_counted() -> None:
    spec = gw.Deduplicate(["k"], "t", watermark=gw.BoundedOutOfOrderness("10 seconds"), collect_late=True)
    op = spec.start()
    assert op.late_rows().num_columns == 0
    op.process(rows((1, 30)))
    assert numbers(op.process(rows((2, 19), (3, 20), (4, None), (2, 90)))) == [1, 3]
    op = spec.restore(op.snapshot())
    assert numbers(op.late_rows()) == [0]
    assert op.late_rows().num_rows == 0
    counts = op.metrics
    assert (counts.rows_in, counts.rows_late, counts.rows_null_time, counts.rows_out) == (5, 1, 1, 3)
    assert counts.rows_duplicate == 0
    assert counts.watermark == op.output_watermark == 80 * SECOND


@pytest.mark.parametrize(
    ("key", "first"),
    [
        (pa.array([0.0, -0.0, float("nan"), None, float("nan"), None, 1.0]), [0, 2, 3, 6]),
        (pa.array(["a", "", None, "a", "", "b", None]), [0, 1, 2, 5]),
        (pa.array(["a", "b", None, "a", "b", "b", None]).dictionary_encode(), [0, 1, 2]),
        (pa.array(["a", "b", None, "a", "b", "b", None], pa.string_view()), [0, 1, 2]),
        (pa.array([Decimal("1.5"), Decimal("1.50"), None, Decimal(2), *[None] * 3], pa.decimal128(30, 2)), [0, 2, 3]),
        (pa.array([{"a": 1}, {"a": None}, None, {"a": 1}, None, {"a": 2}, {"a": None}]), [0, 1, 2, 5]),
        (pa.array([[1], [1, 2], None, [1], [], None, []]), [0, 1, 2, 4]),
    ],
    ids=["floats", "texts", "dictionary", "views", "decimals", "structs", "lists"],
)
def test_keys_of_many_types(key: pa.Array, first: list[int]) -> None:
    batch = pa.table({"k": key, "n": range(7)})
    op = gw.Deduplicate(["k"]).start()
    out = op.process(batch)
    assert numbers(out) == first
    assert out.schema == op.output_schema
    assert op.process(batch).num_rows == 0
    again = gw.Deduplicate(["k"]).restore(op.snapshot())
    assert again.process(batch).num_rows == 0
    assert again.metrics.keys == len(first)


def test_keys_leave_memory_with_the_watermark() -> None:
    spec = gw.Deduplicate(["k", "t"], "t")
    kept, forever = spec.start(), gw.Deduplicate(["k", "t"]).start()
    for at in range(0, 8 * FEW_KEYS, FEW_KEYS):
        batch = rows(*((k, at + k) for k in range(FEW_KEYS)))
        assert kept.process(batch).num_rows == forever.process(batch).num_rows == FEW_KEYS
    assert kept.metrics.keys == 1  # the newest row's: another of its time may come
    assert forever.metrics.keys == 8 * FEW_KEYS
    assert kept.metrics.state_bytes < forever.metrics.state_bytes / 2
    assert len(kept.snapshot()) < len(forever.snapshot()) / 8
    # A key that was forgotten is a new one for a row that is on time.
    within = gw.Deduplicate(["k"], "t", "1 second", watermark=gw.ExplicitWatermark()).start()
    within.process(rows(*((k, 0) for k in range(3 * FEW_KEYS))))
    within.advance_watermark(2 * SECOND)
    assert within.metrics.keys == 0
    assert numbers(within.process(rows((5, 3), (5, 4), (5, 1), (7, 9)))) == [0, 3]


def test_a_batch_that_fails_leaves_the_keys_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gw.Deduplicate(["k"], "t", "5 seconds", limits=gw.Limits(max_state_bytes=20_000))
    op = spec.start()
    op.process(rows((1, 0), (2, 1)))
    before, size = op.snapshot(), op.metrics.state_bytes
    many = rows((1, 50), *((k, 60) for k in range(3, 5_000)))
    with pytest.raises(gw.LimitExceeded, match="nothing of the batch was applied"):
        op.process(many)
    assert op.snapshot() == before
    assert op.metrics.state_bytes <= size
    for wrong, what in (
        (pa.table({"k": ["a"], "t": pa.array([9], pa.timestamp("s")), "n": [1]}), "'k'"),
        (pa.table({"k": [1], "n": [1]}), "'t'"),
    ):
        with pytest.raises(gw.SchemaError, match=what):
            op.process(wrong)
    assert op.snapshot() == before
    with monkeypatch.context() as patch:  # once the keys are there
        patch.setattr(remembered_keys.Appended, "append", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            op.process(rows((3, 3)))
    assert op.snapshot() == before
    assert numbers(op.process(rows((1, 5), (3, 3), (2, 7)))) == [1, 2]


def test_rows_that_are_dropped_leave_no_keys_in_memory() -> None:
    op = gw.Deduplicate(["k"], "t", "5 seconds").start()
    op.process(rows((0, 100)))
    size = op.metrics.state_bytes
    late = rows(*((k, 1) for k in range(2 * FEW_KEYS)), (0, 100), (-1, 100))
    timeless = late.set_column(1, "t", pa.nulls(len(late), late.schema.field("t").type))
    assert numbers(op.process(timeless)) == []
    assert numbers(op.process(late)) == [2 * FEW_KEYS + 1]
    assert (op.metrics.rows_late, op.metrics.rows_null_time) == (2 * FEW_KEYS, 2 * FEW_KEYS + 2)
    assert op.metrics.state_bytes <= 2 * size


def test_keys_that_the_watermark_has_passed_do_not_count_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    op = gw.Deduplicate(["k"], "t", "1 second", limits=gw.Limits(max_state_bytes=100_000)).start()
    for at in range(20):
        assert op.process(rows(*((1000 * at + k, 10 * at) for k in range(1000)))).num_rows == 1000
    assert op.metrics.state_bytes <= 100_000
    before = op.snapshot()
    with monkeypatch.context() as patch:  # no memory for what stays
        patch.setattr(remembered_keys.KeyDictionary, "kept", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            op.process(rows(*((k, 1000) for k in range(8000))))
    with pytest.raises(gw.LimitExceeded, match=r"within=\.\.\."):
        op.process(rows(*((k, 1000) for k in range(8000))))
    assert op.snapshot() == before
    assert numbers(op.process(rows((1, 1000), (19_000, 1000), (1, 1001)))) == [0, 1]


def test_times_at_both_ends() -> None:
    times = pa.array([MIN, MIN, MIN + 1, 1 - MIN - 2, 1 - MIN - 2], pa.timestamp("us"))
    batch = pa.table({"k": [1, 1, 1, 1, 1], "t": times, "n": range(5)})
    explicit = {"watermark": gw.ExplicitWatermark()}
    assert numbers(gw.Deduplicate(["k"], "t", **explicit).start().process(batch)) == [0]  # type: ignore[arg-type]
    assert numbers(gw.Deduplicate(["k"], "t", "1 second", **explicit).start().process(batch)) == [0, 3]  # type: ignore[arg-type]
    assert numbers(gw.Deduplicate(["k", "t"], "t", **explicit).start().process(batch)) == [0, 2, 3]  # type: ignore[arg-type]
    dates = pa.table({"k": [1, 2, 3], "t": pa.array([0, 2**31 - 1, -(2**31)], pa.date32()), "n": range(3)})
    op = gw.Deduplicate(["k"], "t").start()
    assert numbers(op.process(dates)) == [0, 1, 2]
    assert op.watermark == -MIN - 2  # the last one before the end of the stream
    assert op.process(dates.slice(2)).num_rows == 0


def test_the_loop_over_batches_and_what_goes_on_behind() -> None:
    spec = gw.Deduplicate(["k"], "t", "1 minute", watermark=gw.BoundedOutOfOrderness("5 seconds"))
    batches = [rows((1, 0), (1, 1)), rows((1, 30), (2, 31))]
    tables = list(gw.run(spec, batches))
    assert [numbers(table) for table in tables] == [[0], [1], []]
    assert len({table.schema for table in tables}) == 1
    counted = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), time="t", aggregates={"n": gw.count()}, watermark=gw.ExplicitWatermark()
    ).start()
    op = spec.start()
    out = []
    for batch in batches:
        out += counted.process(op.process(batch)).to_pylist()
        out += counted.advance_watermark(op.output_watermark).to_pylist()
    assert [(row["window_start"], row["n"]) for row in out] == [(datetime(1970, 1, 1), 1)]
    assert counted.metrics.rows_late == 0


def test_columns_are_those_of_the_first_batch() -> None:
    key = pa.array(["a", "a"]).dictionary_encode()
    op = gw.Deduplicate(["k"]).start()
    assert op.output_schema.names == []
    out = op.process(pa.table({"k": key, "v": [1, 2]}))
    assert out.schema == pa.schema({"k": pa.string(), "v": pa.int64()})
    more = pa.table({"more": [1, 2], "v": pa.array([3, 4], pa.int64()), "k": pa.array(["a", "b"], pa.large_string())})
    assert op.process(more).to_pylist() == [{"k": "b", "v": 4}]
    given_schema = gw.Deduplicate(["k"]).start(schema=pa.schema({"k": pa.int64(), "v": pa.int8()}))
    assert given_schema.process(pa.table({"k": pa.nulls(2), "v": pa.nulls(2)})).to_pylist() == [{"k": None, "v": None}]


@pytest.mark.parametrize("keys", [[1, 2, 3], [1, 2, 1]])
def test_rows_that_come_out_are_in_memory_of_their_own(keys: list[int]) -> None:
    values = np.array(keys), np.arange(3)
    op = gw.Deduplicate(["k"]).start()
    out = op.process(pa.table(dict(zip("kn", values, strict=True))))
    for array in values:
        array[:] = 7
    assert out["k"].to_pylist() == sorted(set(keys))
    assert op.process(pa.table({"k": [3, 2, 1, 7], "n": range(4)}))["k"].to_pylist() == [
        k for k in (3, 7) if k not in keys
    ]


def test_wrong_use_says_what_to_do() -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: gw.Deduplicate("k"), r"write \['k'\]"),
        (lambda: gw.Deduplicate([]), "one or more different key columns"),
        (lambda: gw.Deduplicate(["k"], 3), "time is the name"),  # type: ignore[arg-type]
        (lambda: gw.Deduplicate(["k"], within="1 hour"), "within goes by event time: name its column, time="),
        (lambda: gw.Deduplicate(["k"], "t", timedelta(seconds=-1)), "within is at least 0"),
        (lambda: gw.Deduplicate(["k"], "t", watermark=gw.SystemClock()), "ExplicitWatermark"),  # type: ignore[arg-type]
        (lambda: gw.Deduplicate(["k"], "t", limits=gw.Limits(max_open_windows=3)), "max_state_bytes"),
        (lambda: gw.Deduplicate(["k"]).start().late_rows(), "collect_late=True"),
        (lambda: gw.Deduplicate(["k"]).start("gpu"), '"auto" or "cpu"'),
        (lambda: gw.aggregate(pa.table({"k": [1]}), gw.Deduplicate(["k"])), r"gw\.run\(spec, \[table\]\)"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(gw.SpecificationError, match=message):
            call()
    with pytest.raises(gw.DeviceError, match="on the CPU"):
        gw.Deduplicate(["k"]).start("cuda")
    timed = gw.Deduplicate(["k"], "t")
    for table, message in (
        (pa.table({"x": [1]}), "no key column 'k'; it has"),
        (pa.table({"k": [1]}), "no time column 't'"),
        (pa.table({"k": [1], "t": [1]}), "must be an Arrow timestamp"),
        (pa.table({"k": pa.nulls(1), "t": pa.array([1], pa.timestamp("s"))}), "has no type in the first batch"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([1])], ["k", "k"]), "more than one column called k"),
    ):
        with pytest.raises(gw.SchemaError, match=message):
            timed.start().process(table)
    op = timed.start()
    op.finish()
    with pytest.raises(gw.SpecificationError, match="finished"):
        op.process(rows((1, 1)))
    with pytest.raises(TypeError, match="snapshot"):
        copy.copy(op)


def test_snapshots_of_something_else_are_refused() -> None:
    spec = gw.Deduplicate(["k"], "t", "1 minute", watermark=gw.BoundedOutOfOrderness("5 seconds"))
    op = spec.start()
    assert spec.restore(op.snapshot()).output_schema.names == []  # before the first batch
    op.process(rows((1, 1), (2, 2)))
    data = op.snapshot()
    other = gw.Deduplicate(["k"], "t", "1 minute", watermark=gw.BoundedOutOfOrderness("9 seconds"))
    with pytest.raises(gw.SnapshotError, match="allow_changes=True"):
        other.restore(data)
    assert numbers(other.restore(data, allow_changes=True).process(rows((1, 3), (3, 3)))) == [1]
    with pytest.raises(gw.SnapshotError, match="of another deduplication"):
        gw.Deduplicate(["k"], "t", "2 minutes").restore(data, allow_changes=True)
    with pytest.raises(gw.SnapshotError, match="damaged"):
        spec.restore(data[:-1] + b"x")
    join = gw.HashJoin(["k"])
    with pytest.raises(gw.SnapshotError, match="a snapshot of a join, and not a snapshot of a deduplication"):
        spec.restore(join.start().snapshot())
    with pytest.raises(gw.SnapshotError, match="a snapshot of a deduplication, and not a snapshot of a join"):
        join.restore(data)
    windows = gw.WindowedAggregation(window=gw.GlobalWindow(), time="t", aggregates={"n": gw.count()})
    with pytest.raises(gw.SnapshotError, match="of a deduplication, and not of a WindowedAggregation"):
        windows.restore(data)
    with pytest.raises(gw.SnapshotError, match="of a WindowedAggregation, and not of a deduplication"):
        spec.restore(windows.start().snapshot())


def test_keys_whose_texts_have_no_room_in_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 2 GiB, for which nine at once stand here."""
    take = KeyDictionary.take

    def fits(self: KeyDictionary, codes: np.ndarray) -> list[pa.Array]:
        if len(codes) > 8:
            raise pa.ArrowInvalid("Failed casting from large_binary to binary: input array too large")
        return take(self, codes)

    monkeypatch.setattr(KeyDictionary, "take", fits)
    batch = pa.table({"k": [f"key {i}" for i in range(50)], "n": range(50)})
    spec, join = gw.Deduplicate(["k"]), gw.HashJoin(["k"])
    op, joined = spec.start(), join.start()
    op.process(batch)
    joined.process(left=batch)
    assert numbers(spec.restore(op.snapshot()).process(pa.table({"k": ["key 49", "new", "key 0"], "n": range(3)}))) == [
        1
    ]
    met = join.restore(joined.snapshot()).process(right=pa.table({"k": ["key 49", "new"], "m": range(2)}))
    assert met.select(["n", "m"]).to_pylist() == [{"n": 49, "m": 0}]
