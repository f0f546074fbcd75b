"""Sets of values in Spark's bytes, merged in the service: as a set of Python merges them."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_spark.service.operator_spec import SETS
from gpuwin_spark.service.pieces import Pieces, sketch_of
from gpuwin_spark.service.protocol import ProtocolError

Values = list[bytes]


def whole(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def piece(values: Values, width: int) -> bytes:
    """A set of different values, as Spark's UnsafeRow of one array."""
    count = struct.pack("<q", len(values))
    nulls = b"\0" * (8 * ((len(values) + 63) // 64))
    if width:
        array = count + nulls + whole(b"".join(values))
    else:
        words, more = b"", b""
        behind = len(count) + len(nulls) + 8 * len(values)
        for value in values:
            words += struct.pack("<II", len(value), behind + len(more))
            more += whole(value)
        array = count + nulls + words + more
    row = struct.pack("<QII", 0, len(array), 16) + array
    return struct.pack(">i", len(row)) + row


def folded(pieces: list[Values], width: int) -> bytes:
    """The pieces as one, values in the order of their first appearance."""
    return piece(list(dict.fromkeys(chain(*pieces))), width) if pieces else b""


@st.composite
def cells(draw: Any) -> tuple[str, list[list[Values]]]:
    merge = draw(st.sampled_from(sorted(SETS)))
    width = SETS[merge]
    value = st.binary(min_size=width, max_size=width) if width else st.binary(max_size=20)
    few = draw(st.lists(value, min_size=1, max_size=90, unique=True))
    values = st.lists(st.sampled_from(few), max_size=70, unique=True)
    return merge, draw(st.lists(st.lists(values, max_size=5), max_size=5))


@settings(max_examples=150, deadline=None)
@given(cells(), st.booleans())
def test_pieces_of_cells_become_one(given_: tuple[str, list[list[Values]]], joined: bool) -> None:
    """Also of values that are several pieces already."""
    merge, groups = given_
    width = SETS[merge]
    made = [[piece(values, width) for values in cell] for cell in groups]
    came = [[b"".join(cell)] if joined else cell for cell in made]
    first = np.cumsum([0, *map(len, came)])
    column = pa.array([b"", *chain(*came)], pa.large_binary())[1:]
    assert sketch_of(merge).merged(column, first).to_pylist() == [folded(cell, width) for cell in groups]


def test_many_values_of_many_pieces() -> None:
    draw = np.random.default_rng(6)

    def some() -> Values:
        return [b"%d" % value for value in np.unique(draw.integers(0, 3_000, 900))]

    groups = [[some() for _ in range(12)] for _ in range(3)]
    column = pa.array([piece(values, 0) for cell in groups for values in cell], pa.large_binary())
    found = sketch_of("sets").merged(column, np.array([0, 12, 24, 36])).to_pylist()
    assert found == [folded(cell, 0) for cell in groups]


GOOD = piece([b"one value", b"two"], 0)


def changed(at: int, word: int) -> bytes:
    """The good piece with another word at a place of its row."""
    return GOOD[: 4 + at] + struct.pack("<Q", word) + GOOD[12 + at :]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0\0\0",
        GOOD[:-1],
        GOOD[:-8],
        struct.pack(">i", -8) + GOOD[4:],
        struct.pack(">i", 1 << 30) + GOOD[4:],
        struct.pack(">i", 16) + GOOD[4:20],
        changed(8, 16 << 32 | 8),
        changed(8, 24 << 32 | 56),
        changed(16, 1 << 63),
        changed(16, 1 << 60),
        changed(16, 300),
        changed(24, 1),
        changed(32, 8 << 32 | 9),
        changed(32, 33 << 32 | 9),
        changed(32, 48 << 32 | 9),
        changed(32, 32 << 32 | 0xFFFFFFFF),
        changed(32, 0xFFFFFFF8 << 32 | 9),
    ],
)
def test_what_are_no_sets_is_an_error(damaged: bytes) -> None:
    column = pa.array([GOOD, damaged, GOOD], pa.large_binary())
    with pytest.raises(ProtocolError, match="the sets of cell 1 are damaged"):
        sketch_of("sets").merged(column, np.array([0, 1, 3]))


def test_a_cell_keeps_its_values_once() -> None:
    pieces = Pieces.empty([pa.int64()], ["sets_of_8"])
    values = [struct.pack("<q", v) for v in range(100)]
    for _ in range(60):
        pieces = pieces.add([pa.array([1, 2])], np.array([0, 0]), [pa.array([piece(values, 8)] * 2, pa.binary())])
    assert pieces.nbytes < 20 * len(piece(values, 8))
    ((_, (found,)),) = list(pieces.joined([pa.array([2, 3])], np.array([0, 0]), np.array([1, 1])))
    assert found.to_pylist() == [piece(values, 8), b""]
