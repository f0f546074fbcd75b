"""The map side of the device service against a dictionary of lists: cells of rows, parted as the shuffle parts them."""

import decimal
import io
import json
import random
from base64 import b64encode
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from service_harness import assert_same, stream_of, stream_of_rows

import gpuwin
from gpuwin.batch.pane_cells import AT_ONCE
from gpuwin.vocabulary.specification_json import write_specification
from gpuwin_spark.service import protocol
from gpuwin_spark.service.cell_tables import read_chunks
from gpuwin_spark.service.conversation import Conversation
from gpuwin_spark.service.map_side import Held, RowsSpec, cells_of_rows
from gpuwin_spark.service.operator_spec import GridSpec, Merge
from gpuwin_spark.service.protocol import ProtocolError, read_frame
from gpuwin_spark.service.residents import Residents

D = decimal.Decimal
DEC = pa.decimal128(20, 2)
MOST = (1 << 20, 1 << 30)


def merge(kind, *columns, nullable=True, wrap=False, precision=0, arrival=-1):
    return Merge(kind, columns, wrap=wrap, nullable=nullable, precision=precision, arrival=arrival)


#: count(*), and of a value its sum, its sum as double, min, max as double, decimal sum, and moments
NUMBERS = GridSpec(
    60, 60, 5, "append",
    (pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.float64(), pa.int64(), pa.float64(), DEC, pa.bool_(),
     *[pa.float64()] * 3),
    1,
    (merge("sum", 0, nullable=False, wrap=True), merge("sum", 1), merge("sum", 2), merge("min", 3), merge("max", 4),
     merge("decimal_sum", 5, 6, precision=20), merge("moments", 7, 8, 9, nullable=False)),
)  # fmt: skip
#: A key that can be null, and merges that no kernel makes of rows at once: max of strings, bit_or
TEXTS = GridSpec(
    60, 20, 0, "append",
    (pa.string(), pa.int64(), pa.int64(), pa.string(), pa.int64()),
    1,
    (merge("sum", 0, nullable=False, wrap=True), merge("max", 1), merge("bit_or", 2)),
)  # fmt: skip


def cell_of(spec, key, t, v):
    """The cell that one row would be."""
    pane = t - (t - spec.origin) % spec.grid.width
    if spec is NUMBERS:
        f = None if v is None else v / 4
        moments = [0.0, 0.0, 0.0] if v is None else [1.0, float(v), 0.0]
        return [key, pane, 1, v, f, v, f, D(v or 0), v is None, *moments]
    return [key, pane, 1, None if v is None else f"s{v}", v]


def sent(spec, rows, partitions, chunk=70_000):
    """Rows (key, time, value) as a task sends them: count(*) is a constant, the rest a column each."""
    places = tuple(-1 if i == spec.keys + 1 else i - (i > spec.keys + 1) for i in range(len(spec.types)))
    whole = RowsSpec(spec, places, partitions)
    columns = [i for i, p in enumerate(places) if p >= 0]
    lines = [
        [*(cell[i] for i in columns), p] for cell, p in ((cell_of(spec, *r), part(r[0], partitions)) for r in rows)
    ]
    chunks = [stream_of_rows(whole.row_schema.types, lines[at : at + chunk]) for at in range(0, len(lines), chunk)]
    return whole, [stream_of_rows(whole.constant_schema.types, [[1]])], chunks


def with_dictionaries(chunks, at):
    """The chunks with a column that comes with a dictionary, in which a string stands once for each two of its rows."""
    coded = []
    for chunk in chunks:
        table = pa.ipc.open_stream(chunk).read_all().combine_chunks()
        once = table.column(at).chunk(0).dictionary_encode()
        n = len(once.dictionary)
        twice = pa.concat_arrays([once.dictionary, once.dictionary])
        places = [None if i is None else i + n * (row % 2) for row, i in enumerate(once.indices.to_pylist())]
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), twice)
        sink = pa.BufferOutputStream()
        changed = table.set_column(at, table.schema.names[at], column)
        with pa.ipc.new_stream(sink, changed.schema) as writer:
            writer.write_table(changed)
        coded.append(sink.getvalue().to_pybytes())
    return coded


def part(key, partitions):
    return 0 if key is None else sum(str(key).encode()) % partitions


def expected(spec, rows):
    groups = defaultdict(list)
    for key, t, v in rows:
        groups[key, t - (t - spec.origin) % spec.grid.width].append(v)
    out = {}
    for at, values in groups.items():
        some = [v for v in values if v is not None]
        if spec is TEXTS:
            bits = None
            for v in some:
                bits = v if bits is None else bits | v
            out[at] = [len(values), max((f"s{v}" for v in some), default=None), bits]
            continue
        n, total = float(len(some)), sum(some)
        mean = total / n if some else 0.0
        sums = [total, total / 4, min(some), max(some) / 4] if some else [None] * 4
        m2 = sum((v - mean) ** 2 for v in some)
        out[at] = [len(values), *sums, D(total) if some else D(0), not some, n, mean, m2]
    return out


