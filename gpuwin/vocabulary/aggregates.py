"""Aggregates of a (key, window): constructors of frozen `Aggregate` descriptions.

Null values are skipped. NaN is larger than every number, and equal to itself. Sums of integers are int64 and of
decimals decimal; an overflow raises `gw.OverflowError`. Integer, decimal, count, minimum and maximum results are exact.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.brief import brief
from gpuwin.vocabulary.whole import is_real, whole


@dataclass(frozen=True)
class Accumulation:
    """Aggregate of the user's own, checked when it is written. Call it with column names to get an aggregate:
    `Product("factor")`.
    """

    name: str
    fields: tuple[str, ...]
    init: tuple[int | float, ...]
    add: Callable[..., Any]
    merge: Callable[..., Any]
    result: Callable[..., Any]
    ordered: bool = False
    digest: str = ""  # of the code, taken where it was written: elsewhere its source may not be at hand

    @property
    def inputs(self) -> int:
        """Number of columns that `add` takes."""
        return len(inspect.signature(self.add).parameters) - len(self.fields)

    def __call__(self, *columns: str) -> Aggregate:
        """Aggregate over these columns, one for each value that `add` takes."""
        if len(columns) != self.inputs or not builtins.all(isinstance(c, str) and c for c in columns):
            raise SpecificationError(f"{self.name} takes {self.inputs} column names, not {columns!r}")
        return Aggregate("accumulation", columns=columns, accumulation=self)

    def __hash__(self) -> int:
        return hash((self.name, self.fields, self.init))

    def __repr__(self) -> str:
        """Text that is equal in every process, and differs if the code does: snapshots are compared by it."""
        return f"accumulation {self.name}({', '.join(self.fields)}) {self.digest}"


@dataclass(frozen=True)
class Aggregate:
    """Aggregate of one output column. Make it with the functions of this module, not directly."""

    kind: str
    column: str | None = None
    by: str | None = None
    ddof: int = 0
    fraction: float = 0.0
    k: int = 0
    accuracy: float = 0.0
    columns: tuple[str, ...] = ()
    accumulation: Accumulation | None = None

    def __repr__(self) -> str:
        return brief(self)

    @property
    def reads(self) -> tuple[str, ...]:
        """Input columns that this aggregate needs."""
        names = [name for name in (self.column, self.by) if name is not None]
        return (*names, *self.columns)


def _name(function: str, column: object, what: str = "a column name") -> str:
    if not isinstance(column, str) or not column:
        raise SpecificationError(f"{function} takes {what}, not {column!r}")
    return column


def _fraction(function: str, name: str, value: object) -> float:
    if not is_real(value) or not 0.0 <= float(value) <= 1.0:
        raise SpecificationError(f"{function}: {name} is a fraction between 0 and 1, not {value!r}")
    return float(value)


def count(column: str | None = None) -> Aggregate:
    """Number of rows, or of rows where `column` is not null: int64, 0 where there are none."""
    return Aggregate("count", None if column is None else _name("count", column))


def sum(column: str) -> Aggregate:
    """Sum of values: int64 of integers, decimal of decimals, float64 of floats, duration of durations; null without
    values.

    Raises gw.OverflowError where an exact sum does not fit its type.
    """
    return Aggregate("sum", _name("sum", column))


def min(column: str) -> Aggregate:
    """Smallest value, of the column's type: numbers, decimals, booleans, times, strings and binary (by bytes)."""
    return Aggregate("min", _name("min", column))


def max(column: str) -> Aggregate:
    """Largest value, of the column's type. NaN is the largest number."""
    return Aggregate("max", _name("max", column))


def mean(column: str) -> Aggregate:
    """Mean of values: float64, or for decimal(p, s) the decimal(p + 4, s + 4) rounded half up; null without values."""
    return Aggregate("mean", _name("mean", column))


def var(column: str, ddof: int = 1) -> Aggregate:
    """Variance with divisor n - ddof: float64, null where that is not positive."""
    return Aggregate("var", _name("var", column), ddof=whole(ddof, "var: ddof", 0))


def std(column: str, ddof: int = 1) -> Aggregate:
    """Standard deviation, the square root of `var`: float64."""
    return Aggregate("std", _name("std", column), ddof=whole(ddof, "std: ddof", 0))


