"""A partition of the device service against a dictionary of lists: emission by mode, late cells, recovery, merging."""

import decimal
import functools
import operator
import random
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from service_harness import assert_same, stream_of

import gpuwin
from gpuwin_spark.service.log_segments import LogSegment
from gpuwin_spark.service.operator_spec import GridSpec, Merge
from gpuwin_spark.service.partition import BatchTimes, Partition, merge_segments
from gpuwin_spark.service.residents import PartitionId, Residents
from gpuwin_spark.service.seeded_partition import SeededPartition

D = decimal.Decimal
DEC = pa.decimal128(38, 2)
TYPES = (pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.string(), DEC, pa.bool_(), *[pa.float64()] * 3)
MERGES = (
    Merge("sum", (0,), wrap=False, nullable=True, precision=0),
    Merge("sum", (1,), wrap=False, nullable=True, precision=0),
    Merge("max", (2,), wrap=False, nullable=True, precision=0),
    Merge("decimal_sum", (3, 4), wrap=False, nullable=True, precision=38),
    Merge("moments", (5, 6, 7), wrap=False, nullable=False, precision=0),
)


def spec_of(size=60, slide=20, origin=5, mode="append"):
    return GridSpec(size, slide, origin, mode, TYPES, 1, MERGES)


def chunk(spec, cells):
    """Cells (key, time, value or None) as Spark's partial aggregate would send them, one cell a row."""
    columns = defaultdict(list)
    for key, t, v in cells:
        pane = t - (t - spec.origin) % spec.grid.width
        small = v if v is None or abs(v) < 2**63 else 0  # only the decimal is to be large
        buffers = [small, None if v is None else v / 4, None if v is None else f"s{v}", D(v or 0), v is None]
        buffers += [0.0, 0.0, 0.0] if v is None else [1.0, float(v), 0.0]
        for i, x in enumerate([key, pane, *buffers]):
            columns[i].append(x)
    batch = pa.RecordBatch.from_arrays([pa.array(columns[i], t) for i, t in enumerate(TYPES)], schema=spec.cell_schema)
    return stream_of(batch)


