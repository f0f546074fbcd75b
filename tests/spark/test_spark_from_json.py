"""JSON below an aggregation: objects that gpuwin reads itself, and texts that it leaves to Spark's parser."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import DEVICE, JVM, Both, Query, Recording, Run, Stream, write_tables
from spark_harness.json_texts import FIELDS, every_value_alone, json_text

SCHEMA = "id long, at timestamp, value binary"
COLUMNS = (
    *("whole", "i", "s", "b", "real", "dec", "wide", "text", "ok", "ts", "ntz", "day", "`ключ`"),
    *("inner.whole", "inner.text", "inner.deep.real", "small"),
)
CONF = {
    # The last plan of a run is one of a batch with rows.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "Europe/Berlin",
    # Spark 3.5 fails where a time is one for the parser of Spark 2 only.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}


def stream_of(texts: list[bytes | None], folder: Path) -> Stream:
    start = 1_700_000_000_000_000
    table = pa.table(
        {
            "id": pa.array(range(len(texts)), pa.int64()),
            "at": pa.array([start + i for i in range(len(texts))], pa.timestamp("us", "UTC")),
            "value": pa.array(texts, pa.binary()),
        }
    )
    half = len(texts) // 2
    return write_tables([[table.slice(0, half)], [table.slice(half)]], folder)


# -- rows --------------------------------------------------------------------------------------------------------------


def values_of_texts(_: SparkSession, frame: DataFrame) -> DataFrame:
    """The values of each text, as aggregates of a group of its own."""
    parsed = frame.select("id", "at", F.from_json(F.col("value").cast("string"), FIELDS).alias("row"))
    values = [F.min(f"row.{c}").alias(f"c{i}") for i, c in enumerate(COLUMNS)]
    values += [F.min(F.to_json(f"row.{c}")).alias(c) for c in ("list", "lists", "map")]
    signed = F.min(F.col("row.real").cast("string")).alias("signed")
    none = F.max(F.col("row").isNull()).alias("none")
    return parsed.withWatermark("at", "1 minute").groupBy("id", F.window("at", "1 hour")).agg(*values, signed, none)


def assert_reader(recording: Recording, reads: bool = True) -> None:
    """Whether gpuwin's reader read texts, by the last plan of the run."""
    assert ("gpuwin_from_json" in recording.plan) == reads, recording.plan


@pytest.mark.parametrize("side", [DEVICE, JVM], ids=["device", "jvm"])
def test_every_value_in_every_field(side: dict[str, str], both: Both, tmp_path: Path) -> None:
    stream = stream_of([*every_value_alone(), None], tmp_path / "stream")
    _, device = both(values_of_texts, stream, Run("update", conf={**CONF, **side}), schema=SCHEMA, late=None)
    assert_reader(device)


CODE = {
    "generated code": {},
    "no generated code": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
}


@pytest.mark.parametrize("conf", CODE.values(), ids=CODE)
def test_texts_that_are_drawn(conf: dict[str, str], both: Both, tmp_path: Path) -> None:
    draw = random.Random(1128)
    stream = stream_of([json_text(draw) for _ in range(6_000)], tmp_path / "stream")
    _, device = both(values_of_texts, stream, Run("update", conf={**CONF, **conf}), schema=SCHEMA, late=None)
    assert_reader(device)


# -- what is read, and what is left ------------------------------------------------------------------------------------


def reader(spark: SparkSession, schema: str) -> Any:
    """The reader of a schema, or None; an object of the JVM."""
    jvm: Any = spark._jvm
    of = jvm.org.apache.spark.sql.types.StructType.fromDDL(schema)
    found = jvm.org.apache.spark.sql.gpuwin.JsonObjectReader.of(of, jvm.java.time.ZoneId.of("UTC"))
    return found.get() if found.isDefined() else None


ORDINARY = [
    '{"k":17,"v":0.5,"ts":"2026-11-28T16:00:00.123Z"}',
    ' { "v" : 0.30000000000000004 , "more" : { "of" : [ 1 , "\\u0041" ] } , "k" : -1 } ',
    '{"ts":"2026-11-28 16:00:00+01:00","t":"späť","k":null}',
    "{}",
]
LEFT = ['{"k":1.0}', '{"k":"1"}', '{"t":"\\n"}', "{'k':1}", '{"k":1} x', '{"k":1', "[]", "null", "", '{"\\u006b":1}']


