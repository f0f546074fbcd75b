"""The parts of the demo, without Spark: the stream, the recomputation, the comparison, the table and the chart."""

from __future__ import annotations

import io
import json
import random
import time
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gpuwin.demo import DemoError, check, command, flights, report
from gpuwin.demo.busiest import busiest_day
from gpuwin.demo.progress import ProgressLine
from gpuwin.demo.queries import QUERIES, DemoQuery
from gpuwin.demo.runs import Batch, Outcome
from gpuwin.demo.warm import Compilation

MINUTE = 60_000_000
PER_ORIGIN = QUERIES["per_origin"]


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return flights.load_flights(flights.find_flights())


def test_the_flights_are_the_flights_of_2013(stream: pa.Table) -> None:
    assert stream.schema == flights.SCHEMA
    assert stream.num_rows == 336_776
    assert stream["delay"].null_count == 8_255
    assert stream["tailnum"].null_count == 2_512, "NA is null, not a tail number"
    assert not any(stream[n].null_count for n in ("scheduled", "origin", "dest", "carrier"))


def test_they_come_in_the_order_in_which_they_left(stream: pa.Table) -> None:
    left = pc.add(stream["scheduled"].cast(pa.int64()), pc.multiply(pc.fill_null(stream["delay"], 0), MINUTE))
    assert pc.all(pc.less_equal(left[:-1], left[1:])).as_py()
    found = flights.disorder(stream)
    assert (found.rows, found.cancelled) == (336_776, 8_255)
    assert found.out_of_order > found.rows // 2
    assert found.largest_minutes == 1_300  # a flight 1,301 minutes late, one minute after the newest schedule


def test_the_schedule_is_in_utc(stream: pa.Table) -> None:
    # UA 1545 to Houston: on 1 January at 05:15 in New York (UTC-5), and on 2 July, in summer, an hour earlier in UTC.
    rows = stream.filter(pc.and_(pc.equal(stream["flight"], 1545), pc.equal(stream["carrier"], "UA")))
    first = min(rows["scheduled"].to_pylist())
    assert first == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    hours = {t.astimezone(ZoneInfo("America/New_York")).hour for t in stream["scheduled"].to_pylist()[::97]}
    assert not hours & {2, 3, 4}, "nobody is scheduled to leave New York in the small hours"


def test_a_stream_is_cut_without_loss_and_without_an_empty_batch(stream: pa.Table) -> None:
    few = stream.slice(0, 10)
    for number in (1, 3, 10, 25):
        batches = flights.cut(few, number)
        assert len(batches) == min(number, 10)
        assert all(b.num_rows for b in batches)
        assert pa.concat_tables(batches).equals(few)


def test_the_first_batches_of_a_stream_are_small(stream: pa.Table) -> None:
    rows = [b.num_rows for b in flights.cut(stream, 20)]
    assert rows[:6] == [500, 1000, 2000, 4000, 8000, 16000]
    assert sum(rows) == stream.num_rows
    assert max(rows[6:]) - min(rows[6:]) <= 1, "the others are equal"
    assert [b.num_rows for b in flights.cut(stream.slice(0, 4501), 4)] == [500, 1334, 1334, 1333]


def test_batches_are_read_in_their_order(stream: pa.Table, tmp_path: Path) -> None:
    flights.write_batches(flights.cut(stream.slice(0, 100), 12), tmp_path / "in")
    files = sorted((tmp_path / "in").iterdir())
    times = [f.stat().st_mtime for f in files]
    assert len(files) == 12
    assert times == sorted(set(times))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    path.write_bytes(b"not a zip file")
    with pytest.raises(DemoError, match=r"flights.csv.zip cannot be read .*pip install 'gpuwin\[demo\]'"):
        flights.load_flights(path)


