"""Rows without a key, whose codes nobody writes down, become the cells that they become with codes, to the bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.state import KeyDictionary
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.found_codes import SingleCode, codes_array
from gpuwin_kernels.cpu.row_source import COUNT, RowKernelSpec, feed_of
from gpuwin_kernels.cpu.rows import NO_MASK, Cells, RowInput, SumOverflow, aggregate_rows
from gpuwin_kernels.cpu.slots import BLOCK
from gpuwin_kernels.layout import CellColumn, CellLayout

LEAST, MOST = -(1 << 63), (1 << 63) - 1
COLUMNS = (
    ("sum", "int64", "i"),
    ("sum", "float64", "f"),
    ("sum", "int128", "w"),
    ("min", "int64", "i"),
    ("max", "int64", "i"),
    ("min", "float64", "f"),
    ("max", "float64", "f"),
    ("max", "float64", "g"),
    ("min", "int128", "w"),
    ("moments", "float64", "f"),
    ("first", "float64", "f"),
    ("last", "int64", "i"),
)
LAYOUT = CellLayout(
    (
        CellColumn("rows", "sum", "int64"),
        CellColumn("again", "sum", "int64"),
        *(CellColumn(f"{m}_{d}_{s}", m, d, nullable=True) for m, d, s in COLUMNS),
        CellColumn("and again", "sum", "int64"),
    )
)
SIZES = [0, 1, 2, BLOCK - 1, BLOCK, 3 * BLOCK + 5, tuning.SPLIT_ROWS + BLOCK + 3]


def inputs_of(rows: int, nulls: bool) -> list[RowInput]:
    rng = np.random.default_rng(rows)
    time, seq = rng.integers(-9, 9, rows), np.arange(rows)
    i, f = rng.integers(-(1 << 40), 1 << 40, rows), rng.normal(size=rows)
    if rows > 9:
        f[:6] = np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan
        f[rows // 2 :: 97] = -0.0
        i[rows // 2 : rows // 2 + 2] = LEAST >> 8, MOST >> 8
    words = np.stack((rng.integers(LEAST, MOST, rows), rng.integers(-5, 5, rows)), axis=1)
    bits = np.packbits(rng.random(rows + 3) < 0.8, bitorder="little")
    made = {
        name: RowInput(array, bits if nulls else None, 3 if nulls else 0, time, seq)
        for name, array in {"i": i, "f": f, "w": words, "g": f.astype(np.float32)}.items()
    }
    return [RowInput(None), RowInput(None), *(made[source] for _, _, source in COLUMNS), RowInput(None)]


def arrays_of(cells: Cells) -> list[bytes]:
    arrays = [cells.pane, cells.code, *(a for column in cells.columns for a in column.arrays)]
    arrays = [np.where(np.isnan(a), np.nan, a) if a.dtype.kind == "f" else a for a in arrays]  # one NaN is like another
    return [a.dtype.str.encode() + a.tobytes() for a in arrays]


# Rows are partitioned by keys where these are many.
@pytest.fixture(params=["dense", pytest.param("partitioned", marks=pytest.mark.sweep), "sorted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[str, dict[str, int]] = {
        "dense": {},
        "partitioned": {"DENSE_BYTES": 0, "SORT_ROWS": 0, "PART_SPARSITY": 1 << 40},
        "sorted": {"DENSE_BYTES": 0, "SORT_ROWS": 1 << 40},
    }
    for name, value in limits[request.param].items():
        monkeypatch.setattr(tuning, name, value)


TIMES = {
    "in order": lambda rng, n: np.sort(rng.integers(-9_000, 9_000, n)),
    "in no order": lambda rng, n: rng.integers(-900, 900, n),
    "in one pane": lambda rng, n: np.full(n, 77),
    "near the smallest": lambda rng, n: np.sort(rng.integers(0, 9_000, n)) + LEAST,
    "near the largest": lambda rng, n: MOST - rng.integers(0, 900, n),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("times", TIMES)
def test_cells_are_the_same(times: str, nulls: bool, masked: bool) -> None:
    for rows in SIZES:
        rng = np.random.default_rng(rows)
        inputs, time = inputs_of(rows, nulls), TIMES[times](rng, rows)
        mask = (rng.random(rows) < 0.7).astype(np.uint8) if masked else NO_MASK
        codes = SingleCode(rows), np.zeros(rows, np.int32)
        single, written = (aggregate_rows(LAYOUT, inputs, c, time, 100, 7, codes=1, mask=mask) for c in codes)
        assert arrays_of(single) == arrays_of(written)
        if rows:
            for counts in (single.columns[1], single.columns[-1]):
                assert counts.values[0].tolist() == single.columns[0].values[0].tolist()
            assert int(single.columns[0].values[0].sum()) == (int(mask.sum()) if masked else rows)


def test_an_overflow_is_seen() -> None:
    layout = CellLayout((CellColumn("s", "sum", "int64"),))
    for sign in (1, -1):
        values = np.full(3, sign * (1 << 62))
        with pytest.raises(SumOverflow):
            aggregate_rows(layout, [RowInput(values)], SingleCode(3), np.zeros(3, np.int64), 10, codes=1)
        apart = aggregate_rows(layout, [RowInput(values)], SingleCode(3), np.array([0, 10, 20]), 10, codes=1)
        assert apart.columns[0].values[0].tolist() == values.tolist()


def test_feeds_that_count_every_row_share_a_word() -> None:
    column = CellColumn("n", "sum", "int64")
    bits = CellColumn("x", "max", "float64")
    every, some = feed_of(column, 0, COUNT), feed_of(column, 1, COUNT)
    spec = RowKernelSpec((every, some, feed_of(bits, 2, "float"), every), (COUNT, COUNT, "float"), (False, True, False))
    assert spec.offsets == (0, 1, 2, 0)
    assert spec.width == 3
    assert spec.in_use == 0


def test_single_codes_are_codes() -> None:
    code = KeyDictionary([]).coded([], 5)
    assert isinstance(code, SingleCode)
    assert [len(code), len(code[1:3]), len(code[4:9]), len(code[5:])] == [5, 2, 1, 0]
    assert codes_array(code).tolist() == [0] * 5
    assert codes_array(code).dtype == np.int32


@pytest.mark.parametrize("rows", [0, 1, 5_000, 140_000])
def test_a_stream_without_keys(rows: int) -> None:
    """As one that has a key, which is always the same."""
    rng = np.random.default_rng(rows)
    ts = pa.array(np.sort(rng.integers(0, 600_000_000, rows))).view(pa.timestamp("us"))
    values = pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1)
    table = pa.table({"ts": ts, "one": pa.array(np.ones(rows, np.int64)), "v": values})
    aggregates = {"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")}
    found = []
    for keys in ([], ["one"]):
        op = gw.WindowedAggregation(
            window=gw.TumblingWindow("7 seconds"), keys=keys, time="ts", aggregates=aggregates
        ).start(device="cpu")
        parts = [op.process(table.slice(0, rows // 3)), op.process(table.slice(rows // 3)), op.finish()]
        whole = pa.concat_tables(parts)
        found.append(whole.drop_columns(keys).to_pylist())
    assert found[0] == found[1]
