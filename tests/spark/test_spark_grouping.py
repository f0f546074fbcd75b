"""What a query groups by beside or in place of a window: the event time itself, a function of it, types of Spark 4.

A few of them on every run; the others by `pytest tests/spark/test_spark_grouping.py -m sweep`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import KEYS, SCHEMA, SPARK, Both, Query, Run, Stream, StreamSpec, write, write_tables

import gpuwin as gw

WINDOW = "window(ts, '5 seconds')"
RESULTS = "count(*) n, sum(int) s, max(long) max_long"
GPUWIN, SAVE = ("gpuwin",), ("stateStoreSave",)
TIME_TYPE = "spark.sql.timeType.enabled"
has_times = pytest.mark.skipif(SPARK < (4, 1), reason="Spark before 4.1 has no TIME")
A_TIME = "make_time(abs(cast(short AS int)) % 24, 3, 1.5)"


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=3, rows=60, empty=None), tmp_path_factory.mktemp("grouping") / "stream")


def grouped(*keys: str, results: str = RESULTS) -> Query:
    def build(spark: SparkSession, frame: DataFrame) -> DataFrame:
        frame.withWatermark("ts", "10 seconds").createOrReplaceTempView("stream")
        named = ", ".join(f"{k} AS k_{i}" for i, k in enumerate(keys))
        return spark.sql(f"SELECT {named}, {results} FROM stream GROUP BY {', '.join(keys)}")

    return build


#: name -> (grouping, operators with the plugin, words of the reason where that is Spark's)
BY_TIME = {
    "event_time": (("ts",), GPUWIN, ""),
    "event_time_and_key": (("short", "ts"), GPUWIN, ""),
    "event_time_between_keys": (("short", "ts", "str"), GPUWIN, ""),
    "truncated": (("date_trunc('minute', ts)",), SAVE, "neither by a window(...) nor by the event time"),
    "window_and_truncated": ((WINDOW, "date_trunc('minute', ts)"), GPUWIN, ""),
    "window_and_event_time": ((WINDOW, "ts"), SAVE, "watermark is on a grouping column other than the window"),
    "window_and_its_start": ((WINDOW, f"{WINDOW}.start"), GPUWIN, ""),
    "event_time_and_window_of_another": (("ts", "window(tval, '1 hour')"), SAVE, "other than the window"),
}
#: Spark refuses them itself, and must go on to.
REFUSED = {
    ("truncated", "append"): "UNSUPPORTED_OPERATION",
    ("window_and_event_time", "append"): "MULTIPLE_EVENT_TIME_COLUMNS",
    ("window_and_event_time", "update"): "MULTIPLE_EVENT_TIME_COLUMNS",
}


def by_time(name: str, mode: str, both: Both, stream: Stream) -> None:
    keys, operators, _ = BY_TIME[name]
    how = Run(mode, "processing", conf={"spark.sql.shuffle.partitions": "2"})
    refused = REFUSED.get((name, mode))
    plain, device = both(grouped(*keys), stream, how, check=not refused, late=None, operators=operators)
    if refused:
        assert plain.error is not None
        assert refused in str(plain.error.condition)
        assert plain.error == device.error


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("event_time", "append"),
        ("event_time_between_keys", "update"),
        ("window_and_event_time", "complete"),
    ],
)
def test_by_time(name: str, mode: str, both: Both, stream: Stream) -> None:
    by_time(name, mode, both, stream)


@pytest.mark.parametrize("base", ["epoch", pytest.param("ancient", marks=pytest.mark.sweep)])
def test_event_times_before_1970_and_none(base: str, both: Both, tmp_path: Path) -> None:
    """Instants as far apart as they can be: rows without a time are at the end of all."""
    stream = write(StreamSpec(seed=9, batches=3, rows=60, base=base, empty=None), tmp_path / "stream")
    how = Run("update", "processing", conf={"spark.sql.shuffle.partitions": "2"})
    query = grouped("short", "ts", results=f"min(ts) first_ts, {RESULTS}")
    plain, _ = both(query, stream, how, late=None, operators=GPUWIN)
    assert any(row[1] is None for batch in plain.batches for row in batch.rows or ())


@pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 1, -(2**63)])
def test_event_times_at_the_ends_of_64_bits(last: int, both: Both, tmp_path: Path) -> None:
    """The group of rows without a time is never taken for that of an instant: the last one fails, as does the first."""

    def by_instant(_: SparkSession, frame: DataFrame) -> DataFrame:
        timed = frame.select(F.timestamp_micros("x").alias("t"), "v").withWatermark("t", "1 second")
        return timed.groupBy("t").agg(F.sum("v").alias("s")).select(F.unix_micros("t").alias("x"), "s")

    table = pa.table({"x": pa.array([None, 1 - 2**63, last], pa.int64()), "v": pa.array([1, 2, 4], pa.int64())})
    stream = write_tables([[table]], tmp_path / "stream")
    refused = last in (2**63 - 1, -(2**63))
    plain, device = both(by_instant, stream, Run("update"), check=not refused, late=None, schema="x long, v long")
    assert plain.error is None
    if refused:
        assert device.error is not None
        assert "the first and the last event time that 64 bits of microseconds can say" in device.error.message


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
@pytest.mark.parametrize("name", BY_TIME)
def test_by_time_in_every_mode(name: str, mode: str, both: Both, stream: Stream) -> None:
    by_time(name, mode, both, stream)


@pytest.mark.parametrize("name", [n for n, (_, operators, _) in BY_TIME.items() if operators == SAVE])
def test_reason_is_given(name: str, spark: SparkSession, stream: Stream) -> None:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    text = gw.spark.explain(grouped(*BY_TIME[name][0])(spark, frame))
    assert "0 of 1 stateful operators" in text
    assert BY_TIME[name][2] in text


def test_start_of_a_sliding_window_beside_it(both: Both, stream: Stream) -> None:
    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        made = frame.withWatermark("ts", "10 seconds").withColumn("w", F.window("ts", "1 minute", "30 seconds"))
        return made.groupBy("w", F.col("w.start").alias("k_start")).agg(F.count("*"))

    both(build, stream, Run(conf={"spark.sql.shuffle.partitions": "2"}), late=None)


@has_times
def test_times_as_keys_and_values(both: Both, stream: Stream) -> None:
    """TIME of two precisions, and what can be asked of one."""
    results = f"count({A_TIME}) n, min({A_TIME}) min_t, max({A_TIME}) max_t, first({A_TIME}) f, max_by({A_TIME}, id) m"
    query = grouped(A_TIME, f"cast({A_TIME} AS time(0))", WINDOW, results=results)
    both(query, stream, Run(conf={TIME_TYPE: "true", "spark.sql.shuffle.partitions": "2"}), late=None)


@has_times
@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_every_type_of_key_at_once(mode: str, both: Both, stream: Stream) -> None:
    atoms = [next(iter(k.values())) for name, k in KEYS.items() if name not in ("none", "computed", "two", "three")]
    query = grouped(*atoms, "cast(null AS void)", A_TIME, WINDOW)
    both(query, stream, Run(mode, conf={TIME_TYPE: "true", "spark.sql.shuffle.partitions": "2"}), late=None)


def counted(key: str) -> Query:
    """A query whose first key is a nested value, which comes out as JSON."""
    query = grouped(key, WINDOW, results="count(*) n")
    return lambda session, frame: query(session, frame).selectExpr("to_json(struct(k_0)) k_0", "k_1", "n")


NESTED_KEYS = [
    "named_struct('a', short, 'b', named_struct('c', str, 'd', double))",
    pytest.param("named_struct('a', short, 'b', str)", marks=pytest.mark.sweep),
    pytest.param("array(short, byte)", marks=pytest.mark.sweep),
    pytest.param("array(named_struct('a', double), null)", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize("key", NESTED_KEYS)
def test_nested_keys(key: str, both: Both, stream: Stream) -> None:
    both(counted(key), stream, Run("update", conf={"spark.sql.shuffle.partitions": "2"}, restart_after=frozenset({2})))


@pytest.mark.sweep
def test_keys_without_an_order_stay_with_spark(both: Both, stream: Stream, spark: SparkSession) -> None:
    query = counted("map('a', byte)")
    both(query, stream, Run(conf={"spark.sql.shuffle.partitions": "2"}), late=None, operators=SAVE)
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    assert "which cannot be a key on gpuwin" in gw.spark.explain(query(spark, frame))


COLLATIONS = ["UTF8_LCASE", "UNICODE", "UNICODE_CI", "UTF8_BINARY_RTRIM"]


@pytest.mark.sweep
@pytest.mark.parametrize("collation", COLLATIONS)
def test_collated_keys_are_refused_by_spark(collation: str, both: Both, stream: Stream) -> None:
    query = grouped(f"str COLLATE {collation}", WINDOW)
    plain, device = both(query, stream, Run(conf={"spark.sql.shuffle.partitions": "2"}), check=False)
    assert plain.error is not None
    assert "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY" in plain.error.message
    assert plain.error == device.error


@pytest.mark.sweep
@pytest.mark.parametrize("collation", COLLATIONS)
def test_collated_values_stay_with_spark(collation: str, both: Both, stream: Stream, spark: SparkSession) -> None:
    query = grouped("short", WINDOW, results=f"max(str COLLATE {collation}) max_str, count(*) n")
    both(query, stream, Run(conf={"spark.sql.shuffle.partitions": "2"}), late=None, operators=SAVE)
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    assert collation in gw.spark.explain(query(spark, frame))
