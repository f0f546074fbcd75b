"""Rows that become proto-sessions on the device service, parted as the shuffle parts them, against lists of rows."""

import decimal
import io
import json
import math
import random
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from service_harness import assert_same, stream_of, stream_of_rows

import gpuwin
from gpuwin.batch.pane_cells import AT_ONCE
from gpuwin_spark.service import protocol
from gpuwin_spark.service.cell_tables import read_chunks
from gpuwin_spark.service.conversation import Conversation
from gpuwin_spark.service.map_side import Held, RowsSpec, cells_of_rows
from gpuwin_spark.service.operator_spec import Merge, SessionSpec
from gpuwin_spark.service.partition import BatchTimes
from gpuwin_spark.service.protocol import ProtocolError
from gpuwin_spark.service.residents import Residents
from gpuwin_spark.service.session_partition import SessionPartition

D = decimal.Decimal
DEC = pa.decimal128(20, 2)
MOST = (1 << 20, 1 << 30)


def merge(kind, *columns, nullable=True, wrap=False, precision=0):
    return Merge(kind, columns, wrap=wrap, nullable=nullable, precision=precision)


#: count(*), and of a value its sum, its sum as double, min, max as double, decimal sum, and moments
NUMBERS = SessionSpec(
    "append",
    (*[pa.int64()] * 3, pa.int64(), pa.int64(), pa.float64(), pa.int64(), pa.float64(), DEC, pa.bool_(),
     *[pa.float64()] * 3),
    1,
    (merge("sum", 0, nullable=False, wrap=True), merge("sum", 1), merge("sum", 2), merge("min", 3), merge("max", 4),
     merge("decimal_sum", 5, 6, precision=20), merge("moments", 7, 8, 9, nullable=False)),
)  # fmt: skip
#: Two keys that can be null, and merges that no kernel makes of rows at once: max of strings, bit_or
TEXTS = SessionSpec(
    "append",
    (pa.string(), pa.float64(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.int64()),
    2,
    (merge("sum", 0, nullable=False, wrap=True), merge("max", 1), merge("bit_or", 2)),
)  # fmt: skip


def unit_of(spec, key, start, end, v):
    """The session that one row would be."""
    if spec is NUMBERS:
        f = None if v is None else v / 4
        moments = [0.0, 0.0, 0.0] if v is None else [1.0, float(v), 0.0]
        return [*key, start, end, 1, v, f, v, f, D(v or 0), v is None, *moments]
    return [*key, start, end, 1, None if v is None else f"s{v}", v]


def sent(spec, rows, partitions, chunk=20_000):
    """Rows (key, start, end, value) as a task sends them: count(*) is a constant, the rest a column each."""
    count = spec.keys + spec.PLACE
    whole = RowsSpec(spec, tuple(-1 if i == count else i - (i > count) for i in range(len(spec.types))), partitions)
    columns = [i for i, p in enumerate(whole.places) if p >= 0]
    units = [(unit_of(spec, *r), part(r[0], partitions)) for r in rows]
    lines = [[*(unit[i] for i in columns), p] for unit, p in units]
    chunks = [stream_of_rows(whole.row_schema.types, lines[at : at + chunk]) for at in range(0, len(lines), chunk)]
    return whole, [stream_of_rows(whole.constant_schema.types, [[1]])], chunks


def part(key, partitions):
    return sum(str(key).encode()) % partitions


def expected(spec, rows):
    """(key, start) -> [end, buffers], by lists of rows for each key."""
    of = defaultdict(list)
    for key, start, end, v in rows:
        of[known(key)].append((start, end, v))
    out = {}
    for key, several in of.items():
        sessions = []
        for start, end, v in sorted(several, key=lambda r: r[:2]):
            if sessions and start <= sessions[-1][1]:
                sessions[-1][1] = max(sessions[-1][1], end)
                sessions[-1][2].append(v)
            else:
                sessions.append([start, end, [v]])
        out.update({(key, start): [end, *buffers_of(spec, values)] for start, end, values in sessions})
    return out


def known(key):
    """A key that is equal to itself: NaN is one value, as in Spark."""
    return tuple("NaN" if isinstance(k, float) and math.isnan(k) else k for k in key)


def buffers_of(spec, values):
    some = [v for v in values if v is not None]
    if spec is TEXTS:
        bits = None
        for v in some:
            bits = v if bits is None else bits | v
        return [len(values), max((f"s{v}" for v in some), default=None), bits]
    n, total = float(len(some)), sum(some)
    mean = total / n if some else 0.0
    sums = [total, total / 4, min(some), max(some) / 4] if some else [None] * 4
    return [len(values), *sums, D(total) if some else D(0), not some, n, mean, sum((v - mean) ** 2 for v in some)]


def sessions_of(parts, spec, partitions):
    out = {}
    for p in parts:
        columns = [c.to_pylist() for c in read_chunks([stream_of(p.cells)], spec.cell_schema).columns]
        assert p.last == max(columns[spec.keys + 1])
        for *line, _ in zip(*columns, columns[0], strict=True):
            key, (start, end, *buffers) = tuple(line[: spec.keys]), line[spec.keys :]
            assert (known(key), start) not in out, "a session came twice"
            assert p.partition == part(key, partitions)
            out[known(key), start] = [end, *buffers]
    return out


def rows_like(spec, seed, n, keys, span=20_000):
    """Rows nearly in order of time, some far from it, with a gap of their own."""
    r = random.Random(seed)
    names = [(k,) for k in [None, *range(-3, keys)]]
    if spec is TEXTS:
        numbers = [None, 0.5, math.nan]
        names = [(name, r.choice(numbers)) for name in [None, "", "ä", *(f"k{i}" for i in range(keys))]]
        names += [("ä", math.nan), ("ä", None)]
    out = []
    for i in range(n):
        start = i * span // n + (r.randrange(-span, span) if r.random() < 0.02 else r.randrange(-40, 40))
        out.append((r.choice(names), start, start + r.choice([1, 20, 20, 90]), r.choice([None, 0, r.randint(-99, 99)])))
    return out


SPECS = pytest.mark.parametrize("spec", [NUMBERS, TEXTS], ids=["numbers", "texts"])


@SPECS
@pytest.mark.parametrize(
    ("n", "keys", "partitions"), [(1, 2, 1), (300, 7, 5), (AT_ONCE + 1, 11, 3), (AT_ONCE + 7, 9000, 200)]
)
def test_sessions_are_those_of_the_rows(spec, n, keys, partitions):
    rows = rows_like(spec, n, n, keys)
    whole, constants, chunks = sent(spec, rows, partitions)
    parts = list(cells_of_rows(whole, constants, [], chunks, MOST))
    assert_same(sessions_of(parts, spec, partitions), expected(spec, rows))
    assert [p.partition for p in parts] == sorted({part(r[0], partitions) for r in rows})


@SPECS
@pytest.mark.parametrize("n", [400, 2 * AT_ONCE])
def test_parts_become_the_sessions_of_one_batch(spec, n):
    """Sessions from before take part as the rows that they were made of do, and rows between two join them."""
    rows = rows_like(spec, 3, n, 40)
    random.Random(4).shuffle(rows)
    held = []
    for piece in (rows[: n // 3], rows[n // 3 : n // 2], rows[n // 2 :]):
        whole, constants, chunks = sent(spec, piece, 4)
        parts = list(cells_of_rows(whole, constants, held, chunks, MOST))
        held = [Held(p.partition, [stream_of(p.cells)]) for p in parts]
    assert_same(sessions_of(parts, spec, 4), expected(spec, rows))


def test_payloads_are_cut_by_sessions_and_by_bytes():
    rows = rows_like(TEXTS, 5, 3000, 300)
    whole, constants, chunks = sent(TEXTS, rows, 3)
    of_all = expected(TEXTS, rows)
    by_cells = list(cells_of_rows(whole, constants, [], chunks, (50, 1 << 30)))
    assert max(p.cells.num_rows for p in by_cells) == 50
    assert_same(sessions_of(by_cells, TEXTS, 3), of_all)
    by_bytes = list(cells_of_rows(whole, constants, [], chunks, (1 << 20, 4096)))
    assert len(by_bytes) > 6
    assert_same(sessions_of(by_bytes, TEXTS, 3), of_all)


def test_the_operator_above_takes_them_as_those_of_the_jvm():
    """Of two tasks, with late rows dropped before: what it emits is what it makes of the rows themselves."""
    rows = rows_like(TEXTS, 8, 2000, 9)
    whole, constants, _ = sent(TEXTS, [], 1)
    payloads = []
    for task in (rows[::2], rows[1::2]):
        _, _, chunks = sent(TEXTS, task, 1)
        payloads += [stream_of(p.cells) for p in cells_of_rows(whole, constants, [], chunks, MOST)]
    alone = stream_of_rows(TEXTS.types, [unit_of(TEXTS, *r) for r in rows])
    times = BatchTimes(None, 15_000, None)

    def emitted(chunks):
        windows = SessionPartition.empty(TEXTS).batch(chunks, times, 1000).windows
        return sorted(repr(line) for table in windows for line in table.to_pylist())

    assert emitted(payloads) == emitted([alone])
    assert len(emitted(payloads)) > 50


def test_no_rows_are_no_sessions():
    whole, constants, _ = sent(NUMBERS, [], 2)
    assert list(cells_of_rows(whole, constants, [], [], MOST)) == []


# Sums of 64 bits

BIG = (1 << 63) - 1
SUMS = replace(NUMBERS, types=NUMBERS.types[:5], merges=NUMBERS.merges[:2])
OF_SUMS = RowsSpec(SUMS, (0, 1, 2, -1, 3), 1)
ONE = [stream_of_rows(OF_SUMS.constant_schema.types, [[1]])]


def protos(rows, held=(), spec=OF_SUMS):
    """What becomes of rows (key, start, end, value)."""
    parts = cells_of_rows(spec, ONE, list(held), [stream_of_rows(spec.row_schema.types, [[*r, 0] for r in rows])], MOST)
    return [p.cells for p in parts]


def summed(chunks):
    """The sums of the sessions that an operator emits of such payloads."""
    before, times = SessionPartition.empty(SUMS), BatchTimes(None, 1 << 40, None)
    windows = before.batch([stream_of(c) for c in chunks], times, 1000).windows
    return {(line["c0"], line["c1"]): line["c4"] for table in windows for line in table.to_pylist()}


@pytest.mark.parametrize("more", [0, AT_ONCE], ids=["few", "at_once"])
@pytest.mark.parametrize(
    ("values", "fails"),
    [
        ([(0, BIG), (1, 1), (2, -1)], True),  # as in Spark, which adds row by row, though the total fits
        ([(0, BIG), (1, -1), (2, 1)], False),
        ([(0, BIG), (2, 1), (1, -1)], False),  # and in order of time
        ([(0, BIG), (2, -1), (1, 1)], True),
        ([(0, -BIG), (1, -1), (2, -1), (3, 9)], True),
        ([(0, BIG), (1, None), (2, -BIG), (3, BIG)], False),
        ([(0, BIG), (0, 1), (1, -1)], True),  # equal sessions, below the shuffle
        ([(0, BIG), (1, BIG)], True),
        ([(0, BIG), (40, BIG)], False),  # two sessions
    ],
)
def test_a_sum_overflows_where_it_does_in_order_of_time(values, fails, more):
    others = [(2 + i % 7, 5, 9, 1) for i in range(more)]
    rows = [*others[: more // 2], *((1, t, t + 10, v) for t, v in values), *others[more // 2 :]]
    if fails:
        with pytest.raises(gpuwin.OverflowError) as raised:
            summed(protos(rows))
        assert raised.value.column.startswith("1")
        return
    found = summed(protos(rows))
    assert sum(v for (k, _), v in found.items() if k == 1) == sum(v for _, v in values if v is not None)


def test_rows_that_may_overflow_are_left_to_the_operator_above():
    """Another task may have the rows between them. Equal sessions are put together, as in Spark."""
    (cells,) = protos([(1, 0, 10, BIG), (1, 5, 15, 1), (1, 0, 10, -2), (2, 0, 10, 1), (2, 5, 15, 1)])
    assert list(zip(*(c.to_pylist() for c in cells.columns), strict=True)) == [
        (1, 0, 10, 2, BIG - 2), (1, 5, 15, 1, 1), (2, 0, 10, 1, 1), (2, 5, 15, 1, 1),
    ]  # fmt: skip
    (cells,) = protos([(1, 0, 10, 7), (1, 5, 15, 1)])
    assert cells.num_rows == 1


def test_an_overflow_with_the_sessions_from_before_is_seen():
    held = [Held(0, [stream_of_rows(SUMS.types, [[1, 0, 10, 3, BIG]])])]
    with pytest.raises(gpuwin.OverflowError):
        protos([(1, 0, 10, 1), (1, 0, 10, -1)], held)
    with pytest.raises(gpuwin.OverflowError):
        summed(protos([(1, 1, 11, 1), (1, 2, 12, -1)], held))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_overflow_with_an_open_session_is_seen(device):
    def after(before, *rows):
        return before.batch([stream_of_rows(SUMS.types, rows)], BatchTimes(None, None, None), 9).after

    empty = SessionPartition.empty(SUMS)
    before = after(empty.on_device() if device == "cuda" else empty, [1, 0, 10, 3, BIG - 5])
    assert before.is_on_device == (device == "cuda")
    assert after(before, [1, 5, 15, 1, BIG], [1, 4, 14, 1, -BIG]).state.cells == 1
    with pytest.raises(gpuwin.OverflowError):
        after(before, [1, 4, 14, 1, BIG], [1, 5, 15, 1, -BIG])
    assert after(before, [2, 4, 14, 1, BIG], [2, 5, 15, 1, -BIG]).state.cells == 2


def test_a_sum_that_wraps_wraps():
    wrapping = replace(SUMS, merges=(SUMS.merges[0], merge("sum", 1, wrap=True)))
    (cells,) = protos([(1, 5, 9, BIG), (1, 6, 10, 1)], spec=replace(OF_SUMS, operator=wrapping))
    assert cells.column(4).to_pylist() == [-(1 << 63)]


# Requests


def test_a_row_of_no_partition_is_refused():
    rows = [stream_of_rows(OF_SUMS.row_schema.types, [[1, 0, 10, 1, 1]])]
    with pytest.raises(ProtocolError, match="partition"):
        list(cells_of_rows(OF_SUMS, ONE, [], rows, MOST))


TOKEN = "t" * 64
SPEC = {
    "window": "session", "mode": "append", "keys": 1, "hidden": 0, "types": ["bigint"] * 5,
    "merges": [
        {"merge": m.merge, "columns": list(m.columns), "wrap": m.wrap, "precision": 0, "nullable": m.nullable,
         "arrival": -1}
        for m in SUMS.merges
    ],
}  # fmt: skip


def test_a_request_is_answered_with_payloads_and_what_they_hold():
    rows = rows_like(SUMS, 9, 200, 6)
    source, sink = io.BytesIO(), io.BytesIO()
    protocol.write_json(source, protocol.HELLO, token=TOKEN, protocol=protocol.VERSION)
    bounds = {"rows": 1000, "bytes": 1 << 20}
    places = [0, 1, 2, -1, 3]
    protocol.write_json(
        source, protocol.AGGREGATE, spec=SPEC, places=places, hashed=[], partitions=2, held=[], device="cpu", **bounds
    )
    lines = [[*key, start, end, v, part(key, 2)] for key, start, end, v in rows]
    whole = replace(OF_SUMS, partitions=2)
    for chunk in (*ONE, stream_of_rows(whole.row_schema.types, lines)):
        protocol.write_frame(source, protocol.CELLS, chunk)
    protocol.write_json(source, protocol.END)
    source.seek(0)
    Conversation(source, sink, TOKEN, Residents()).serve()
    sink.seek(0)
    frames = []
    while head := sink.read(5):
        frames.append((head[:1], sink.read(int.from_bytes(head[1:], "big"))))
    _, *payloads, (kind, done) = frames
    assert [k for k, _ in payloads] == [protocol.WINDOWS] * 2
    assert kind == protocol.DONE
    told = json.loads(done)["parts"]
    tables = [pa.ipc.open_stream(body).read_all() for _, body in payloads]
    assert [(p, n, last) for p, n, last in told] == [
        (p, t.num_rows, max(t.column(2).to_pylist())) for p, t in enumerate(tables)
    ]
    assert sum(t.num_rows for t in tables) == len(expected(NUMBERS, rows))
