"""Buffers of min_by and max_by with orderings of more than 64 bits: to one string of bytes and back, in their order."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from gpuwin.state.heap import BytesHeap
from gpuwin_spark.service.operator_spec import Merge
from gpuwin_spark.service.ordered_values import decode, encode, is_wide

ORDERINGS = {
    pa.string(): [None, "", "a", "a\0", "a\0b", "a\1", "ab", "\0", "ä", "\U0001f600"],
    pa.binary(): [None, b"", b"\0", b"\0\0", b"\0\xff", b"\0\xff\0", b"\xff", b"\1"],
    pa.decimal128(30, 2): [None, *(Decimal(d) / 100 for d in (0, -1, 1, 10**29, -(10**29), 1 << 64, -(1 << 64)))],
}
VALUES = {
    pa.string(): [None, "", "xyz"],
    pa.binary(): [None, b"", b"\0\1"],
    pa.int64(): [None, -5, 7],
    pa.float64(): [None, 0.5, float("inf")],
    pa.decimal128(38, 1): [None, Decimal(-7), Decimal(10**30)],
    pa.bool_(): [None, True, False],
    pa.int8(): [None, -128],
}


@pytest.mark.parametrize("kind", ["max_by", "min_by"])
@pytest.mark.parametrize("ordering", ORDERINGS, ids=str)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_bytes_have_the_order_and_the_values(ordering, value, kind):
    r = random.Random(str(value))
    n = 60
    order, held = ([r.choice(of[type_]) for _ in range(n)] for of, type_ in ((ORDERINGS, ordering), (VALUES, value)))
    arrival = [None if o is None else i - 20 for i, o in enumerate(order)]
    buffers = [pa.array(held, value), pa.array(order, ordering), pa.array(arrival, pa.int64())]
    merge, heap = Merge(kind, (0, 1), wrap=False, nullable=True, precision=0, arrival=2), BytesHeap()
    (cells,) = decode(merge, buffers, None, heap)
    back = encode(merge, [cells], [value, ordering], heap)
    assert [a.type for a in back] == [value, ordering, pa.int64()]
    known = [i for i in range(n) if order[i] is not None]
    assert back[0].to_pylist() == [held[i] if i in known else None for i in range(n)]
    assert [a.to_pylist() for a in back[1:]] == [order, arrival]
    texts = heap.take(cells.values[0], cells.valid, pa.large_binary()).to_pylist()

    def rank(i):
        of = order[i].encode() if isinstance(order[i], str) else order[i]
        return of, arrival[i] if kind == "max_by" else -arrival[i]

    assert sorted(known, key=lambda i: texts[i]) == sorted(known, key=rank)


def test_arrivals_of_a_batch_follow_those_before():
    merge, heap = Merge("max_by", (0, 1), wrap=False, nullable=True, precision=0, arrival=2), BytesHeap()
    buffers = [pa.array([1, 2, 3]), pa.array(["a", None, "a"]), pa.array([90, None, 7])]
    found = encode(merge, decode(merge, buffers, 5, heap), [pa.int64(), pa.string()], heap)
    assert found[2].to_pylist() == [6, None, 5]


def test_no_cells():
    merge, heap = Merge("min_by", (0, 1), wrap=False, nullable=True, precision=0, arrival=2), BytesHeap()
    buffers = [pa.array([], pa.bool_()), pa.array([], pa.decimal128(20)), pa.array([], pa.int64())]
    assert [len(a) for a in encode(merge, decode(merge, buffers, 0, heap), [pa.bool_(), pa.decimal128(20)], heap)] == [
        0, 0, 0,
    ]  # fmt: skip


def test_orderings_that_are_wide():
    assert is_wide(pa.decimal128(19)) is True
    assert not any(is_wide(t) for t in (pa.decimal128(18), pa.int64(), pa.float64(), pa.bool_()))
