"""Codes that are looked up as rows are read, against codes in an array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.state import KeyDictionary
from gpuwin_kernels.cpu.found_codes import FoundCodes
from gpuwin_kernels.cpu.rows import NO_MASK, Cells, RowInput, aggregate_rows
from gpuwin_kernels.layout import CellColumn, CellLayout

LAYOUT = CellLayout((CellColumn("n", "sum", "int64"), CellColumn("s", "sum", "int64")))
ROWS, PANES = 400_000, 9
MOST_OF_THEM = np.arange(ROWS) * 7 % 1_000 - 300  # keys below 0, too


def changed(places: list[tuple[int, int]]) -> np.ndarray:
    """The keys, some of them (place, key) others."""
    keys = MOST_OF_THEM.copy()
    for place, key in places:
        keys[place] = key
    return keys


def many_late() -> np.ndarray:
    """So many keys in the last quarter that a table of all of them would be too large."""
    keys = MOST_OF_THEM.copy()
    keys[-ROWS // 4 :] = np.arange(ROWS // 4)
    return keys


def aggregated(keys: KeyDictionary, column: pa.Array, found: bool) -> Cells:
    code = keys.coded([column], ROWS) if found else keys.encode([column], ROWS)
    assert isinstance(code, FoundCodes) == found
    inputs = [RowInput(None), RowInput(np.arange(ROWS))]
    return aggregate_rows(LAYOUT, inputs, code, np.arange(ROWS) * 7 % (PANES * 10), 10, codes=len(keys))


CASES = {
    "all are met at once": MOST_OF_THEM,
    "new ones, in both threads' rows": changed([(390_000, 5_000), (180_000, 4_000), (180_001, -301), (399_999, 700)]),
    "one in the last row": changed([(ROWS - 1, 100_000)]),
    "far too many in the end": many_late(),
}


@pytest.mark.parametrize("kind", ["int64", "int32", "dictionary"])
@pytest.mark.parametrize("case", CASES)
def test_cells_and_codes_are_the_same(case: str, kind: str) -> None:
    numbers = CASES[case]
    if kind == "int32":
        numbers = np.minimum(numbers, 1 << 30)
    column = pa.array(numbers, pa.int32() if kind == "int32" else pa.int64())
    if kind == "dictionary":
        column = column.dictionary_encode()
    found, written = (KeyDictionary([column.type]) for _ in range(2))
    for some in (column, column.slice(3).take(pa.array(np.arange(ROWS) % (ROWS - 3)))):  # unknown keys, and known ones
        if kind == "dictionary":
            some = some if pa.types.is_dictionary(some.type) else some.dictionary_encode()
        a, b = aggregated(found, some, True), aggregated(written, some, False)
        assert np.array_equal(a.pane, b.pane)
        assert np.array_equal(a.code, b.code)
        for x, y in zip(a.columns, b.columns, strict=True):
            assert np.array_equal(x.values[0], y.values[0])
    everything = np.arange(len(found), dtype=np.int32)
    assert found.take(everything)[0].equals(written.take(everything)[0])


def test_where_an_array_is_better() -> None:
    numbers = pa.array(MOST_OF_THEM)
    few, nulls = numbers.slice(0, 100), pa.array(MOST_OF_THEM, mask=MOST_OF_THEM == 0)
    new = pa.array(np.arange(ROWS))  # each row another key
    apart = pa.array(MOST_OF_THEM << 32)  # found by hash
    text = pa.array(np.char.mod("%d", MOST_OF_THEM))
    pieces = pa.chunked_array([numbers.slice(0, 9), numbers.slice(9)])
    for column in (few, nulls, new, apart, text, pieces):
        keys = KeyDictionary([column.type])
        code = keys.coded([column], len(column))
        assert isinstance(code, np.ndarray)
        again = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        assert keys.take(code)[0].equals(again)


@pytest.mark.parametrize(("width", "mask"), [(5, None), (1 << 20, np.arange(ROWS) % 3 == 0)])
def test_ways_that_need_an_array(width: int, mask: np.ndarray | None) -> None:
    """Many panes, and rows to leave out."""
    time, runs = np.arange(ROWS), []
    for found in (True, False):
        keys = KeyDictionary([pa.int64()])
        column = pa.array(CASES["new ones, in both threads' rows"])
        code = keys.coded([column], ROWS) if found else keys.encode([column], ROWS)
        inputs = [RowInput(None), RowInput(time)]
        left_out = NO_MASK if mask is None else mask.astype(np.uint8)
        runs.append(aggregate_rows(LAYOUT, inputs, code, time, width, codes=len(keys), mask=left_out))
    a, b = runs
    assert np.array_equal(a.pane, b.pane)
    assert np.array_equal(a.code, b.code)
    assert np.array_equal(a.columns[1].values[0], b.columns[1].values[0])


def test_a_code_that_was_just_given_out_is_not_trusted() -> None:
    """Another thread may enter keys between the count of codes and the look."""
    keys = KeyDictionary([pa.int64()])
    column = pa.array(MOST_OF_THEM)
    code = keys.coded([column], ROWS)
    assert isinstance(code, FoundCodes)
    time = np.zeros(ROWS, np.int64)
    run = aggregate_rows(LAYOUT, [RowInput(None), RowInput(time)], code, time, 10, codes=len(keys) - 1)
    assert np.array_equal(run.code, np.arange(1_000))
    assert run.columns[0].values[0].tolist() == [ROWS // 1_000] * 1_000
