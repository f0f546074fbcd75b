"""`dropDuplicates` and `dropDuplicatesWithinWatermark`: on gpuwin where `spark.gpuwin.deduplicate` asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    SCHEMA,
    SPARK,
    Both,
    Query,
    Run,
    ServiceKills,
    StateMoves,
    Stream,
    StreamSpec,
    assert_equal,
    run,
    write,
)

import gpuwin as gw
from gpuwin.cli import main

CONF = {"spark.sql.shuffle.partitions": "2", "spark.gpuwin.deduplicate": "true"}
ZEROS = pytest.mark.skipif(SPARK < (4, 2), reason="Spark takes 0.0 and -0.0 for two keys here")
BY_TIME, WITHIN = ("dedupe",), ("dedupeWithinWatermark",)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=11, batches=6, rows=120), tmp_path_factory.mktemp("duplicates") / "stream")


def by_time(*keys: str) -> Query:
    """Distinct values of the keys and the event time."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.withWatermark("ts", "10 seconds").select(*keys, "ts").dropDuplicates([*keys, "ts"])

    return build


def within(*keys: str, delay: str = "10 seconds") -> Query:
    """First rows of the keys, with all columns."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.withWatermark("ts", delay).dropDuplicatesWithinWatermark(list(keys))

    return build


def for_ever(*keys: str) -> Query:
    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.select(*keys).dropDuplicates()

    return build


def nested(_: SparkSession, frame: DataFrame) -> DataFrame:
    key = F.struct("short", F.array("int", "byte"), F.map_from_arrays(F.array("long"), F.array("str")).alias("m"))
    rows = frame.where("long IS NOT NULL").withWatermark("ts", "10 seconds").select(key.alias("k"), "ts")
    return rows.withColumn("text", F.to_json("k")).dropDuplicates(["text", "ts"]).select("text", "k", "ts")


def of_many_types(_: SparkSession, frame: DataFrame) -> DataFrame:
    """A type of a user's, a text of limited length, an interval, and a name that is taken."""
    limited, interval = F.expr("cast(left(str, 2) AS char(4))"), F.expr("make_dt_interval(0, short % 3)")
    key = F.struct("double", F.array("float").alias("few"))
    vector = array_to_vector(F.array(F.coalesce("long", F.lit(0)).cast("double")))
    columns = {
        "nested": key,
        "vector": vector,
        "vectors": F.array(vector),
        "limited": limited,
        "interval": interval,
        "expires_at": F.col("bool"),
    }
    rows = frame.withWatermark("ts", "10 seconds").withColumns(columns)
    once = rows.dropDuplicatesWithinWatermark(list(columns))
    return once.select("id", "ts")


def keys_shown(spark: SparkSession, folder: Path) -> list[str]:
    """The state of the deduplication as gpuwin shows it: each key, and when it expires in microseconds."""
    table = gw.spark.read_state(spark, str(folder / "checkpoint"))
    *names, segment, version = table.columns
    assert (segment, version) == ("segment", "version")
    micros = [F.unix_micros(f"`{n}`") if n.startswith("expires_at") and n == names[-1] else f"`{n}`" for n in names]
    return texts(table.select(*micros))


def keys_of_spark(spark: SparkSession, folder: Path) -> list[str]:
    """The same of plain Spark's state."""
    table = spark.read.format("statestore").load(str(folder / "checkpoint"))
    within = "expiresAtMicros" in table.schema["value"].dataType.simpleString()
    return texts(table.select("key.*", *(["value.expiresAtMicros"] if within else [])))


def texts(table: DataFrame) -> list[str]:
    """Its rows, in order. Names of columns do not count."""
    named = table.toDF(*(f"c{i}" for i in range(len(table.columns))))
    rows = named.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row")).collect()
    return sorted(r.row for r in rows)


