"""The state in a checkpoint, shown: `gw.spark.read_state` and `gpuwin state show` against the rows that came in."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import HAS_CORR_OF_CONSTANT, PROVIDERS, SPARK, Run, arrow_of, run, write_tables

import gpuwin as gw
from gpuwin.cli import main

pytestmark = pytest.mark.long

SCHEMA = "ts timestamp, k string, d decimal(10,2), v long, x double, amount decimal(12,2), name string"
START = 1_767_225_600  # 2026-01-01, in seconds
DELAY = 100
MINUTE = 60

#: Versions of a state store whose files have an id in their names, which the commit of the batch says.
WITH_IDS = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}

Row = dict[str, Any]


def rows_of_batch(number: int) -> list[Row]:
    """Rows of three minutes, some of them late, in an order of their own."""
    rng = random.Random(number)
    rows = []
    for _ in range(80):
        second = START + MINUTE * number + rng.randrange(180)
        if number and rng.random() < 0.1:
            second -= 600
        rows.append(
            {
                "ts": second,
                "k": rng.choice([None, "a", "b", "ä'"]),
                "d": rng.choice([None, decimal.Decimal("1.50"), decimal.Decimal("-2.25")]),
                "v": rng.choice([None, rng.randrange(-50, 50)]),
                "x": rng.choice([rng.uniform(-5, 5), 1.0]),
                "amount": decimal.Decimal(rng.randrange(10**9)) / 100,
                "name": rng.choice(["x", "yy", ""]),
            }
        )
    return rows


BATCHES = [rows_of_batch(n) for n in range(3)]


def table_of(rows: Sequence[Row]) -> pa.Table:
    types = {"k": pa.string(), "d": pa.decimal128(10, 2), "v": pa.int64(), "x": pa.float64()}
    columns = {name: pa.array([r[name] for r in rows], t) for name, t in types.items()}
    ts = pa.array([r["ts"] * 1_000_000 for r in rows], pa.timestamp("us", "UTC"))
    amount = pa.array([r["amount"] for r in rows], pa.decimal128(12, 2))
    return pa.table({"ts": ts, **columns, "amount": amount, "name": pa.array([r["name"] for r in rows])})


# What is expected, from the rows alone


def watermark_after(batches: Iterable[Sequence[Row]]) -> int:
    return max((r["ts"] for rows in batches for r in rows), default=DELAY) - DELAY


def kept(size: int, slide: int, batches: int = len(BATCHES)) -> list[tuple[int, Row]]:
    """(batch, row) of the rows that the state holds after so many batches, each with the batch without data behind it:
    those that were not late when they came, and whose newest window is open.
    """

    def newest_end(row: Row) -> int:
        return int(row["ts"]) // slide * slide + size

    end = watermark_after(BATCHES[:batches])
    return [
        (b, row)
        for b in range(batches)
        for row in BATCHES[b]
        if newest_end(row) > (watermark_after(BATCHES[:b]) if b else 0) and newest_end(row) > end
    ]


def grouped(rows: Iterable[tuple[int, Row]], key: Callable[[Row], Any]) -> dict[Any, list[tuple[int, Row]]]:
    groups: dict[Any, list[tuple[int, Row]]] = {}
    for b, row in rows:
        groups.setdefault(key(row), []).append((b, row))
    return groups


def instant(second: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(second, dt.UTC)


def total(values: Iterable[Any]) -> Any:
    known = [v for v in values if v is not None]
    return sum(known[1:], known[0]) if known else None


def mean(values: Iterable[Any]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def mean_amount(rows: Sequence[Row]) -> decimal.Decimal:
    exact = sum((r["amount"] for r in rows), decimal.Decimal(0)) / len(rows)
    return exact.quantize(decimal.Decimal("0.000001"), decimal.ROUND_HALF_UP)


# The queries


def tumbling(_: SparkSession, frame: DataFrame) -> DataFrame:
    return (
        frame.withWatermark("ts", f"{DELAY} seconds")
        .groupBy("k", F.window("ts", "1 minute"), F.col("d").alias("of, d"))
        .agg(
            F.sum("v").alias("total"),
            F.count("*").alias("n"),
            F.avg("v"),
            F.min("v").alias("least"),
            F.max("name").alias("most"),
            F.first("v").alias("first"),
            F.stddev("x").alias("spread"),
            F.approx_count_distinct("v").alias("kinds"),
            F.sum("amount").alias("money"),
            (F.avg("amount") + 1).alias("more"),
        )
    )


def sliding(_: SparkSession, frame: DataFrame) -> DataFrame:
    return (
        frame.withWatermark("ts", f"{DELAY} seconds")
        .groupBy("k", F.window("ts", "1 minute", "20 seconds"))
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"), F.avg("amount").alias("mean"))
    )


def sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    return (
        frame.withWatermark("ts", f"{DELAY} seconds")
        .groupBy("k", F.session_window("ts", "8 seconds"))
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"), F.max("v").alias("most"))
    )


def whole(_: SparkSession, frame: DataFrame) -> DataFrame:
    last = F.last("v", ignorenulls=True).alias("known")
    minute = F.window(F.col("ts").cast("timestamp_ntz"), "1 minute")
    return frame.groupBy(minute).agg(F.count("*").alias("n"), F.last("name").alias("segment"), last)


#: Functions of every kind of buffer, and of short decimals, which Spark's optimizer turns into whole numbers.
FUNCTIONS = [
    "sum(cast(amount / 100000 as decimal(8, 2)))",
    "avg(cast(amount / 1000000 as decimal(6, 2)))",
    "try_sum(x)",
    "mean(x)",
    "std(x)",
    "stddev_pop(x)",
    "variance(v)",
    "var_pop(x)",
    "skewness(x)",
    "kurtosis(x)",
    *(["corr(x, v)"] if HAS_CORR_OF_CONSTANT else []),
    "covar_samp(x, v)",
    "regr_slope(x, v)",
    "regr_intercept(x, v)",
    "regr_r2(x, v)",
    "regr_sxx(x, v)",
    "regr_sxy(x, v)",
    "regr_avgx(x, v)",
    "regr_count(x, v)",
    "bit_and(v)",
    "bit_xor(v)",
    "bool_or(v > 40)",
    "every(v > -40)",
    "count_if(v > 0)",
    "min(cast(ts as date))",
    "max(ts)",
    "sum(make_dt_interval(0, 0, 0, x))",
    "avg(make_dt_interval(0, 0, 0, x))",
    "min_by(name, amount)",
    "max_by(v, amount)",
    "approx_count_distinct(v, 0.2)",
    "bitmap_construct_agg(bitmap_bit_position(v))",
    "bitmap_or_agg(encode(name, 'utf-8'))",
    *(["bitmap_and_agg(encode(name, 'utf-8'))"] if SPARK >= (4, 1) else []),
    "sum(v) FILTER (WHERE x > 0)",
]


def every(_: SparkSession, frame: DataFrame) -> DataFrame:
    functions = [F.expr(f"{function} AS f{n}") for n, function in enumerate(FUNCTIONS)]
    return frame.groupBy(F.col("ts").cast("date").alias("day"), F.window("ts", "1 minute")).agg(*functions)


def instants(_: SparkSession, frame: DataFrame) -> DataFrame:
    keys = ("ts", "k", F.encode("k", "utf-8").alias("bytes"))
    return frame.withWatermark("ts", f"{DELAY} seconds").groupBy(*keys).agg(F.count("*").alias("n"))


def stacked(_: SparkSession, frame: DataFrame) -> DataFrame:
    minutes = (
        frame.withWatermark("ts", f"{DELAY} seconds").groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    )
    return minutes.groupBy(F.window(F.window_time("window"), "5 minutes")).agg(F.sum("n").alias("n"))


@dataclass
class Checkpoints:
    """The checkpoints of the queries, stopped, and what was read while one ran."""

    folder: Path
    while_running: list[list[Row]] = field(default_factory=list)

    def of(self, name: str) -> str:
        return str(self.folder / name / "checkpoint")


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Every query, after three batches and those without data behind them."""
    folder = tmp_path_factory.mktemp("look")
    checkpoints = Checkpoints(folder)
    stream = write_tables([[table_of(rows)] for rows in BATCHES], folder / "stream")

    def look(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            assert query.isActive
            checkpoints.while_running.append(shown(spark, checkpoints.of("sliding")))

    def ran(name: str, query: Any, mode: str, provider: str, enabled: bool = True, conf: Any = (), **more: Any) -> None:
        conf = {**PROVIDERS[provider], "spark.sql.shuffle.partitions": "2", **dict(conf)}
        how = Run(mode, "processing", conf=conf)
        done = run(spark, query, stream, how, folder / name, enabled=enabled, schema=SCHEMA, **more)
        assert done.error is None, done.error
        assert all(("gpuwin" in b.operators) == enabled for b in done.batches), done.plan

    ran("tumbling", tumbling, "append", "hdfs")
    ran("sliding", sliding, "update", "rocksdb_changelog", before_batch=look)
    ran("sessions", sessions, "append", "rocksdb_changelog", conf=WITH_IDS if SPARK >= (4, 1) else {})
    ran("whole", whole, "complete", "hdfs")
    ran("every", every, "complete", "hdfs", conf={"spark.gpuwin.log.maxSegments": "2"})
    ran("instants", instants, "append", "hdfs_snapshots")
    ran("stacked", stacked, "append", "rocksdb")
    ran("plain", sliding, "append", "hdfs", enabled=False)
    end_maintenance(spark)
    return checkpoints


def shown(spark: SparkSession, path: str, **how: Any) -> list[Row]:
    """The state as rows; instants with their zone."""
    rows = arrow_of(gw.spark.read_state(spark, path, **how)).to_pylist()
    return [
        {n: v.astimezone(dt.UTC) if isinstance(v, dt.datetime) and v.tzinfo else v for n, v in r.items()} for r in rows
    ]


def files(folder: str) -> dict[str, tuple[int, bytes]]:
    """Every file and folder of a checkpoint: when it was written, and what is in it."""
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
        for p in sorted(Path(folder).rglob("*"))
    }


