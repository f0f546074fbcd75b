"""Rows that wait in a log give what rows that do not wait give, and nothing can tell that they wait."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.batch import pane_cells
from gpuwin.batch.timed_rows import TimedRows, read_rows
from gpuwin.engines import closing_panes
from gpuwin.engines.closing_panes import ClosingPaneEngine
from gpuwin.planning.plan import plan_of
from gpuwin_kernels import tuning

MINUTE = 60_000_000
WHOLE = {
    "n": gw.count(),
    "present": gw.count("i"),
    "i": gw.sum("i"),
    "d": gw.sum("d"),
    "u": gw.sum("u"),
    "lo": gw.min("v"),
    "hi": gw.max("small"),
    "first": gw.first("i"),
    "last": gw.last("v"),
    "best": gw.max_by("i", "v"),
}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first row on."""
    rows_wait(monkeypatch, True)


def rows_wait(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Lets rows wait from the first one on, for a kernel that takes them all at once; or never do either."""
    monkeypatch.setattr(closing_panes, "AT_ONCE", 0 if waits else 1 << 62)
    monkeypatch.setattr(pane_cells, "AT_ONCE", 1 if waits else 1 << 62)


def batch(rng: np.random.Generator, rows: int, minute: int, nulls: bool) -> pa.Table:
    def column(values: list[object], type_: pa.DataType) -> pa.Array:
        mask = rng.random(rows) < 0.3 if nulls else None
        return pa.array(np.array(values, object), type_, mask=mask)

    return pa.table(
        {
            "ts": pa.array(rng.integers(minute * MINUTE, (minute + 2) * MINUTE, rows)).view(pa.timestamp("us")),
            "key": pa.array(rng.integers(0, 5, rows)),
            "i": column(rng.integers(-9, 9, rows).tolist(), pa.int32()),
            "d": column([Decimal(int(x)) for x in rng.integers(-9, 9, rows)], pa.decimal128(20, 2)),
            "u": column(rng.integers(0, 9, rows).tolist(), pa.uint64()),
            "v": column(rng.integers(-9, 9, rows).astype(float).tolist(), pa.float64()),
            "small": column(rng.integers(-9, 9, rows).tolist(), pa.int16()),
        }
    )


def spec(window: object = None, **more: object) -> gw.WindowedAggregation:
    given = {"window": window or gw.TumblingWindow("1 minute"), "keys": ["key"], "time": "ts", "aggregates": WHOLE}
    return gw.WindowedAggregation(**{"watermark": gw.BoundedOutOfOrderness("2 minutes"), **given, **more})


def batches(seed: int) -> list[pa.Table]:
    """Of a few rows, some without nulls and some sliced, so that validity does not begin at a byte."""
    rng = np.random.default_rng(seed)
    return [batch(rng, 3 + k % 11, k // 3, nulls=k % 4 != 0).slice(k % 3) for k in range(40)]


def waiting(op: gw.WindowOperator) -> int:
    return op._running.windows.state.log.rows  # type: ignore[no-any-return]


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("window", [gw.TumblingWindow("1 minute"), gw.SlidingWindow("3 minutes", "1 minute")])
@pytest.mark.parametrize("rows", [tuning.LOG_ROWS, 20])
def test_equals_rows_that_do_not_wait(window: object, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LOG_ROWS", rows)
    found, waited = [], 0
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(window).start(device="cpu")
        out = []
        for table in batches(1):
            out.append(op.process(table))
            waited += waiting(op)
            assert waits or not waiting(op)
        found.append([*out, op.finish()])
    assert waited
    for a, b in zip(*found, strict=True):
        assert a.equals(b)


@pytest.mark.parametrize("kept", [1 << 26, 1000])
def test_large_batches_wait_while_there_are_more_keys_and_no_window_closes(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LOG_BATCH", 0)  # so that every batch is a large one
    monkeypatch.setattr(tuning, "LOG_ROWS", 20)
    monkeypatch.setattr(tuning, "LOG_BYTES", kept)
    rng = np.random.default_rng(8)
    # Each of the first batches closes a window, and brings more rows than there were keys; the others are of one.
    seconds = [0, 60, 120, *range(180, 240, 4), 300]
    stream = [
        pa.table(
            {
                "ts": pa.array([s * 1_000_000] * 50).view(pa.timestamp("us")),
                "key": rng.integers(0, 100, 50),
                "v": rng.integers(0, 9, 50).astype(float),
            }
        )
        for s in seconds
    ]
    found, waited = [], []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(aggregates={"s": gw.sum("v")}, watermark=gw.BoundedOutOfOrderness()).start("cpu")
        out = []
        for table in stream:
            out.append(op.process(table))
            waited.append(waiting(op))
        found.append([*out, op.finish()])
    for a, b in zip(*found, strict=True):
        assert a.equals(b)
    assert not any(waited[len(stream) :])
    assert waited[:4] == [0, 0, 0, 0]
    every = set(range(0, tuning.LOG_PER_KEY * 100, 50))
    assert set(waited[4 : len(stream) - 1]) == (every if kept > 1000 else {0})
    assert waited[len(stream) - 1] == 0


@pytest.mark.usefixtures("logged")
def test_rows_of_a_large_batch_go_on_waiting_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LOG_BATCH", 0)  # so that every batch is a large one
    rng = np.random.default_rng(9)

    def rows(count: int) -> pa.Table:
        """Of the first two minutes, in order of time."""
        stamps = pa.array(np.linspace(0, 119_000_000, count).astype(np.int64)).view(pa.timestamp("us"))
        return pa.table({"ts": stamps, "key": rng.permutation(count), "v": np.ones(count)})

    op = spec(aggregates={"s": gw.sum("v")}).start("cpu")
    op.process(rows(100))
    op.process(rows(80))
    assert waiting(op) == 80
    early = op.advance_watermark(60_000_000)
    assert waiting(op) == 40
    log = op._running.windows.state.log  # type: ignore[union-attr]
    assert log.held_bytes < 40 * 2 * 4 * 24
    assert sum(early["s"].to_pylist()) + sum(op.finish()["s"].to_pylist()) == 180.0


@pytest.mark.usefixtures("logged")
def test_keys_and_rows_that_go_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians keep their rows elsewhere, and the dictionary is renumbered when keys go."""
    rng = np.random.default_rng(5)
    stream = [
        pa.table(
            {
                "ts": pa.array(k * 20_000_000 + np.arange(2_000)).view(pa.timestamp("us")),
                "key": rng.integers(k * 1_500, k * 1_500 + 3_000, 2_000),
                "v": rng.integers(0, 9, 2_000).astype(float),
            }
        )
        for k in range(30)
    ]
    found = []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(aggregates={"s": gw.sum("v"), "mid": gw.median("v")}, watermark=gw.BoundedOutOfOrderness()).start(
            "cpu"
        )
        out = [op.process(table) for table in stream]
        assert len(op._running.windows.names().keys) < 45_000  # type: ignore[union-attr]
        assert bool(waiting(op)) == waits
        out.append(op.finish())
        found.append([t.sort_by([("window_start", "ascending"), ("key", "ascending")]) for t in out])
    assert sum(t.num_rows for t in found[0]) > 30_000
    for a, b in zip(*found, strict=True):
        assert a.equals(b)


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("window", [gw.TumblingWindow("1 minute"), gw.SlidingWindow("3 minutes", "1 minute")])
def test_rows_of_later_panes_go_on_waiting(window: object) -> None:
    def rows(second: int) -> pa.Table:
        stamps = pa.array([(second + k) * 1_000_000 for k in range(40)]).view(pa.timestamp("us"))
        value = [None if k % 3 == 0 else second + k for k in range(40)]
        return batches(6)[0].slice(0, 1).take([0] * 40).set_column(0, "ts", stamps).set_column(2, "i", pa.array(value))

    op = spec(window, aggregates={"i": gw.sum("i")}, watermark=gw.BoundedOutOfOrderness()).start(device="cpu")
    waited, out = [], []
    for second in (0, 40, 80, 120):
        out.append(op.process(rows(second).cast(batches(6)[0].schema)))
        waited.append(waiting(op))
    assert waited == [40, 20, 60, 40]
    sums = [sum(x for x in range(60 * w, min(60 * w + 60, 160)) if (x % 40) % 3) for w in range(3)]
    found = {row["window_end"].timestamp(): row["i"] for t in [*out, op.finish()] for row in t.to_pylist()}
    if isinstance(window, gw.TumblingWindow):
        assert list(found.values()) == sums
    else:
        assert list(found.values())[:3] == [sums[0], sum(sums[:2]), sum(sums)]


@pytest.mark.usefixtures("logged")
def test_metrics_and_snapshots_count_rows_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec().start(device="cpu")
        for table in batches(2)[:5]:
            op.process(table)
        assert bool(waiting(op)) == waits
        metrics = op.metrics
        again = spec().restore(op.snapshot(), device="cpu")
        assert bool(waiting(op)) == waits  # asking moves nothing
        seen.append((metrics.windows_open, metrics.rows_in, again.finish(), op.finish()))
        assert seen[-1][2].num_rows
    assert seen[0][:2] == seen[1][:2]
    assert (
        len(
            {
                str(tables.sort_by([("key", "ascending"), ("window_start", "ascending")]))
                for s in seen
                for tables in s[2:]
            }
        )
        == 1
    )


@pytest.mark.usefixtures("logged")
def test_the_batch_that_overflows_is_the_one_that_raises() -> None:
    def rows(*values: int) -> pa.Table:
        return pa.table({"ts": pa.array([0] * len(values), pa.timestamp("us")), "key": [1] * len(values), "i": values})

    op = spec(aggregates={"i": gw.sum("i")}).start(device="cpu")
    op.process(rows(0))
    op.process(rows(1 << 62))
    assert waiting(op) == 2
    op.process(rows((1 << 62) - 1))  # fits by one
    assert waiting(op) == 3
    with pytest.raises(gw.OverflowError):
        op.process(rows(1))
    op.process(rows(-5))
    assert op.finish()["i"].to_pylist() == [(1 << 63) - 6]


@pytest.mark.usefixtures("logged")
def test_a_batch_that_fails_leaves_the_log_as_it_was() -> None:
    op = spec().start(device="cpu")
    first, second, third = batches(3)[:3]
    op.process(first)
    with pytest.raises(gw.SchemaError):
        op.process(second.drop_columns("v"))
    keys = pa.chunked_array([pa.array(["a"] * len(second))])
    with pytest.raises(gw.SchemaError):
        op.process(second.set_column(1, "key", keys))
    op.process(third)
    other = spec().start(device="cpu")
    other.process(first)
    other.process(third)
    assert op.finish().equals(other.finish())


@pytest.mark.usefixtures("logged")
def test_two_streams_from_one_state() -> None:
    op = spec().start(device="cpu")
    engine = ClosingPaneEngine(plan_of(op._spec, batches(4)[0].schema), op._rule)
    begun = engine.begin()
    a, b, c = (rows(engine, table) for table in batches(4)[:3])
    progress = op._rule.begin()
    one = engine.rows(begun, a, progress, 0)
    left, right = engine.rows(one.state, b, one.progress, 0), engine.rows(one.state, c, one.progress, 0)
    again = engine.rows(one.state, b, one.progress, 0)
    ended = [engine.in_cells(step.state).panes.compacted().runs[0].columns[0].values[0].sum() for step in (left, right)]
    assert ended == [len(a) + len(b), len(a) + len(c)]
    assert len(engine.in_cells(again.state).panes.runs[0]) == len(engine.in_cells(left.state).panes.runs[0])


def rows(engine: ClosingPaneEngine, table: pa.Table) -> TimedRows:
    return read_rows(engine.plan, table, 0, None)[0]


@pytest.mark.parametrize("aggregate", [gw.count(), gw.last("i"), gw.sum("i")])
@pytest.mark.parametrize("window", [gw.TumblingWindow("1 minute"), gw.SlidingWindow("3 minutes", "1 minute")])
def test_a_cell_counts_once_however_its_parts_are_held(window: object, aggregate: object) -> None:
    rng = np.random.default_rng(5)
    many = batch(rng, 60, 0, nulls=False)
    op = spec(window, aggregates={"a": aggregate}).start(device="cpu")
    cells = set()
    for one in (many, many.slice(0, 1), many.slice(7, 2)):
        op.process(one)
        cells.add(op.metrics.cells)
    minutes = many["ts"].cast(pa.int64()).to_numpy() // MINUTE
    assert cells == {len(set(zip(many["key"].to_pylist(), minutes.tolist(), strict=True)))}


NAMES = [f"customer-{k}" for k in range(40)]


def texts(rng: np.random.Generator, rows: int, kind: str, k: int) -> pa.Array:
    """A column of names, some null: plain, with one dictionary for all batches, with one for each, with one far larger
    than the batch, or now one way and now another.
    """
    if kind == "mixed":
        kind = ("plain", "one", "each", "large")[k % 4]
    at = rng.integers(0, 40, rows)
    none = rng.random(rows) < 0.2
    if kind == "plain":
        return pa.array([NAMES[i] for i in at], mask=none)
    if kind == "one":
        return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int32), mask=none), pa.array(NAMES))
    if kind == "each":  # a name may stand in it twice, and nulls may stand in the dictionary
        names = [*rng.permutation(NAMES)[:20].tolist(), NAMES[0], None]
        return pa.DictionaryArray.from_arrays(pa.array((at % 22).astype(np.int8)), pa.array(names))
    large = [*NAMES, *(f"nobody-{i}" for i in range(1_000))]
    return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int16), mask=none), pa.array(large))


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("window", [gw.TumblingWindow("1 minute"), gw.SlidingWindow("3 minutes", "1 minute")])
@pytest.mark.parametrize("kind", ["plain", "one", "each", "large", "mixed"])
def test_texts_and_statistics_wait_as_numbers_do(kind: str, window: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    stream = []
    for k in range(40):
        rows = int(rng.integers(3, 60))
        times = rng.integers(k * MINUTE // 3, k * MINUTE // 3 + 2 * MINUTE, rows)
        stream.append(
            pa.table(
                {
                    "ts": pa.array(times, mask=rng.random(rows) < (0.1 if k % 3 else 0)).view(pa.timestamp("us")),
                    "key": texts(rng, rows, kind, k),
                    "two": pa.array(rng.integers(0, 3, rows)),
                    "text": texts(rng, rows, kind, k + 1),
                    "i": pa.array(rng.integers(0, 99, rows)),
                }
            )
        )
    aggregates = {
        "most": gw.max("text"),
        "first": gw.first("text"),
        "std": gw.std("i"),
        "bits": gw.bit_xor("i"),
        "last": gw.last("i"),
        "all": gw.collect_list("text"),
        "distinct": gw.count_distinct("text"),
    }
    found, waited = [], []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(window, keys=["key", "two"], aggregates=aggregates).start(device="cpu")
        out = []
        for table in stream:
            out.append(op.process(table))
            waited.append(waiting(op))
        found.append([*out, op.finish()])
    assert sum(1 for rows in waited if rows) == len(stream)
    for a, b in zip(*found, strict=True):
        apart = [abs((x or 0) - (y or 0)) for x, y in zip(a["std"].to_pylist(), b["std"].to_pylist(), strict=True)]
        assert max(apart, default=0.0) < 1e-9
        assert a.drop_columns("std").equals(b.drop_columns("std"))


@pytest.mark.usefixtures("logged")
def test_rows_that_wait_are_in_memory_of_their_own() -> None:
    stamps, keys, values = np.zeros(5, np.int64), np.arange(5), np.arange(5.0)
    op = spec(aggregates={"s": gw.sum("v")}).start(device="cpu")
    rows = pa.table({"ts": pa.array(stamps).view(pa.timestamp("us")), "key": pa.array(keys), "v": pa.array(values)})
    op.process(rows)
    assert waiting(op) == 5
    stamps[:], keys[:], values[:] = 5 * MINUTE, 7, -1.0  # as a source does that fills one buffer again and again
    assert rows["v"].to_pylist() == [-1.0] * 5
    assert op.finish().select(["key", "s"]).to_pydict() == {"key": [0, 1, 2, 3, 4], "s": [0.0, 1.0, 2.0, 3.0, 4.0]}


@pytest.mark.usefixtures("logged")
def test_code_of_the_users_own_does_not_wait() -> None:
    @gw.accumulation
    class Product:
        state = {"total": 1.0}  # noqa: RUF012 - the form that gw.accumulation asks for

        def add(total, x):  # type: ignore[no-untyped-def]
            return total * x

        def merge(total, other):  # type: ignore[no-untyped-def]
            return total * other

        def result(total):  # type: ignore[no-untyped-def]
            return total

    op = spec(aggregates={"p": Product("i")}).start(device="cpu")
    for table in batches(1)[:3]:
        op.process(table)
    assert waiting(op) == 0


@pytest.mark.usefixtures("logged")
def test_long_texts_do_not_wait_for_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of strings has no more than 2 GB."""
    monkeypatch.setattr(tuning, "LOG_BYTES", 10_000)
    op = spec(aggregates={"most": gw.max("text")}).start(device="cpu")
    waited = []
    for size in (10, 200, 300, 20_000, 10):
        text = [f"{size:05d}".ljust(size, "x")] * 20
        op.process(pa.table({"ts": pa.array([0] * 20, pa.timestamp("us")), "key": [1] * 20, "text": text}))
        waited.append(waiting(op))
    assert waited == [20, 40, 0, 0, 20]
    assert [len(text) for text in op.finish()["most"].to_pylist()] == [20_000]


def test_rows_come_in_the_same_order_whether_they_waited_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are numbered as they come, also those of rows that go on waiting."""

    def rows(seconds: list[int], keys: list[str]) -> pa.Table:
        return pa.table({"ts": pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us")), "key": keys})

    found = []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(gw.TumblingWindow("10 seconds"), aggregates={"n": gw.count()}, watermark=gw.BoundedOutOfOrderness())
        running = op.start(device="cpu")
        stream = [rows([0], ["x"]), rows([12, 3, 13], ["b", "a", "c"]), rows([13], ["a"])]
        found.append(
            [*(running.process(table)["key"].to_pylist() for table in stream), running.finish()["key"].to_pylist()]
        )
    assert found[0] == found[1] == [[], ["x", "a"], [], ["b", "a", "c"]]


@pytest.mark.parametrize("type_", [pa.string(), pa.int64()])
def test_a_null_among_the_keys_waits_as_the_others_do(type_: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = [pa.array(keys, pa.string()).cast(type_) for keys in (["1", "2"], ["3", None, "4"], ["5", None])]
    found = []
    for waits in (True, False):
        rows_wait(monkeypatch, waits)
        op = spec(gw.TumblingWindow("10 seconds"), aggregates={"n": gw.count()}).start(device="cpu")
        for keys in stream:
            op.process(pa.table({"ts": pa.array([0] * len(keys), pa.timestamp("us")), "key": keys}))
        found.append(op.finish()["key"].cast(pa.string()).to_pylist())
    assert found[0] == found[1] == ["1", "2", "3", None, "4", "5"]


@pytest.mark.parametrize("waits", [True, False])
def test_cells_are_those_that_an_open_window_needs(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of medians that nothing needs any more may lie in memory for a while, and are not counted."""
    rows_wait(monkeypatch, waits)
    op = spec(
        gw.SlidingWindow("4 seconds", "2 seconds"),
        aggregates={"n": gw.count(), "mid": gw.median("v")},
        watermark=gw.BoundedOutOfOrderness(),
    ).start(device="cpu")
    for k in range(60):
        stamps = pa.array([k * 100_000 * 7], pa.timestamp("us"))
        op.process(pa.table({"ts": stamps, "key": [k % 2], "v": [float(k)]}))
        newest = k * 700_000
        kept = {j for j in range(k + 1) if j * 700_000 >= newest // 2_000_000 * 2_000_000 - 2_000_000}
        panes = {(j % 2, j * 700_000 // 2_000_000) for j in kept}
        assert op.metrics.cells == len(panes) + len(kept)