@pytest.mark.parametrize(("text", "read"), [*((t, True) for t in ORDINARY), *((t, False) for t in LEFT)])
def test_ordinary_objects_are_read_and_others_left(text: str, read: bool, spark: SparkSession) -> None:
    data = text.encode()
    found = reader(spark, "k long, v double, t string, ts timestamp").read(data, 0, len(data))
    assert (found is not None) == read


FOR_SPARK = ["binary", "array<interval day>", "map<string, binary>", "struct<b: interval day>", "long comment 'x'"]


@pytest.mark.parametrize("of", FOR_SPARK)
def test_schemas_that_are_left_to_sparks_parser(of: str, spark: SparkSession) -> None:
    assert reader(spark, "a long") is not None
    assert reader(spark, f"a {of}") is None


def with_options(_: SparkSession, frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), FIELDS, {"allowNumericLeadingZeros": "true"})
    return frame.withWatermark("at", "1 minute").groupBy("id", F.window("at", "1 hour")).agg(F.min(row["whole"]))


def with_corrupt_texts(_: SparkSession, frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), "whole long, _corrupt_record string")
    parsed = frame.select("id", "at", row.alias("row")).withWatermark("at", "1 minute")
    grouped = parsed.groupBy("id", F.window("at", "1 hour"))
    return grouped.agg(F.min("row.whole"), F.min("row._corrupt_record"))


def in_functions(_: SparkSession, frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), "whole long, text string")
    grouped = frame.withWatermark("at", "1 minute").groupBy("id", F.window("at", "1 hour"))
    return grouped.agg(F.min(row["whole"]), F.min(row["text"]))


LEFT_ALONE = {
    "options": (with_options, {}),
    "a column of corrupt texts": (with_corrupt_texts, {}),
    "the key": (values_of_texts, {"spark.gpuwin.json": "false"}),
    "patterns of times as in Spark 2": (values_of_texts, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}),
}


@pytest.mark.parametrize(("query", "conf"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_parsers_that_are_left_alone(query: Query, conf: dict[str, str], both: Both, tmp_path: Path) -> None:
    texts: list[bytes | None] = [
        b'{"whole":007}',
        b'{"whole":1,"_corrupt_record":"x"}',
        b"{",
        b'{"ts":"2026-11-28T16:00:00.000Z"}',
    ]
    stream = stream_of(texts * 5, tmp_path / "stream")
    _, device = both(query, stream, Run("update", conf={**CONF, **conf}), schema=SCHEMA, late=None)
    assert_reader(device, reads=False)


@pytest.mark.parametrize("side", [DEVICE, JVM], ids=["device", "jvm"])
def test_parsers_within_aggregate_functions(side: dict[str, str], both: Both, tmp_path: Path) -> None:
    """Spark's partial aggregate, in the JVM, keeps its own."""
    texts: list[bytes | None] = [b'{"whole":7,"text":"x"}', b"{", None]
    stream = stream_of(texts * 5, tmp_path / "stream")
    _, device = both(in_functions, stream, Run("update", conf={**CONF, **side}), schema=SCHEMA, late=None)
    assert_reader(device, reads=side is DEVICE)


def test_fields_one_by_one(both: Both, tmp_path: Path) -> None:
    """Spark parses only the field that is wanted, and a text for each."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        row = F.from_json(F.col("value").cast("string"), "k string, ts timestamp, v double")
        fields = frame.select(*(row[name].alias(name) for name in ("k", "ts", "v"))).withWatermark("ts", "1 minute")
        return fields.groupBy("k", F.window("ts", "10 seconds", "5 seconds")).agg(F.sum("v"), F.count("*"))

    draw = random.Random(3)
    texts: list[bytes | None] = [
        f'{{"k":"{draw.choice("abc")}","ts":"2026-11-28T16:{i // 60:02}:{i % 60:02}.5Z","v":{draw.random()}}}'.encode()
        for i in range(900)
    ]
    _, device = both(query, stream_of(texts, tmp_path / "stream"), Run("append", conf=CONF), schema=SCHEMA, late=None)
    assert_reader(device)