def end_maintenance(spark: SparkSession) -> None:
    """Unloads Spark's state stores. Their maintenance goes on after a query has stopped, and writes snapshots."""
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


@pytest.fixture(autouse=True)
def untouched(made: Checkpoints) -> Iterator[None]:
    """No test may change a checkpoint: not a byte, and not the time of a file or a folder."""
    names = [p.name for p in made.folder.iterdir() if (p / "checkpoint").exists()]

    def found() -> dict[str, tuple[int, bytes]]:
        return {f"{name}/{at}": of for name in names for at, of in files(made.of(name)).items()}

    before = found()
    yield
    after = found()
    changed = sorted(at for at in before.keys() | after.keys() if before.get(at) != after.get(at))
    assert not changed, [(at, *(of.get(at, (None,))[0] for of in (before, after))) for at in changed]


# Values


def test_panes_of_tumbling_windows(spark: SparkSession, made: Checkpoints) -> None:
    """Null, text and decimal keys; a name with a comma; every kind of buffer."""
    found = shown(spark, made.of("tumbling"))
    groups = grouped(kept(MINUTE, MINUTE), lambda r: (r["k"], r["d"], r["ts"] // MINUTE * MINUTE))
    assert len(groups) > 10
    assert {(r["k"], r["of, d"], r["pane_start"]): r["n"] for r in found} == {
        (k, d, instant(start)): len(rows) for (k, d, start), rows in groups.items()
    }
    assert {r["version"] for r in found} == {6}
    for r in found:
        group = groups[r["k"], r["of, d"], int(r["pane_start"].timestamp())]
        rows = [row for _, row in group]
        v, x = [row["v"] for row in rows], [row["x"] for row in rows]
        known = [n for n in v if n is not None]
        assert r["pane_end"] - r["pane_start"] == dt.timedelta(minutes=1)
        assert r["total"] == r["total__sum"] == total(v)
        assert r["n__count"] == len(rows)
        assert (r["avg(v)"], r["avg(v)__sum"], r["avg(v)__count"]) == (mean(v), total(known) or 0, len(known))
        assert r["least"] == r["least__min"] == min(known, default=None)
        assert r["most"] == max(row["name"] for row in rows)
        assert (r["first"], r["first__first"], r["first__valueSet"]) == (v[0], v[0], True)
        assert r["spread"] == (pytest.approx(statistics.stdev(x), rel=1e-9) if len(x) > 1 else None)
        assert (r["spread__n"], r["spread__avg"]) == (len(x), pytest.approx(statistics.fmean(x)))
        assert r["kinds"] == len(set(known))
        assert len(r["kinds__registers"]) == 52
        assert (r["money"], r["money__isEmpty"]) == (total(row["amount"] for row in rows), False)
        (average,) = [r[name] for name in r if name.startswith("avg(") and "amount" in name and "__" not in name]
        assert average == mean_amount(rows)
        # A batch without data follows each with data, so that these are batches 0, 2 and 4.
        assert r["segment"] == 2 * max(b for b, _ in group)


def test_segments(spark: SparkSession, made: Checkpoints) -> None:
    """A row for each batch that wrote a part of a cell."""
    found = shown(spark, made.of("tumbling"), segments=True)
    groups: dict[Any, list[int | None]] = {}
    for b, row in kept(MINUTE, MINUTE):
        groups.setdefault((row["k"], row["d"], instant(row["ts"] // MINUTE * MINUTE), 2 * b), []).append(row["v"])
    assert len({at[:3] for at in groups}) < len(groups)
    assert {(r["k"], r["of, d"], r["pane_start"], r["segment"]): (r["total"], r["n"]) for r in found} == {
        at: (total(v), len(v)) for at, v in groups.items()
    }


def pane_totals(rows: Iterable[tuple[int, Row]]) -> dict[Any, Any]:
    groups = grouped(rows, lambda r: (r["k"], instant(r["ts"] // 20 * 20)))
    return {at: summed([row for _, row in group]) for at, group in groups.items()}


def summed(rows: Sequence[Row]) -> tuple[Any, ...]:
    return total(r["v"] for r in rows), len(rows), mean_amount(rows)


def as_totals(found: Iterable[Row], start: str) -> dict[Any, Any]:
    return {(r["k"], r[start]): (r["total"], r["n"], r["mean"]) for r in found}


def test_panes_and_windows_that_slide(spark: SparkSession, made: Checkpoints) -> None:
    rows = kept(MINUTE, 20)
    found = shown(spark, made.of("sliding"))
    assert as_totals(found, "pane_start") == pane_totals(rows)
    assert {r["pane_end"] - r["pane_start"] for r in found} == {dt.timedelta(seconds=20)}

    end = watermark_after(BATCHES)
    windows: dict[Any, list[Row]] = {}
    for _, row in rows:
        for back in range(3):
            start = row["ts"] // 20 * 20 - 20 * back
            if start + MINUTE > end:
                windows.setdefault((row["k"], instant(start)), []).append(row)
    merged = shown(spark, made.of("sliding"), windows=True)
    assert as_totals(merged, "window_start") == {at: summed(group) for at, group in windows.items()}
    assert {r["window_end"] - r["window_start"] for r in merged} == {dt.timedelta(minutes=1)}


def test_state_is_read_while_the_query_runs(made: Checkpoints) -> None:
    assert [as_totals(rows, "pane_start") for rows in made.while_running] == [
        pane_totals(kept(MINUTE, 20, batches)) for batches in (1, 2)
    ]


def test_every_version(spark: SparkSession, made: Checkpoints) -> None:
    """Version 1 is before any watermark; the rest are pairs of a batch and the one without data behind it."""
    path = made.of("sliding")
    assert as_totals(shown(spark, path, version=1), "pane_start") == pane_totals((0, row) for row in BATCHES[0])
    for batches in (1, 2, 3):
        found = shown(spark, path, version=2 * batches)
        assert as_totals(found, "pane_start") == pane_totals(kept(MINUTE, 20, batches))
        assert {r["version"] for r in found} == {2 * batches}


def test_sessions(spark: SparkSession, made: Checkpoints) -> None:
    gap = 8
    ended = 0
    open_now: dict[str | None, list[list[Row]]] = {}
    for number, rows in enumerate(BATCHES):
        late = watermark_after(BATCHES[:number]) if number else 0
        for row in sorted((r for r in rows if r["ts"] + gap > late), key=lambda r: r["ts"]):
            met, others = [row], []
            for group in open_now.get(row["k"], []):
                near = min(r["ts"] for r in group) - gap <= row["ts"] <= max(r["ts"] for r in group) + gap
                if near:
                    met += group
                else:
                    others.append(group)
            open_now[row["k"]] = [*others, met]
        ended = watermark_after(BATCHES[: number + 1])
        open_now = {k: [g for g in groups if max(r["ts"] for r in g) + gap > ended] for k, groups in open_now.items()}
    expected = {
        (k, instant(min(r["ts"] for r in g)), instant(max(r["ts"] for r in g) + gap)): (
            total(r["v"] for r in g),
            len(g),
            max((r["v"] for r in g if r["v"] is not None), default=None),
        )
        for k, groups in open_now.items()
        for g in groups
    }
    found = shown(spark, made.of("sessions"))
    assert len(expected) > 3
    assert {(r["k"], r["session_start"], r["session_end"]): (r["total"], r["n"], r["most"]) for r in found} == expected
    if SPARK >= (4, 1):
        assert "stateUniqueIds" in (Path(made.of("sessions")) / "commits" / "5").read_text()
    by_segment = shown(spark, made.of("sessions"), segments=True)
    assert {r["segment"] for r in by_segment} >= {r["segment"] for r in found}


def test_complete_mode_and_a_name_that_is_taken(spark: SparkSession, made: Checkpoints) -> None:
    """Nothing is late and nothing is evicted; there is no key, and times have no zone; an aggregate has the name of one
    of our columns.
    """
    groups = grouped(((b, r) for b, rows in enumerate(BATCHES) for r in rows), lambda r: r["ts"] // MINUTE * MINUTE)
    found = shown(spark, made.of("whole"))
    for r in found:
        assert r["pane_start"].tzinfo is None
        r["pane_start"] = r["pane_start"].replace(tzinfo=dt.UTC)
    assert {r["pane_start"]: (r["n"], r["segment"], r["segment_2"]) for r in found} == {
        instant(at): (len(group), group[-1][1]["name"], group[-1][0]) for at, group in groups.items()
    }
    assert {r["pane_start"]: r["known"] for r in found} == {
        instant(at): next((row["v"] for _, row in reversed(group) if row["v"] is not None), None)
        for at, group in groups.items()
    }


def test_every_function(spark: SparkSession, made: Checkpoints) -> None:
    """In complete mode the state has all rows: its results are those of a batch query of Spark over them."""
    rows = spark.read.schema(SCHEMA).parquet(str(made.folder / "stream"))
    spark.conf.set("spark.gpuwin.enabled", "false")
    try:
        expected = arrow_of(every(spark, rows).withColumnRenamed("day", "d")).to_pylist()
    finally:
        spark.conf.unset("spark.gpuwin.enabled")
    assert {r["segment"] for r in shown(spark, made.of("every"), segments=True)} < {0, 1, 2}, "some were merged"
    by_start = {row["window"]["start"].astimezone(dt.UTC): row for row in expected}
    found = shown(spark, made.of("every"))
    assert {r["pane_start"] for r in found} == by_start.keys()
    for r in found:
        row = by_start[r["pane_start"]]
        assert r["day"] == row["d"]
        for n, function in enumerate(FUNCTIONS):
            got, want = r[f"f{n}"], row[f"f{n}"]
            if isinstance(want, float):
                want = pytest.approx(want, rel=1e-9, abs=1e-12)
            assert got == want, function


def test_instants_in_the_place_of_windows(spark: SparkSession, made: Checkpoints) -> None:
    """`groupBy` of the event time itself: one is kept while it is after the watermark."""
    end = watermark_after(BATCHES)
    after = [(b, row) for b, rows in enumerate(BATCHES) for row in rows if row["ts"] > end]
    groups = grouped(after, lambda r: (r["ts"], r["k"]))
    found = shown(spark, made.of("instants"))
    assert list(found[0])[:3] == ["k", "bytes", "event_time"]
    assert {(r["event_time"], r["k"]): r["n"] for r in found} == {
        (instant(ts), k): len(group) for (ts, k), group in groups.items()
    }


def test_two_operators(spark: SparkSession, made: Checkpoints) -> None:
    path = made.of("stacked")
    with pytest.raises(gw.spark.CheckpointError, match=r"2 operators of gpuwin.*0 \(.*\), 1 \("):
        gw.spark.read_state(spark, path)
    found = {n: shown(spark, path, operator=n) for n in (0, 1)}
    spans = {n: {r["pane_end"] - r["pane_start"] for r in rows} for n, rows in found.items()}
    assert {dt.timedelta(minutes=1)} in spans.values()
    assert {dt.timedelta(minutes=5)} in spans.values()
    minutes = next(n for n, span in spans.items() if span == {dt.timedelta(minutes=1)})
    groups = grouped(kept(MINUTE, MINUTE), lambda r: r["ts"] // MINUTE * MINUTE)
    assert {r["pane_start"]: r["n"] for r in found[minutes]} == {
        instant(at): len(group) for at, group in groups.items()
    }


def test_columns_and_types(spark: SparkSession, made: Checkpoints) -> None:
    """Before anything is read; and a query of Spark on the table."""
    table = gw.spark.read_state(spark, made.of("sliding"))
    assert [(f.name, f.dataType.simpleString()) for f in table.schema.fields] == [
        ("k", "string"),
        ("pane_start", "timestamp"),
        ("pane_end", "timestamp"),
        ("total", "bigint"),
        ("n", "bigint"),
        ("mean", "decimal(16,6)"),
        ("segment", "bigint"),
        ("version", "bigint"),
        ("total__sum", "bigint"),
        ("n__count", "bigint"),
        ("mean__sum", "decimal(22,2)"),
        ("mean__count", "bigint"),
    ]
    rows = [row for _, row in kept(MINUTE, 20)]
    assert table.where("k is null").agg(F.sum("n")).collect()[0][0] == sum(r["k"] is None for r in rows)


def test_checkpoint_of_an_earlier_build(spark: SparkSession, made: Checkpoints, tmp_path: Path) -> None:
    """Its file has no line with the names of results."""
    copy = copied(made, "sliding", tmp_path)
    mark = copy / "state" / "0" / "_gpuwin"
    mark.write_text("\n".join(mark.read_text().splitlines()[:2]))
    mark.with_name("._gpuwin.crc").unlink(missing_ok=True)
    found = shown(spark, str(copy))
    assert {(r["k"], r["pane_start"]): (r["sum"], r["count"], r["avg"]) for r in found} == pane_totals(kept(MINUTE, 20))


# The command


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["state", "show", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_table(made: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, made.of("sliding"), "--limit", "3")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("operator 0: sliding 60 s every 20 s" if "60 s" in lines[0] else "operator 0: sliding 1")
    assert "version 6 (batch 5), 2 partitions; times in UTC" in lines[0]
    assert lines[1].split()[:4] == ["k", "pane_start", "pane_end", "total"]
    assert len(lines) == 1 + 2 + 3 + 1
    assert lines[-1] == "the first 3 rows; --limit N shows more"
    _, out, _ = command(capsys, made.of("tumbling"))
    assert "[0, 0, " in out or ", 0, 0, " in out
    assert max(len(word) for line in out.splitlines()[1:] for word in line.split("  ")) == 60


def test_where(made: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    groups = grouped(kept(MINUTE, MINUTE), lambda r: (r["k"], r["d"], r["ts"] // MINUTE * MINUTE))
    for text, key in (("null", None), ("b", "b"), ("ä'", "ä'")):
        code, out, _ = command(capsys, made.of("tumbling"), "--where", f"k={text}", "--format", "json")
        assert code == 0
        assert len(out.splitlines()) == sum(k == key for k, _, _ in groups)
    path = made.of("tumbling")
    _, out, _ = command(capsys, path, "--where", "k=a", "--where", "of, d=1.5", "--format", "json")
    assert len(out.splitlines()) == sum((k, d) == ("a", decimal.Decimal("1.5")) for k, d, _ in groups)


def test_bytes_are_hexadecimal_digits(made: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, made.of("instants"), "--where", "bytes=61", "--format", "json", "--limit", "2")
    assert code == 0
    assert [(row["k"], row["bytes"]) for row in map(json.loads, out.splitlines())] == [("a", "61")] * 2
    assert "hexadecimal" in refused(capsys, made.of("instants"), "--where", "bytes=a")


def test_formats(spark: SparkSession, made: Checkpoints, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = made.of("tumbling")
    table = gw.spark.read_state(spark, path)
    order = [F.col(f"`{name}`") for name in ("pane_start", "pane_end", "k", "of, d")]
    texts = [
        [None if v is None else str(v) for v in row]
        for row in table.orderBy(*order).select(*(F.col(f"`{n}`").cast("string") for n in table.columns)).collect()
    ]

    code, out, _ = command(capsys, path, "--format", "csv")
    assert code == 0
    rows = list(csv.reader(out.splitlines()))
    assert rows[0] == table.columns
    assert rows[1:] == [[v or "" for v in row] for row in texts]

    target = tmp_path / "state.parquet"
    code, out, _ = command(capsys, path, "--format", "parquet", "--output", str(target), "--limit", "5")
    assert (code, out) == (0, "")
    assert pq.read_table(target).to_pylist() == arrow_of(table.orderBy(*order).limit(5)).to_pylist()
    assert [p.name for p in tmp_path.iterdir()] == [target.name]

    code, out, _ = command(capsys, path, "--format", "json", "--version", "1")
    found = [json.loads(line) for line in out.splitlines()]
    groups = grouped(((0, r) for r in BATCHES[0]), lambda r: (r["k"], r["d"], r["ts"] // MINUTE * MINUTE))
    assert len(found) == len(groups)
    assert {f["pane_start"] for f in found} == {
        instant(at).strftime("%Y-%m-%dT%H:%M:%S.000000Z") for _, _, at in groups
    }


def test_command_in_a_process_of_its_own(made: Checkpoints, tmp_path: Path) -> None:
    """It starts a Spark with the JVM's options of the site, says nothing on standard error, and the rows are those of
    the state.
    """
    target = tmp_path / "windows.csv"
    options = f"-XX:+UseG1GC -Xlog:gc:file={tmp_path}/gc.log"
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {options}\n")
    arguments = [made.of("sliding"), "--windows", "--format", "csv", "--output", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "gpuwin.cli", "state", "show", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.driver.memory=1g pyspark-shell",
             "SPARK_CONF_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Using G1" in (tmp_path / "gc.log").read_text()
    assert len(target.read_text().splitlines()) > 5


def test_output_that_is_no_file_of_its_own(
    made: Checkpoints, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pipe and a link stay what they are, and a file keeps its mode."""
    pipe, real, link = tmp_path / "pipe", tmp_path / "real", tmp_path / "link"
    os.mkfifo(pipe)
    real.touch(mode=0o600)
    link.symlink_to(real)
    options = ["state", "show", made.of("tumbling"), "--limit", "2", "--format"]
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert main([*options, "parquet", "--output", str(pipe)]) == 0
        read, _ = reader.communicate(timeout=60)
    assert pq.read_table(pa.BufferReader(read)).num_rows == 2
    for output in (str(link), "-"):
        assert main([*options, "csv", "--output", output]) == 0
    text = real.read_text()
    assert len(text.splitlines()) == 3
    assert capfd.readouterr().out == text
    assert (link.readlink(), real.stat().st_mode & 0o777) == (real, 0o600)
    assert {p.name for p in tmp_path.iterdir()} == {"pipe", "real", "link"}


# What cannot be shown


def copied(made: Checkpoints, name: str, to: Path) -> Path:
    return Path(shutil.copytree(made.of(name), to / "copy"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence of a command that found nothing to show."""
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("gpuwin: ")
    assert len(err.splitlines()) == 1, err
    return err


def test_folders_that_are_no_checkpoint(made: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "There is no folder" in refused(capsys, str(tmp_path / "none"))
    assert "Spark has no access to nowhere://bucket/checkpoint here" in refused(capsys, "nowhere://bucket/checkpoint")
    assert "is no checkpoint of a streaming query" in refused(capsys, str(tmp_path / "empty"))
    assert 'format("statestore")' in refused(capsys, made.of("plain"))
    assert not list((tmp_path / "empty").iterdir())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--operator", "7"], ["no operator 7", "0 (sliding"]),
        (["--version", "99"], ["no version 99", "versions 1 to 6"]),
        (["--version", "0"], ["no version 0", "versions 1 to 6"]),
        (["--where", "other=1"], ["no key 'other'", "its keys are k"]),
        (["--where", "k"], ["key=value"]),
        (["--windows", "--segments"], ["not both"]),
        (["--format", "parquet"], ["--output"]),
        (["--output", "/no/such/folder/file"], ["cannot be written"]),
    ],
    ids=lambda a: " ".join(a).replace("/", "") if isinstance(a, list) else "",
)
def test_wrong_arguments(
    made: Checkpoints, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    said = refused(capsys, made.of("sliding"), *arguments)
    for word in words:
        assert word in said


def test_value_that_is_none_of_the_key(made: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, made.of("tumbling"), "--where", "of, d=much")
    assert "'much' is no value of the key of, d, which is of type decimal(10,2)" in said


def test_session_of_spark_connect(
    made: Checkpoints, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    assert "Unset SPARK_REMOTE" in refused(capsys, made.of("tumbling"))


def test_version_that_is_gone(made: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = copied(made, "tumbling", tmp_path)
    (copy / "commits" / "0").unlink()
    said = refused(capsys, str(copy), "--version", "1")
    assert "gone, or not there yet" in said
    assert "versions 2 to 6" in said


def test_files_of_a_state_that_are_gone_or_damaged(
    made: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(made, "tumbling", tmp_path)
    store = copy / "state" / "0" / "0" / "gpuwin"
    delta = store / "3.delta"
    content = delta.read_bytes()
    delta.write_bytes(content[:40])
    before = files(str(copy))
    said = refused(capsys, str(copy))
    assert "cannot be read: its files are gone or damaged" in said
    assert "partition 0" in said
    assert files(str(copy)) == before
    shutil.rmtree(store.parent)
    assert "the state of partition 0 is not there" in refused(capsys, str(copy))
    (copy / "state" / "0" / "_gpuwin").write_text("nonsense")
    (copy / "state" / "0" / "._gpuwin.crc").unlink(missing_ok=True)
    (store).mkdir(parents=True)
    assert "its file _gpuwin is not one that this gpuwin can read" in refused(capsys, str(copy))
    (copy / "offsets" / "5").write_text("v1\n{not json")
    (copy / "offsets" / ".5.crc").unlink(missing_ok=True)
    assert "is damaged: it is no entry of a log of Spark" in refused(capsys, str(copy))


def test_damage_is_an_error_of_the_query_on_the_table(spark: SparkSession, made: Checkpoints, tmp_path: Path) -> None:
    copy = copied(made, "tumbling", tmp_path)
    table = gw.spark.read_state(spark, str(copy))
    (copy / "state" / "0" / "1" / "gpuwin" / "2.delta").unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="cannot be read: its files are gone or damaged"):
        table.collect()


def test_state_of_a_specification(spark: SparkSession, tmp_path: Path) -> None:
    stream = write_tables([[table_of(BATCHES[0])]], tmp_path / "stream")
    counts = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"), keys=["k"], time="ts", aggregates={"n": gw.count()}
    )
    frame = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "stream"))
    query = gw.spark.aggregate(frame, counts).writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert stream.files
    with pytest.raises(gw.spark.CheckpointError, match=r"one of gw\.spark\.aggregate"):
        gw.spark.read_state(spark, str(tmp_path / "checkpoint"))


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 has no sources that read state")
def test_source_of_spark_says_how(spark: SparkSession, made: Checkpoints) -> None:
    with pytest.raises(Exception, match="was written by gpuwin") as refusal:
        spark.read.format("statestore").load(made.of("sliding"))
    for word in ("gw.spark.read_state", f"gpuwin state show {made.of('sliding')} --operator 0"):
        assert word in str(refusal.value)
