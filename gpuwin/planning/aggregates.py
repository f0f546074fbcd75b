"""The table of aggregates: a record each, from which planning, cells, results, Spark's side and the pages are read.

A record says what an aggregate takes and gives, which partial columns a cell keeps for it, how they are finished, and
which functions of Spark are the same. DuckDB's and DataFusion's aggregates (state, update, combine, finalise) are the
model. How to add one: CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.planning import finishing
from gpuwin.planning.aggregate_record import Accepted, CellRecord, Partial, Record, RowRecord, Types
from gpuwin.planning.finishing import Cells, Finish, Result, known, of_finite
from gpuwin.planning.ingest import holds
from gpuwin.planning.inputs import (
    ARRIVED,
    BITS,
    FLOAT_MOMENTS,
    MOMENTS_OF,
    ONES,
    RANKED,
    SAMPLE,
    SIGNED,
    TRUES,
    VALUE,
    WIDE,
    Take,
)
from gpuwin.planning.spark_merges import (
    BITMAPS,
    BITS_MERGED,
    BY_ORDER,
    CORRELATION,
    COUNTS,
    COUNTS_OF_VALUES,
    EXTREMES,
    FIRSTS,
    LINES,
    MOMENTS,
    PIECES,
    PIVOTS,
    PRODUCTS,
    REGISTERS,
    SETS_OF_VALUES,
    SUMMARIES,
    SUMS,
    THIRD,
    TRIED_SUMS,
    OnSpark,
    SparkMerge,
)
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import dtype_of, rankable
from gpuwin.state.rows import holistic
from gpuwin.state.rows.sketches import AnySketch, Distinct, Ranks
from gpuwin.vocabulary.aggregates import Aggregate

FLOAT: Final = pa.float64()


def _is_number(t: pa.DataType) -> bool:
    return bool(pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t))


def _is_plain(t: pa.DataType) -> bool:
    return not (pa.types.is_null(t) or isinstance(t, pa.BaseExtensionType) or pa.types.is_interval(t))


def _is_alike(t: pa.DataType) -> bool:
    return _is_plain(t) and not holds(t, pa.types.is_union)


ANYTHING = Accepted("anything", lambda t: True)
BOOLEANS = Accepted("booleans", pa.types.is_boolean)
NUMBERS = Accepted("numbers and decimals", _is_number)
MEANABLE = Accepted("numbers and decimals (decimal128)", _is_number, wide=False)
SUMMABLE = Accepted(
    "numbers, decimals (decimal128) and durations",
    lambda t: _is_number(t) or pa.types.is_duration(t),
    wide=False,
)
INTEGERS = Accepted("integers", pa.types.is_integer)
ORDERED = Accepted(
    "numbers, decimals (decimal128), booleans, times, strings and binary", lambda t: dtype_of(t) is not None
)
RANKABLE = Accepted("numbers, decimals of up to 18 digits, booleans and times", rankable)
PLAIN = Accepted("values of any plain type, nested ones too", _is_plain)
ALIKE = Accepted("values of any plain type but unions, nested ones too", _is_alike)
COMPARABLE = Accepted("values that have an order", lambda t: _is_plain(t) and not pa.types.is_nested(t))


def _always(*partials: Partial) -> Callable[[Types], tuple[Partial, ...]]:
    return lambda types: partials


def _of_type(how: str, merge: str, take: Take = VALUE) -> Callable[[Types], tuple[Partial, ...]]:
    """A partial column that holds values of the first column as they are."""
    return lambda types: (Partial(how, merge, str(dtype_of(types[0])), take),)


def _same_type(types: Types) -> pa.DataType:
    return types[0]


PRESENT = Partial("present", "sum", "int64", ONES, nullable=False)


def _summed(types: Types) -> tuple[Partial, ...]:
    take = SIGNED if types[0] == pa.uint64() else VALUE
    return (Partial("sum", "sum", str(dtype_of(types[0])), take),)


def _sum_type(types: Types) -> pa.DataType:
    t = types[0]
    if pa.types.is_decimal(t):
        return pa.decimal128(38, t.scale)
    return pa.int64() if pa.types.is_integer(t) else pa.float64() if pa.types.is_floating(t) else t


def _averaged(types: Types) -> tuple[Partial, ...]:
    if pa.types.is_integer(types[0]) and types[0].bit_width == 64:
        return PRESENT, Partial("wide sum", "sum", "int128", WIDE)
    return PRESENT, *_summed(types)


def _mean_type(types: Types) -> pa.DataType:
    t = types[0]
    if not pa.types.is_decimal(t):
        return pa.float64()
    scale = min(t.scale + 4, 38)
    return pa.decimal128(max(min(t.precision + 4, 38), scale), scale)


def _moments(types: Types) -> tuple[Partial, ...]:
    take = FLOAT_MOMENTS if pa.types.is_float64(types[0]) else MOMENTS_OF
    return (Partial("moments", "moments", "float64", take),)


def _sample(merge: str) -> Callable[[Types], tuple[Partial, ...]]:
    """Statistics of a variable, or of two."""
    return _always(Partial(merge, merge, "float64", SAMPLE))


def _kurtosis(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Excess over that of a normal distribution."""
    size, center, squares, _, fourths = cells[0].values
    squares, fourths = of_finite((center,), squares, fourths)
    with np.errstate(all="ignore"):
        return known(cells[0], size * fourths / (squares * squares) - 3.0, squares != 0)


