"""Loops that an engineer would write for one case alone, to set the kernels beside: two threads of Numba into a dense
table of doubles, with keys that are places in it and times that begin at 0; and from the table to Arrow.

The table itself is the harder bar: it has rows for cells in which nothing is, and no names. From it, the cells that
hold something are counted and written by both threads, in exact arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit, prange

MOST_KEYS = 10_000  # of more, a table for each thread would be too large


@njit(parallel=True, nogil=True)
def _loop(ts, key, v, panes, keys, tables):  # type: ignore[no-untyped-def]
    n = ts.shape[0]
    parts = tables.shape[0]
    for part in prange(parts):
        table = tables[part]
        table[:, :, :2] = 0.0
        table[:, :, 2] = np.inf
        table[:, :, 3] = -np.inf
        for i in range(n * part // parts, n * (part + 1) // parts):
            p = ts[i] // 60_000_000
            k = key[i]
            x = v[i]
            table[p, k, 0] += 1.0
            table[p, k, 1] += x
            table[p, k, 2] = min(table[p, k, 2], x)
            table[p, k, 3] = max(table[p, k, 3], x)
    for p in prange(panes):
        for part in range(1, parts):
            for k in range(keys):
                tables[0, p, k, 0] += tables[part, p, k, 0]
                tables[0, p, k, 1] += tables[part, p, k, 1]
                tables[0, p, k, 2] = min(tables[0, p, k, 2], tables[part, p, k, 2])
                tables[0, p, k, 3] = max(tables[0, p, k, 3], tables[part, p, k, 3])
    return tables[0]


@njit(parallel=True, nogil=True)
def _loop_of_many_keys(ts, key, v, table):  # type: ignore[no-untyped-def]
    """Sums into one table: each thread takes every other key of all rows."""
    parts = 2
    for part in prange(parts):
        for p in range(table.shape[0]):
            for k in range(part, table.shape[1], parts):
                table[p, k, :2] = 0.0
                table[p, k, 2] = np.inf
                table[p, k, 3] = -np.inf
        for i in range(ts.shape[0]):
            k = key[i]
            if k % parts == part:
                p = ts[i] // 60_000_000
                x = v[i]
                table[p, k, 0] += 1.0
                table[p, k, 1] += x
                table[p, k, 2] = min(table[p, k, 2], x)
                table[p, k, 3] = max(table[p, k, 3], x)
    return table


@njit(parallel=True, nogil=True)
def _sliding_loop(ts, key, v, size, tables, out):  # type: ignore[no-untyped-def]
    """Panes of both threads, and for each key a sum along them: what enters is added, what leaves is taken off."""
    n = ts.shape[0]
    parts, panes, keys = tables.shape[0], tables.shape[1], tables.shape[2]
    for part in prange(parts):
        table = tables[part]
        table[:] = 0.0
        for i in range(n * part // parts, n * (part + 1) // parts):
            p = ts[i] // 60_000_000
            table[p, key[i], 0] += 1.0
            table[p, key[i], 1] += v[i]
    for part in prange(parts):
        for p in range(panes * part // parts, panes * (part + 1) // parts):
            for other in range(1, parts):
                tables[0, p] += tables[other, p]
    for part in prange(parts):
        lo, hi = keys * part // parts, keys * (part + 1) // parts
        for w in range(panes + size - 1):
            for k in range(lo, hi):
                for c in range(2):
                    x = out[w - 1, k, c] if w else 0.0
                    if w < panes:
                        x += tables[0, w, k, c]
                    if w >= size:
                        x -= tables[0, w - size, k, c]
                    out[w, k, c] = x
    return out


@njit(parallel=True, nogil=True)
def _in_use(table, cells):  # type: ignore[no-untyped-def]
    """Number of cells of each window that hold a row."""
    for w in prange(table.shape[0]):
        found = 0
        for k in range(table.shape[1]):
            found += table[w, k, 0] > 0.0
        cells[w] = found


@njit(parallel=True, nogil=True)
def _written(table, start, first, key, window, count, columns):  # type: ignore[no-untyped-def]
    """The cells that hold a row, those of window w from start[w] on. `columns`: of the other doubles of a cell, and of
    the mean if there are extremes."""
    words = table.shape[2]
    for w in prange(table.shape[0]):
        at = start[w]
        for k in range(table.shape[1]):
            n = table[w, k, 0]
            if n > 0.0:
                key[at] = k
                window[at] = first + w
                count[at] = np.int64(n)
                for c in range(1, words):
                    columns[c - 1][at] = table[w, k, c]
                if words > 2:
                    columns[words - 1][at] = table[w, k, 1] / n
                at += 1


def _to_arrow(table: np.ndarray, first: int, column: pa.Array) -> pa.Table:
    """The cells of a table [window, key, double], whose first window is `first`, with keys of the type of `column`:
    integers, an Arrow dictionary of the same names, or strings."""
    cells = np.empty(len(table), np.int64)
    _in_use(table, cells)
    start = np.cumsum(cells) - cells
    n = int(cells.sum())
    named = pa.types.is_dictionary(column.type)
    key, window, count = np.empty(n, np.int32 if named else np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    names = ("s",) if table.shape[2] == 2 else ("s", "lo", "hi", "mean")
    columns = tuple(np.empty(n) for _ in names)
    _written(table, start, first, key, window, count, columns)
    keys = pa.DictionaryArray.from_arrays(key, column.dictionary) if named else pa.array(key)
    return pa.table({"key": keys, "window": window, "n": count, **dict(zip(names, columns, strict=True))})


def plain_loops(table: pa.Table, threads: int, panes: int, keys: int, windows: int = 1) -> dict[str, Callable[[], Any]]:
    """The "loop to Arrow", and the "plain loop" for the table alone, over rows in one chunk: `ts` (int64 microseconds
    from 0 on, `panes` minutes of them), `key` (of `keys` values: int64, strings or a dictionary of them) and `v`
    (float64). `windows`: minutes of a window, which slides by one.

    Strings are made numbers by Arrow, and names of the result are taken by it; a dictionary stays one.
    """
    ts, v = table["ts"].chunk(0).to_numpy(), table["v"].chunk(0).to_numpy()
    column = table["key"].chunk(0)
    text = pa.types.is_string(column.type)

    def dense() -> tuple[np.ndarray, pa.Array]:
        key = column.dictionary_encode() if text else column
        numbers = (key.indices if pa.types.is_dictionary(key.type) else key).to_numpy()
        if windows > 1:
            tables, out = np.empty((threads, panes, keys, 2)), np.empty((panes + windows - 1, keys, 2))
            return _sliding_loop(ts, numbers, v, windows, tables, out), key
        if keys > MOST_KEYS:
            return _loop_of_many_keys(ts, numbers, v, np.empty((panes, keys, 4))), key
        return _loop(ts, numbers, v, panes, keys, np.empty((threads, panes, keys, 4))), key

    def to_arrow() -> pa.Table:
        cells, key = dense()
        out = _to_arrow(cells, 1 - windows, key)
        return out.set_column(0, "key", out["key"].cast(column.type)) if text else out

    return {"loop to Arrow": to_arrow, "plain loop": lambda: dense()[0]}
