"""Lists, sets, percentiles and modes, whose buffers only Spark's own code merges, give the same as on Spark."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    ADAPTIVE,
    SPARK,
    SPARK_SESSIONS,
    Both,
    Recording,
    Run,
    StateMoves,
    Stream,
    assert_placed,
    run,
    session_of,
    write_tables,
)

import gpuwin as gw
from gpuwin_spark.service.pieces import sketch_of

SCHEMA = "key string, ts timestamp, n long, v double, text string, day date"
DIGEST = "ApproximatePercentile$PercentileDigest"
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
RESULTS = {
    "list": "collect_list(n)",
    "texts": "collect_list(text)",
    "rows": "collect_list(struct(n, text, array(v)))",
    "set": "sort_array(collect_set(v))",
    "some": "collect_list(n) FILTER (WHERE v > 0)",
    "array": "array_agg(day)",
    "percentiles": "percentile(v, array(0.0, 0.25, 0.9), n % 3)",
    "median": "median(n)",
    "cont": "percentile_cont(0.3) WITHIN GROUP (ORDER BY v DESC)",
    "high": "percentile_disc(0.3) WITHIN GROUP (ORDER BY v DESC)",
    "mode": "mode(day)",
    "count": "count(*)",
    "sum": "sum(n)",
    "first": "first(text)",
}
if SPARK >= (4, 0):
    RESULTS["joined"] = "listagg(text, ', ')"
    RESULTS["in_order"] = "listagg(text, ', ') WITHIN GROUP (ORDER BY text DESC NULLS LAST)"

LISTS = ("list", "texts", "some", "array")
IN_ANY_ORDER = {n: f"sort_array({e})" if n in LISTS else e for n, e in RESULTS.items() if n not in ("rows", "joined")}


def rows(draw: np.random.Generator, batch: int) -> pa.Table:
    """Eighty rows of three keys, in no order of time."""
    n = 80

    def some(values: list[object], type_: pa.DataType | None = None) -> pa.Array:
        return pa.array([values[i] for i in draw.integers(0, len(values), n)], type_)

    seconds = 20 * batch + draw.integers(0, 60, n)
    columns = {
        "key": some(["a", "b", None]),
        "ts": pa.array([START + dt.timedelta(seconds=int(s)) for s in seconds], pa.timestamp("us", "UTC")),
        "n": pa.array(1000 * batch + np.arange(n)),
        "v": some([-1.5, 0.0, 7.25, float("inf"), None]),
        "text": some(["", "a", "ä\0", "long " * 50, None]),
        "day": some([dt.date(1960, 1, 1), dt.date(2024, 5, 1), dt.date(2024, 5, 2), None]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    draw = np.random.default_rng(11)
    return write_tables([[rows(draw, batch)] for batch in range(6)], tmp_path_factory.mktemp("pieces") / "stream")


def tumbling() -> Column:
    return F.window("ts", "20 seconds")


def sliding() -> Column:
    return F.window("ts", "20 seconds", "10 seconds")


#: Functions of which a checkpoint needs a call that says what their pieces are.
CALLS = {
    "structs": "collect_list(struct(coalesce(n, 0) AS `a b`, text AS `c``,d<`, ts))",
    "maps": "collect_list(map('n', n, 'none', null))",
    "arrays": "sort_array(collect_set(array(n, 1)))",
    "nulls": "collect_list(cast(null AS int))",
    "disc": "percentile_disc(0.3) WITHIN GROUP (ORDER BY v)",
}
if SPARK >= (4, 0):
    CALLS["in_order"] = "listagg(text, ', ') WITHIN GROUP (ORDER BY upper(text) DESC, text, n)"
    CALLS["by_another"] = "listagg(text, ', ') WITHIN GROUP (ORDER BY substr(text, 2) || n)"
    CALLS["mode"] = "mode() WITHIN GROUP (ORDER BY v)"
    CALLS["mode_down"] = "mode() WITHIN GROUP (ORDER BY struct(v) DESC)"
    CALLS["mode_certain"] = "mode(text, true)"
if SPARK >= (4, 3):
    CALLS["with_nulls"] = "collect_list(v) RESPECT NULLS"


def as_text(expression: str) -> Column:
    """A result as text: rows with lists in them cannot be compared."""
    return F.expr(f"to_json(named_struct('of', {expression}), map('ignoreNullFields', 'false'))")


def aggregated(
    frame: DataFrame, window: Column, results: dict[str, str], shown: Callable[[str], Column] = as_text
) -> DataFrame:
    grouped = frame.withWatermark("ts", "5 seconds").groupBy("key", window.alias("window"))
    return grouped.agg(*(shown(e).alias(n) for n, e in results.items()))


def how(mode: str, restart: int = 3, **conf: str) -> Run:
    settings = {"spark.sql.shuffle.partitions": "2"}
    return Run(mode, "processing", conf={**settings, **conf}, restart_after=frozenset({restart}))


@pytest.mark.parametrize(
    "mode",
    [
        "append",
        pytest.param("update", marks=pytest.mark.long),
        pytest.param("complete", marks=pytest.mark.sweep),
    ],
)
def test_tumbling_windows(mode: str, both: Both, stream: Stream) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, tumbling(), RESULTS)

    both(query, stream, how(mode), schema=SCHEMA, late=mode != "complete")


@pytest.mark.parametrize(
    ("mode", "by_hash"),
    [
        ("append", "true"),
        pytest.param("append", "false", marks=pytest.mark.sweep),
        pytest.param("update", "true", marks=pytest.mark.sweep),
    ],
)
def test_sliding_windows(mode: str, by_hash: str, both: Both, stream: Stream) -> None:
    """Over windows that overlap, the order of Spark's lists is that of rows, and that of gpuwin's of panes."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, sliding(), IN_ANY_ORDER)

    both(query, stream, how(mode, **{"spark.sql.execution.useObjectHashAggregateExec": by_hash}), schema=SCHEMA)


