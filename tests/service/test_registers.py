"""Registers of `approx_count_distinct` that the map side of the service raises, against a dictionary of registers."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from service_harness import stream_of, stream_of_rows

import gpuwin
from gpuwin.batch.pane_cells import AT_ONCE
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_spark.service.cell_tables import read_chunks
from gpuwin_spark.service.map_side import Held, RowsSpec, cells_of_rows
from gpuwin_spark.service.operator_spec import GridSpec, Merge, SessionSpec
from gpuwin_spark.service.protocol import ProtocolError
from gpuwin_spark.service.registers import HashedFunction, parse_hashed

MOST = (1 << 20, 1 << 30)
ROUGH, FINE = HashedFunction(0, 2, 4), HashedFunction(3, 52, 9)


def merges_of(arrival=-1):
    """Sixteen registers, a sum, and 512 registers; with ``arrival`` also the first value."""
    words = [Merge("registers", (i,), wrap=False, nullable=False, precision=0) for i in (*range(2), *range(3, 55))]
    total = Merge("sum", (2,), wrap=False, nullable=True, precision=0)
    first = [Merge("first", (55, 56), wrap=False, nullable=True, precision=0, arrival=57)] if arrival >= 0 else []
    return (*words[:2], total, *words[2:], *first)


WINDOWS = GridSpec(60, 20, 5, "append", (pa.string(), *[pa.int64()] * 56), 1, merges_of())
SESSIONS = SessionSpec("append", (pa.string(), *[pa.int64()] * 58, pa.bool_(), pa.int64()), 1, merges_of(57), 1)
PLACES = (0, 1, 2, 2, 3, *[4] * 52)  # key, time, both rough words, sum, the fine words
SESSION_PLACES = (0, 1, 2, 3, 3, 4, *[5] * 52, 4, 6, 7)
GAP = 30


def register(h, precision):
    """Index and value, by the bits of a hash as a string."""
    bits = f"{h % (1 << 64):064b}"
    rest = bits[precision:]
    return int(bits[:precision], 2), (rest.index("1") if "1" in rest else len(rest)) + 1


def words_of(hashes, function):
    """The words of the registers that these hashes raise: a dictionary of registers, ten in a word."""
    registers = defaultdict(int)
    for h in hashes:
        if h is not None:
            index, value = register(h, function.precision)
            registers[index] = max(registers[index], value)
    words = [0] * function.words
    for index, value in registers.items():
        words[index // 10] += value << 6 * (index % 10)
    return words


def buffers_of(rows):
    some = [v for *_, v in rows if v is not None]
    rough, fine = [r[2] for r in rows], [r[3] for r in rows]
    return [*words_of(rough, ROUGH), sum(some) if some else None, *words_of(fine, FINE)]


def part(key, partitions):
    return sum(key.encode()) % partitions


def rows_like(seed, n, keys):
    """Rows (key, time, rough hash, fine hash, value), of hashes with few and many leading zeros."""
    r = np.random.default_rng(seed)
    hashes = r.integers(-(1 << 63), INT64_MAX, (2, n)) >> r.integers(0, 64, (2, n))
    absent = r.random((3, n)) < 0.2
    return [
        (
            f"k{r.integers(keys)}",
            int(r.integers(-300, 900)),
            None if absent[0, i] else int(hashes[0, i]),
            None if absent[1, i] else int(hashes[1, i]),
            None if absent[2, i] else i,
        )
        for i in range(n)
    ]


def chunks_of(whole, rows, chunk):
    lines = [[key, t, rough, v, fine, part(key, whole.partitions)] for key, t, rough, fine, v in rows]
    if isinstance(whole.operator, SessionSpec):
        lines = [[k, t, t + GAP, rough, v, fine, v is not None, t, p] for k, t, rough, v, fine, p in lines]
    types = whole.row_schema.types
    return [stream_of_rows(types, lines[at : at + chunk]) for at in range(0, len(lines), chunk)]


def cells_of(parts, spec, partitions=2):
    out = {}
    for p in parts:
        columns = [c.to_pylist() for c in read_chunks([stream_of(p.cells)], spec.cell_schema).columns]
        assert p.last == max(columns[spec.keys + spec.PLACE - 1])
        for cell in zip(*columns, strict=True):
            at = cell[: spec.keys + spec.PLACE]
            assert at not in out, "a cell came twice"
            assert p.partition == part(cell[0], partitions)
            out[at] = list(cell[spec.keys + spec.PLACE :])
    return out


def windows_of(rows):
    groups = defaultdict(list)
    for row in rows:
        groups[row[0], row[1] - (row[1] - 5) % 20].append(row)
    return {at: buffers_of(of) for at, of in groups.items()}


@pytest.mark.parametrize("most", [MOST, (3, 1 << 30), (1 << 20, 5000)], ids=["one part", "by cells", "by bytes"])
@pytest.mark.parametrize(("n", "keys", "partitions"), [(1, 1, 2), (400, 9, 7), (AT_ONCE + 9, 40, 2)])
def test_cells_are_those_of_the_rows(n, keys, partitions, most):
    rows = rows_like(n, n, keys)
    whole = RowsSpec(WINDOWS, PLACES, partitions, (ROUGH, FINE))
    parts = list(cells_of_rows(whole, [], [], chunks_of(whole, rows, 150), most))
    assert cells_of(parts, WINDOWS, partitions) == windows_of(rows)
    assert len(parts) >= min(len(windows_of(rows)), partitions) // 2
    limit = min(most[0], max(1, most[1] // (8 * 54)))
    assert max(p.cells.num_rows for p in parts) <= limit


def test_cells_from_before_are_added_to():
    rows = rows_like(3, 900, 12)
    whole, cells = RowsSpec(WINDOWS, PLACES, 2, (ROUGH, FINE)), []
    for at in range(0, len(rows), 300):
        held = [Held(p.partition, [stream_of(p.cells)]) for p in cells]
        cells = list(cells_of_rows(whole, [], held, chunks_of(whole, rows[at : at + 300], 99), MOST))
    assert cells_of(cells, WINDOWS) == windows_of(rows)


def test_sessions():
    rows = rows_like(5, 700, 30)
    whole = RowsSpec(SESSIONS, SESSION_PLACES, 2, (ROUGH, FINE))
    first = list(cells_of_rows(whole, [], [], chunks_of(whole, rows[:400], 150), MOST))
    held = [Held(p.partition, [stream_of(p.cells)]) for p in first]
    found = cells_of(cells_of_rows(whole, [], held, chunks_of(whole, rows[400:], 150), MOST), SESSIONS)
    wanted = {}
    for key in {r[0] for r in rows}:
        session = []
        for row in [*sorted((r for r in rows if r[0] == key), key=lambda r: r[1]), None]:
            if session and (row is None or row[1] > session[-1][1] + GAP):
                wanted[key, session[0][1], session[-1][1] + GAP] = buffers_of(session)
                session = []
            if row is not None:
                session.append(row)
    assert {at: buffers[:55] for at, buffers in found.items()} == wanted


def test_only_registers_and_a_constant_hash():
    """No other aggregate, and a hash that is the same for all rows: of a literal."""
    spec = replace(WINDOWS, types=WINDOWS.types[:4], merges=merges_of()[:2])
    whole = RowsSpec(spec, (0, 1, -1, -2), 2, (ROUGH,))
    constants = [stream_of_rows([pa.int64()] * 2, [[12345, 12345]])]
    lines = [[f"k{i % 3}", 7, part(f"k{i % 3}", 2)] for i in range(50)]
    parts = cells_of_rows(whole, constants, [], [stream_of_rows(whole.row_schema.types, lines)], MOST)
    assert cells_of(parts, spec) == {(f"k{i}", 5): words_of([12345], ROUGH) for i in range(3)}


def test_a_sum_that_overflows_is_named_by_its_place_in_the_operator():
    """By which Spark's own error is found: the sum is the third buffer, behind two words of registers."""
    whole = RowsSpec(WINDOWS, PLACES, 2, (ROUGH, FINE))
    rows = [("k", 7, 1, 2, INT64_MAX), ("k", 8, 1, 2, 1)]
    with pytest.raises(gpuwin.OverflowError) as error:
        list(cells_of_rows(whole, [], [], chunks_of(whole, rows, 10), MOST))
    assert error.value.column == "2"
    assert WINDOWS.without_registers.merges[0].columns == (0,)


@pytest.mark.parametrize(
    ("hashed", "says"),
    [
        (None, "pairs"),
        ([[0, 2], [3]], "pairs"),
        ([[0, 2], [3, True]], "pairs"),
        ([[0, 2], [3, 51]], "so many"),
        ([[0, 2]], "leave registers out"),
        ([[0, 2], [2, 52]], "leave registers out"),
        ([], "leave registers out"),
    ],
)
def test_malformed_requests_are_refused(hashed, says):
    assert parse_hashed(WINDOWS, [[0, 2], [3, 52]]) == (ROUGH, FINE)
    with pytest.raises(ProtocolError, match=says):
        parse_hashed(WINDOWS, hashed)
