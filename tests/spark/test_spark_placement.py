"""What is not offloaded runs on Spark as before, gives the same, and is explained in a sentence. So is what is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import SCHEMA, SPARK, SPARK_SESSIONS, Both, Query, Run, Stream, StreamSpec, write

import gpuwin as gw

CONF = {"spark.sql.shuffle.partitions": "2"}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=2, batches=3, rows=60), tmp_path_factory.mktemp("placement") / "stream")


def windowed(*aggregates: str, keys: tuple[str, ...] = ("short",), window: str = "window(ts, '1 minute')") -> Query:
    def build(spark: SparkSession, frame: DataFrame) -> DataFrame:
        frame.withWatermark("ts", "10 seconds").createOrReplaceTempView("stream")
        columns = [f"{k} AS k{i}" for i, k in enumerate(keys)]
        results = [f"{a} AS c{i}" for i, a in enumerate(aggregates)]
        grouping = ", ".join([*keys, window])
        return spark.sql(f"SELECT {', '.join([*columns, window, *results])} FROM stream GROUP BY {grouping}")

    return build


def without_window(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("short").agg(F.count("*"), F.sum("int"))


def deduplicated(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").dropDuplicates(["short", "ts"])


SAVE = ("stateStoreSave",)

#: name -> (query, output mode, words of the reason, operators of the progress)
LEFT_TO_SPARK: dict[str, tuple[Query, str, list[str], tuple[str, ...]]] = {
    "histogram": (windowed("size(histogram_numeric(id, 3))"), "append", ["histogram_numeric"], SAVE),
    "sketch": (windowed("count(*)", "hll_sketch_estimate(hll_sketch_agg(int))"), "append", ["hll_sketch_agg"], SAVE),
    "avg_interval": (windowed("avg(make_ym_interval(0, short))"), "append", ["avg over interval"], SAVE),
    "max_by_doubles": (windowed("max_by(id, struct(double, str))"), "append", ["max_by", "struct<double"], SAVE),
    "session_by_string": (
        windowed("max_by(id, str)", window="session_window(ts, '30 seconds')"),
        "append",
        ["max_by over sessions orders by what fits 64 bits"],
        SPARK_SESSIONS,
    ),
    "session_by_string_beside_a_list": (
        windowed("max_by(id, str)", "sort_array(collect_list(id))", window="session_window(ts, '30 seconds')"),
        "append",
        ["max_by over sessions orders by what fits 64 bits"],
        SPARK_SESSIONS,
    ),
    "try_sum": (windowed("try_sum(huge)"), "append", ["try_sum"], SAVE),
    "no_window": (without_window, "update", ["groups neither by a window"], SAVE),
    "session_of_any_gap": (
        windowed("last(short)", window="session_window(ts, case when bool then '9 seconds' else '30 seconds' end)"),
        "append",
        ["last over sessions", "gap that is the same for all rows"],
        SPARK_SESSIONS,
    ),
    "deduplication": (deduplicated, "append", ["spark.gpuwin.deduplicate is false"], ("dedupe",)),
}
if SPARK >= (4, 0):  # Spark 3.5 groups by no map
    KEY = ("map('a', short)",)
    LEFT_TO_SPARK |= {
        "map_key": (
            windowed("count(*)", keys=KEY),
            "append",
            ["the key k0 is of type map", "cannot be a key on gpuwin"],
            SAVE,
        ),
        "session_of_maps": (
            windowed("count(*)", keys=KEY, window="session_window(ts, '30 seconds')"),
            "append",
            ["the key k0 is of type map"],
            SPARK_SESSIONS,
        ),
    }


#: SQL over `stream` -> words of the reason
REASONS = {
    "SELECT max_by(id, array(double)) FROM stream GROUP BY window(ts, '1 minute')": "write max(struct(ordering, ",
    "SELECT min_by(id, array(double)) FROM stream GROUP BY window(ts, '1 minute')": "write min(struct(ordering, ",
    "SELECT window(ts, '1 minute') w, short, count(*) FROM stream GROUP BY CUBE(w, short)": "a grouping set leaves the",
    "SELECT count(*) FROM (SELECT window(ts, '1 minute') w FROM stream) GROUP BY w.start": "from a window(...)",
    "SELECT w.end, count(*) FROM (SELECT window(ts, '1 minute', '9 seconds') w FROM stream) GROUP BY w.end": "from a w",
    "SELECT DISTINCT hour(window(ts, '1 minute').start), short FROM stream": "group by the window itself",
    "SELECT hour(ts), count(*) FROM stream GROUP BY hour(ts)": "neither by a window(...) nor by the event time",
    "SELECT count(*) FROM (SELECT id, window(ts, '1 minute') w FROM stream) LEFT JOIN "
    "(SELECT id, window(ts, '1 minute') v FROM stream) USING (id) GROUP BY v": "an outer join may put a null",
}
if SPARK >= (4, 0):
    REASONS["SELECT count(*) FROM stream GROUP BY map('a', short), window(ts, '1 minute')"] = "the key map('a', "
if SPARK >= (4, 2):
    REASONS["SELECT max_by(id, int, 2) FROM stream GROUP BY window(ts, '1 minute')"] = "max_by has a third argument"


@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_left_to_spark(name: str, both: Both, stream: Stream) -> None:
    query, mode, _, operators = LEFT_TO_SPARK[name]
    both(query, stream, Run(mode, conf=CONF), late=None, operators=operators, spark_operators=operators)


@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_reason_is_given(name: str, spark: SparkSession, stream: Stream) -> None:
    query, _, words, _ = LEFT_TO_SPARK[name]
    text = explained(spark, query, stream)
    assert "0 of 1 stateful operators" in text.splitlines()[0], text
    for word in words:
        assert word.lower() in text.lower(), text


@pytest.mark.parametrize("sql", REASONS)
def test_reason_in_the_words_of_the_query(sql: str, spark: SparkSession, stream: Stream) -> None:
    def build(spark: SparkSession, frame: DataFrame) -> DataFrame:
        frame.withWatermark("ts", "10 seconds").createOrReplaceTempView("stream")
        return spark.sql(sql)

    text = explained(spark, build, stream)
    assert text.splitlines()[0].startswith("0 of "), text
    assert REASONS[sql] in text


def explained(spark: SparkSession, query: Query, stream: Stream) -> str:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    text = gw.spark.explain(query(spark, frame))
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param(windowed("count(DISTINCT int)"), "Distinct aggregations", id="distinct"),
        pytest.param(
            windowed("count(*)", keys=("str collate UTF8_LCASE",)),
            "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY",
            id="collated_key",
            marks=pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 has no collations"),
        ),
    ],
)
def test_what_spark_refuses_is_refused_in_its_words(query: Query, words: str, both: Both, stream: Stream) -> None:
    plain, device = both(query, stream, Run(conf=CONF), check=False)
    assert plain.error is not None
    assert words in plain.error.message
    assert plain.error == device.error


def test_explain_of_an_offloaded_frame(spark: SparkSession, stream: Stream) -> None:
    text = explained(spark, windowed("count(*)", "sum(int)"), stream)
    assert text.splitlines()[0].startswith("1 of 1 stateful operators"), text
    assert "GpuWindow" in text
    assert "tumbling 1 min" in text


@pytest.mark.parametrize("window", ["window(ts, '1 minute')", "session_window(ts, '30 seconds')"])
def test_explain_names_computed_keys_as_the_query_does(window: str, spark: SparkSession, stream: Stream) -> None:
    text = explained(spark, windowed("count(*)", keys=("upper(str)", "bool", "array(short)"), window=window), stream)
    assert "GpuWindow [k0, k1, k2]" in text


def test_explain_of_a_frame_says_whether_it_has_a_watermark(spark: SparkSession, stream: Stream) -> None:
    assert "watermark=not yet" in explained(spark, windowed("count(*)"), stream)
    assert "watermark=none" in explained(
        spark, lambda _, frame: frame.groupBy(F.window("ts", "1 minute")).count(), stream
    )


def test_explain_of_a_running_query(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    query = windowed("avg(double)", window="window(ts, '1 hour', '1 minute')")(spark, frame)
    started = (
        query.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    text = gw.spark.explain(started)
    assert text.splitlines()[0].startswith("1 of 1 stateful operators"), text
    assert "sliding 1 h every 1 min" in text
    assert {o["operatorName"] for p in started.recentProgress for o in p["stateOperators"]} == {"gpuwin"}


def test_explain_in_an_output_mode(spark: SparkSession, stream: Stream) -> None:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    query = windowed("percentile_approx(int, 0.5)")(spark, frame)
    for mode, said in {None: "Append", "append": "Append", "Update": "Update", "complete": "Complete"}.items():
        text = gw.spark.explain(query, output_mode=mode)
        assert text.startswith("1 of 1 stateful operators")
        assert f"tumbling 1 min, {said}, " in text
    with pytest.raises(ValueError, match="append, update, complete, not 'all'"):
        gw.spark.explain(query, output_mode="all")
    with pytest.raises(TypeError, match="leave it out"):
        gw.spark.explain(spark.range(3), output_mode="append")


def test_explain_of_what_has_no_state(spark: SparkSession, stream: Stream) -> None:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    assert "no stateful operator" in gw.spark.explain(frame.where("short > 0"))


def test_switch_is_read_when_a_query_starts(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """`spark.conf.set` on the one session that a user has, between two starts."""
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    query = windowed("count(*)")(spark, frame)
    names = {}
    try:
        for enabled in ("false", "true"):
            spark.conf.set("spark.gpuwin.enabled", enabled)
            started = query.writeStream.format("noop").trigger(availableNow=True)
            running = started.option("checkpointLocation", str(tmp_path / enabled)).start()
            running.awaitTermination()
            names[enabled] = {o["operatorName"] for p in running.recentProgress for o in p["stateOperators"]}
            if enabled == "false":
                assert "spark.gpuwin.enabled is false" in gw.spark.explain(running)
    finally:
        spark.conf.unset("spark.gpuwin.enabled")
    assert names == {"false": {"stateStoreSave"}, "true": {"gpuwin"}}


def test_windows_without_an_aggregation(both: Both, stream: Stream) -> None:
    """Twenty windows a row, and no state: nothing to offload, and the same rows."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.select("id", F.window("ts", "1 minute", "3 seconds").alias("w")).where("id % 3 = 0")

    plain, _ = both(query, stream, Run("append", conf=CONF), late=None, operators=(), spark_operators=())
    assert len(plain.all_rows()) > 20


def test_the_join_and_deduplication_around_it_stay_with_spark(both: Both, stream: Stream) -> None:
    """Only the windowed aggregation is offloaded; the other stateful operator of the query is Spark's."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        once = frame.withWatermark("ts", "10 seconds").dropDuplicates(["id", "ts"])
        return once.groupBy("short", F.window("ts", "1 minute", "20 seconds")).agg(F.sum("id"), F.count("*"))

    both(
        query,
        stream,
        Run(conf=CONF),
        late=None,
        operators=("gpuwin", "dedupe"),
        spark_operators=("stateStoreSave", "dedupe"),
    )