SUMMARIES = {"middle": "percentile_approx(n, 0.5)", "both": "approx_percentile(v, array(0.1, 0.9), 50)"}


@pytest.mark.parametrize(
    ("mode", "window", "more"),
    [
        ("append", "sliding", {}),
        ("update", "tumbling", {"list": "sort_array(collect_list(n))"}),
        pytest.param("update", "sliding", {}, marks=pytest.mark.long),
        pytest.param("complete", "sessions", {}, marks=pytest.mark.long),
        pytest.param("complete", "sliding", {"count": "count(*)"}, marks=pytest.mark.sweep),
    ],
)
def test_summaries(mode: str, window: str, more: dict[str, str], both: Both, stream: Stream) -> None:
    """Groups are smaller than half of the accuracy, so that nothing is left out of them."""
    by = {"sliding": sliding, "tumbling": tumbling, "sessions": sessions}[window]

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, by(), SUMMARIES | more)

    operators = SPARK_SESSIONS if window == "sessions" else ("stateStoreSave",)
    both(query, stream, how(mode), schema=SCHEMA, spark_operators=operators)


def test_summaries_are_merged_into_the_bytes_of_sparks_code(spark: SparkSession) -> None:
    """Numbers, infinities and NaN, of which more came than a summary keeps."""
    functions = spark._jvm.org.apache.spark.sql.catalyst.expressions.aggregate
    code, digest = functions.ApproximatePercentile.serializer(), getattr(functions, DIGEST)
    random = np.random.default_rng(11)
    kinds = [
        lambda n: random.normal(size=n),
        lambda n: np.sort(random.integers(0, 9, n)),
        lambda n: random.choice([np.inf, -np.inf, np.nan, -0.0, 1.0], n),
    ]

    def piece(made: object) -> bytes:
        summary = bytes(code.serialize(made))
        return len(summary).to_bytes(4, "big") + summary

    for accuracy in (2, 20, 100):
        cells, wanted = [], []
        for pieces in (0, 1, 2, 3, 5, 7):
            made = []
            for _ in range(pieces):
                summary = digest(1.0 / accuracy)
                for value in random.choice(kinds)(random.choice([0, 1, 30, 300])):
                    summary.add(float(value))
                made.append(code.deserialize(code.serialize(summary)))
            cells.append([piece(one) for one in made])
            while len(made) > 1:  # neighbours, and then what became of them
                for older, newer in zip(made[::2], made[1::2], strict=False):
                    older.merge(newer)
                made = made[::2]
            wanted.append(piece(made[0]) if made else b"")
        first = np.cumsum([0, *map(len, cells)])
        found = sketch_of("summaries").merged(pa.array(list(chain(*cells)), pa.large_binary()), first)
        assert found.to_pylist() == wanted


