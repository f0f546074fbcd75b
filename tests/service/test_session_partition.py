"""A session partition of the device service against a list of intervals: merging, late rows, the state log."""

import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from service_harness import stream_of

import gpuwin
from gpuwin_spark.service import session_partition
from gpuwin_spark.service.operator_spec import Merge, SessionSpec, parse_spec
from gpuwin_spark.service.partition import BatchTimes
from gpuwin_spark.service.protocol import ProtocolError
from gpuwin_spark.service.session_partition import SessionPartition, merge_session_segments

TYPES = (pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.string())
MERGES = (
    Merge("sum", (0,), wrap=False, nullable=True, precision=0),
    Merge("max", (1,), wrap=False, nullable=True, precision=0),
)
LEAST = -(1 << 63)


def spec_of(mode="append"):
    return SessionSpec(mode, TYPES, 1, MERGES)


def chunk(rows):
    """Rows (key, start, end, value or None) as they come from below the shuffle."""
    columns = [[k, s, e, v, None if v is None else f"s{v}"] for k, s, e, v in rows]
    arrays = [pa.array([c[i] for c in columns], t) for i, t in enumerate(TYPES)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec_of().cell_schema))


def rows_of(batches):
    return sorted((tuple(r.values()) for b in batches for r in b.to_pylist()), key=repr)


@dataclass
class Model:
    """What Spark does, one row at a time: (key, start, end, values)."""

    open: list = field(default_factory=list)

    def batch(self, rows, late, evict, mode):
        live = [r for r in rows if late is None or r[2] > late]
        keys = {r[0] for r in live}
        changed = sorted(
            [s for s in self.open if s[0] in keys] + [(k, s, e, [v]) for k, s, e, v in live],
            key=lambda s: (str(s[0]), s[0] is None, s[1]),
        )
        merged = []
        for key, start, end, values in changed:
            if merged and merged[-1][0] == key and start <= merged[-1][2]:
                _, first, last, before = merged[-1]
                merged[-1] = (key, first, max(last, end), before + values)
            else:
                merged.append((key, start, end, values))
        self.open = [s for s in self.open if s[0] not in keys] + merged
        emitted = self.open if mode == "complete" else [s for s in self.open if evict is not None and s[2] <= evict]
        if mode == "append":
            self.open = [s for s in self.open if s not in emitted]
        return self.rows(emitted), len(rows) - len(live)

    @staticmethod
    def rows(sessions):
        out = []
        for key, start, end, values in sessions:
            some = [v for v in values if v is not None]
            out.append((key, start, end, sum(some) if some else None, max((f"s{v}" for v in some), default=None)))
        return sorted(out, key=repr)


class Log:
    """The state log as `StateLog.scala` keeps it: dead segments go, and the newest are merged when there are many."""

    def __init__(self, most):
        self.segments, self.most = [], most

    def keep(self, outcome):
        chunks = [stream_of(b) for b in outcome.logged]
        if outcome.logged_cells:
            self.segments.append((chunks, outcome.logged_last))
        if outcome.first is not None:
            self.segments = [s for s in self.segments if s[1] >= outcome.first]
        if len(self.segments) > self.most:
            newest = self.segments[-3:]
            first = LEAST if outcome.first is None else outcome.first
            cells, count, last = merge_session_segments(spec_of(), [c for c, _ in newest], first, rows=5)
            assert count == sum(c.num_rows for c in cells)
            self.segments[-3:] = [([stream_of(c) for c in cells], last)] if count else []