def windows_of(spec, t):
    last = (t - spec.origin) // spec.slide
    starts = (spec.origin + k * spec.slide for k in range(last, last - spec.size // spec.slide - 1, -1))
    return [s for s in starts if s <= t < s + spec.size]


def rows_of(batches):
    out = {}
    for b in batches:
        for key, start, end, *buffers in zip(*(c.to_pylist() for c in b.columns), strict=True):
            assert (key, start) not in out, "a window came twice"
            out[key, start, end] = buffers
    return out


def expected(spec, accepted):
    out = {}
    for (key, start), values in accepted.items():
        some = [v for v in values if v is not None]
        n = float(len(some))
        mean = sum(some) / n if some else 0.0
        out[key, start, start + spec.size] = [
            sum(some) if some else None,
            sum(some) / 4 if some else None,
            max(f"s{v}" for v in some) if some else None,
            D(sum(some)),
            not some,
            n,
            mean,
            sum((v - mean) ** 2 for v in some),
        ]
    return out


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
@pytest.mark.parametrize("seed", range(12))
def test_batches_emit_what_spark_would(mode, seed):
    """A random stream with late cells; the state is rebuilt from its log before some of the batches."""
    r = random.Random(seed)
    slide = r.choice([20, 30, 60])
    spec = spec_of(60, slide, r.randrange(slide), mode)
    state, log, through = Partition.empty(spec), [], None
    accepted, gone = defaultdict(list), set()
    newest, late = -200, None
    for _ in range(10):
        evict = None if mode == "complete" else newest - 15
        cells = [
            (r.choice(["a", "b", None]), newest + r.randint(-120, 40), r.choice([None, r.randint(-9, 9)]))
            for _ in range(r.choice([0, 3, 40]))
        ]
        if r.random() < 0.3:
            state = Partition.empty(spec)
            for chunks, at in log:
                state = state.with_segment(chunks, at)
            state = state.without_evicted(through)
        chunks = [chunk(spec, cells[:5]), chunk(spec, cells[5:])] if cells else []
        outcome = state.batch(chunks, BatchTimes(late, evict, through), rows=r.choice([1, 7, 1000]))
        touched, dropped = set(), 0
        for key, t, v in cells:
            for start in windows_of(spec, t):
                if late is not None and start + spec.size <= late:
                    dropped += 1
                else:
                    accepted[key, start].append(v)
                    touched.add((key, start))
        assert outcome.dropped == dropped
        if mode == "append":
            emitted = {at for at in accepted if at not in gone and at[1] + spec.size <= evict}
            gone |= emitted
        else:
            emitted = touched if mode == "update" else set(accepted)
        assert_same(rows_of(outcome.windows), expected(spec, {at: accepted[at] for at in emitted}))
        state = outcome.after
        log.append((chunks, late))
        newest = max([newest, *(t for _, t, _ in cells)])
        late, through = evict, evict
    assert accepted, "the stream had no rows"


def seed_chunk(spec, windows):
    """Windows as Spark had begun them: (key, start) to buffers, in the columns of a cell."""
    rows = [(key, start, *buffers) for (key, start, _), buffers in windows.items()]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), t) for c, t in zip(columns, TYPES, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec.cell_schema))


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
@pytest.mark.parametrize("seed", range(12))
def test_seeds_go_on_as_the_windows_that_they_were(mode, seed):
    """Some batches are done by the dictionary alone, as by Spark; its open windows are then seeds of a partition."""
    r = random.Random(seed)
    slide = r.choice([7, 20, 30])
    spec = spec_of(60, slide, r.randrange(slide), mode)
    state, log, through = Partition.empty(spec), [], None
    accepted, gone = defaultdict(list), set()
    newest, late, merged = -200, None, 0
    for batch in range(10):
        evict = None if mode == "complete" else newest - 15
        cells = [
            (r.choice(["a", "b", None]), newest + r.randint(-120, 40), r.choice([None, r.randint(-9, 9)]))
            for _ in range(40 if batch == 3 else r.choice([0, 3, 40]))
        ]
        touched = set()
        for key, t, v in cells:
            for start in windows_of(spec, t):
                if late is None or start + spec.size > late:
                    accepted[key, start].append(v)
                    touched.add((key, start))
        if mode == "append":
            emitted = {at for at in accepted if at not in gone and at[1] + spec.size <= evict}
        else:
            emitted = touched if mode == "update" else set(accepted)
        if batch >= 3:
            chunks = [chunk(spec, cells[:5]), chunk(spec, cells[5:])] if cells else []
            outcome = state.batch(chunks, BatchTimes(late, evict, through), rows=r.choice([1, 7, 1000]))
            got = rows_of(outcome.windows)
            assert_same(got, expected(spec, {at: accepted[at] for at in emitted}))
            merged += len(got) if isinstance(state, SeededPartition) else 0
            state = outcome.after
            if chunks:
                log.append(LogSegment(chunks, late))
            through = evict
            if r.random() < 0.4:
                state = SeededPartition.rebuilt(spec, log, through)
        if mode != "complete":
            gone |= {at for at in accepted if at[1] + spec.size <= evict}
            accepted = defaultdict(list, {at: v for at, v in accepted.items() if at not in gone})
        if batch == 2:
            seeds = LogSegment([seed_chunk(spec, expected(spec, accepted))], None, seeds=True)
            log, through = [seeds], None
            state = SeededPartition.rebuilt(spec, log, through)
        if batch >= 2:
            assert_same(rows_of(state.open_windows(through, 7)), expected(spec, accepted))
        late, newest = evict, newest + r.randint(0, 30)
    assert merged, "vacuous: nothing was merged with a seed"
    if mode != "complete":
        after = state.batch([], BatchTimes(late, newest + 1000, through), rows=100).after
        assert isinstance(after, Partition)
        assert after.state.cells == 0


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_sum_of_a_seed_and_a_batch_overflows(mode):
    """Spark raises when the row comes, not when the window closes."""
    spec = spec_of(mode=mode)
    big = 2**62 + 2**61
    windows = expected(spec, {("a", start): [big] for start in windows_of(spec, 100)})
    state = SeededPartition.rebuilt(spec, [LogSegment([seed_chunk(spec, windows)], None, seeds=True)], None)
    times = BatchTimes(None, None if mode == "complete" else 0, None)
    with pytest.raises(gpuwin.OverflowError) as raised:
        list(state.batch([chunk(spec, [("a", 105, big)])], times, rows=10).windows)
    assert raised.value.column == "0"
    assert_same(rows_of(state.open_windows(None, 10)), windows)
    assert rows_of(state.batch([chunk(spec, [("b", 105, 1)])], times, rows=10).windows).keys() >= (
        set() if mode == "append" else {("b", 105 - 20, 145)}
    )