def small(rows: list[tuple[int, str, str, int | None]]) -> pa.Table:
    """Flights from (minute, carrier, origin, delay)."""
    columns: dict[str, list[Any]] = {n: [None] * len(rows) for n in flights.SCHEMA.names}
    columns["scheduled"] = [m * MINUTE for m, _, _, _ in rows]
    for i, name in ((1, "carrier"), (2, "origin"), (3, "delay")):
        columns[name] = [r[i] for r in rows]
    return pa.table({n: pa.array(columns[n], flights.SCHEMA.field(n).type) for n in flights.SCHEMA.names})


def by_hand(batches: list[pa.Table], query: DemoQuery) -> dict[tuple[Any, ...], tuple[int, float | None, int]]:
    """Row by row and window by window, with Spark's rules and a dictionary."""
    micro = timedelta(microseconds=1)
    size, slide, lag = query.size // micro, query.slide // micro, query.watermark_delay // micro
    cells: dict[tuple[Any, ...], list[int | None]] = {}
    watermarks, newest = [0], None
    for number, batch in enumerate(batches):
        late = watermarks[number - 1] if number else 0
        for row in batch.to_pylist():
            t = int(row["scheduled"].timestamp()) * 1_000_000
            newest = t if newest is None else max(newest, t)
            start = t // slide * slide
            while start > t - size:
                if start + size > late:
                    key = (*(row[k] for k in query.keys), start)
                    cells.setdefault(key, []).append(row["delay"])
                start -= slide
        watermarks.append(max(watermarks[-1], (newest or 0) - lag))
    rows = {}
    for key, delays in cells.items():
        if key[-1] + size <= watermarks[-1]:
            flown = [d for d in delays if d is not None]
            rows[key] = (len(flown), sum(flown) / len(flown) if flown else None, len(delays) - len(flown))
    return rows


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_the_recomputation_against_a_dictionary(name: str, seed: int) -> None:
    query, chance = QUERIES[name], random.Random(seed)
    begin = chance.choice([0, 22_720_000])  # in 1970, where Spark's first watermark is, and in 2013
    rows = []
    for i in range(60):
        disorder = chance.choice([0, 0, chance.randrange(4_000), chance.randrange(20_000)])
        minute = max(0, begin + i * chance.randrange(400) - disorder)
        delay = chance.choice([None, chance.randrange(-40, 300)])
        rows.append((minute, chance.choice(["AA", "UA"]), chance.choice(["EWR", "JFK"]), delay))
    batches = flights.cut(small(rows), chance.choice([1, 4, 9]))
    found = check.recompute(batches, query)
    expected = by_hand(batches, query)
    starts = found["start"].cast(pa.int64()).to_pylist()
    keys = list(zip(*(found[k].to_pylist() for k in query.keys), starts, strict=True))
    values = zip(*(found[n].to_pylist() for n in ("departures", "mean_delay", "cancelled")), strict=True)
    assert dict(zip(keys, values, strict=True)) == expected
    assert len(keys) == len(expected)


def result(rows: list[tuple[str, int, int, float | None, int]]) -> pa.Table:
    """Emitted windows from (origin, start minute, departures, mean, cancelled)."""
    starts = [r[1] * MINUTE for r in rows]
    time = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "origin": pa.array([r[0] for r in rows], pa.string()),
            "start": pa.array(starts, time),
            "end": pa.array([s + 360 * MINUTE for s in starts], time),
            "departures": pa.array([r[2] for r in rows], pa.int64()),
            "mean_delay": pa.array([r[3] for r in rows], pa.float64()),
            "cancelled": pa.array([r[4] for r in rows], pa.int64()),
        }
    )


ROWS: list[tuple[str, int, int, float | None, int]] = [
    ("EWR", 0, 3, 4.5, 0),
    ("EWR", 10, 0, None, 2),
    ("JFK", 0, 1, 9.0, 0),
]


