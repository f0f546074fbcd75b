"""Counts of values in Spark's bytes, merged in the service: as a dictionary merges them."""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_spark.service.pieces import Pieces, sketch_of
from gpuwin_spark.service.protocol import ProtocolError

Counts = list[tuple[bytes, int]]  # rows without their counts, and these


def row(word: int, more: bytes = b"", nulls: int = 0) -> bytes:
    """A row without its count: null bits, the word of the value, and the bytes of one that fits no word."""
    return struct.pack("<QQ", nulls, word) + more


def piece(counts: Counts) -> bytes:
    rows = [value[:16] + struct.pack("<q", count) + value[16:] for value, count in counts]
    body = b"".join(struct.pack(">i", len(r)) + r for r in rows) + struct.pack(">i", -1)
    return struct.pack(">i", len(body)) + body


def same_as(value: bytes, kind: str) -> object:
    """What rows of one value have in common."""
    word = value[8:16]
    if kind == "counts_of_double" and math.isnan(struct.unpack("<d", word)[0]):
        return "NaN"
    if kind == "counts_of_float" and math.isnan(struct.unpack("<f", word[:4])[0]):
        return "NaN"
    return value


def folded(pieces: list[Counts], kind: str) -> bytes:
    if len(pieces) < 2:
        return b"".join(map(piece, pieces))
    total: dict[object, tuple[bytes, int]] = {}
    for value, count in chain(*pieces):
        first, before = total.get(same_as(value, kind), (value, 0))
        total[same_as(value, kind)] = first, before + count
    return piece(list(total.values()))


def double(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def single(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


WORDS: dict[str, list[bytes]] = {
    "counts": [row(1), row((1 << 64) - 1), row(24 << 32 | 16, b"x" * 16), row(24 << 32 | 16, b"x" * 15 + b"y"), row(0)],
    "counts_of_double": [
        *map(row, map(double, (0.0, -0.0, 1.5, math.inf))),
        row(0x7FF8 << 48),
        row((0xFFF8 << 48) + 7),
    ],
    "counts_of_float": [*map(row, map(single, (0.0, -0.0, 1.5, -math.inf))), row(0x7FC00000), row(0xFFC00001)],
}


@st.composite
def cells(draw: Any) -> tuple[str, list[list[Counts]]]:
    kind = draw(st.sampled_from(sorted(WORDS)))
    counts = st.lists(st.tuples(st.sampled_from(WORDS[kind]), st.integers(1, 1 << 40)), max_size=6).map(
        lambda found: list({same_as(value, kind): (value, n) for value, n in found}.values())
    )
    return kind, draw(st.lists(st.lists(counts, max_size=5), max_size=5))


@settings(max_examples=150, deadline=None)
@given(cells(), st.booleans())
def test_pieces_of_cells_become_one(given_: tuple[str, list[list[Counts]]], joined: bool) -> None:
    """Also of values that are several pieces already."""
    kind, groups = given_
    came = [[b"".join(map(piece, cell))] if joined else list(map(piece, cell)) for cell in groups]
    first = np.cumsum([0, *map(len, came)])
    column = pa.array([b"", *chain(*came)], pa.large_binary())[1:]
    assert sketch_of(kind).merged(column, first).to_pylist() == [folded(cell, kind) for cell in groups]


def test_many_values_of_many_pieces() -> None:
    draw = np.random.default_rng(6)

    def some() -> Counts:
        values = np.unique(draw.integers(0, 3_000, 900))
        return [(row(int(value)), int(draw.integers(1, 9))) for value in values]

    groups = [[some() for _ in range(12)] for _ in range(3)]
    column = pa.array([piece(p) for cell in groups for p in cell], pa.large_binary())
    found = sketch_of("counts").merged(column, np.array([0, 12, 24, 36])).to_pylist()
    assert found == [folded(cell, "counts") for cell in groups]


GOOD = piece([(row(3), 5)])


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0\0\0",
        GOOD[:-1],
        GOOD[:-4] + struct.pack(">i", 0),
        struct.pack(">i", 4) + struct.pack(">i", 24),
        struct.pack(">i", 3) + b"\xff\xff\xff\xff",
        struct.pack(">i", 32) + struct.pack(">i", 20) + b"\0" * 24 + b"\xff" * 4,
        struct.pack(">i", 32) + struct.pack(">i", 28) + b"\0" * 24 + b"\xff" * 4,
        struct.pack(">i", 1 << 30) + b"\xff" * 40,
        struct.pack(">i", -5) + b"\xff" * 40,
    ],
)
def test_what_are_no_counts_is_an_error(damaged: bytes) -> None:
    column = pa.array([GOOD, damaged, GOOD], pa.large_binary())
    with pytest.raises(ProtocolError, match="the counts of cell 1 are damaged"):
        sketch_of("counts").merged(column, np.array([0, 1, 3]))


def test_a_cell_keeps_its_values_once() -> None:
    pieces = Pieces.empty([pa.int64()], ["counts"])
    for _ in range(60):
        counts = piece([(row(v), 2) for v in range(10)])
        pieces = pieces.add([pa.array([1, 2])], np.array([0, 0]), [pa.array([counts] * 2, pa.binary())])
    assert pieces.nbytes < 20 * len(counts)
    ((_, (found,)),) = list(pieces.joined([pa.array([2, 3])], np.array([0, 0]), np.array([1, 1])))
    assert found.to_pylist() == [piece([(row(v), 120) for v in range(10)]), b""]


def test_there_is_no_such_merge() -> None:
    with pytest.raises(ProtocolError, match="no merge 'lists'"):
        sketch_of("lists")
