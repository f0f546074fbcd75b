"""Results that firings emit: what is new since the last one of a window, what is retracted, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.planning.plan import Plan
from gpuwin.state.rows.sortable import equality_keys
from gpuwin_kernels.cpu.order import stable_order


def same_rows(columns: list[pa.Array], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether rows a[i] and b[i] of a table are equal, bool[n]; nulls equal nulls, and NaN equals NaN."""
    equal = np.ones(len(a), bool)
    for column in columns:
        keys = equality_keys(column)
        same = keys[a] == keys[b]
        if column.null_count:
            valid = np.asarray(column.is_valid())
            same = np.where(valid[a] & valid[b], same, valid[a] == valid[b])
        equal &= same
    return equal


def is_news(columns: list[pa.Array], row: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Whether rows of a table are other than the previous ones (-1: there is none), bool[n]."""
    had = previous >= 0
    news = ~had
    news[had] = ~same_rows(columns, row[had], previous[had])
    return news


@dataclass(frozen=True, slots=True)
class EmittedRows:
    """Results to emit: `value` is a row of `pool`, `subject` the firing that emits it, `retraction` whether it takes
    back an earlier result.
    """

    pool: list[pa.Array]
    value: np.ndarray
    subject: np.ndarray
    retraction: np.ndarray


def remembers(plan: Plan) -> bool:
    """Whether the last result of each window has to be kept."""
    return plan.spec.accumulation == "retracting" or bool(getattr(plan.spec.emit, "only_updated", False))


def no_values(plan: Plan) -> list[pa.Array]:
    """Values of no results, one empty array per aggregate."""
    return [pa.nulls(0, o.type) for o in plan.outputs]


def pooled(a: list[pa.Array], b: list[pa.Array]) -> list[pa.Array]:
    """Rows of two tables, one after the other."""
    if not a or not len(a[0]):
        return b
    return [pa.concat_arrays(pair) for pair in zip(a, b, strict=True)]


def emitted_rows(
    pool: list[pa.Array], value: np.ndarray, previous: np.ndarray, only_updated: bool, retracting: bool
) -> EmittedRows:
    """Results of firings: firing i has the value `value[i]` of the pool, and its window was last emitted with
    `previous[i]` (-1: never).
    """
    subject = np.flatnonzero(is_news(pool, value, previous)) if only_updated else np.arange(len(value))
    rows = value[subject]
    if not retracting:
        return EmittedRows(pool, rows, subject, np.zeros(len(rows), bool))
    before = previous[subject]
    back = before >= 0
    size = 1 + back
    at = np.cumsum(size) - 1  # of each result; what it takes back is right before it
    values = np.empty(int(size.sum()), np.int64)
    values[at], values[at[back] - 1] = rows, before[back]
    retraction = np.zeros(len(values), bool)
    retraction[at[back] - 1] = True
    return EmittedRows(pool, values, np.repeat(subject, size), retraction)


@dataclass(frozen=True, slots=True)
class Retractions:
    """Emitted results that no longer hold: rows of `results`, and the keys, bounds and timings that they were emitted
    with.
    """

    row: np.ndarray
    code: np.ndarray
    start: np.ndarray
    end: np.ndarray
    timing: np.ndarray

    @staticmethod
    def none() -> Retractions:
        zero = np.empty(0, np.int64)
        return Retractions(zero, zero, zero, zero, zero)


ARRIVAL = ""  # the last column of results that are put in order; no column of the output has this name


def as_they_came(results: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Results by the row that brought them about; those of one row stay in their order."""
    if not results:
        return results
    (batch,) = pa.Table.from_batches(results).combine_chunks().to_batches()
    order = stable_order(np.asarray(batch.column(batch.num_columns - 1)))
    return [batch.remove_column(batch.num_columns - 1).take(pa.array(order))]