def test_equal_results_are_equal() -> None:
    assert check.compare(result(ROWS), result(ROWS), PER_ORIGIN) == check.Check(3, None)
    close = [("EWR", 0, 3, 4.5 * (1 + 1e-12), 0), *ROWS[1:]]
    assert check.compare(result(ROWS), result(close), PER_ORIGIN).equal
    assert check.compare(result([]), result([]), PER_ORIGIN).equal


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (ROWS[:2], "2 rows, where 3 are right"),
        ([("LGA", 0, 3, 4.5, 0), *ROWS[1:]], "differ in origin"),
        ([("EWR", 5, 3, 4.5, 0), *ROWS[1:]], "differ in start"),
        ([("EWR", 0, 4, 4.5, 0), *ROWS[1:]], "differ in departures"),
        ([("EWR", 0, 3, 4.5, 1), *ROWS[1:]], "differ in cancelled"),
        ([("EWR", 0, 3, 4.5 * (1 + 1e-8), 0), *ROWS[1:]], "differ in mean_delay"),
        ([("EWR", 0, 3, None, 0), *ROWS[1:]], "differ in mean_delay"),
        ([ROWS[0], ("EWR", 10, 0, 0.0, 2), ROWS[2]], "differ in mean_delay"),
    ],
)
def test_each_difference_is_found(changed: list[Any], says: str) -> None:
    found = check.compare(result(ROWS), result(changed), PER_ORIGIN)
    assert not found.equal
    assert found.difference is not None
    assert says in found.difference


def outcome(status: Any, seconds: float, batches: int, operator: str = "gpuwin", **more: Any) -> Outcome:
    done = tuple(Batch(i, 10, 100, (i + 1) * 2.0, 7 + i, 100, (operator,)) for i in range(batches))
    return Outcome(status, seconds, done, **more)


def test_the_table_and_its_sentences() -> None:
    plain = outcome("finished", 30.0, 4, "stateStoreSave", nodes=("StateStoreSave", "StateStoreRestore", "Expand"))
    device = outcome("finished", 6.0, 4, explanation="1 of 1\n+ operator 0: GpuWindow [origin] runs on gpuwin (cpu)")
    even = report.Comparison(PER_ORIGIN, 4, plain, device, check.Check(1234, None), "Spark's")
    nothing, some = check.Check(0, None), check.Check(5_000, None)
    week = QUERIES["per_carrier_and_origin"]
    early = report.Comparison(week, 4, outcome("stopped", 120.0, 0), device, check.Check(9, None), "another", nothing)
    cut = report.Comparison(week, 26, outcome("stopped", 9.0, 2), device, check.Check(9, None), "another", some)
    wrong = report.Comparison(week, 4, outcome("stopped", 9.0, 2), device, check.Check(9, "1 row is wrong"), "another",
                              some)  # fmt: skip
    other = report.Comparison(week, 4, outcome("stopped", 9.0, 2), device, check.Check(9, None), "another",
                              check.Check(5, "2 rows differ in end"))  # fmt: skip
    unseen = report.Comparison(week, 4, outcome("stopped", 9.0, 2), device, check.Check(9, None), "another")
    assert even.right
    assert early.right
    assert cut.right
    assert not wrong.right
    assert not other.right
    assert not unseen.right, "what plain Spark had emitted has to be compared"
    lines = report.table([even, early, cut, wrong, other]).splitlines()
    assert "1,234" in lines[2]
    assert "5.0x" in lines[2]
    assert "10 / 10" in lines[2]
    assert "yes, to Spark's" in lines[2]
    assert "> 120 s" in lines[3]
    assert "? / 10" in lines[3]
    assert lines[3].endswith("yes, to another")
    assert "about 52 s" in lines[4]
    assert "about 9x" in lines[4]
    assert lines[4].endswith("yes, to another, and to Spark's 5,000")
    assert lines[5].endswith("no")
    assert lines[6].endswith("no")
    assert report.sentences(even) == ["All 1,234 rows equal Spark's."]
    assert report.sentences(early) == [
        "Plain Spark had done 0 of 4 batches when it was stopped after 120 s, so it would take more than 8 minutes.",
        "No rows had been emitted by then.",
        "All 9 rows equal another.",
    ]
    assert report.sentences(cut) == [
        "Plain Spark had done 2 of 26 batches when it was stopped after 9 s; at that pace it would take about 52 s.",
        "For the first 2 batches plain Spark took 4.0 s and gpuwin 4.0 s: 1.0 times as fast. "
        "All 5,000 rows that plain Spark had emitted by then equal gpuwin's.",
        "All 9 rows equal another.",
    ]
    assert report.sentences(wrong)[-1] == "NOT equal to another: 1 row is wrong."
    assert "emitted by then are NOT gpuwin's: 2 rows differ in end." in report.sentences(other)[1]
    assert report.plan(even).splitlines() == [
        "  Spark:   StateStoreSave <- StateStoreRestore <- Expand (each row 18 times)",
        "  gpuwin:  GpuWindow [origin] runs on gpuwin (cpu)",
    ]


