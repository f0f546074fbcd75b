"""Record of an aggregate: what it takes, gives and keeps in a cell, and which functions of Spark are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from gpuwin.errors import SchemaError
from gpuwin.planning.finishing import Finish
from gpuwin.planning.ingest import check_known
from gpuwin.planning.inputs import Take
from gpuwin.planning.spark_merges import OnSpark
from gpuwin.state.rows.sketches import AnySketch
from gpuwin.vocabulary.aggregates import Aggregate

Types = tuple[pa.DataType, ...]


def _instead(aggregate: Aggregate) -> str:
    """Sentence on what to do for an aggregate that gives some of its values, and takes no nested ones; or none."""
    if aggregate.kind in ("min", "max", "top_k"):
        return f". gw.collect_list({aggregate.column!r}) takes nested values"
    if aggregate.kind in ("min_by", "max_by"):
        return f". gw.{aggregate.kind}({aggregate.column!r}, {aggregate.by!r}, 1) takes nested values, and gives a list"
    if aggregate.kind not in ("first", "last", "any_value"):
        return ""
    return (
        f". For a whole row, number the rows, take gw.{aggregate.kind}('number'), and join the rows to that number; "
        f"or look for it in gw.collect_list({aggregate.column!r}), which takes nested values"
    )


@dataclass(frozen=True)
class Accepted:
    """The types that an aggregate takes a column of: in words, and as a test."""

    text: str
    test: Callable[[pa.DataType], bool]
    wide: bool = True  # decimals of more than 38 digits, too

    def check(self, name: str, aggregate: Aggregate, column: str, type_: pa.DataType) -> None:
        """Raises SchemaError, for the aggregate of that name, unless a column of this type is accepted."""
        wide = pa.types.is_decimal256(type_)
        if self.test(type_) and (self.wide or not wide):
            return
        castable = wide and self.test(pa.decimal128(38))
        wanted = "decimals of at most 38 digits: cast it to decimal128" if castable else self.text
        check_known(f"aggregate {name!r}: column", column, type_)
        kind = "quantile or median" if aggregate.kind == "quantile" else aggregate.kind.replace("by_k", "by")
        instead = ""
        if column == aggregate.column and pa.types.is_nested(type_):
            instead = _instead(aggregate)
        elif isinstance(type_, pa.BaseExtensionType) and self.test(type_.storage_type):
            instead = f": cast it to {type_.storage_type}"
        elif aggregate.kind == "sum" and pa.types.is_boolean(type_):
            instead = f". gw.count_if({column!r}) counts the rows where it is true"
        raise SchemaError(
            f"aggregate {name!r}: {kind} of column {column!r}, which is {type_}; it takes {wanted}{instead}"
        )


@dataclass(frozen=True)
class Partial:
    """One partial column of a cell. `how` and the columns that it reads name it: aggregates that need the same one
    share it."""

    how: str
    merge: str
    dtype: str
    take: Take
    nullable: bool = True


@dataclass(frozen=True, kw_only=True)
class Record:
    """Facts of an aggregate, whatever it keeps. `gives`: the output type, or what makes it of the types of the
    columns; `text` says it, and `empty` what there is of no values."""

    name: str
    calls: tuple[str, ...]
    takes: tuple[Accepted, ...]
    gives: pa.DataType | Callable[[Types], pa.DataType]
    text: str
    empty: str = "null"
    spark: tuple[OnSpark, ...] = ()

    def out(self, types: Types) -> pa.DataType:
        """The output type over columns of these types."""
        return self.gives(types) if callable(self.gives) else self.gives


@dataclass(frozen=True, kw_only=True)
class CellRecord(Record):
    """An aggregate that keeps one cell for each (key, pane): partial columns, and what finishes them."""

    keeps: Callable[[Types], tuple[Partial, ...]]
    finish: Finish


@dataclass(frozen=True, kw_only=True)
class RowRecord(Record):
    """Aggregate that keeps its rows, or a sketch of them where every such aggregate of the specification has one.

    `finish` is of `gpuwin.state.rows.holistic`; `options` are what it gets beside the rows and the column. In its place
    `finish_all` gets lists of options, of all such aggregates of a column, and gives as many arrays. `ordered`: whether
    it sees rows in the order of the semantics, over columns of these types. `different`: whether it looks at different
    values alone, so that of equal rows one is enough.
    """

    finish: Callable[..., pa.Array] | None = None
    finish_all: Callable[..., list[pa.Array]] | None = None
    options: Callable[[Aggregate], dict[str, float]] = field(default=lambda aggregate: {})
    ordered: Callable[[Types], bool] = field(default=lambda types: False)
    sketch: Callable[[Aggregate, pa.DataType], AnySketch | None] | None = None
    different: bool = False