def how(conf: dict[str, str] | None = None, **more: object) -> Run:
    return Run("append", "processing", conf=CONF | (conf or {}), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "spark_operators", "conf"),
    [
        pytest.param(by_time("short"), BY_TIME, {}, id="by_time"),
        pytest.param(by_time("str", "bin", "dec38", "bool", "nval"), BY_TIME, PROVIDERS["rocksdb"], id="five_keys"),
        pytest.param(within("short"), WITHIN, {"spark.gpuwin.log.maxSegments": "2"}, id="within"),
        pytest.param(within("int", delay="0 seconds"), WITHIN, {}, id="within_nothing"),
        pytest.param(
            of_many_types, WITHIN, {"spark.sql.preserveCharVarcharTypeInfo": "true"}, id="of_many_types", marks=ZEROS
        ),
        pytest.param(nested, BY_TIME, {"spark.gpuwin.chunk.rows": "16"}, id="nested"),
        pytest.param(by_time("double", "float"), BY_TIME, {}, id="zeros_of_both_signs", marks=ZEROS),
        pytest.param(for_ever("short", "bool"), BY_TIME, {"spark.gpuwin.withoutWindow": "true"}, id="for_ever"),
    ],
)
def test_rows_equal_those_of_plain_spark(
    query: Query,
    spark_operators: tuple[str, ...],
    conf: dict[str, str],
    both: Both,
    stream: Stream,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Batch by batch; and so does the state after the last one, as it is shown."""
    late = None if spark_operators == BY_TIME and "withoutWindow" in str(conf) else True
    restarted = how(conf, restart_after=frozenset({2, 4}))
    both(query, stream, restarted, late=late, spark_operators=spark_operators)
    if SPARK >= (4, 0):  # before it has no source that reads state
        assert keys_shown(spark, tmp_path / "device") == keys_of_spark(spark, tmp_path / "plain")


def test_rows_of_a_window_that_the_watermark_passed(both: Both, stream: Stream) -> None:
    """An event time that is a window, and a deduplication between two aggregations."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        counted = frame.withWatermark("ts", "10 seconds").groupBy("short", F.window("ts", "5 seconds")).count()
        once = counted.dropDuplicates(["count", "window"]).select("count", "window")
        return once.groupBy(F.window("window", "1 minute")).agg(F.sum("count"), F.count("*"))

    both(
        query, stream, how(), operators=("gpuwin",) * 3, spark_operators=("stateStoreSave", "dedupe", "stateStoreSave")
    )


def test_above_a_window_of_the_same_keys(both: Both, stream: Stream) -> None:
    """No shuffle is between them in Spark. The plan is sound, and of the same types."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        counted = frame.withWatermark("ts", "10 seconds").groupBy("short", F.window("ts", "5 seconds")).count()
        return counted.dropDuplicates(["short", "window"])

    _, device = both(query, stream, how(), operators=("gpuwin",) * 2, spark_operators=("dedupe", "stateStoreSave"))
    assert "!" not in device.plan, "as Spark marks a node that asks for columns which nobody brings"


def test_below_a_window(both: Both, stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The state of both is shown, each as what it is."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        once = frame.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["short", "int", "ts"])
        return once.groupBy("short", F.window("ts", "30 seconds", "5 seconds")).agg(F.count("*"), F.max("ts"))

    both(query, stream, how(), operators=("gpuwin",) * 2, spark_operators=("stateStoreSave", "dedupeWithinWatermark"))

    def show(*arguments: str) -> str:
        capsys.readouterr()
        main(["state", "show", str(tmp_path / "device" / "checkpoint"), *arguments])
        said = capsys.readouterr()
        return said.out + said.err

    assert "0 (sliding 30 s every 5 s by short), 1 (a deduplication by short, int, ts)" in show()
    assert show("--operator", "0").split()[2] == "sliding"
    header, names, _, *rows = show("--operator", "1", "--where", "short=12").splitlines()
    assert header.startswith("operator 1: deduplication within the watermark; version ")
    assert names.split() == ["short", "int", "ts", "expires_at", "segment", "version"]
    assert {row.split()[0] for row in rows[:-1]} == {"12"}
    assert rows[:-1] == sorted(rows[:-1], key=lambda row: row.split()[4:6]), "by the time at which they expire"
    assert "has keys and no windows" in show("--operator", "1", "--windows")


def test_the_service_dies_in_a_batch(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """It is started again, and has the keys of the log."""
    query, kills = within("short"), ServiceKills(spark)
    plain = run(spark, query, stream, how(), tmp_path / "plain", enabled=False, schema=SCHEMA)
    device = run(spark, query, stream, how({"spark.gpuwin.log.maxSegments": "2"}), tmp_path / "device", enabled=True,
                 schema=SCHEMA, before_batch=kills.before_batch)  # fmt: skip
    kills.join()
    assert kills.killed
    assert_equal(plain, device, spark_operators=WITHIN)


def test_duplicates_are_counted_as_spark_counts_them(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    counts = []
    for enabled in ("false", "true"):
        session = spark.newSession()
        for key, value in {**CONF, "spark.gpuwin.enabled": enabled}.items():
            session.conf.set(key, value)
        rows = session.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent)).withWatermark("ts", "10 seconds")
        query = (
            rows.dropDuplicatesWithinWatermark(["short"])
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / enabled))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        operators = [progress["stateOperators"][0] for progress in query.recentProgress]
        names = ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")
        counts.append([[o[n] for n in names] + [o["customMetrics"]["numDroppedDuplicateRows"]] for o in operators])
    assert counts[0] == counts[1]
    assert any(row[-1] for row in counts[0])
    assert any(row[2] for row in counts[0])


def test_it_stays_with_spark_where_nobody_asked(spark: SparkSession, stream: Stream) -> None:
    session = spark.newSession()
    frame = session.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent)).withWatermark("ts", "10 seconds")
    assert "spark.gpuwin.deduplicate is false" in gw.spark.explain(frame.dropDuplicates(["short", "ts"]))
    session.conf.set("spark.gpuwin.deduplicate", "true")
    said = gw.spark.explain(frame.dropDuplicates(["short", "ts"]))
    assert "GpuWindowDeduplicate [short, ts], until the watermark passes its time" in said
    assert "for 10000 ms after its time" in gw.spark.explain(frame.dropDuplicatesWithinWatermark(["short"]))
    said = gw.spark.explain(frame.dropDuplicates(["short"]))
    assert "no event time is among its keys" in said
    assert "spark.gpuwin.withoutWindow is false" in said
    months = frame.withColumn("k", F.expr("struct(make_interval(short) AS i)"))
    said = gw.spark.explain(months.dropDuplicatesWithinWatermark(["k"]).drop("k"))
    assert "its key k has intervals of months and days" in said


@pytest.mark.parametrize("began", ["gpuwin", "spark"])
def test_a_query_goes_on_where_it_began(began: str, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """State of gpuwin's goes on there alone, and state of Spark's stays with Spark."""
    on, off = how(), how({"spark.gpuwin.deduplicate": "false"})
    first, second = (on, off) if began == "gpuwin" else (off, on)
    before = run(spark, within("short"), stream.head(2), first, tmp_path, enabled=True, schema=SCHEMA)
    assert before.error is None
    after = run(spark, within("short"), stream, second, tmp_path, enabled=True, schema=SCHEMA)
    if began == "gpuwin":
        assert after.error is not None
        assert "spark.gpuwin.deduplicate is false. Nothing was read or changed" in after.error.message
    else:
        assert after.error is None
        assert after.batches[-1].operators == WITHIN


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "sparks", "conf"),
    [
        pytest.param(by_time("short", "str"), BY_TIME, {}, id="by_time"),
        pytest.param(within("short"), WITHIN, {}, id="within"),
        pytest.param(
            of_many_types, WITHIN, {"spark.sql.preserveCharVarcharTypeInfo": "true"}, id="of_many_types", marks=ZEROS
        ),
        pytest.param(
            for_ever("short", "int", "str", "long"), BY_TIME, {"spark.gpuwin.withoutWindow": "true"}, id="for_ever"
        ),
    ],
)
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_state_is_rescaled_given_back_and_adopted(
    query: Query,
    sparks: tuple[str, ...],
    conf: dict[str, str],
    provider: str,
    spark: SparkSession,
    stream: Stream,
    tmp_path: Path,
) -> None:
    StateMoves(spark, query, stream, how(conf | PROVIDERS[provider]), tmp_path, sparks=sparks).assert_equal(None)