def test_rows_that_were_not_computed_on_gpuwin_are_not_right() -> None:
    device = outcome("finished", 6.0, 4, "stateStoreSave", explanation="- operator 0: left to Spark, because")
    found = report.Comparison(PER_ORIGIN, 4, outcome("finished", 6.0, 4), device, check.Check(9, None), "Spark's")
    assert not found.right
    assert "NOT all of its state was on gpuwin" in "\n".join(report.sentences(found))
    failed = report.Comparison(
        PER_ORIGIN, 4, outcome("finished", 6.0, 4), outcome("failed", 1, 0, message="Oh."), None, ""
    )
    assert not failed.right
    assert "gpuwin failed. Oh." in "\n".join(report.sentences(failed))
    assert report.table([failed]).splitlines()[2].endswith("no")


def test_the_chart_shows_the_busiest_day() -> None:
    midnight = datetime(2013, 7, 10, tzinfo=ZoneInfo("America/New_York"))
    rows: list[tuple[str, int, int, float | None, int]] = []
    for hour in range(-24, 49):
        start = int((midnight + timedelta(hours=hour - 6)).timestamp()) // 60
        busy = 0 < hour <= 24
        rows += [("EWR", start, 20 if busy else 10, 3.0, 0), ("JFK", start, 10, 6.0, 1)]
    shown = report.chart(busiest_day(result(rows), timedelta(hours=6)), unicode=False).splitlines()
    assert shown[0].startswith("The busiest day, Wednesday 10 July 2013: 120 departures.")
    assert shown[1].split()[:5] == ["until", "#", "EWR", "=", "JFK"]
    assert [line.split()[0] for line in shown[2:]] == [f"{h:02}:00" for h in range(1, 25)]
    assert shown[9] == f"  08:00  {'#' * 28}{'=' * 14}       30    +4.0 min          1"
    assert "no day to show" in report.chart(busiest_day(result([]), timedelta(hours=6)), unicode=True)


class Terminal(io.StringIO):
    """A terminal of 80 columns that speaks UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def follow(out: io.StringIO) -> str:
    line = ProgressLine("plain Spark", 4, out)
    line.starting()
    line.wait(1.0)
    for batch in outcome("finished", 8, 5).batches:
        line.batch(batch)
    line.end(outcome("stopped", 10.0, 4))
    return out.getvalue()


def test_progress_off_a_terminal_is_its_end_alone() -> None:
    assert follow(io.StringIO()) == "  plain Spark   4 of 4 batches          50 rows   10.0 s  stopped\n"


def test_progress_on_a_terminal_is_a_bar_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = follow(Terminal())
    assert shown.count("\n") == 1
    lines = shown.split("\r\x1b[2K")[1:]
    assert all(len(line) < 80 for line in lines)
    assert "starting Spark" in lines[0]
    bars = [line.count("█") / (line.count("█") + line.count("░")) for line in lines[1:]]
    assert bars[0] == 0.0
    assert bars[-1] == 1.0
    assert bars == sorted(bars)
    monkeypatch.setenv("TERM", "dumb")
    assert follow(Terminal()).count("\r") == 0


def emit(folder: Path, batches: list[list[tuple[str, int, int, float | None, int]]]) -> None:
    """Writes what Spark's Parquet sink would have: a file for each batch, and its log."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True)
    said: list[str] = []
    for number, rows in enumerate(batches):
        table = result(rows)
        window = pa.StructArray.from_arrays([table[n].combine_chunks() for n in ("start", "end")], ["start", "end"])
        file = folder / f"part-{number}.snappy.parquet"
        pq.write_table(table.drop_columns(["start", "end"]).append_column("window", window), file)
        said.append(json.dumps({"path": file.as_uri(), "size": 1, "action": "add"}))
        compact = number % 2 == 1  # Spark does so every ten batches
        entry = log / (f"{number}.compact" if compact else str(number))
        entry.write_text("\n".join(["v1", *(said if compact else said[-1:])]))


