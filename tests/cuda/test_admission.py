"""Watermarks that move with each row, and windows with gaps: the device leaves out the rows that the CPU leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_device_batch import NUMBERED, SECOND, batch, both, in_order, spec, warm

import gpuwin as gw
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.device.admission import admission
from gpuwin.device.batch import kept_of, places
from gpuwin.device.panes import DevicePaneEngine
from gpuwin.engines.panes import PaneEngine
from gpuwin.planning.plan import plan_of
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cuda.admission import LATE, only
from gpuwin_kernels.cuda.runtime import to_device, to_host

ROW = gw.Semantics(watermark_advance="row")
MILLIS = replace(ROW, watermark_inclusive=True, watermark_precision="ms", watermark_lag="tick")
PRESETS = {
    "row": ROW,
    "row, closes after the end": replace(ROW, close="after_end"),
    "row, late by time, whole milliseconds": replace(MILLIS, late_by="timestamp"),
    "row, whole milliseconds": MILLIS,
    "Akka": gw.Semantics.AKKA,
    "batch": gw.Semantics(),
    "Spark": gw.Semantics.SPARK,
    "late by time": gw.Semantics(late_by="timestamp"),
    "previous": gw.Semantics(late_filter="previous"),
}
WINDOWS = {
    "tumbling": gw.TumblingWindow("7 seconds", offset="2 seconds"),
    "gaps": gw.SlidingWindow("4 seconds", "10 seconds", offset="3 seconds"),
    "overlapping": gw.SlidingWindow("20 seconds", "10 seconds"),
    "global": gw.GlobalWindow(),
}
EDGE = 1 << 27
TIMES = {  # of so many rows, microseconds
    "around 0": lambda rng, rows: 1_000 * rng.integers(-40_000, 40_000, rows) - 1,
    "anywhere": lambda rng, rows: rng.choice([INT64_MIN, INT64_MAX, *rng.integers(INT64_MIN, INT64_MAX, 9)], rows),
    "early": lambda rng, rows: rng.integers(INT64_MIN, INT64_MIN + EDGE, rows),
    "late": lambda rng, rows: rng.integers(INT64_MAX - EDGE, INT64_MAX, rows, endpoint=True),
}


CASES = [(name, times, window) for name in PRESETS for times in TIMES for window in WINDOWS]


@pytest.mark.parametrize("case", CASES[::5], ids=" - ".join)
def test_the_rows_that_the_cpu_leaves_out(case: tuple[str, str, str]) -> None:
    _compare(*case, seed=5)


@pytest.mark.parametrize("form", WINDOWS)
@pytest.mark.parametrize("preset", ["row", "row, closes after the end"])
def test_a_row_at_the_end_of_time_is_not_late_by_itself(preset: str, form: str) -> None:
    for seed in (0, 1, 3):
        _compare(preset, "anywhere", form, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_more_rows_that_the_cpu_leaves_out(seed: int) -> None:
    for case in CASES:
        _compare(*case, seed=seed)


def _compare(preset: str, around: str, form: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    semantics, window, times = PRESETS[preset], WINDOWS[form], TIMES[around](rng, 40)
    known = INT64_MIN if rng.random() < 0.3 else min(int(TIMES[around](rng, 1)[0]), INT64_MAX - 1)
    specification = gw.WindowedAggregation(
        window=window, keys=[], time="ts", aggregates={"n": gw.count()}, semantics=semantics,
        watermark=gw.BoundedOutOfOrderness(str(rng.choice(["0 seconds", "3 seconds"]))),
    )  # fmt: skip
    plan = plan_of(specification, pa.schema({"ts": pa.timestamp("us")}))
    engine = PaneEngine(plan, WatermarkRule(specification.watermark, semantics))
    progress = Progress(known, known)
    rows = TimedRows({}, times, 0)
    by_row = semantics.watermark_advance == "row"
    each = engine.rule.after_each_row(progress, times, 0)[1] if by_row else known
    if by_row and form == "overlapping" and semantics.late_by == "window":
        return  # of another engine, on the CPU
    kept, _, drops = engine.admission.admitted(rows, each)

    found = admission(engine.grid, engine.bounds, engine.rule, progress, known, keeps_all=False)
    if found is None:
        assert known > INT64_MAX - 2 * EDGE
        return
    gone, surveyed = found.survey(to_device(times), None)
    least, newest, late, _, unassigned, apart = to_host(surveyed[0]).tolist()
    assert newest == times.max()
    if apart:
        assert int(times.max()) - int(times.min()) >= 1 << 51
        return
    stays = kept_of(gone, len(times)) if len(gone) else np.arange(len(times))
    np.testing.assert_array_equal(times[stays], kept.time)
    assert (late, unassigned) == (drops.rows_late, drops.unassigned)
    assert least == (kept.time.min() if len(kept) else INT64_MAX)
    if late:
        np.testing.assert_array_equal(places(only(gone, LATE)), drops.late[0])


ROWS = {"semantics": ROW, "watermark": gw.BoundedOutOfOrderness("3 seconds")}
AKKA = ROWS | {"semantics": gw.Semantics.AKKA}


@pytest.mark.parametrize(
    ("window", "more"),
    [
        (gw.TumblingWindow("10 seconds"), ROWS),
        (gw.TumblingWindow("10 seconds"), AKKA | {"keys": []}),
        (gw.SlidingWindow("20 seconds", "10 seconds"), AKKA),
        (gw.CumulativeWindow("20 seconds", "10 seconds"), AKKA | {"emit": gw.OnUpdate()}),
        (gw.SlidingWindow("5 seconds", "10 seconds", offset="2 seconds"), ROWS),
        (gw.SlidingWindow("5 seconds", "10 seconds"), {"emit": gw.Complete(), "keys": []}),
        (gw.SlidingWindow("5 seconds", "10 seconds"), {"allowed_lateness": "20 seconds", "keys": ["name"]}),
        (gw.TumblingWindow("10 seconds"), ROWS | {"aggregates": {"first": gw.first("i")}, "keys": ["name"]}),
    ],
    ids=["row", "Akka", "Akka, sliding", "Akka, cumulative", "row, gaps", "gaps, all kept", "gaps, text", "in order"],
)
def test_same_rows_as_the_cpu(window: Any, more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    batches = []
    for span in ((0, 20), (20, 40), (-30, 45), (-30, 0), (30, 50)):
        rows = batch(rng, 12, *span)
        batches.append(rows.append_column("name", rows["k"].cast(pa.string())))
    monkeypatch.setattr(PaneEngine, "admitted", _on_the_cpu_only(PaneEngine.admitted))
    host, device = both(spec(window, **more), batches)
    assert host.metrics.rows_unassigned == device.metrics.rows_unassigned
    assert host.metrics.rows_late or isinstance(more.get("emit"), gw.Complete)
    assert in_order(host.finish()) == in_order(device.finish())


@pytest.mark.parametrize(
    "more",
    [{}, {"keys": []}, {"semantics": gw.Semantics(late_by="timestamp"), "keys": []}, {"semantics": ROW}],
    ids=["by window", "no keys", "by time", "row"],
)
def test_windows_from_upstream(more: Any) -> None:
    """Some of which end long before their rows' times, or after."""
    rng = np.random.default_rng(6)
    batches = []
    for span in ((0, 20), (20, 40), (-30, 45), (30, 50)):
        rows = batch(rng, 9, *span)
        start = (rng.integers(*span, 9) // 10 * 10 + 10 * rng.integers(-1, 2, 9)) * 1_000_000
        for name, stamps in (("window_start", start), ("window_end", start + 10_000_000)):
            rows = rows.append_column(name, pa.array(stamps).view(pa.timestamp("us")))
        batches.append(rows)
    host, device = both(spec(gw.InheritedWindow(), **more), batches)
    assert host.metrics.rows_late == device.metrics.rows_late > 0
    assert in_order(host.finish()) == in_order(device.finish())


def test_panes_and_keys_that_fit_no_word_are_the_hosts() -> None:
    """Ends of windows are instants: a batch of two years, and of more keys than remain of a word."""
    ends = pa.array([0, 1, 1 << 50]).view(pa.timestamp("us"))
    rows = pa.table({"ts": ends, "k": [1, 2, 3], "v": [1.0, 2.0, 3.0], "i": [1, 2, 3]})
    rows = rows.append_column("window_start", rows["ts"]).append_column("window_end", rows["ts"])
    many = np.arange(5_000)
    first = pa.table({"ts": pa.array(many).view(pa.timestamp("us")), "k": many, "v": many * 1.0, "i": many})
    first = first.append_column("window_start", first["ts"]).append_column("window_end", first["ts"])
    late = {"watermark": gw.BoundedOutOfOrderness("100000 days"), "aggregates": {"n": gw.count()}}
    specification = spec(gw.InheritedWindow(), **late)
    host = specification.start(device="cpu")
    host.process(first)
    device = specification.restore(host.snapshot(), device="cuda")
    assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert device.metrics.cells == host.metrics.cells


ENGINES = ("SPARK", "FLINK", "BEAM", "APEX", "AKKA", "REDUCTION", "STREAMLITE")


@pytest.mark.sweep
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.OnUpdate(), gw.Complete()], ids=lambda emit: type(emit).__name__)
@pytest.mark.parametrize("engine", [*ENGINES, "row"])
@pytest.mark.parametrize("form", WINDOWS)
def test_each_preset_on_random_streams(form: str, engine: str, emit: Any) -> None:
    semantics = ROW if engine == "row" else getattr(gw.Semantics, engine)
    specification = spec(WINDOWS[form], semantics=semantics, emit=emit)
    of_the_cpu = form == "overlapping" and engine == "row" and not isinstance(emit, gw.Complete)
    rng = np.random.default_rng(7)
    batches = [batch(rng, 12, *span) for span in ((0, 20), (20, 40), (-30, 45), (-30, 0), (30, 50))]
    if of_the_cpu:
        with pytest.raises(gw.DeviceError, match="no CUDA engine"):
            specification.start(device="cuda").process(batches[0])
        return
    host, device = both(specification, batches)
    assert host.metrics.rows_unassigned == device.metrics.rows_unassigned
    assert in_order(host.finish()) == in_order(device.finish())