@pytest.mark.long
def test_summaries_of_many_values_are_within_their_error(spark: SparkSession, tmp_path: Path) -> None:
    """A window that is open for twelve batches, each emitted anew."""
    random = np.random.default_rng(12)
    batches = [random.normal(size=900) * (i + 1) for i in range(12)]
    stamps = pa.array([START] * 900, pa.timestamp("us", "UTC"))
    rows = [[pa.table({"key": ["a", "b", "c"] * 300, "ts": stamps, "v": v})] for v in batches]
    given = write_tables(rows, tmp_path / "stream")

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, tumbling(), {"all": "percentile_approx(v, array(0.1, 0.5, 0.95), 50)"})

    schema = "key string, ts timestamp, v double"
    found = run(spark, query, given, how("update"), tmp_path / "query", enabled=True, schema=schema)
    assert found.error is None, found.error
    assert_placed(found, ("gpuwin",))
    emitted = [batch.rows for batch in found.batches if batch.rows]  # batches without data emit nothing
    for batch, seen in zip(emitted, np.cumsum([900] * 12), strict=True):
        for row in batch:
            came = np.sort(np.concatenate(batches)[:seen][ord(row[0]) - ord("a") :: 3])
            ranks = np.searchsorted(came, json.loads(row[-1])["of"], "right") / len(came)
            assert np.abs(ranks - [0.1, 0.5, 0.95]).max() <= 1 / 50 + 1 / len(came)


#: Values, each with the merge of its sets; see `MergeSpec.scala`.
VALUES = {
    "v > 0": "sets_of_1",
    "cast(n % 5 AS tinyint)": "sets_of_1",
    "cast(n % 5 AS smallint)": "sets_of_2",
    "cast(n % 70 AS int)": "sets_of_4",
    "day": "sets_of_4",
    "n % 9": "sets_of_8",
    "date_trunc('MINUTE', ts)": "sets_of_8",
    "cast(n % 4 AS decimal(18, 2))": "sets_of_8",
    "cast(n % 4 AS decimal(38, 2)) * 1e15BD": "sets",
    "text": "sets",
    "cast(text AS binary)": "sets",
    "v": "sets_of_8" if SPARK >= (4, 2) else "pieces",
    "cast(v AS float)": "sets_of_4" if SPARK >= (4, 2) else "pieces",
    "struct(n % 3, text)": "pieces",
    "array(n % 3)": "pieces",
}
if SPARK >= (4, 2):  # before, a set of Spark's has more or fewer NaNs by how the rows came
    VALUES["if(n % 3 = 0, double('NaN'), -v)"] = "sets_of_8"
SETS = {f"s{i}": f"sort_array(collect_set({value}))" for i, value in enumerate(VALUES)}
#: One value of each is the most frequent, so that no choice is left to Spark.
MODES = {
    f"m{i}": f"mode(if(n % 3 = 0, {value}, {other}))"
    for i, (value, other) in enumerate([("n", "7"), ("v", "1.0e0"), ("text", "'b'"), ("day", "DATE'2024-05-07'")])
}