def test_what_was_not_committed_is_not_read(tmp_path: Path) -> None:
    emit(tmp_path / "sink", [ROWS[:1], ROWS[1:2], ROWS[2:]])
    (tmp_path / "sink" / "part-9.snappy.parquet").write_bytes(b"PAR1 half a file")
    (tmp_path / "sink" / "_spark_metadata" / ".3.tmp").write_text("v1")
    assert check.read_result(tmp_path / "sink", PER_ORIGIN).equals(result(ROWS))
    assert check.read_result(tmp_path / "sink", PER_ORIGIN, 2).equals(result(ROWS[:2]))
    assert check.read_result(tmp_path / "none", PER_ORIGIN).num_rows == 0


class Compiled:
    """Kernels that are there."""

    def done(self) -> bool:
        return True


class PlayedSide:
    """A side that has done its batches before it began."""

    def __init__(self, played: Outcome) -> None:
        self._played = played

    def run(self, limit: float | None, on_batch: Any, on_wait: Any) -> Outcome:
        for batch in self._played.batches:
            on_batch(batch)
        return self._played


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        ([ROWS[:1], ROWS[1:2]], [ROWS[:1], ROWS[1:2], ROWS[2:]], None),
        ([[], []], [[], [], ROWS], None),
        ([ROWS[:1], ROWS[1:2]], [ROWS[:1], [], ROWS[1:]], "1 rows, where 2 are right"),
        ([ROWS[:1], ROWS[1:2]], [ROWS[:1], [("EWR", 10, 1, None, 2)], ROWS[2:]], "differ in departures"),
        ([ROWS[:1], []], [ROWS[:1], ROWS[1:2], ROWS[2:]], "2 rows, where 1 are right"),
    ],
)
def test_what_plain_spark_emitted_before_it_was_stopped_is_compared(
    theirs: list[Any], ours: list[Any], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    emit(tmp_path / "per_origin-Spark", theirs)
    emit(tmp_path / "per_origin-gpuwin", ours)
    sides = (PlayedSide(outcome("stopped", 5.0, 2)), PlayedSide(outcome("finished", 6.0, 3)))
    with ExitStack() as stack:
        jar: Future[str] = Future()
        jar.set_result("gpuwin.jar")
        demo = command.Demo(command.DemoOptions(), tmp_path, stack, jar, Compiled())
        demo.batches = [small([])] * 3
        monkeypatch.setattr(demo, "_side", lambda query, offloaded: sides[offloaded])
        both = demo.run_both(PER_ORIGIN)
    assert both.emitted is not None
    assert both.emitted.rows == len([r for batch in ours[:2] for r in batch])
    assert (both.emitted.difference is None) == (says is None)
    assert (says or "") in (both.emitted.difference or "")
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("  Plain Spark had done 2 of 3 batches when it was stopped after 5 s; at that pace ")
    assert shown[2].startswith("  For the first 2 batches plain Spark took 4.0 s and gpuwin 4.0 s")


def wait_for(kernels: Compilation) -> None:
    while not kernels.done():
        time.sleep(0.05)


def test_kernels_that_cannot_be_compiled_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('this is no Numba')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Compilation(PER_ORIGIN, tmp_path / "log") as kernels:
        with pytest.raises(DemoError, match=r"could not be compiled \(ImportError: this is no Numba\)"):
            wait_for(kernels)
        assert "Traceback" in (tmp_path / "log").read_text()