def _bitwise(name: str, text: str, buffer: str) -> CellRecord:
    return CellRecord(
        name=name,
        calls=(f"{name}(c)",),
        takes=(INTEGERS,),
        keeps=_always(Partial(name, name, "int64", BITS)),
        finish=finishing.bits,
        gives=_same_type,
        text=f"the bits that {text}, of the column's type",
        spark=(OnSpark((name,), buffer, BITS_MERGED),),
    )


def _of_pairs(
    name: str,
    text: str,
    keeps: Callable[[Types], tuple[Partial, ...]],
    finish: Finish,
    on: tuple[str, SparkMerge],
    *,
    columns: str = "y, x",
) -> CellRecord:
    """An aggregate of two columns of numbers, of the rows that have a value in both."""
    return CellRecord(
        name=name,
        calls=(f"{name}({columns})",),
        takes=(NUMBERS, NUMBERS),
        keeps=keeps,
        finish=finish,
        gives=FLOAT,
        text=text,
        spark=(OnSpark((name,), *on),),
    )


def _picked(name: str, *, largest: bool) -> RowRecord:
    """The aggregate of several rows that are chosen by another column."""
    return RowRecord(
        name=f"{name}_k",
        calls=(f"{name}(c, by, k)",),
        takes=(PLAIN, COMPARABLE),
        gives=lambda types: pa.list_(types[0]),
        finish=partial(holistic.picked_by, largest=largest),
        options=lambda a: {"k": a.k},
        text="list: the values of `c` where `by` is among the k smallest or largest, in that order",
        empty="empty",
    )


def _distinct(a: Aggregate, type_: pa.DataType) -> AnySketch | None:
    return Distinct.of(a.accuracy) if Distinct.takes(type_) else None


def _ranks(a: Aggregate, type_: pa.DataType) -> AnySketch | None:
    return Ranks.of(type_, int(a.accuracy)) if Ranks.takes(type_) else None