def _on_the_cpu_only(real: Any) -> Any:
    def admitted(engine: PaneEngine, *arguments: Any) -> Any:
        assert not isinstance(engine, DevicePaneEngine), "the device takes rows as they are"
        return real(engine, *arguments)

    return admitted


@pytest.mark.parametrize(
    ("window", "more"),
    [
        (gw.TumblingWindow("10 seconds"), ROWS),
        (gw.SlidingWindow("10 seconds", "20 seconds"), {}),
        (gw.InheritedWindow(), {"keys": []}),
    ],
    ids=["row", "gaps", "from upstream"],
)
def test_a_batch_like_the_last_waits_once_and_allocates_nothing(window: Any, more: Any) -> None:
    options = more | {"watermark": gw.BoundedOutOfOrderness("1 hour")}
    bounds = {name: pa.array([at] * 6).view(pa.timestamp("us")) for name, at in (("start", 0), ("end", 10 * SECOND))}
    columns = NUMBERED | {f"window_{name}": stamps for name, stamps in bounds.items()}
    waited, allocated, _ = warm(spec(window, **options).start(device="cuda"), 0, 6, columns)
    assert waited[2:] == [1] * 4, waited
    assert allocated[4:] == [0] * 2, allocated


def test_times_too_far_apart_are_the_hosts() -> None:
    years = 80 * 365 * 86_400
    rng = np.random.default_rng(4)
    rows = pa.concat_tables([batch(rng, 5, -years, -years + 9), batch(rng, 5, years, years + 9)])
    host, device = both(spec(gw.SlidingWindow("5 seconds", "10 seconds")), [batch(rng, 5, 0, 9), rows])
    assert in_order(host.finish()) == in_order(device.finish())
