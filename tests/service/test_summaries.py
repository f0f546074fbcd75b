"""Quantile summaries in Spark's bytes, merged in the service: as an oracle in plain Python merges them."""

from __future__ import annotations

import math
import struct
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_spark.service.pieces import Pieces, sketch_of
from gpuwin_spark.service.protocol import ProtocolError

Sample = tuple[float, int, int]
Summary = tuple[float, int, list[Sample]]  # relative error, number of values, samples


def piece(summary: Summary) -> bytes:
    error, count, samples = summary
    body = struct.pack(">idqi", 10_000, error, count, len(samples)) + b"".join(struct.pack(">dqq", *s) for s in samples)
    return struct.pack(">i", len(body)) + body


def merged(a: Summary, b: Summary) -> Summary:
    """The merge of the paper's summaries with Spark's bounds, written down sample by sample."""
    if a[1] == 0 or b[1] == 0:
        return a if b[1] == 0 else b
    widened = {0: math.floor(2 * b[0] * b[1]), 1: math.floor(2 * a[0] * a[1])}
    left, taken, out = (list(a[2]), list(b[2])), [0, 0], []
    while left[0] and left[1]:
        side = 0 if left[0][0][0] < left[1][0][0] else 1
        value, g, delta = left[side].pop(0)
        taken[side] += 1
        out.append((value, g, delta + (widened[side] if taken[1 - side] else 0)))
    out += left[0] + left[1]
    error, count = max(a[0], b[0]), a[1] + b[1]
    thin = [out[-1]]
    for value, g, delta in reversed(out[1:-1]):
        if g + thin[0][1] + thin[0][2] < 2 * error * count:
            thin[0] = (thin[0][0], thin[0][1] + g, thin[0][2])
        else:
            thin.insert(0, (value, g, delta))
    if len(out) > 1 and out[0][0] <= thin[0][0]:
        thin.insert(0, out[0])
    return error, count, thin


def folded(summaries: list[Summary]) -> bytes:
    while len(summaries) > 1:
        pairs = range(0, len(summaries), 2)
        summaries = [merged(*summaries[i : i + 2]) if i + 1 < len(summaries) else summaries[i] for i in pairs]
    return piece(summaries[0]) if summaries else b""


values = st.integers(-4, 4).map(float) | st.floats(allow_nan=False)
samples = st.lists(st.tuples(values, st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=9).map(sorted)
full = st.tuples(st.sampled_from([0.5, 0.1, 0.01]), st.just(0), samples).map(
    lambda s: (s[0], sum(g for _, g, _ in s[2]), s[2])
)
summaries = full | st.just((0.1, 0, []))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(summaries, max_size=6), max_size=5), st.booleans())
def test_pieces_of_cells_become_one(cells: list[list[Summary]], joined: bool) -> None:
    """Also of values that are several pieces already."""
    came = [[b"".join(map(piece, cell))] if joined else list(map(piece, cell)) for cell in cells]
    first = np.cumsum([0, *map(len, came)])
    column = pa.array([b"", *chain(*came)], pa.large_binary())[1:]
    assert sketch_of("summaries").merged(column, first).to_pylist() == [folded(cell) for cell in cells]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0\0\0",
        piece((0.1, 1, [(1.0, 1, 0)]))[:-1],
        piece((0.1, 1, [(1.0, 1, 0)])) + b"\0",
        struct.pack(">iidqi", 24, 10_000, 0.1, 1, 7),
        struct.pack(">iidqi", -1, 10_000, 0.1, 1, 0),
    ],
)
def test_what_is_no_summary_is_an_error(damaged: bytes) -> None:
    good = piece((0.1, 1, [(1.0, 1, 0)]))
    with pytest.raises(ProtocolError, match="summaries of cell 1 are damaged"):
        sketch_of("summaries").merged(pa.array([good, damaged], pa.large_binary()), np.array([0, 1, 2]))


def test_a_cell_keeps_one_summary_and_all_of_a_list() -> None:
    pieces = Pieces.empty([pa.int64()], ["summaries", "pieces"])
    lists, expected = [], []
    for batch in range(40):
        summary = (0.1, 2, [(float(batch), 1, 0), (float(batch + 50), 1, 0)])
        listed = struct.pack(">i", 2) + b"%02d" % batch
        lists.append(listed)
        expected.append(summary)
        columns = [pa.array([piece(summary)] * 2, pa.binary()), pa.array([listed] * 2, pa.binary())]
        pieces = pieces.add([pa.array([1, 2])], np.array([0, 0]), columns)
    assert pieces.rows.cells < 16, "vacuous: nothing was merged"
    ((_, (summaries_, lists_)),) = list(pieces.joined([pa.array([2, 3])], np.array([0, 0]), np.array([1, 1])))
    assert lists_.to_pylist() == [b"".join(lists), b""]
    assert summaries_.to_pylist()[1] == b""
    error, count, size = struct.unpack(">dqi", summaries_.to_pylist()[0][8:28])
    assert (error, count) == (0.1, 80)
    assert size <= 20, "the summary of 80 values keeps few of them"