def test_merges_of_sets(spark: SparkSession) -> None:
    pieces = spark._jvm.org.apache.spark.sql.gpuwin.Pieces
    rows = spark.createDataFrame([], SCHEMA)
    for value, merge in VALUES.items():
        plan = rows.agg(F.expr(f"collect_set({value})"))._jdf.queryExecution().analyzed()
        function = plan.aggregateExpressions().head().child().aggregateFunction()
        assert (value, pieces.mergeOf(function)) == (value, merge)


@pytest.mark.parametrize(
    ("mode", "window"),
    [("update", "tumbling"), pytest.param("append", "sliding", marks=pytest.mark.long)],
)
def test_sets_and_modes(mode: str, window: str, both: Both, stream: Stream) -> None:
    """Of many types, in windows that have rows in several batches."""
    by = {"sliding": sliding, "tumbling": tumbling}[window]

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, by(), SETS | MODES)

    both(query, stream, how(mode), schema=SCHEMA)


def test_explain_of_a_running_query(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Only Spark's code makes pieces of rows, whatever `spark.gpuwin.mapside` would have by the batch before."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(stream.files[0].parent))
    query = aggregated(source, tumbling(), {"list": "collect_list(n)"}).writeStream.format("noop")
    started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    started.awaitTermination()
    assert "in the JVM, because only Spark's own code adds rows to the buffer of collect_list" in gw.spark.explain(
        started
    )


@pytest.mark.parametrize(
    ("mode", "gap"), [("append", "2 seconds"), pytest.param("complete", "4 seconds", marks=pytest.mark.sweep)]
)
def test_sessions(mode: str, gap: str, both: Both, stream: Stream) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, F.session_window("ts", gap), RESULTS)

    both(query, stream, how(mode), schema=SCHEMA, spark_operators=SPARK_SESSIONS)