def first(column: str) -> Aggregate:
    """Value of the earliest row by time, then arrival, whose value is not null."""
    return Aggregate("first", _name("first", column))


def last(column: str) -> Aggregate:
    """Value of the latest row by time, then arrival, whose value is not null."""
    return Aggregate("last", _name("last", column))


def min_by(column: str, by: str, k: int | None = None) -> Aggregate:
    """Value of `column` where `by` is smallest (the first to arrive of equals). Rows where either is null are skipped.

    `by` is a number, a decimal of up to 18 digits, a boolean or a time.

    With `k`: list of the values where `by` is among the k smallest, the smallest first. Then `column` may have any
    type, and `by` any that has an order.
    """
    return _picked("min_by", column, by, k)


def max_by(column: str, by: str, k: int | None = None) -> Aggregate:
    """Value of `column` where `by` is largest (the last to arrive of equals), or, with `k`, list of those where it is
    among the k largest, the largest first. Otherwise as `min_by`.
    """
    return _picked("max_by", column, by, k)


def _picked(function: str, column: str, by: str, k: int | None) -> Aggregate:
    columns = _name(function, column), _name(function, by, "the name of a column to order by")
    if k is None:
        return Aggregate(function, *columns)
    return Aggregate(f"{function}_k", *columns, k=whole(k, f"{function}: k", 1))


def any(column: str) -> Aggregate:
    """Whether a value is true: bool, null without values."""
    return Aggregate("any", _name("any", column))


def all(column: str) -> Aggregate:
    """Whether every value is true: bool, null without values."""
    return Aggregate("all", _name("all", column))


def count_if(column: str) -> Aggregate:
    """int64: the rows where a boolean is true. 0 where there are none."""
    return Aggregate("count_if", _name("count_if", column))


def any_value(column: str) -> Aggregate:
    """Some value of the column that is not null, of its type: the earliest, as `first`; null without values."""
    return Aggregate("any_value", _name("any_value", column))


def bit_and(column: str) -> Aggregate:
    """The bits that all values have, of the column's type: integers; null without values."""
    return Aggregate("bit_and", _name("bit_and", column))


def bit_or(column: str) -> Aggregate:
    """The bits that any value has. Otherwise as `bit_and`."""
    return Aggregate("bit_or", _name("bit_or", column))


def bit_xor(column: str) -> Aggregate:
    """The bits that an odd number of values have. Otherwise as `bit_and`."""
    return Aggregate("bit_xor", _name("bit_xor", column))


def skewness(column: str) -> Aggregate:
    """float64: the skewness of a population; null where all values are the same."""
    return Aggregate("skewness", _name("skewness", column))


def kurtosis(column: str) -> Aggregate:
    """float64: the excess kurtosis of a population; null where all values are the same."""
    return Aggregate("kurtosis", _name("kurtosis", column))


def _pair(function: str, column: str, other: str, ddof: int = 0) -> Aggregate:
    return Aggregate(function, _name(function, column), _name(function, other), ddof)


def covar_pop(x: str, y: str) -> Aggregate:
    """float64: the covariance of a population. Of two columns, as of all below, rows where either is null are
    skipped."""
    return _pair("covar_pop", x, y)


def covar_samp(x: str, y: str) -> Aggregate:
    """float64: the covariance of a sample, with divisor n - 1; null of fewer than two rows."""
    return _pair("covar_samp", x, y, 1)


def corr(y: str, x: str) -> Aggregate:
    """float64: Pearson's coefficient of correlation; null of fewer than two rows, or where either is constant."""
    return _pair("corr", y, x)


def regr_count(y: str, x: str) -> Aggregate:
    """int64: the rows where neither is null."""
    return _pair("regr_count", y, x)


def regr_avgx(y: str, x: str) -> Aggregate:
    """The mean of `x` where `y` is not null, of the type of `mean`."""
    return _pair("regr_avgx", x, y)


def regr_avgy(y: str, x: str) -> Aggregate:
    """The mean of `y` where `x` is not null, of the type of `mean`."""
    return _pair("regr_avgy", y, x)