def cells_of(parts, spec, partitions):
    out = {}
    for p in parts:
        columns = [c.to_pylist() for c in read_chunks([stream_of(p.cells)], spec.cell_schema).columns]
        assert p.last == max(columns[spec.keys])
        for key, pane, *buffers in zip(*columns, strict=True):
            assert (key, pane) not in out, "a cell came twice"
            assert p.partition == part(key, partitions)
            out[key, pane] = buffers
    return out


def rows_like(spec, seed, n, keys):
    r = random.Random(seed)
    names = [None, *range(-3, keys)] if spec is NUMBERS else [None, "", "ä", *(f"k{i}" for i in range(keys))]
    return [(r.choice(names), r.randrange(-300, 900), r.choice([None, 0, r.randint(-99, 99)])) for _ in range(n)]


@pytest.mark.parametrize("spec", [NUMBERS, TEXTS], ids=["numbers", "texts"])
@pytest.mark.parametrize(
    ("n", "keys", "partitions"), [(1, 2, 1), (300, 7, 5), (AT_ONCE + 1, 11, 3), (AT_ONCE + 7, 9000, 200)]
)
def test_cells_are_those_of_the_rows(spec, n, keys, partitions):
    rows = rows_like(spec, n, n, keys)
    whole, constants, chunks = sent(spec, rows, partitions, chunk=20_000)
    parts = list(cells_of_rows(whole, constants, [], chunks, MOST))
    assert_same(cells_of(parts, spec, partitions), expected(spec, rows))
    assert [p.partition for p in parts] == sorted({part(r[0], partitions) for r in rows})


