"""Session windows give the same on gpuwin as on Spark: every mode, gap, key and aggregate that Spark has for them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from marks import second_ones_long
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    AGGREGATES,
    BASES,
    GAPS,
    KEYS,
    OTHER_PROVIDER,
    PROVIDERS,
    SPARK,
    SPARK_SESSIONS,
    Both,
    Query,
    Recording,
    Run,
    SessionCase,
    Stream,
    StreamSpec,
    assert_below,
    assert_equal,
    covering,
    run,
    write,
    write_tables,
)

DIMENSIONS = {
    "window": list(GAPS),
    "mode": ["append", "complete"],
    "watermark": ["10 seconds", "0 seconds", "none"],
    "key": [k for k in KEYS if k != "none"],
    "aggregate": [a for a in AGGREGATES if a != "lists"],  # test_spark_pieces.py
    "provider": list(PROVIDERS),
    "partitions": ["1", "5"],
    "trigger": ["available", "processing", "once"],
    "sink": ["foreach", "parquet", "memory"],
    "time": ["ts", "ntz"],
    "zone": ["UTC", "America/New_York"],
    "base": list(BASES),
    "files": ["1", "3"],
    "ansi": ["true", "false"],
    "api": ["frame", "sql"],
    "having": ["no", "yes"],
    "codegen": ["on", "off"],
    "idle_batch": ["on", "off"],
    "restart": ["no", "yes"],
    "local_merge": ["false", "true"],
    "map_side": ["auto", "device"],
}

PAIRS = [("mode", "window"), ("mode", "local_merge"), ("mode", "provider"), ("mode", "restart")]
PAIRS += [("map_side", "window"), ("map_side", "mode"), ("map_side", "aggregate"), ("map_side", "restart")]


def possible(row: dict[str, str]) -> bool:
    """Whether Spark runs such a query at all, and whether it shows something."""
    return not (
        (row["mode"] == "append" and (row["watermark"] == "none" or row["window"] == "calendar"))
        or (row["time"] == "ntz" and row["watermark"] != "none")  # Spark marks a timestamp only
        or (row["sink"] == "parquet" and row["mode"] != "append")
        or (row["sink"] == "memory" and (row["restart"] == "yes" or row["trigger"] == "once"))
        or (row["restart"] == "yes" and row["trigger"] != "processing")
        or (row["base"] == "ancient" and row["watermark"] != "none")  # all of it is late
        # Spark 3.5 asks such a gap for its type before it has one.
        or (SPARK < (4, 0) and row["window"] == "interval" and row["api"] == "frame")
        or (row["local_merge"] == "true" and row["map_side"] == "device")  # Spark's own operators stay
    )


CASES = [SessionCase(**row) for row in covering(DIMENSIONS, PAIRS, possible)]
NAMES = [f"{i:02d}-{case}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize("case", second_ones_long(CASES, NAMES, short=5))
def test_same_as_spark(case: SessionCase, both: Both, tmp_path: Path) -> None:
    stream = write(case.stream, tmp_path / "stream")
    _, found = both(case.query, stream, case.how, late=case.late, spark_operators=case.spark_operators)
    if case.map_side == "device":
        assert_below(found)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_same_as_spark_on_the_other_provider(case: SessionCase, both: Both, tmp_path: Path) -> None:
    test_same_as_spark(replace(case, provider=OTHER_PROVIDER[case.provider]), both, tmp_path)


# Sessions whose rows are known one by one

SCHEMA = "key string, ts timestamp, n long"
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
MOST = 2**63 - 1


def events(*rows: tuple[str, float] | tuple[str, float, int]) -> pa.Table:
    """Rows (key, seconds, n); n is 1 where it is not given."""
    columns = {
        "key": pa.array([r[0] for r in rows]),
        "ts": pa.array([START + dt.timedelta(seconds=r[1]) for r in rows], pa.timestamp("us", "UTC")),
        "n": pa.array([r[2] if len(r) == 3 else 1 for r in rows], pa.int64()),
    }
    return pa.table(columns)


def ten_seconds(frame: DataFrame, *keys: str) -> DataFrame:
    marked = frame.withWatermark("ts", "20 seconds")
    return marked.groupBy(F.session_window("ts", "10 seconds"), *keys).agg(F.sum("n").alias("n"))


def query(build: Callable[[DataFrame], DataFrame]) -> Query:
    return lambda _, frame: build(frame)


@pytest.mark.parametrize("conf", [{}, {"spark.sql.streaming.statefulOperator.allowMultiple": "false"}], ids=["", "one"])
def test_touch_bridge_and_lateness(conf: dict[str, str], both: Both, tmp_path: Path) -> None:
    batches = [
        [events(("a", 0), ("a", 10), ("b", 0), ("b", 25), ("c", 0), ("c", 10.000001), ("e", 21), ("e", 33))],
        # The watermark is 13 s. Late: b at 2 and 3. e at 28 bridges two open sessions.
        [events(("b", 2), ("b", 3), ("b", 24), ("e", 28), ("f", 48))],
        # Now it is 28 s: b at 18 is late by itself, though it would meet a session that is open.
        [events(("b", 18), ("b", 30), ("z", 1000))],
        [events(("z", 2000))],
    ]
    stream = write_tables(batches, tmp_path / "stream")
    how = Run("append", "processing", conf={"spark.sql.shuffle.partitions": "2", **conf})
    plain, _ = both(query(lambda f: ten_seconds(f, "key")), stream, how, schema=SCHEMA, spark_operators=SPARK_SESSIONS)
    base = int(START.timestamp()) * 1_000_000
    columns = [plain.column(c) for c in ("key", "session_window.start", "session_window.end", "n")]
    found = {(k, s - base, e - base): n for k, s, e, n in zip(*columns, strict=True)}
    assert {(k, s / 1e6, e / 1e6): n for (k, s, e), n in found.items()} == {
        ("a", 0, 20): 2,
        ("b", 0, 10): 1,
        ("b", 24, 40): 3,
        ("c", 0, 10): 1,
        ("c", 10.000001, 20.000001): 1,
        ("e", 21, 43): 3,
        ("f", 48, 58): 1,
        ("z", 1000, 1010): 1,
    }


ERRORS = {
    "update_mode": (query(lambda f: ten_seconds(f, "key")), "update"),
    "no_key": (query(ten_seconds), "append"),
    "no_watermark": (
        query(lambda f: f.groupBy("key", F.session_window("ts", "10 seconds")).agg(F.sum("n"))),
        "append",
    ),
    "overflow": (query(lambda f: ten_seconds(f, "key")), "complete"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_same_error_as_spark(name: str, both: Both, tmp_path: Path) -> None:
    asked, mode = ERRORS[name]
    batches = [[events(("a", 0, MOST), ("b", 0, 5))], [events(("a", 30, 1), ("b", 5, MOST - 5))], [events(("a", 8, 1))]]
    stream = write_tables(batches, tmp_path / "stream")
    asked_of = Run(mode, "processing", conf={"spark.sql.shuffle.partitions": "2"})
    operators = ("gpuwin",) if name == "overflow" else ()  # the others never come to a plan
    plain, _ = both(
        asked, stream, asked_of, schema=SCHEMA, fails=True, operators=operators, spark_operators=SPARK_SESSIONS
    )
    assert plain.error is not None
    assert ("overflow" in plain.error.message) == (name == "overflow")


# Other ways of writing them, and sessions among other operators


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    spec = StreamSpec(seed=31, batches=3, rows=60, empty=None, step=40_000_000)
    return write(spec, tmp_path_factory.mktemp("sessions") / "stream")


def made_before(frame: DataFrame) -> DataFrame:
    made = frame.withWatermark("ts", "10 seconds").withColumn("w", F.session_window("ts", "5 seconds"))
    longest = F.max(F.col("w.end").cast("double") - F.col("w.start").cast("double"))
    return made.where("short > 0 or short is null").groupBy("w", "bool").agg(longest.alias("longest"), F.sum("long"))


def no_aggregate(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").groupBy("bool", F.session_window("ts", "5 seconds")).agg(F.lit(1))


def sessions_then_windows(frame: DataFrame) -> DataFrame:
    sessions = frame.withWatermark("ts", "10 seconds").groupBy("short", F.session_window("ts", "3 seconds")).count()
    return sessions.groupBy(F.window(F.window_time("session_window"), "20 seconds")).agg(F.count("*"), F.max("count"))


def windows_then_sessions(frame: DataFrame) -> DataFrame:
    windows = frame.withWatermark("ts", "10 seconds").groupBy("bool", F.window("ts", "4 seconds")).count()
    return windows.groupBy("bool", F.session_window(F.window_time("window"), "4 seconds")).agg(F.sum("count"))


def sessions_of_sessions(frame: DataFrame) -> DataFrame:
    sessions = frame.withWatermark("ts", "10 seconds").groupBy("short", F.session_window("ts", "3 seconds")).count()
    return sessions.groupBy("short", F.session_window(F.window_time("session_window"), "5 seconds")).agg(
        F.count("*").alias("sessions"), F.sum("count").alias("rows")
    )


def gap_from_python(frame: DataFrame) -> DataFrame:
    gap = F.udf(lambda short: None if short is None else f"{abs(short) % 7} seconds", "string")
    return frame.withWatermark("ts", "10 seconds").groupBy("bool", F.session_window("ts", gap("short"))).count()


def several_rows_of_one(frame: DataFrame) -> DataFrame:
    made = frame.withColumn("part", F.explode(F.expr("sequence(0, id % 5)")))
    marked = made.withWatermark("ts", "10 seconds")
    return marked.groupBy("part", "short", F.session_window("ts", "3 seconds")).agg(F.count("*"), F.max("long"))


#: name -> (query, its operators on Spark, the last one first)
QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "made_before": (made_before, SPARK_SESSIONS),
    "no_aggregate": (no_aggregate, SPARK_SESSIONS),
    "gap_from_python": (gap_from_python, SPARK_SESSIONS),
    "several_rows_of_one": (several_rows_of_one, SPARK_SESSIONS),
    "sessions_then_windows": (sessions_then_windows, ("stateStoreSave", *SPARK_SESSIONS)),
    "windows_then_sessions": (windows_then_sessions, (*SPARK_SESSIONS, "stateStoreSave")),
    "sessions_of_sessions": (sessions_of_sessions, SPARK_SESSIONS * 2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n == "gap_from_python" else ()) for n in QUERIES]
)
def test_other_queries(name: str, both: Both, stream: Stream) -> None:
    """Tasks hand on what they have put together every few sessions."""
    build, operators = QUERIES[name]
    how = Run("append", "processing", conf={"spark.sql.shuffle.partitions": "2", "spark.gpuwin.sessions.held": "7"})
    both(query(build), stream, how, late=None, operators=["gpuwin"] * len(operators), spark_operators=operators)


def test_gap_of_a_running_query_may_change(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps starts and ends, and not the gap, so a query may go on with another; and so it may here."""
    case = SessionCase(window="fixed", trigger="processing", partitions="2")
    wider = replace(case, window="long")
    stream = write(StreamSpec(seed=41, step=40_000_000), tmp_path / "stream")

    def side(enabled: bool) -> list[Recording]:
        folder = tmp_path / str(enabled)
        first = run(spark, case.query, Stream(stream.batches[:2]), case.how, folder, enabled=enabled)
        return [first, run(spark, wider.query, stream, wider.how, folder, enabled=enabled)]

    with ThreadPoolExecutor(2) as pool:
        plain, device = pool.map(side, (False, True))
    for a, b in zip(plain, device, strict=True):
        assert_equal(a, b, late=None, spark_operators=case.spark_operators)


def test_sessions_are_merged_before_the_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    rows = events(*((f"k{i % 5}", i * 0.01) for i in range(2000)))
    stream = write_tables([[rows]], tmp_path / "stream")
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    frame = ten_seconds(session.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent)), "key")
    written = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = written.trigger(availableNow=True).start()
    query.awaitTermination()
    (operator,) = query.recentProgress[0]["stateOperators"]
    assert operator["numRowsTotal"] == 5
    assert operator["customMetrics"]["gpuwinCellsIn"] == 5
