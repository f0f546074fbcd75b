"""What firings hand out: the rows, without those that only repeat the last one, and with retractions of what they
replace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.planning.plan import Plan
from gpuwin.state.sortable import equality_keys


def same_rows(columns: list[pa.Array], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool[n]: whether rows a[i] and b[i] of a table are equal; nulls equal nulls, and NaN equals NaN."""
    equal = np.ones(len(a), bool)
    for column in columns:
        keys = equality_keys(column)
        same = keys[a] == keys[b]
        if column.null_count:
            valid = np.asarray(column.is_valid())
            same = np.where(valid[a] & valid[b], same, valid[a] == valid[b])
        equal &= same
    return equal


@dataclass(frozen=True, slots=True)
class Handout:
    """Rows to return: `value` is a row of `pool`, `subject` the firing whose window it is about, `retraction` whether
    it takes back."""

    pool: list[pa.Array]
    value: np.ndarray
    subject: np.ndarray
    retraction: np.ndarray


def remembers(plan: Plan) -> bool:
    """Whether the last result of each window has to be kept."""
    return plan.spec.accumulation == "retracting" or bool(getattr(plan.spec.emit, "only_updated", False))


def no_values(plan: Plan) -> list[pa.Array]:
    return [pa.array([], o.type) for o in plan.outputs]


def pooled(a: list[pa.Array], b: list[pa.Array]) -> list[pa.Array]:
    if not a or not len(a[0]):
        return b
    return [pa.concat_arrays(pair) for pair in zip(a, b, strict=True)]


def handed_out(
    pool: list[pa.Array], value: np.ndarray, previous: np.ndarray, only_updated: bool, retracting: bool
) -> Handout:
    """Firing i reports row `value[i]` of the pool, and the one reported for its window before is `previous[i]` (-1:
    none)."""
    firings = np.arange(len(value))
    kept = np.ones(len(value), bool)
    if only_updated:
        had = previous >= 0
        kept[had] = ~same_rows(pool, value[had], previous[had])
    subject, rows = firings[kept], value[kept]
    if not retracting:
        return Handout(pool, rows, subject, np.zeros(len(rows), bool))
    before = previous[subject]
    back = before >= 0
    number = np.concatenate((subject[back] * 2, subject * 2 + 1))
    order = np.argsort(number, kind="stable")
    return Handout(
        pool,
        np.concatenate((before[back], rows))[order],
        np.concatenate((subject[back], subject))[order],
        np.concatenate((np.ones(int(back.sum()), bool), np.zeros(len(rows), bool)))[order],
    )


@dataclass(frozen=True, slots=True)
class Told:
    """Results that no longer hold: rows of `results`, and the windows they were told of."""

    row: np.ndarray
    code: np.ndarray
    start: np.ndarray
    end: np.ndarray
    pane: np.ndarray

    @staticmethod
    def none() -> Told:
        zero = np.empty(0, np.int64)
        return Told(zero, zero, zero, zero, zero)


ARRIVAL = ""  # the last column of results that are put in order; no column of the output has this name


def as_they_came(results: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Results by the row that brought them about; those of one row stay in their order."""
    if not results:
        return results
    (batch,) = pa.Table.from_batches(results).combine_chunks().to_batches()
    order = np.argsort(np.asarray(batch.column(batch.num_columns - 1)), kind="stable")
    return [batch.remove_column(batch.num_columns - 1).take(pa.array(order))]