_RECORDS: tuple[Record, ...] = (
    CellRecord(
        name="count",
        calls=("count()", "count(c)"),
        takes=(ANYTHING,),
        keeps=_always(PRESENT),
        finish=finishing.count,
        gives=pa.int64(),
        text="int64: the rows, or those with a value",
        empty="0",
        spark=(OnSpark(("count",), "Count", COUNTS),),
    ),
    CellRecord(
        name="sum",
        calls=("sum(c)",),
        takes=(SUMMABLE,),
        keeps=_summed,
        finish=finishing.value,
        gives=_sum_type,
        text="int64 of integers, decimal of 38 digits of decimals, float64 of floats, duration of durations",
        spark=(OnSpark(("sum",), "Sum", SUMS), OnSpark(("try_sum",), "Sum", TRIED_SUMS)),
    ),
    CellRecord(
        name="mean",
        calls=("mean(c)",),
        takes=(MEANABLE,),
        keeps=_averaged,
        finish=finishing.mean,
        gives=_mean_type,
        text="float64; of decimal(p, s) decimal(p + 4, s + 4), rounded half up",
        spark=(OnSpark(("avg", "mean"), "Average", SUMS), OnSpark(("try_avg",), "Average", TRIED_SUMS)),
    ),
    CellRecord(
        name="min",
        calls=("min(c)",),
        takes=(ORDERED,),
        keeps=_of_type("min", "min"),
        finish=finishing.value,
        gives=_same_type,
        text="the smallest or largest value, of the column's type; text and binary by bytes",
        spark=(OnSpark(("min",), "Min", EXTREMES),),
    ),
    CellRecord(
        name="max",
        calls=("max(c)",),
        takes=(ORDERED,),
        keeps=_of_type("max", "max"),
        finish=finishing.value,
        gives=_same_type,
        text="the smallest or largest value, of the column's type; text and binary by bytes",
        spark=(OnSpark(("max",), "Max", EXTREMES),),
    ),
    CellRecord(
        name="var",
        calls=("var(c, ddof=1)",),
        takes=(NUMBERS,),
        keeps=_moments,
        finish=finishing.variance,
        gives=FLOAT,
        text="float64; null unless there are more than `ddof` values",
        spark=(OnSpark(("variance", "var_samp", "var_pop"), "CentralMomentAgg", MOMENTS),),
    ),
    CellRecord(
        name="std",
        calls=("std(c, ddof=1)",),
        takes=(NUMBERS,),
        keeps=_moments,
        finish=finishing.deviation,
        gives=FLOAT,
        text="float64; null unless there are more than `ddof` values",
        spark=(OnSpark(("std", "stddev", "stddev_samp", "stddev_pop"), "CentralMomentAgg", MOMENTS),),
    ),
    CellRecord(
        name="first",
        calls=("first(c)",),
        takes=(ORDERED,),
        keeps=_of_type("first", "first", ARRIVED),
        finish=finishing.picked,
        gives=_same_type,
        text="the earliest or latest value by time, then arrival",
        spark=(OnSpark(("first", "first_value"), "First", FIRSTS),),
    ),
    CellRecord(
        name="last",
        calls=("last(c)",),
        takes=(ORDERED,),
        keeps=_of_type("last", "last", ARRIVED),
        finish=finishing.picked,
        gives=_same_type,
        text="the earliest or latest value by time, then arrival",
        spark=(OnSpark(("last", "last_value"), "Last", FIRSTS),),
    ),
    CellRecord(
        name="min_by",
        calls=("min_by(c, by)",),
        takes=(ORDERED, RANKABLE),
        keeps=_of_type("min_by", "first", RANKED),
        finish=finishing.picked,
        gives=_same_type,
        text="the value of `c` where `by` is smallest or largest",
        spark=(OnSpark(("min_by",), "MaxMinBy", BY_ORDER),),
    ),
    CellRecord(
        name="max_by",
        calls=("max_by(c, by)",),
        takes=(ORDERED, RANKABLE),
        keeps=_of_type("max_by", "last", RANKED),
        finish=finishing.picked,
        gives=_same_type,
        text="the value of `c` where `by` is smallest or largest",
        spark=(OnSpark(("max_by",), "MaxMinBy", BY_ORDER),),
    ),
    CellRecord(
        name="any",
        calls=("any(c)",),
        takes=(BOOLEANS,),
        keeps=_of_type("max", "max"),
        finish=finishing.value,
        gives=pa.bool_(),
        text="bool",
        spark=(OnSpark(("bool_or", "any", "some"), "Max", EXTREMES),),
    ),
    CellRecord(
        name="all",
        calls=("all(c)",),
        takes=(BOOLEANS,),
        keeps=_of_type("min", "min"),
        finish=finishing.value,
        gives=pa.bool_(),
        text="bool",
        spark=(OnSpark(("bool_and", "every"), "Min", EXTREMES),),
    ),
    CellRecord(
        name="count_if",
        calls=("count_if(c)",),
        takes=(BOOLEANS,),
        keeps=_always(Partial("true", "sum", "int64", TRUES, nullable=False)),
        finish=finishing.count,
        gives=pa.int64(),
        text="int64: the rows where it is true",
        empty="0",
        spark=(OnSpark(("count_if",), "Count", COUNTS),),
    ),
    CellRecord(
        name="any_value",
        calls=("any_value(c)",),
        takes=(ORDERED,),
        keeps=_of_type("first", "first", ARRIVED),
        finish=finishing.picked,
        gives=_same_type,
        text="some value: the earliest",
        spark=(OnSpark(("any_value",), "First", FIRSTS),),
    ),
    _bitwise("bit_and", "all values have", "BitAndAgg"),
    _bitwise("bit_or", "any value has", "BitOrAgg"),
    _bitwise("bit_xor", "an odd number of values have", "BitXorAgg"),
    CellRecord(
        name="skewness",
        calls=("skewness(c)",),
        takes=(NUMBERS,),
        keeps=_sample("moments3"),
        finish=finishing.skewness,
        gives=FLOAT,
        text="float64, of a population; null where all values are the same",
        spark=(OnSpark(("skewness",), "CentralMomentAgg", THIRD),),
    ),
    CellRecord(
        name="kurtosis",
        calls=("kurtosis(c)",),
        takes=(NUMBERS,),
        keeps=_sample("moments4"),
        finish=_kurtosis,
        gives=FLOAT,
        text="float64, of a population; null where all values are the same",
        spark=(OnSpark(("kurtosis",), "CentralMomentAgg", THIRD),),
    ),
    _of_pairs(
        "covar_pop",
        "float64: the covariance with divisor n",
        _sample("comoments"),
        finishing.covariance,
        ("Covariance", PRODUCTS),
        columns="x, y",
    ),
    _of_pairs(
        "covar_samp",
        "float64: the covariance with divisor n - 1; null of fewer than two pairs",
        _sample("comoments"),
        finishing.covariance,
        ("Covariance", PRODUCTS),
        columns="x, y",
    ),
    _of_pairs(
        "corr",
        "float64: Pearson's; null of fewer than two pairs, or where either is constant",
        _sample("correlation"),
        finishing.correlation,
        ("PearsonCorrelation", CORRELATION),
    ),
    replace(
        _of_pairs(
            "regr_count",
            "int64: how many pairs",
            _always(PRESENT),
            finishing.count,
            ("Count", COUNTS),
        ),
        takes=(ANYTHING, ANYTHING),
        gives=pa.int64(),
        empty="0",
    ),
    replace(
        _of_pairs(
            "regr_avgx",
            "the mean of `x` or `y` over the pairs, as `mean`",
            _averaged,
            finishing.mean,
            ("Average", SUMS),
        ),
        takes=(MEANABLE, MEANABLE),
        gives=_mean_type,
    ),
    replace(
        _of_pairs(
            "regr_avgy",
            "the mean of `x` or `y` over the pairs, as `mean`",
            _averaged,
            finishing.mean,
            ("Average", SUMS),
        ),
        takes=(MEANABLE, MEANABLE),
        gives=_mean_type,
    ),
    _of_pairs(
        "regr_sxx",
        "float64: squared distances to the mean, or their products",
        _moments,
        finishing.distances,
        ("CentralMomentAgg", MOMENTS),
    ),
    _of_pairs(
        "regr_syy",
        "float64: squared distances to the mean, or their products",
        _moments,
        finishing.distances,
        ("CentralMomentAgg", MOMENTS),
    ),
    _of_pairs(
        "regr_sxy",
        "float64: squared distances to the mean, or their products",
        _sample("comoments"),
        finishing.distances,
        ("Covariance", PRODUCTS),
    ),
    _of_pairs(
        "regr_slope",
        "float64: of the line y = intercept + slope * x by least squares; null where `x` is constant",
        _sample("correlation"),
        finishing.slope,
        ("RegrSlope", LINES),
    ),
    _of_pairs(
        "regr_intercept",
        "float64: of the line y = intercept + slope * x by least squares; null where `x` is constant",
        _sample("correlation"),
        finishing.intercept,
        ("RegrIntercept", LINES),
    ),
    _of_pairs(
        "regr_r2",
        "float64: `corr` squared; null where `x` is constant, else 1 where `y` is",
        _sample("correlation"),
        finishing.determination,
        ("PearsonCorrelation", CORRELATION),
    ),
    RowRecord(
        name="quantile",
        calls=("median(c)", "quantile(c, q)"),
        takes=(NUMBERS,),
        gives=FLOAT,
        finish_all=holistic.quantiles,
        options=lambda a: {"q": a.fraction},
        text="float64: exact, linear between neighbours",
        spark=(OnSpark(("percentile", "median", "percentile_cont"), "Percentile", COUNTS_OF_VALUES),),
    ),
    RowRecord(
        name="approx_quantile",
        calls=("approx_quantile(c, q, accuracy=10_000)",),
        takes=(COMPARABLE,),
        gives=_same_type,
        finish=holistic.approx_quantile,
        options=lambda a: {"q": a.fraction, "accuracy": int(a.accuracy)},
        sketch=_ranks,
        text="a value whose rank is within about n / accuracy of q * n",
        spark=(OnSpark(("percentile_approx", "approx_percentile"), "ApproximatePercentile", SUMMARIES),),
    ),
    RowRecord(
        name="count_distinct",
        calls=("count_distinct(c)",),
        takes=(ALIKE,),
        gives=pa.int64(),
        finish=holistic.count_distinct,
        different=True,
        text="int64: how many different values there are",
        empty="0",
    ),
    RowRecord(
        name="approx_count_distinct",
        calls=("approx_count_distinct(c, rsd=0.05)",),
        takes=(ALIKE,),
        gives=pa.int64(),
        finish=holistic.approx_count_distinct,
        options=lambda a: {"rsd": a.accuracy},
        sketch=_distinct,
        different=True,
        text="int64: how many different values there are, about",
        empty="0",
        spark=(OnSpark(("approx_count_distinct",), "HyperLogLogPlusPlus", REGISTERS),),
    ),
    RowRecord(
        name="collect_list",
        calls=("collect_list(c)",),
        takes=(PLAIN,),
        gives=lambda types: pa.list_(types[0]),
        finish=holistic.collect_list,
        ordered=lambda types: True,
        text="list of the values: by arrival (or time: `Semantics.order`)",
        empty="empty",
        spark=(OnSpark(("collect_list", "array_agg"), "CollectList", PIECES),),
    ),
    RowRecord(
        name="collect_set",
        calls=("collect_set(c)",),
        takes=(ALIKE,),
        gives=lambda types: pa.list_(types[0]),
        finish=holistic.collect_set,
        different=True,
        ordered=lambda types: True,
        text="list of the different values, by first appearance",
        empty="empty",
        spark=(OnSpark(("collect_set",), "CollectSet", SETS_OF_VALUES),),
    ),
    RowRecord(
        name="top_k",
        calls=("top_k(c, k)",),
        takes=(COMPARABLE,),
        gives=lambda types: pa.list_(types[0]),
        finish=holistic.top_k,
        options=lambda a: {"k": a.k},
        text="list: the k largest, largest first",
        empty="empty",
    ),
    _picked("min_by", largest=False),
    _picked("max_by", largest=True),
    RowRecord(
        name="histogram",
        calls=("histogram(c)",),
        takes=(ALIKE,),
        gives=lambda types: pa.map_(types[0], pa.int64()),
        finish=holistic.histogram,
        ordered=lambda types: pa.types.is_nested(types[0]),
        text="map: value to count, in order of value (of nested values: by first appearance)",
        empty="empty",
    ),
)
AGGREGATES: Final = {record.name: record for record in _RECORDS}
"""The records by `Aggregate.kind`, in the order of the pages."""

_ONLY_ON_SPARK: tuple[OnSpark, ...] = (
    OnSpark(("bitmap_construct_agg",), "BitmapConstructAgg", BITMAPS),
    OnSpark(("bitmap_or_agg",), "BitmapOrAgg", BITMAPS),
    OnSpark(("bitmap_and_agg",), "BitmapAndAgg", BITMAPS),
    OnSpark(("collect_union",), "CollectUnion", PIECES),
    OnSpark(("listagg", "string_agg"), "ListAgg", PIECES),
    OnSpark(("percentile_disc",), "PercentileDisc", COUNTS_OF_VALUES),
    OnSpark(("mode",), "Mode", COUNTS_OF_VALUES),
    OnSpark(("pivotfirst",), "PivotFirst", PIVOTS),
)
ON_SPARK: Final = (*(one for record in _RECORDS for one in record.spark), *_ONLY_ON_SPARK)
"""All functions of Spark whose buffers the plugin merges: those of the records, then those that compute no aggregate of
the engine."""
