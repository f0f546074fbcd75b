"""Functions of Spark that compute an aggregate, and the ways in which two of their buffers are merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SparkMerge:
    """A way in which two of Spark's buffers are merged: the merges of `MergeSpec.scala`, and the words for it."""

    merges: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class OnSpark:
    """Functions of Spark that compute an aggregate, the Catalyst class whose buffer they have, and how it is merged."""

    functions: tuple[str, ...]
    buffer: str
    merge: SparkMerge


COUNTS = SparkMerge(("sum",), "sum")
SUMS = SparkMerge(
    ("sum", "decimal_sum", "decimal_avg_sum"),
    "sum; decimals of at most 28 digits in 128 bits. Not over intervals of years and months",
)
TRIED_SUMS = SparkMerge(
    ("sum", "decimal_sum", "decimal_avg_sum"),
    "sum, over numbers whose sum has room for it: floating point (the average of integers too), and decimals of at "
    "most 28 digits. Elsewhere the result is null once the sum overflows on the way, which depends on the order of the "
    "rows",
)
EXTREMES = SparkMerge(
    ("min", "max"), "the smaller or larger; structs and arrays too, as Spark orders them. Not of text with a collation"
)
MOMENTS = SparkMerge(("moments",), "count, mean, squared distances")
THIRD = SparkMerge(("moments3", "moments4"), "count, mean, squared distances, and their third and fourth powers")
PRODUCTS = SparkMerge(("comoments",), "count, means, products of distances")
CORRELATION = SparkMerge(("correlation",), "count, means, products of distances, and squared distances")
LINES = SparkMerge(("comoments", "moments"), CORRELATION.text)
BITS_MERGED = SparkMerge(("bit_and", "bit_or", "bit_xor"), "bit by bit")
BITMAPS = SparkMerge(("bit_and", "bit_or"), "bit by bit, over the 4096 bytes of a bitmap")
REGISTERS = SparkMerge(("registers",), "the larger of each register")
PIECES = SparkMerge(("pieces",), "[in pieces](#buffers-in-pieces), by Spark's own code when the window is emitted")
SUMMARIES = SparkMerge(("summaries",), "as Spark merges quantile summaries; [in pieces](#buffers-in-pieces) until then")
COUNTS_OF_VALUES = SparkMerge(
    ("counts", "counts_of_double", "counts_of_float"),
    "by adding the counts of each value; [in pieces](#buffers-in-pieces) until then",
)
SETS_OF_VALUES = SparkMerge(
    ("sets", "sets_of_1", "sets_of_2", "sets_of_4", "sets_of_8"),
    "as sets; [in pieces](#buffers-in-pieces) until then, and in pieces to the end over structs, over arrays, with "
    "`RESPECT NULLS`, and, before Spark 4.2, over floating point",
)
FIRSTS = SparkMerge(
    ("first", "last"),
    "by arrival: by batch, then input partition, then row; [of a session](#the-order-of-rows-in-a-session) by event "
    "time. With and without `IGNORE NULLS`; [of almost any type](#values-that-travel)",
)
BY_ORDER = SparkMerge(
    ("min_by", "max_by"),
    "values [of almost any type](#values-that-travel), by numbers, times, texts, and structs and arrays without "
    "floating point; over sessions by what fits 64 bits. Of equals the last to arrive. Not with a third argument",
)
PIVOTS = SparkMerge(
    ("max",),
    "the value of each column, of which there is one: the upper aggregation of a "
    "[`PIVOT`](queries.md#queries-of-several-stateful-operators)",
)