def test_merged_segments_hold_the_same_cells():
    spec = spec_of(60, 20)
    r = random.Random(7)
    segments = [
        ([chunk(spec, [(r.choice("abc"), r.randint(-100, 300), r.randint(-5, 5)) for _ in range(30)])], late)
        for late in (None, 40, 90, 150)
    ]
    whole = Partition.empty(spec)
    for chunks, late in segments:
        whole = whole.with_segment(chunks, late)
    first_pane = spec.origin + 3 * spec.grid.width
    cells, count, last = merge_segments(spec, [LogSegment(*s) for s in segments], first_pane, rows=10)
    assert count == sum(c.num_rows for c in cells) > 10
    assert last == max(max(c.column(1).to_pylist()) for c in cells)
    again = Partition.empty(spec).with_segment([stream_of(c) for c in cells], None)
    times = BatchTimes(None, 10_000, 120)
    assert_same(
        rows_of(again.batch([], times, 1000).windows),
        rows_of(replace(whole, state=whole.state.evict(3)).batch([], times, 1000).windows),
    )


def test_an_overflow_names_its_buffer_and_leaves_the_state():
    spec = spec_of(60, 60, 0)
    state = Partition.empty(spec).batch([chunk(spec, [("a", 1, 2**63 - 1)])], BatchTimes(None, None, None), 10).after
    with pytest.raises(gpuwin.OverflowError) as raised:
        state.batch([chunk(spec, [("a", 2, 1)])], BatchTimes(None, None, None), 10)
    assert raised.value.column == "0"
    fine = state.batch([chunk(spec, [("a", 2, -1)])], BatchTimes(None, 60, None), 10)
    assert [r[0] for r in rows_of(fine.windows).values()] == [2**63 - 2]


def test_a_window_that_overflows_is_refused_when_the_row_arrives():
    spec = spec_of(60, 20, 0)
    no_times = BatchTimes(None, None, None)
    state = Partition.empty(spec).batch([chunk(spec, [("a", 1, 2**63 - 1)])], no_times, 10).after
    with pytest.raises(gpuwin.OverflowError):
        state.batch([chunk(spec, [("a", 25, 1)])], no_times, 10)
    state = state.batch([chunk(spec, [("b", 25, 1), ("a", 65, 1)])], no_times, 10).after
    assert len(rows_of(state.batch([], BatchTimes(None, 120, None), 100).windows)) == 9


def test_a_decimal_sum_beyond_its_precision_is_null_and_not_empty():
    spec = spec_of(60, 60, 0)
    big = 10**36 - 1
    state = Partition.empty(spec)
    cells = [("a", 1, big), ("a", 2, big), ("b", 3, big), ("c", 3, None)]
    with decimal.localcontext(prec=60):
        outcome = state.batch([chunk(spec, cells)], BatchTimes(None, 60, None), 10)
    rows = rows_of(outcome.windows)
    with decimal.localcontext(prec=60):
        assert rows["a", 0, 60][3:5] == [None, False]
        assert rows["b", 0, 60][3:5] == [D(big), False]
        assert rows["c", 0, 60][3:5] == [D(0), True]


def test_strings_of_windows_that_are_gone_leave_the_heap(monkeypatch):
    """One key, and each row with a string of its own."""
    monkeypatch.setattr("gpuwin.state.heap.ANYWAY", 0)
    spec = spec_of(60, 60, 0)
    state, most = Partition.empty(spec), 0
    for b in range(150):
        cells = [("a", 60 * b + i, 1000 * b + i) for i in range(60)]
        outcome = state.batch([chunk(spec, cells)], BatchTimes(None, 60 * b, 60 * b - 60), 10)
        before = max(f"s{1000 * (b - 1) + i}" for i in range(60))
        assert [row[2] for row in rows_of(outcome.windows).values()] == ([before] if b else [])
        state, most = outcome.after, max(most, len(outcome.after.state.heap))
    assert most < 150 * 60 // 2


def test_residents_are_found_by_run_and_version_and_by_one_task_at_a_time():
    residents, id, state = Residents(), PartitionId("file:/c", 0, 3), Partition.empty(spec_of())
    assert residents.borrow(id, "run", 0) is None
    residents.commit(id, "run", 5, state)
    assert residents.borrow(id, "run", 3) is None
    assert residents.borrow(id, "other run", 5) is None
    assert residents.borrow(id, "run", 5) is state
    assert residents.borrow(id, "run", 5) is None, "a second task must build its own"
    residents.give_back(id, "run", 5)
    assert residents.borrow(id, "run", 5) is state
    residents.commit(id, "run", 6, state)
    assert residents.borrow(id, "run", 5) is None
    assert residents.borrow(id, "run", 6) is state
    assert len(residents) == 1