@pytest.mark.parametrize("spec", [NUMBERS, TEXTS], ids=["numbers", "texts"])
@pytest.mark.parametrize("n", [400, 2 * AT_ONCE])
def test_parts_become_the_cells_of_one_batch(spec, n):
    """Cells from before take part as the rows that they were made of do."""
    rows = rows_like(spec, 3, n, 40)
    held = []
    for piece in (rows[: n // 3], rows[n // 3 : n // 2], rows[n // 2 :]):
        whole, constants, chunks = sent(spec, piece, 4)
        parts = list(cells_of_rows(whole, constants, held, chunks, MOST))
        held = [Held(p.partition, [stream_of(p.cells)]) for p in parts]
    assert_same(cells_of(parts, spec, 4), expected(spec, rows))


@pytest.mark.parametrize("n", [300, AT_ONCE + 1])
def test_strings_may_come_with_a_dictionary(n):
    """Keys and values, with nulls; each chunk has a dictionary of its own."""
    rows = rows_like(TEXTS, n, n, 50)
    whole, constants, chunks = sent(TEXTS, rows, 3, chunk=n // 3)
    for at in ([0], [2], [0, 2]):
        coded = chunks
        for column in at:
            coded = with_dictionaries(coded, column)
        parts = list(cells_of_rows(whole, constants, [], coded, MOST))
        assert_same(cells_of(parts, TEXTS, 3), expected(TEXTS, rows))


def test_other_types_than_were_announced_are_refused():
    whole, constants, chunks = sent(TEXTS, rows_like(TEXTS, 1, 5, 2), 2)
    with pytest.raises(pa.ArrowInvalid, match="announced"):
        list(cells_of_rows(whole, constants, [], with_dictionaries(chunks, 1), MOST))
    other = RowsSpec(replace(TEXTS, types=(pa.binary(), *TEXTS.types[1:])), whole.places, 2)
    with pytest.raises(pa.ArrowInvalid, match="announced"):
        list(cells_of_rows(other, constants, [], with_dictionaries(chunks, 0), MOST))


def test_payloads_are_cut_by_cells_and_by_bytes():
    rows = rows_like(TEXTS, 5, 3000, 300)
    whole, constants, chunks = sent(TEXTS, rows, 3)
    all_cells = expected(TEXTS, rows)
    by_cells = list(cells_of_rows(whole, constants, [], chunks, (50, 1 << 30)))
    assert max(p.cells.num_rows for p in by_cells) == 50
    assert_same(cells_of(by_cells, TEXTS, 3), all_cells)
    by_bytes = list(cells_of_rows(whole, constants, [], chunks, (1 << 20, 4096)))
    assert len(by_bytes) > 6
    assert_same(cells_of(by_bytes, TEXTS, 3), all_cells)


def test_no_rows_are_no_cells():
    whole, constants, _ = sent(NUMBERS, [], 2)
    assert list(cells_of_rows(whole, constants, [], [], MOST)) == []


BIG = (1 << 63) - 1


@pytest.mark.parametrize("more", [0, AT_ONCE], ids=["few", "at_once"])
@pytest.mark.parametrize(
    ("values", "fails"),
    [
        ([BIG, 1, -1], True),  # as Spark, which adds row by row, though the total fits
        ([BIG, -1, 1], False),
        ([-BIG, -1, -1, 9], True),
        ([BIG, None, -BIG, BIG], False),
        ([BIG, BIG], True),
    ],
)
def test_a_sum_overflows_where_it_does_row_by_row(values, fails, more):
    spec = replace(NUMBERS, types=NUMBERS.types[:4], merges=NUMBERS.merges[:2])
    places = (0, 1, -1, 2)
    whole = RowsSpec(spec, places, 2)
    others = [[2 + i % 7, 5, 1, 1] for i in range(more)]
    lines = [*others[: more // 2], *([1, 5, v, 0] for v in values), *others[more // 2 :]]
    chunks = [stream_of_rows(whole.row_schema.types, lines)]
    constants = [stream_of_rows(whole.constant_schema.types, [[1]])]

    def cells():
        return list(cells_of_rows(whole, constants, [], chunks, MOST))

    if fails:
        with pytest.raises(gpuwin.OverflowError) as raised:
            cells()
        assert raised.value.column.startswith("1")
        return
    found = {
        k: s for p in cells() for k, s in zip(p.cells.column(0).to_pylist(), p.cells.column(3).to_pylist(), strict=True)
    }
    assert found[1] == sum(v for v in values if v is not None)


def test_an_overflow_with_the_cells_from_before_is_seen():
    spec = replace(NUMBERS, types=NUMBERS.types[:4], merges=NUMBERS.merges[:2])
    whole = RowsSpec(spec, (0, 1, -1, 2), 1)
    constants = [stream_of_rows(whole.constant_schema.types, [[1]])]
    held = [Held(0, [stream_of_rows(spec.types, [[1, 5, 3, BIG]])])]
    rows = [stream_of_rows(whole.row_schema.types, [[1, 5, 1, 0], [1, 5, -1, 0]])]
    with pytest.raises(gpuwin.OverflowError):
        list(cells_of_rows(whole, constants, held, rows, MOST))


def test_a_sum_that_wraps_wraps():
    spec = replace(NUMBERS, types=NUMBERS.types[:4], merges=(NUMBERS.merges[0], merge("sum", 1, wrap=True)))
    whole = RowsSpec(spec, (0, 1, -1, 2), 1)
    rows = [stream_of_rows(whole.row_schema.types, [[1, 5, BIG, 0], [1, 5, 1, 0]])]
    (only,) = cells_of_rows(whole, [stream_of_rows(whole.constant_schema.types, [[1]])], [], rows, MOST)
    assert only.cells.column(3).to_pylist() == [-(1 << 63)]


def test_arrivals_keep_the_numbers_of_the_rows():
    """Other tasks have rows between them, so the numbers are compared above the shuffle."""
    spec = GridSpec(
        60, 60, 0, "append", (pa.int64(), pa.int64(), pa.int64(), pa.bool_(), pa.int64()), 1,
        (merge("first", 0, 1, arrival=2),), 1,
    )  # fmt: skip
    whole = RowsSpec(spec, (0, 1, 2, -1, 3), 1)
    rows = [
        stream_of_rows(
            whole.row_schema.types, [[7, 0, 50, 1 << 40, 0], [7, 0, None, 3, 0], [7, 0, 51, 4, 0], [8, 0, 1, 9, 0]]
        )
    ]
    (only,) = cells_of_rows(whole, [stream_of_rows(whole.constant_schema.types, [[True]])], [], rows, MOST)
    assert only.cells.to_pydict() == {
        "c0": [7, 8], "c1": [0, 0], "c2": [None, 1], "c3": [True, True], "c4": [3, 9],
    }  # fmt: skip


def test_a_row_of_no_partition_is_refused():
    whole, constants, _ = sent(TEXTS, [], 2)
    for wrong in (-1, 2):
        rows = [stream_of_rows(whole.row_schema.types, [["a", 0, "s", 1, wrong]])]
        with pytest.raises(ProtocolError, match="partition"):
            list(cells_of_rows(whole, constants, [], rows, MOST))


def test_constants_that_do_not_come_are_missed():
    whole, _, chunks = sent(TEXTS, rows_like(TEXTS, 1, 5, 2), 2)
    with pytest.raises(ProtocolError, match="constants"):
        list(cells_of_rows(whole, [], [], chunks, MOST))


FIELDS = {"places": [0, 1, -1, 2, 3], "partitions": 2, "hashed": []}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"places": None}, "malformed"),
        ({"places": [0, 1, -1, 2, "3"]}, "malformed"),
        ({"places": [0, 1, -1, 2, True]}, "malformed"),
        ({"partitions": 2.0}, "malformed"),
        ({"partitions": 0}, "bounds"),
        ({"places": [0, 1, 2, 3]}, "bounds"),
        ({"places": [0, 1, -1, 2, 4]}, "leave a place out"),
        ({"places": [0, 1, -2, 2, 3]}, "leave a place out"),
        ({"places": [0, 1, 1, 0, 0]}, "several types"),
    ],
)
def test_malformed_requests_are_refused(change, says):
    assert RowsSpec.parse(TEXTS, FIELDS).places == (0, 1, -1, 2, 3)
    with pytest.raises(ProtocolError, match=says):
        RowsSpec.parse(TEXTS, {**FIELDS, **change})


TOKEN = "t" * 64
SPEC = {
    "window": "grid", "size": 60, "slide": 20, "origin": 0, "mode": "append", "keys": 1, "hidden": 0,
    "types": ["string", "bigint", "bigint", "string", "bigint"],
    "merges": [
        {"merge": m.merge, "columns": list(m.columns), "wrap": m.wrap, "precision": 0, "nullable": m.nullable,
         "arrival": -1}
        for m in TEXTS.merges
    ],
}  # fmt: skip

OF_TIMES = pa.schema([("t", pa.timestamp("us"))])
SPECIFIED = {
    "window": "specified", "follows": True, "delay": 0, "code": None,
    "specification": write_specification(
        gpuwin.WindowedAggregation(window=gpuwin.TumblingWindow("1 minute"), time="t", aggregates={"n": gpuwin.count()})
    )[0],
    "input": b64encode(bytes(OF_TIMES.serialize())).decode(), "output": b64encode(bytes(OF_TIMES.serialize())).decode(),
}  # fmt: skip


def conversation(chunks, **change):
    """The frames that answer a request, all of which was read."""
    source, sink = io.BytesIO(), io.BytesIO()
    protocol.write_json(source, protocol.HELLO, token=TOKEN, protocol=protocol.VERSION)
    fields = {**FIELDS, "spec": SPEC, "held": [], "rows": 1000, "bytes": 1 << 20, "device": "cpu", **change}
    protocol.write_json(source, protocol.AGGREGATE, **fields)
    for chunk in chunks:
        protocol.write_frame(source, protocol.CELLS, chunk)
    protocol.write_json(source, protocol.END)
    asked = source.tell()
    source.seek(0)
    Conversation(source, sink, TOKEN, Residents()).serve()
    assert source.tell() == asked, "a task that is told of an error is still writing"
    sink.seek(0)
    frames = []
    while head := sink.read(5):
        frames.append((head[:1], sink.read(int.from_bytes(head[1:], "big"))))
    return frames[1:]


def test_a_request_is_answered_with_payloads_and_what_they_hold():
    rows = rows_like(TEXTS, 9, 200, 6)
    _, constants, chunks = sent(TEXTS, rows, 2)
    *payloads, (kind, done) = conversation([*constants, *chunks])
    assert [k for k, _ in payloads] == [protocol.WINDOWS] * 2
    assert kind == protocol.DONE
    told = json.loads(done)["parts"]
    tables = [pa.ipc.open_stream(body).read_all() for _, body in payloads]
    assert [n for _, n, _ in told] == [t.num_rows for t in tables]
    assert sum(t.num_rows for t in tables) == len(expected(TEXTS, rows))
    assert [p for p, _, _ in told] == [0, 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"held": None}, "held"),
        ({"held": [[0]]}, "held"),
        ({"held": [[0, -1]]}, "held"),
        ({"held": [[0, 9]]}, "fewer chunks"),
        ({"spec": SPECIFIED}, "only"),
        ({"rows": 0}, "rows"),
    ],
)
def test_a_malformed_request_is_answered_with_an_error(change, says):
    _, constants, chunks = sent(TEXTS, rows_like(TEXTS, 9, 20, 6), 2)
    ((kind, body),) = conversation([*constants, *chunks], **change)
    assert kind == protocol.ERROR
    assert says in json.loads(body)["message"]


def test_a_chunk_that_is_no_table_is_answered_once_all_others_came():
    _, constants, chunks = sent(TEXTS, rows_like(TEXTS, 9, 200, 6), 2, chunk=50)
    ((kind, _),) = conversation([*constants, chunks[0], b"no table", *chunks[2:]])
    assert kind == protocol.ERROR


def test_frames_of_rows_are_read():
    assert read_frame(io.BytesIO(b"A\0\0\0\2{}")) is not None