@pytest.mark.skipif(SPARK < (4, 0), reason="this Spark has no listagg")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("listagg(text) WITHIN GROUP (ORDER BY upper(text))", "listagg(text) WITHIN GROUP (ORDER BY text)"),
        ("collect_list('a')", "collect_list(1)"),
    ],
)
def test_pieces_of_other_values_are_refused(
    before: str, after: str, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Spark reads them as they are not: its process may end."""

    def part(batches: int, result: str) -> Recording:
        def query(_: SparkSession, frame: DataFrame) -> DataFrame:
            return aggregated(frame, tumbling(), {"result": result})

        return run(spark, query, stream.head(batches), how("append"), tmp_path, enabled=True, schema=SCHEMA)

    assert part(2, before).error is None
    refused = part(3, after).error
    assert refused is not None
    assert "belongs to another query" in refused.message
    assert part(3, before).error is None


@pytest.mark.parametrize(
    ("result", "operators"),
    [("collect_list(n)", ("gpuwin",)), ("concat(array(first(n)), collect_list(n))", SPARK_SESSIONS)],
)
def test_sessions_with_a_gap_for_each_row(result: str, operators: tuple[str, ...], both: Both, stream: Stream) -> None:
    """Rows of one time are added by their ends. `first` stays with Spark where gaps differ, also beside a list."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        gap = F.expr("CASE n % 3 WHEN 0 THEN '3 seconds' WHEN 1 THEN '2 seconds' ELSE '1500 milliseconds' END")
        return aggregated(frame, F.session_window("ts", gap), {"result": result})

    both(query, stream, how("append"), schema=SCHEMA, operators=operators, spark_operators=SPARK_SESSIONS)


@pytest.mark.long
def test_a_task_hands_on_long_texts(spark: SparkSession, tmp_path: Path) -> None:
    """It keeps 64 MiB of rows, and not all 80 that are of one cell."""
    session = session_of(spark, {ADAPTIVE: "false", "spark.gpuwin.enabled": "true"})
    long = session.range(0, 40, 1, 1).selectExpr("timestamp_seconds(id div 40) AS ts", "repeat('x', 2097152) AS text")
    long.write.parquet(str(tmp_path / "rows"))
    read = session.read.parquet(str(tmp_path / "rows"))
    made = read.groupBy(F.window("ts", "10 seconds", "1 second")).agg(F.expr("size(collect_list(text))").alias("n"))
    assert [row["n"] for row in made.collect()] == [40] * 10
    node = made._jdf.queryExecution().executedPlan()
    while node.nodeName() != "PieceCells":
        node = node.children().head()
    assert node.metrics().apply("numOutputRows").value() == 2


def test_chunks_of_long_texts_end_early(spark: SparkSession) -> None:
    """Not after so many rows alone: a list, a set or a text may have any size."""
    jvm = spark._jvm
    allocator = jvm.org.apache.arrow.memory.RootAllocator()

    def chunks(frame: DataFrame, size: int) -> list[tuple[int, int]]:
        writer = jvm.org.apache.spark.sql.gpuwin.ArrowChunkWriter(frame._jdf.schema(), 65_536, size, allocator)
        rows, found = frame._jdf.queryExecution().executedPlan().executeToIterator(), []
        ignore = jvm.scala.collection.immutable.HashSet()  # a function of a row that does nothing
        while rows.hasNext():
            made = writer.next(rows, ignore)
            found.append((len(made._1()), made._2()))
        writer.close()
        return found

    long = spark.range(0, 300, 1, 1).selectExpr("id", "repeat(cast(id % 10 AS string), 40000) AS text")
    made = chunks(long, 1_000_000)
    assert [rows for _, rows in made] == [25] * 12
    assert max(size for size, _ in made) < 1_100_000
    short = spark.range(0, 30_000, 1, 1).selectExpr("id", "id % 2 = 0 AS even")  # a word each, and a bit in Arrow
    assert len(chunks(short, 100_000)) < 5
    allocator.close()


@pytest.mark.long
def test_a_task_with_more_cells_than_it_keeps(both: Both, tmp_path: Path) -> None:
    """A fifth of the keys come again once their cells were handed on. Of 128 of them Spark turns the lists round."""
    n = 50_000
    seconds = np.arange(n) // 5_000
    table = pa.table(
        {
            "key": pa.array([f"key {i % 40_000}" for i in range(n)]),
            "ts": pa.array([START + dt.timedelta(seconds=int(s)) for s in seconds], pa.timestamp("us", "UTC")),
            "n": pa.array(np.arange(n)),
            "v": pa.array(np.ones(n)),
            "text": pa.nulls(n, pa.string()),
            "day": pa.nulls(n, pa.date32()),
        }
    )
    late = table.slice(0, 1).set_column(1, "ts", pa.array([START + dt.timedelta(hours=1)], pa.timestamp("us", "UTC")))
    given = write_tables([[table], [late]], tmp_path / "stream")

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, tumbling(), {"list": "sort_array(collect_list(n))", "mean": "median(n)"})

    plain, _ = both(query, given, how("append", 0), schema=SCHEMA, late=None)
    lists = plain.column("list")
    assert len(lists) == 40_000
    assert sum("," in str(text) for text in lists) == 10_000


@pytest.mark.long
def test_state_of_every_call_is_shown_and_given_back(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, tumbling(), CALLS)

    def look(state: DataFrame) -> None:
        assert state.count() > 0

    StateMoves(spark, query, stream.head(4), how("append"), tmp_path, SCHEMA).assert_equal(look, adopted=False)


def sessions() -> Column:
    return F.session_window("ts", "2 seconds")


@pytest.mark.long
@pytest.mark.parametrize("window", [tumbling, sliding, sessions])
def test_state_is_shown_rescaled_given_back_and_adopted(
    window: Callable[[], Column], spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, window(), IN_ANY_ORDER, F.expr)

    def look(state: DataFrame) -> None:
        assert state.schema["collect_list(n)"].dataType.simpleString() == "array<bigint>"
        assert state.schema["percentiles"].dataType.simpleString() == "array<double>"
        assert {len(row["collect_list(n)"]) == row["count"] for row in state.collect()} == {True}

    sparks = SPARK_SESSIONS if window is sessions else ("stateStoreSave",)
    StateMoves(spark, query, stream, how("append"), tmp_path, SCHEMA, sparks).assert_equal(look)