@pytest.mark.parametrize("mode", ["append", "complete"])
@pytest.mark.parametrize("seed", range(12))
def test_batches_emit_what_spark_would(mode, seed, monkeypatch):
    """A random stream, its rows with gaps of their own, and the state rebuilt from its log before some batches."""
    monkeypatch.setattr(session_partition, "FEW_KEYS", 4)
    r = random.Random(seed)
    lag = r.choice([0, 1])  # whether Spark drops by the watermark of the batch before, or of this one
    state, model, log = SessionPartition.empty(spec_of(mode)), Model(), Log(r.choice([3, 100]))
    newest, marks, through, emitted, rebuilt = 0, [None], None, 0, 0
    for number in range(25):
        keys = [f"k{number // 3 + i}" for i in range(3)] + [None]
        rows = []
        for _ in range(r.choice([0, 1, 5, 30])):
            start = newest + r.randint(-90, 40)
            rows.append(
                (r.choice(keys), start, start + r.choice([1, 10, 10, 10, 60]), r.choice([None, r.randint(-9, 9)]))
            )
        marks.append(newest - 25)
        late, evict = marks[-1 - lag], None if mode == "complete" else marks[-1]
        if r.random() < 0.4:
            state = SessionPartition.rebuilt(spec_of(mode), [c for c, _ in log.segments], through)
            rebuilt += 1
        chunks = [chunk(rows[:4]), chunk(rows[4:])] if rows else []
        outcome = state.batch(chunks, BatchTimes(late, evict, through), rows=r.choice([1, 7, 1000]))
        want, dropped = model.batch(rows, late, evict, mode)
        assert outcome.dropped == dropped
        assert rows_of(outcome.windows) == want
        assert outcome.after.state.cells == len(model.open)
        log.keep(outcome)
        state, through = outcome.after, evict
        newest = max([newest, *(s for _, s, _, _ in rows)])
        emitted += len(want)
    assert emitted > 10
    assert rebuilt > 2
    if mode == "append":
        assert len(state.keys) < 20, "keys without a session leave the dictionary"


def test_a_session_that_closes_at_once_is_not_logged():
    times = BatchTimes(None, 50, None)
    outcome = SessionPartition.empty(spec_of()).batch([chunk([("a", 0, 50, 1), ("a", 51, 60, 2)])], times, 10)
    assert rows_of(outcome.windows) == [("a", 0, 50, 1, "s1")]
    assert rows_of(outcome.logged) == [("a", 51, 60, 2, "s2")]
    assert (outcome.logged_cells, outcome.logged_last, outcome.first) == (1, 60, 51)


def test_an_overflow_names_its_buffer_and_leaves_the_state():
    none = BatchTimes(None, None, None)
    state = SessionPartition.empty(spec_of()).batch([chunk([("a", 0, 10, 2**63 - 1)])], none, 10).after
    with pytest.raises(gpuwin.OverflowError) as raised:
        state.batch([chunk([("a", 10, 20, 1)])], none, 10)
    assert raised.value.column == "0"
    fine = state.batch([chunk([("a", 11, 20, 1), ("a", 9, 10, -1)])], BatchTimes(None, 100, None), 10)
    assert [row[1:4] for row in rows_of(fine.windows)] == [(0, 10, 2**63 - 2), (11, 20, 1)]


def test_strings_of_sessions_that_are_gone_leave_the_heap(monkeypatch):
    """One key, and each row with a string of its own."""
    monkeypatch.setattr("gpuwin.state.heap.ANYWAY", 0)
    state, most = SessionPartition.empty(spec_of()), 0
    for b in range(150):
        rows = [("a", 60 * b + i, 60 * b + i + 1, 1000 * b + i) for i in range(50)]
        outcome = state.batch([chunk(rows)], BatchTimes(None, 60 * b, None), 10)
        before = [1000 * (b - 1) + i for i in range(50)]
        assert rows_of(outcome.windows) == (
            [("a", 60 * b - 60, 60 * b - 10, sum(before), max(f"s{v}" for v in before))] if b else []
        )
        state, most = outcome.after, max(most, len(outcome.after.sessions.heap))
    assert most < 150 * 50 - 1000


SPEC = {
    "window": "session",
    "mode": "append",
    "types": ["string", "bigint", "bigint", "bigint"],
    "keys": 1,
    "hidden": 0,
    "merges": [{"merge": "sum", "columns": [0], "wrap": True, "nullable": True, "precision": 0, "arrival": -1}],
}


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "update"},
        {"window": "global"},
        {"window": None},
        {"keys": 2},
        {"keys": -1},
        {"types": ["string", "bigint", "string", "bigint"]},
        {"merges": [{"merge": "sum", "columns": [1], "wrap": True, "nullable": True, "precision": 0, "arrival": -1}]},
    ],
)
def test_a_specification_is_checked(change):
    assert isinstance(parse_spec(SPEC), SessionSpec)
    with pytest.raises(ProtocolError):
        parse_spec({**SPEC, **change})
