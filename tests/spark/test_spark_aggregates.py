"""Aggregates beyond sums, counts, extremes and variances, each the same on gpuwin as on Spark.

The order in which rows come decides what `first`, `last`, and ties of `max_by` give. It is the same on both sides where
each batch is one file, read by one task into one partition, so these cases are run that way. Statistics are rounded: a
covariance that should be zero is what is left of larger numbers, and that depends on the order of addition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import HAS_CORR_OF_CONSTANT, KEYS, SPARK, WINDOWS, Both, Case, write

TYPES = ("byte", "int", "double", "dec10", "dec38", "date", "tval", "nval", "str", "bin", "bool")


def _four_bits(others: str, own: str) -> str:
    """A bitmap that differs between rows: the hexadecimal digit `own` in one place, `others` in all the rest."""
    return f"unhex(overlay(repeat('{others}', 8192) placing '{own}' from cast(id % 8192 + 1 as int)))"


#: From Spark 4.1 on.
AND_AGG = {
    "all": f"bitmap_and_agg({_four_bits('F', '6')})",
    "all_short": "bitmap_and_agg(bin) FILTER (WHERE bool)",
    "all_never": "bitmap_and_agg(bin) FILTER (WHERE false)",
}

#: name -> aggregate expressions in SQL. Named min_ or max_ where a double must be the same to the bit.
SETS: dict[str, dict[str, str]] = {
    "conditions": {
        "n_if": "count_if(short > 0)",
        "n_none": "count_if(null)",
        "all_true": "bool_and(bool)",
        "any_true": "bool_or(bool)",
        "every_big": "every(int > 0)",
        "some_big": "some(int > 0)",
        "all_filtered": "bool_and(bool) FILTER (WHERE short > 0)",
    },
    "bits": {
        **{f"{f}_{t}": f"bit_{f}({t})" for f in ("and", "or", "xor") for t in ("byte", "short", "int", "long")},
        "xor_none": "bit_xor(long) FILTER (WHERE false)",
    },
    "bitmaps": {
        "ids": "bitmap_construct_agg(bitmap_bit_position(id))",
        "n_ids": "bitmap_count(bitmap_construct_agg(bitmap_bit_position(id)))",
        "ids_filtered": "bitmap_construct_agg(bitmap_bit_position(id)) FILTER (WHERE bool)",
        "any": f"bitmap_or_agg({_four_bits('0', '9')})",
        "any_short": "bitmap_or_agg(bin) FILTER (WHERE bool)",
        "any_never": "bitmap_or_agg(bin) FILTER (WHERE false)",
        **(AND_AGG if SPARK >= (4, 1) else {}),
        "or_short": "bit_or(short)",
    },
    "first": {
        **{f"min_first_{t}": f"first({t})" for t in TYPES},
        "first_filtered": "first(id) FILTER (WHERE bool)",
        "first_never": "first(str) FILTER (WHERE false)",
        "n": "count(*)",
    },
    "last": {
        **{f"max_last_{t}": f"last({t})" for t in TYPES},
        "last_filtered": "last(id) FILTER (WHERE bool)",
        "last_id": "last_value(id)",
        "last_both": "last(id) + first(id)",
    },
    "first_known": {
        **{f"min_first_{t}": f"first({t}) IGNORE NULLS" for t in TYPES},
        **{f"max_last_{t}": f"last({t}, true)" for t in TYPES},
        "any_str": "any_value(str) IGNORE NULLS",
        "any_id": "any_value(id)",
        "first_none": "first(cast(null as int), true)",
    },
    "max_by": {
        **{
            f"str_by_{t}": f"max_by(str, {t})"
            for t in ("byte", "long", "double", "float", "dec10", "date", "tval", "bool")
        },
        **{f"id_by_{t}": f"max_by(id, {t})" for t in ("short", "double", "nval")},
        "dec_by_int": "max_by(dec38, int) FILTER (WHERE bool)",
        "by_nothing": "max_by(id, cast(null as int))",
    },
    "min_by": {
        **{
            f"bin_by_{t}": f"min_by(bin, {t})"
            for t in ("byte", "long", "double", "float", "dec10", "date", "tval", "bool")
        },
        **{f"id_by_{t}": f"min_by(id, {t})" for t in ("short", "double", "nval")},
        "dec_by_expression": "min_by(dec10, int * 2.5D)",
        "max_double_by_day": "min_by(double, make_dt_interval(0, 0, 0, short))",
    },
    "by_wide": {
        **{f"max_by_{t}": f"max_by(id, {t})" for t in ("str", "bin", "dec38")},
        **{f"min_by_{t}": f"min_by(id, {t})" for t in ("str", "bin", "dec38")},
        "str_by_sum": "max_by(str, cast(dec10 AS decimal(20, 2)))",
        "double_by_text": "min_by(double, concat(str, char(0), bool))",
        "dec_by_struct": "max_by(dec38, struct(short, str))",
        "last_by_struct": "min_by(id, struct(bool, null AS n, date))",
        "struct_by_array": "max_by(struct(id, bin), array(byte, null, short))",
        "few": "max_by(id, str) FILTER (WHERE short > 0)",
        "none": "max_by(id, cast(null AS string))",
    },
    "distinct": {
        **{f"n_{t}": f"approx_count_distinct({t})" for t in ("id", "str", "double", "dec38", "tval", "bool")},
        "n_rough": "approx_count_distinct(id, 0.2)",
        "n_filtered": "approx_count_distinct(id) FILTER (WHERE short > 0)",
        "n": "count(*)",
    },
    "pairs": {
        "cov_pop": "round(covar_pop(id % 17, id % 7), 6)",
        "cov_samp": "round(covar_samp(id % 17, byte), 6)",
        "correlation": "round(corr(id % 17, id % 7), 6)",
        "slope": "round(regr_slope(id % 17, id % 7), 6)",
        "intercept": "round(regr_intercept(id % 17, id % 7), 6)",
        "r2": "round(regr_r2(id % 17, id % 7), 6)",
        "sxx": "round(regr_sxx(id % 17, id % 5), 6)",
        "sxy": "round(regr_sxy(id % 17, id % 7), 6)",
        "syy": "round(regr_syy(id % 17, id % 7), 6)",
        "n": "regr_count(short, int)",
        "avg_x": "regr_avgx(short, byte)",
        "avg_y": "regr_avgy(short, byte)",
        "cov_infinite": "round(covar_pop(id % 7, if(id % 50 = 3, double('inf'), id % 5)), 6)",
        "corr_nan": "round(corr(id % 7, if(id % 50 = 3, double('nan'), id % 5)), 6)",
    },
    "shape": {
        "skew": "round(skewness(id % 17), 6)",
        "kurt": "round(kurtosis(id % 13), 6)",
        "std": "round(std(id % 11), 6)",
        "kurt_rare": "round(kurtosis(if(id % 50 = 3, double('nan'), id % 5)), 6)",
    },
    "tried": {
        "s_double": "try_sum(double)",
        "s_dec": "try_sum(dec10)",
        "a_int": "try_avg(int)",
        "a_dec": "try_avg(dec10)",
        "avg_interval": "avg(make_dt_interval(0, 0, 0, short))",
        "sum_interval": "sum(make_dt_interval(0, short))",
    },
}


@dataclass(frozen=True)
class Aggregation:
    """A case of the differential suite with aggregates of this module."""

    aggregates: str
    case: Case

    def query(self, _: SparkSession, frame: DataFrame) -> DataFrame:
        size, slide, start = WINDOWS[self.case.window]
        window = F.window("ts", size, slide, start) if slide else F.window("ts", size)
        keys = [F.expr(e).alias(n) for n, e in KEYS[self.case.key].items()]
        results = [F.expr(e).alias(n) for n, e in SETS[self.aggregates].items()]
        return frame.withWatermark("ts", self.case.watermark).groupBy(*keys, window).agg(*results)


def _case(aggregates: str, window: str, mode: str, key: str, **more: str) -> Aggregation:
    return Aggregation(aggregates, Case(window=window, mode=mode, key=key, sink="foreach", **more))


CORR_ANSI = str(HAS_CORR_OF_CONSTANT).lower()
CASES = [
    _case("conditions", "sliding", "append", "short"),
    _case("bits", "uneven", "update", "string", codegen="on", trigger="processing", partitions="5"),
    _case("bitmaps", "sliding", "append", "short", provider="rocksdb", trigger="processing", restart="yes"),
    _case("bitmaps", "tumbling", "update", "none"),
    _case("bitmaps", "uneven", "complete", "boolean", codegen="on"),
    _case("first", "sliding", "append", "boolean"),
    _case("first", "tumbling", "update", "none", trigger="processing", restart="yes"),
    _case("last", "uneven_earlier", "update", "boolean", trigger="processing"),
    _case("first_known", "dense", "append", "short", provider="rocksdb"),
    _case("first_known", "sliding", "complete", "boolean"),
    _case("max_by", "sliding", "append", "boolean", codegen="on", trigger="processing", restart="yes"),
    _case("min_by", "uneven", "update", "none"),
    _case("by_wide", "sliding", "append", "boolean", trigger="processing", restart="yes"),
    _case("by_wide", "uneven", "update", "none", partitions="5"),
    _case("distinct", "sliding", "append", "short", trigger="processing", restart="yes"),
    _case("pairs", "days", "complete", "boolean", ansi=CORR_ANSI),
    _case("pairs", "sliding", "append", "none", ansi=CORR_ANSI),
    _case("shape", "sliding", "update", "none"),
    _case("tried", "sliding", "append", "short", ansi="false"),
]  # fmt: skip


#: What others among the cases cover in part: run with `pytest -m long`, and with `pytest -m sweep`.
_LONG = ("by_wide-uneven", "bits-uneven", "first-tumbling", "distinct-sliding")
_LONGER = (
    "conditions-sliding", "shape-sliding", "first_known-sliding", "first_known-dense", "bitmaps-uneven",
    "bitmaps-tumbling", "min_by-uneven", "pairs-sliding",
)  # fmt: skip


def name_of(it: Aggregation) -> str:
    return f"{it.aggregates}-{it.case.window}"


@pytest.mark.parametrize(
    "it",
    [
        pytest.param(
            c,
            id=f"{name_of(c)}-{c.case.mode}",
            marks=pytest.mark.sweep if name_of(c) in _LONGER else pytest.mark.long if name_of(c) in _LONG else (),
        )
        for c in CASES
    ],
)
def test_same_as_spark(it: Aggregation, both: Both, tmp_path: Path) -> None:
    how = it.case.how
    # Segments are merged early, so that what a log gives back after a restart is more than what came.
    how = replace(how, conf={**how.conf, "spark.gpuwin.log.maxSegments": "2"})
    both(it.query, write(it.case.stream, tmp_path / "stream"), how, late=it.case.late)
