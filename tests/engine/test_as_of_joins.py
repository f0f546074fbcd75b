"""As-of joins: known answers, a loop over lists under any split into batches, pandas, what is kept, wrong use."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import LEFT, RIGHT, Row, pairs, rows_named, run, steps, table

import gpuwin as gw
from gpuwin.joins import AsOfJoin
from gpuwin_kernels.cpu import joins

HOURS = gw.BoundedOutOfOrderness("2 hours")  # nothing of the oracle's streams is late
SECOND = 1_000_000


def as_of(how: Any = "left", tolerance: Any = None, exact: bool = True, **more: Any) -> AsOfJoin:
    return AsOfJoin(["k"], "t", "t", tolerance, how, allow_exact_matches=exact, **more)


def partner(row: Row, right: list[Row], tolerance: int | None, exact: bool) -> Row | None:
    """The newest row that is not after this one; of several the last that came."""
    key, time, _ = row
    best = None
    for other in right:
        if key is None or other[0] != key or time is None or other[1] is None:
            continue
        apart = time - other[1]
        if apart < 0 or (apart == 0 and not exact) or (tolerance is not None and apart > tolerance):
            continue
        if best is None or other[1] >= best[1]:  # type: ignore[operator]
            best = other
    return best


def expected(left: list[Row], right: list[Row], how: str, tolerance: int | None, exact: bool) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in left:
        match = partner(row, right, tolerance, exact)
        if how in ("semi", "anti"):
            found[(row[0], row[2])] += (match is not None) == (how == "semi")
        elif match is not None or how == "left":
            found[(row[0], row[2], None if match is None else match[2])] += 1
    return +found


HOWS = st.sampled_from(["left", "inner", "semi", "anti"])
TOLERANCES = st.none() | st.integers(0, 20)


@settings(max_examples=200, deadline=None)
@given(rows_named("l"), rows_named("r"), HOWS, steps, TOLERANCES, st.booleans())
def test_any_split(left: list[Row], right: list[Row], how: str, split: Any, tolerance: int | None, exact: bool) -> None:
    span = None if tolerance is None else timedelta(seconds=tolerance)
    spec = as_of(how, span, exact, watermark=HOURS)
    assert run(spec, left, right, split) == expected(left, right, how, tolerance, exact)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(rows_named("l"), rows_named("r"), st.integers(0, 40)), max_size=8), HOWS, TOLERANCES,
       st.booleans(), st.booleans())  # fmt: skip
def test_any_watermarks(batches: list[Any], how: str, tolerance: int | None, exact: bool, restored: bool) -> None:
    """Rows before the watermark are late; whatever came in time is joined as if all had been there at once."""
    span = None if tolerance is None else timedelta(seconds=tolerance)
    spec = as_of(how, span, exact, watermark=gw.ExplicitWatermark(), collect_late=True)
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    watermark, late, found = -(10**6), 0, Counter[Any]()
    kept: tuple[list[Row], list[Row]] = ([], [])
    for left, right, step in batches:
        for rows, came in zip(kept, (left, right), strict=True):
            on_time = [row for row in came if row[1] is not None and row[1] >= watermark]
            late += len(came) - len(on_time)
            rows += on_time
        out = op.process(left=table(left, LEFT), right=table(right, RIGHT))
        assert out.num_rows == 0, "no row leaves before the watermark"
        watermark = max(watermark, -30) + step
        result = op.advance_watermark(watermark * SECOND)
        assert [row["t"].timestamp() < watermark for row in result.to_pylist()] == [True] * len(result)
        found += pairs(result)
        done = [row for row in kept[0] if row[1] is not None and row[1] < watermark]
        assert found == expected(done, kept[1], how, tolerance, exact)
        if restored:
            op = spec.restore(op.snapshot())
    found += pairs(op.finish())
    assert found == expected(*kept, how, tolerance, exact)
    assert op.metrics.rows_late == late == sum(t.num_rows for t in op.late_rows())
    assert op.metrics.rows_kept == 0


def test_the_latest_quote_before_a_trade() -> None:
    quotes = pa.table(
        {"k": ["A", "B", "A", "A"], "at": pa.array([1, 2, 5, 5], pa.timestamp("s")), "bid": [10, 7, 11, 12]}
    )
    trades = pa.table({"k": ["A", "A", "B", "C"], "at": pa.array([4, 5, 1, 3], pa.timestamp("s")), "n": [1, 2, 3, 4]})
    op = gw.AsOfJoin(["k"], "at", "at").start()
    early = op.process(left=trades, right=quotes)
    assert early.select(["k", "n", "bid"]).to_pylist() == [
        {"k": "A", "n": 1, "bid": 10},
        {"k": "B", "n": 3, "bid": None},
        {"k": "C", "n": 4, "bid": None},
    ], "the trade at the watermark waits: a quote of the same time may come"
    assert early.column_names == ["k", "at", "n", "at_right", "bid"]
    more = op.process(right=quotes.slice(3).set_column(2, "bid", pa.array([13])))
    assert more.num_rows == 0
    assert op.finish().select(["k", "n", "bid"]).to_pylist() == [{"k": "A", "n": 2, "bid": 13}], "the last that came"


def large(seed: int, rows: int, keys: int, value: str) -> pa.Table:
    rng = np.random.default_rng(seed)
    time = np.sort(rng.integers(0, 1_800 * SECOND, rows))
    columns = {"k": rng.integers(0, keys, rows), "t": pa.array(time).cast(pa.timestamp("us")), value: np.arange(rows)}
    return pa.table({**columns, f"{value}_text": pa.array(np.arange(rows).astype(str))})


@pytest.mark.parametrize("batches", [1, 3, 70])
@pytest.mark.parametrize(("keys", "tolerance"), [(50, None), (20_000, None), (500, "20 seconds")])
def test_pandas(keys: int, tolerance: str | None, batches: int) -> None:
    left, right = large(1, 60_000, keys, "l"), large(2, 50_000, keys, "r")
    want = pd.merge_asof(
        left.to_pandas(),
        right.to_pandas(),
        on="t",
        by="k",
        tolerance=None if tolerance is None else pd.Timedelta("20s"),
    ).sort_values("l")
    op = as_of(tolerance=tolerance).start()
    steps = [-(-side.num_rows // batches) for side in (left, right)]
    parts = [
        op.process(left.slice(i * steps[0], steps[0]), right.slice(i * steps[1], steps[1])) for i in range(batches)
    ]
    found = pa.concat_tables([*parts, op.finish()]).sort_by("l")
    assert found["r"].to_pylist() == [None if np.isnan(r) else int(r) for r in want["r"]]
    assert found["r_text"].to_pylist() == [None if isinstance(r, float) else r for r in want["r_text"]]
    assert 0 < found["r"].null_count < len(found) // 2


def test_the_newest_of_each_key_is_kept() -> None:
    op = as_of(watermark=gw.ExplicitWatermark()).start(left_schema=LEFT)
    for second in range(400):
        rows: list[Row] = [(f"k{i % 10}", second, "r") for i in range(50)]
        op.process(right=table(rows, RIGHT))
        op.advance_watermark((second + 1) * SECOND)
        assert op.metrics.rows_kept < 50, "of 50 rows of ten keys ten stay, and those of some batches before"
    assert op.metrics.rows_in == 20_000


def test_a_watermark_that_stood_still_lets_go_of_what_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    op = as_of(watermark=gw.ExplicitWatermark()).start(left_schema=LEFT)
    for second in range(300):  # more batches than wait
        op.process(right=table([("a", second, "r"), ("b", second, "r")], RIGHT))
    assert op.metrics.rows_kept == 600
    op.advance_watermark(299 * SECOND)
    assert op.metrics.rows_kept < 100
    left: list[Row] = [("a", 299, "x"), ("b", 400, "y")]
    op.process(left=table(left, LEFT))
    assert pairs(op.finish()) == Counter({("a", "x", "r"): 1, ("b", "y", "r"): 1})


def test_a_tolerance_evicts() -> None:
    op = as_of(tolerance="10 seconds", watermark=gw.ExplicitWatermark()).start(left_schema=LEFT)
    op.process(right=table([(f"k{i}", 0, "r") for i in range(100)], RIGHT))
    op.advance_watermark(10 * SECOND)
    assert op.metrics.rows_kept == 100
    op.advance_watermark(10 * SECOND + 1)
    assert op.metrics.rows_kept == 0


def test_ends_of_time() -> None:
    ends = [-(1 << 63), -(1 << 63) + 1, (1 << 63) - 2, (1 << 63) - 1]
    times = {"k": ["a"] * 4, "t": pa.array(ends).cast(pa.timestamp("us"))}
    left, right = (pa.table({**times, name: range(4)}) for name in "lr")
    for exact, tolerance, want in (
        (True, None, [0, 1, 2, 3]),
        (False, None, [None, 0, 1, 2]),
        (False, timedelta(microseconds=1), [None, 0, None, 2]),
    ):
        op = as_of(tolerance=tolerance, exact=exact, watermark=gw.ExplicitWatermark()).start()
        op.process(left=left, right=right)
        assert op.finish()["r"].to_pylist() == want


def test_a_failed_batch_changes_nothing() -> None:
    op = as_of(limits=gw.Limits(max_state_bytes=100_000)).start()
    op.process(left=large(1, 100, 5, "l"), right=large(2, 100, 5, "r"))
    before, metrics = op.snapshot(), op.metrics
    with pytest.raises(gw.LimitExceeded):
        op.process(right=large(3, 50_000, 50_000, "r"))
    with pytest.raises(gw.SchemaError):
        op.process(left=large(1, 10, 5, "l"), right=pa.table({"k": ["a"]}))
    assert op.snapshot() == before
    assert op.metrics == metrics


def test_watermarks_of_results() -> None:
    op = as_of(tolerance="10 seconds", watermark=gw.ExplicitWatermark()).start()
    assert (op.output_watermark, op.left_output_watermark) == (None, None)
    op.advance_watermark(60 * SECOND)
    behind = 50 * SECOND
    assert (op.output_watermark, op.left_output_watermark, op.right_output_watermark) == (behind, 60 * SECOND, behind)
    op = as_of(watermark=gw.ExplicitWatermark()).start()
    op.advance_watermark(60 * SECOND)
    assert (op.output_watermark, op.left_output_watermark, op.right_output_watermark) == (None, 60 * SECOND, None)


def test_a_side_that_never_sends() -> None:
    op = as_of().start(right_schema=RIGHT)
    op.process(left=table([("a", 1, "x"), (None, 2, "y")], LEFT))
    assert pairs(op.finish()) == Counter({("a", "x", None): 1, (None, "y", None): 1})
    assert as_of("inner").start(left_schema=LEFT).process(right=table([("a", 1, "x")], RIGHT)).num_rows == 0


def test_wrong_use() -> None:
    for wrong, says in (
        ({"how": "full"}, "how is one of left, inner, semi, anti"),
        ({"how": "cogroup"}, "how is one of left, inner, semi, anti"),
        ({"tolerance": "-1 seconds"}, "tolerance is at least 0"),
        ({"exact": 1}, "allow_exact_matches is True or False"),
        ({"watermark": gw.EventClock(timedelta(seconds=1))}, "the watermark of a join"),
    ):
        with pytest.raises(gw.SpecificationError, match=says):
            as_of(**wrong)  # type: ignore[arg-type]
    op = as_of().start()
    op.process(left=table([("a", 1, "x")], LEFT))
    with pytest.raises(gw.SnapshotError, match="another join"):
        as_of(exact=False).restore(op.snapshot())


@pytest.mark.parametrize("in_order", [True, False])
def test_newest_by_all_threads(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel alone, in ranges of seven rows, so that equal keys and times lie in several."""
    monkeypatch.setattr(joins, "ranges", lambda n: [(i, min(i + 7, n)) for i in range(0, n, 7)])
    rng = np.random.default_rng(7)
    code, time = (np.array(a) for a in zip(*sorted(rng.integers(0, 6, (90, 2)).tolist()), strict=True))
    wanted = rng.integers(-1, 8, (100, 2)).tolist()
    want_code, most = (np.array(a) for a in zip(*(sorted(wanted) if in_order else wanted), strict=True))
    found = joins.newest(code.astype(np.int32), time, want_code.astype(np.int32), most)
    rows = list(enumerate(zip(code, time, strict=True)))
    best = [
        max([i for i, (c, t) in rows if c == k and t <= m], default=-1) for k, m in zip(want_code, most, strict=True)
    ]
    assert found.tolist() == best