def regr_sxx(y: str, x: str) -> Aggregate:
    """float64: the squared distances of `x` to its mean, where `y` is not null."""
    return _pair("regr_sxx", x, y)


def regr_syy(y: str, x: str) -> Aggregate:
    """float64: the squared distances of `y` to its mean, where `x` is not null."""
    return _pair("regr_syy", y, x)


def regr_sxy(y: str, x: str) -> Aggregate:
    """float64: the products of the distances of `y` and `x` to their means."""
    return _pair("regr_sxy", y, x)


def regr_slope(y: str, x: str) -> Aggregate:
    """float64: the slope of the line through the points (x, y) by least squares; null where `x` is constant."""
    return _pair("regr_slope", y, x)


def regr_intercept(y: str, x: str) -> Aggregate:
    """float64: where that line meets x = 0; null where `x` is constant."""
    return _pair("regr_intercept", y, x)


def regr_r2(y: str, x: str) -> Aggregate:
    """float64: the share of the variance of `y` that the line explains; null where `x` is constant, else 1 where `y`
    is."""
    return _pair("regr_r2", y, x)


def median(column: str) -> Aggregate:
    """Exact median: float64."""
    return Aggregate("quantile", _name("median", column), fraction=0.5)


def quantile(column: str, q: float) -> Aggregate:
    """Exact quantile, linear between neighbours: float64."""
    return Aggregate("quantile", _name("quantile", column), fraction=_fraction("quantile", "q", q))


def approx_quantile(column: str, q: float, accuracy: int = 10_000) -> Aggregate:
    """Smallest value whose rank is at least q * n, or one whose rank is off by about n / accuracy; of the column's type
    (Spark's `percentile_approx`, whose relative error is 1 / accuracy too).

    A (key, window) keeps a sketch of at most about 6 * accuracy values, however many it has; up to 2 * accuracy values
    the answer is exact. It is exact, too, for texts and wide decimals, and beside aggregates that keep all rows
    (`median`, `collect_list`, ...), because then the rows are there.
    """
    return Aggregate(
        "approx_quantile",
        _name("approx_quantile", column),
        fraction=_fraction("approx_quantile", "q", q),
        accuracy=whole(accuracy, "approx_quantile: accuracy", 1),
    )


def approx_count_distinct(column: str, rsd: float = 0.05) -> Aggregate:
    """Number of different values, with a relative standard deviation of at most `rsd`: int64.

    A (key, window) keeps a sketch (HyperLogLog) of about (1.04 / rsd) ** 2 bytes, rounded up to a power of two; as long
    as its different values are fewer than an eighth of that, or than 33, they are counted exactly. So are those of
    nested types, with an rsd below 0.001, and beside aggregates that keep all rows.
    """
    if not is_real(rsd) or not 0.0 < float(rsd) < 1.0:
        raise SpecificationError(f"approx_count_distinct: rsd is a fraction between 0 and 1, not {rsd!r}")
    return Aggregate("approx_count_distinct", _name("approx_count_distinct", column), accuracy=float(rsd))


def count_distinct(column: str) -> Aggregate:
    """Exact number of different values: int64."""
    return Aggregate("count_distinct", _name("count_distinct", column))


def collect_list(column: str) -> Aggregate:
    """List of the values in order of arrival, or of time (`gw.Semantics.order`)."""
    return Aggregate("collect_list", _name("collect_list", column))


def collect_set(column: str) -> Aggregate:
    """List of the different values, in order of their first appearance."""
    return Aggregate("collect_set", _name("collect_set", column))


def top_k(column: str, k: int) -> Aggregate:
    """List of the k largest values, repeats included, the largest first."""
    return Aggregate("top_k", _name("top_k", column), k=whole(k, "top_k: k", 1))


def histogram(column: str) -> Aggregate:
    """Map from each value to its count (int64), in order of value; of nested values by first appearance."""
    return Aggregate("histogram", _name("histogram", column))


__all__ = [
    "all",
    "any",
    "any_value",
    "approx_count_distinct",
    "approx_quantile",
    "bit_and",
    "bit_or",
    "bit_xor",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "covar_pop",
    "covar_samp",
    "first",
    "histogram",
    "kurtosis",
    "last",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "quantile",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "skewness",
    "std",
    "sum",
    "top_k",
    "var",
]
