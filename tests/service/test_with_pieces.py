"""A partition with buffers that only Spark's code merges, against a dictionary of lists."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest
from service_harness import stream_of

from gpuwin_spark.service.log_segments import LogSegment
from gpuwin_spark.service.operator_spec import GridSpec, Merge, SessionSpec
from gpuwin_spark.service.partition import BatchTimes
from gpuwin_spark.service.sessions_with_pieces import SessionsWithPieces
from gpuwin_spark.service.states import merged, rebuilt
from gpuwin_spark.service.with_pieces import PartitionWithPieces

#: Key, pane, pieces, a sum, a first value with whether there is one, more pieces, and when the first value arrived.
TYPES = (pa.string(), pa.int64(), pa.binary(), pa.int64(), pa.int64(), pa.bool_(), pa.binary(), pa.int64())
MERGES = (
    Merge("pieces", (0,), wrap=False, nullable=False, precision=0),
    Merge("sum", (1,), wrap=False, nullable=False, precision=0),
    Merge("first", (2, 3), wrap=False, nullable=True, precision=0, arrival=5),
    Merge("pieces", (4,), wrap=False, nullable=False, precision=0),
)
Cell = tuple[str | None, int, int]
Window = tuple[str | None, int]
Accepted = dict[Window, list[tuple[int, int]]]  # panes, in microseconds, and values


def spec_of(size: int, slide: int, origin: int, mode: str) -> GridSpec:
    return GridSpec(size, slide, origin, mode, TYPES, 1, MERGES, 1)  # type: ignore[arg-type]


def piece(value: int) -> bytes:
    text = str(value).encode() * (value % 3)
    return struct.pack(">i", len(text)) + text


def chunk(spec: GridSpec, cells: Sequence[Cell], arrived: int = 0) -> bytes:
    """Cells of one row each, as Spark's partial aggregate would send them."""
    rows = [(key, pane_of(spec, t), piece(v), v, v, True, piece(-v), i) for i, (key, t, v) in enumerate(cells, arrived)]
    arrays = [pa.array(list(c), t) for c, t in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec.cell_schema))


def pane_of(spec: GridSpec, t: int) -> int:
    return t - (t - spec.origin) % spec.grid.width