def test_residents_are_released_when_their_run_has_ended_and_when_there_is_no_room():
    residents, state = Residents(), Partition.empty(spec_of())
    ids = [PartitionId("file:/c", 0, n) for n in range(3)]
    for id in ids:
        residents.commit(id, "run", 5, state)
    residents.release(ids[0], "a run before")
    assert len(residents) == 3
    residents.release(ids[0], "run")
    residents.release(ids[0], "run")
    assert len(residents) == 2
    assert residents.borrow(ids[1], "run", 5) is state
    residents.release(ids[1], "run")
    residents.release_all()
    assert len(residents) == 1, "a task works on it"
    residents.give_back(ids[1], "run", 5)
    residents.release_all()
    assert len(residents) == 0


def test_a_batch_that_is_repeated_finds_the_state_before_it():
    """As with two actions on the DataFrame of foreachBatch; a query that does not do so keeps one state."""
    residents, id = Residents(), PartitionId("file:/c", 0, 3)
    states = [Partition.empty(spec_of()) for _ in range(9)]
    residents.commit(id, "run", 1, states[1])
    residents.commit(id, "run", 2, states[2])
    assert residents.borrow(id, "run", 1) is None, "the first time that a batch is repeated"
    residents.commit(id, "run", 2, states[3])
    assert residents.borrow(id, "run", 2) is states[3]
    residents.commit(id, "run", 3, states[4])
    for again in states[5:7]:
        assert residents.borrow(id, "run", 2) is states[3]
        assert residents.borrow(id, "run", 2) is None, "a second task must build its own"
        residents.give_back(id, "run", 2)
        assert residents.borrow(id, "run", 2) is states[3], "the attempt after a failure"
        residents.commit(id, "run", 3, again)
    assert residents.borrow(id, "run", 3) is states[6]
    residents.commit(id, "run", 4, states[7])
    assert residents.borrow(id, "run", 2) is None
    assert residents.borrow(id, "another run", 3) is None
    residents.commit(id, "another run", 4, states[8])
    assert residents.borrow(id, "another run", 4) is states[8]
    assert residents.borrow(id, "run", 4) is None


def test_a_state_that_another_task_works_on_is_not_kept_for_a_repetition():
    """A speculative copy commits while the first task still computes."""
    residents, id = Residents(), PartitionId("file:/c", 0, 3)
    states = [Partition.empty(spec_of()) for _ in range(5)]
    residents.commit(id, "run", 1, states[1])
    assert residents.borrow(id, "run", 0) is None, "batches are repeated"
    assert residents.borrow(id, "run", 1) is states[1]
    residents.commit(id, "run", 2, states[2], borrowed=False)
    assert residents.borrow(id, "run", 1) is None
    assert residents.borrow(id, "run", 2) is states[2]
    residents.give_back(id, "run", 1)
    assert residents.borrow(id, "run", 2) is None


BITMAPS = GridSpec(
    60, 20, 0, "append", (pa.int64(), pa.int64(), pa.binary(), pa.binary()), 1,
    tuple(Merge(m, (i,), wrap=False, nullable=False, precision=0) for i, m in enumerate(("bit_or", "bit_and"))),
)  # fmt: skip


def bitmaps(cells):
    """Cells (key, start of the pane, bitmap) as Spark sends them."""
    columns = [[k for k, _, _ in cells], [t for _, t, _ in cells], *[[b for _, _, b in cells]] * 2]
    arrays = [pa.array(c, t) for c, t in zip(columns, BITMAPS.types, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=BITMAPS.cell_schema))


def test_bitmaps_are_merged_bit_by_bit():
    rng = random.Random(4)
    cells = [(rng.randrange(3), 20 * rng.randrange(5), rng.randbytes(4096)) for _ in range(50)]
    partition = Partition.empty(BITMAPS).batch([bitmaps(cells[:30])], BatchTimes(None, None, None), 100).after
    outcome = partition.batch([bitmaps(cells[30:])], BatchTimes(None, 160, None), 4)
    got = rows_of(outcome.windows)
    groups = defaultdict(list)
    for key, t, bitmap in cells:
        for start in windows_of(BITMAPS, t):
            groups[key, start, start + 60].append(int.from_bytes(bitmap, "big"))
    assert {at: [int.from_bytes(b, "big") for b in both] for at, both in got.items()} == {
        at: [functools.reduce(operator.or_, of), functools.reduce(operator.and_, of)] for at, of in groups.items()
    }
    assert {len(b) for both in got.values() for b in both} == {4096}


def test_a_bitmap_of_another_length_is_refused():
    with pytest.raises(pa.ArrowInvalid, match="widths must match"):
        Partition.empty(BITMAPS).batch([bitmaps([(1, 0, b"\x01")])], BatchTimes(None, None, None), 100)