def windows_of(spec: GridSpec, t: int) -> list[int]:
    last = (t - spec.origin) // spec.slide
    starts = (spec.origin + k * spec.slide for k in range(last, last - spec.size // spec.slide - 1, -1))
    return [s for s in starts if s <= t < s + spec.size]


def rows_of(batches: Iterable[pa.RecordBatch]) -> dict[Window, list[object]]:
    out: dict[Window, list[object]] = {}
    for batch in batches:
        for key, start, _end, *buffers in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            assert (key, start) not in out, "a window came twice"
            out[key, start] = buffers
    return out


def expected(accepted: Accepted) -> dict[Window, list[object]]:
    """Pieces come in order of panes, and of arrival."""
    out: dict[Window, list[object]] = {}
    for at, came in accepted.items():
        values = [v for _, v in sorted(came, key=lambda c: c[0])]
        pieces = (b"".join(map(piece, values)), b"".join(piece(-v) for v in values))
        out[at] = [pieces[0], sum(values), came[0][1], True, pieces[1]]
    return out


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
@pytest.mark.parametrize("seed", range(8))
def test_windows_have_the_pieces_of_their_rows_in_order_of_arrival(mode: str, seed: int) -> None:
    """Through late cells, eviction, recovery from the log, merged segments, and windows that Spark had begun."""
    r = random.Random(seed)
    slide = r.choice([60, 7, 20, 30])
    spec = spec_of(60, slide, r.randrange(slide), mode)
    adopted = 3 if seed % 2 else 0
    state = rebuilt(spec, [], None)
    log: list[LogSegment] = []
    accepted: Accepted = defaultdict(list)
    gone: set[Window] = set()
    newest, late, through, emissions = 0, None, None, 0
    lasting = r.random() < 0.5  # one watermark for late cells and eviction, as with allowMultiple=false
    for batch in range(14):
        evict = None if mode == "complete" else newest - 15
        if lasting and mode != "complete":
            late = evict
        count = 40 if batch == adopted else r.choice([0, 3, 40])
        cells = [(r.choice(["a", "b", None]), newest + r.randint(-120, 40), r.randint(0, 99)) for _ in range(count)]
        touched = set()
        for key, t, v in cells:
            for start in windows_of(spec, t):
                if late is None or start + spec.size > late:
                    accepted[key, start].append((pane_of(spec, t), v))
                    touched.add((key, start))
        if mode == "append":
            emitted = {at for at in accepted if at not in gone and at[1] + spec.size <= (evict or 0)}
        else:
            emitted = touched if mode == "update" else set(accepted)
        if batch >= adopted:
            parts = ((cells[:5], 0), (cells[5:], 5))
            chunks = [chunk(spec, part, arrived) for part, arrived in parts if part]
            outcome = state.batch(chunks, BatchTimes(late, evict, through), r.choice([1, 7, 1000]))
            got = rows_of(outcome.windows)
            assert got == expected({at: accepted[at] for at in emitted})
            emissions += len(got)
            state = outcome.after
            if chunks:
                log.append(LogSegment(chunks, late))
            through = evict
            if len(log) > 4 and not any(s.seeds for s in log[-3:]) and r.random() < 0.5:
                first = outcome.first if outcome.first is not None else -(1 << 63)
                tables, total, _ = merged(spec, log[-3:], first, r.choice([1, 1000]))
                assert total == sum(t.num_rows for t in tables)
                log[-3:] = [LogSegment([stream_of(t) for t in tables], None)] if tables else []
            if r.random() < 0.4:
                state = rebuilt(spec, log, through)
        if mode != "complete":
            gone |= {at for at in accepted if at[1] + spec.size <= (evict or 0)}
            accepted = defaultdict(list, {at: v for at, v in accepted.items() if at not in gone})
        if batch + 1 == adopted:
            accepted = defaultdict(list, {at: [(-1000, v) for _, v in came] for at, came in accepted.items()})
            log = [LogSegment([seeds(spec, accepted)], None, seeds=slide < 60)]
            state, through = rebuilt(spec, log, None), None
            assert rows_of(state.open_windows(None, 7)) == expected(accepted)
        late, newest = evict, newest + r.randint(0, 30)
    assert emissions > 5, "vacuous: hardly a window was emitted"
    assert isinstance(state, PartitionWithPieces)
    assert rows_of(state.open_windows(through, 7)) == expected(accepted)
    if mode != "complete":
        empty = state.batch([], BatchTimes(late, newest + 1000, through), 100).after
        assert empty.state.cells == empty.pieces.rows.cells == empty.seeds.rows.cells == 0


def seeds(spec: GridSpec, accepted: Accepted) -> bytes:
    """Windows as Spark had begun them, in the columns of a cell; its first values came before all others."""
    rows = [(key, start, *buffers, 0) for (key, start), buffers in expected(accepted).items()]
    arrays = [pa.array(list(c), t) for c, t in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec.cell_schema))


def test_pieces_without_other_buffers_nor_keys() -> None:
    types = (pa.int64(), pa.binary())
    only = Merge("pieces", (0,), wrap=False, nullable=False, precision=0)
    spec = GridSpec(10, 10, 0, "append", types, 0, (only,))
    cells = pa.record_batch([pa.array([0, 0, 10], types[0]), pa.array([b"a", b"b", b"c"], types[1])], ["c0", "c1"])
    outcome = rebuilt(spec, [], None).batch([stream_of(cells)], BatchTimes(None, 10, None), 10)
    assert [b.to_pydict() for b in outcome.windows] == [{"c0": [0], "c1": [10], "c2": [b"ab"]}]
    assert outcome.after.state.cells == 1


def test_many_bytes_go_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwin_spark.service.pieces._AT_ONCE", 100)
    spec = spec_of(10, 5, 0, "append")
    cells = [(key, t, v) for key in "abcdef" for t in range(10) for v in (31, 32)]
    outcome = rebuilt(spec, [], None).batch([chunk(spec, cells)], BatchTimes(None, 50, None), 1000)
    batches = list(outcome.windows)
    assert len(batches) > 5
    wanted: Accepted = defaultdict(list)
    for key, t, v in cells:
        for start in windows_of(spec, t):
            wanted[key, start].append((pane_of(spec, t), v))
    assert rows_of(batches) == expected(wanted)


def test_keys_that_are_gone_leave_the_dictionary() -> None:
    spec = spec_of(10, 10, 0, "append")
    state, most = rebuilt(spec, [], None), 0
    for b in range(40):
        cells = [(f"{b}-{i}", 10 * b, 1) for i in range(500)]
        outcome = state.batch([chunk(spec, cells)], BatchTimes(10 * b, 10 * b, 10 * b - 10), 1000)
        assert sum(w.num_rows for w in outcome.windows) == (500 if b else 0)
        state = outcome.after
        assert isinstance(state, PartitionWithPieces)
        most = max(most, len(state.pieces.keys))
    assert most < 40 * 500 // 2


SESSION_TYPES = (TYPES[0], TYPES[1], *TYPES[1:])


def session_chunk(spec: SessionSpec, rows: Sequence[tuple[str | None, int, int, int]]) -> bytes:
    """Rows (key, start, end, value) as Spark's partial aggregate would send them; a value arrives at its time."""
    cells = [(key, start, end, piece(v), v, v, True, piece(-v), start) for key, start, end, v in rows]
    arrays = [pa.array(list(c), t) for c, t in zip(zip(*cells, strict=True), SESSION_TYPES, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec.cell_schema))


@pytest.mark.parametrize("mode", ["append", "complete"])
@pytest.mark.parametrize("seed", range(10))
def test_sessions_have_their_pieces_in_the_order_in_which_spark_adds_them(mode: str, seed: int) -> None:
    """By time, with an open session as one row at its start; through late rows, closing, recovery, merged segments."""
    r = random.Random(seed)
    spec = SessionSpec(mode, SESSION_TYPES, 1, MERGES, 1)  # type: ignore[arg-type]
    state = rebuilt(spec, [], None)
    log: list[LogSegment] = []
    open_: dict[str | None, list[tuple[int, int, list[int]]]] = defaultdict(list)
    newest, late, through, emissions = 0, None, None, 0
    for _ in range(16):
        evict = None if mode == "complete" else newest - 15
        count = r.choice([0, 3, 40])
        rows = [(r.choice(["a", "b", None]), newest + r.randint(-60, 40), r.randint(0, 99)) for _ in range(count)]
        timed = [(key, t, t + 1 + v % 7, v) for key, t, v in rows]
        for key in ("a", "b", None):
            came = [(t, end, [v]) for k, t, end, v in timed if k == key and (late is None or end > late)]
            made: list[tuple[int, int, list[int]]] = []
            for start, end, values in sorted([*open_[key], *came], key=lambda s: s[0]):  # of equals the open one first
                if made and start <= made[-1][1]:
                    made[-1] = (made[-1][0], max(made[-1][1], end), made[-1][2] + values)
                else:
                    made.append((start, end, list(values)))
            open_[key] = made
        chunks = [session_chunk(spec, part) for part in (timed[:5], timed[5:]) if part]
        outcome = state.batch(chunks, BatchTimes(late, evict, through), r.choice([1, 7, 1000]))
        closed = {(k, s[0]): s for k, found in open_.items() for s in found if evict is None or s[1] <= evict}
        got = {(k, start, end): b for (k, start, end), b in session_rows(outcome.windows).items()}
        assert got == {(k, s[0], s[1]): of_session(s[2]) for (k, _), s in closed.items()}
        emissions += len(got)
        if mode == "append":
            open_ = defaultdict(list, {k: [s for s in v if (k, s[0]) not in closed] for k, v in open_.items()})
        logged = [stream_of(b) for b in outcome.logged if isinstance(b, pa.RecordBatch) and b.num_rows]
        if logged:
            log.append(LogSegment(logged, None))
        state, through = outcome.after, evict
        if len(log) > 3 and r.random() < 0.5:
            first = outcome.first if outcome.first is not None else -(1 << 63)
            tables, total, _ = merged(spec, log[-3:], first, r.choice([1, 1000]))
            assert total == sum(t.num_rows for t in tables)
            log[-3:] = [LogSegment([stream_of(t) for t in tables], None)] if tables else []
        if r.random() < 0.4:
            state = rebuilt(spec, log, through)
        assert isinstance(state, SessionsWithPieces)
        wanted = {(k, s[0], s[1]): of_session(s[2]) for k, found in open_.items() for s in found}
        assert session_rows(state.open_sessions(7)) == wanted
        assert state.pieces.rows.cells == len(wanted)
        late, newest = evict, newest + r.randint(0, 30)
    assert emissions > 5, "vacuous: hardly a session was emitted"


def session_rows(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str | None, int, int], list[object]]:
    rows = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    return {(key, start, end): buffers for key, start, end, *buffers in rows}


def of_session(values: list[int]) -> list[object]:
    return [b"".join(map(piece, values)), sum(values), values[0], True, b"".join(piece(-v) for v in values)]
