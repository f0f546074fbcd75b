"""Cells that CUDA makes below the shuffle (in the simulator, where there is no GPU) are those that the CPU makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from service_harness import assert_same, stream_of, stream_of_rows
from test_map_side import (
    MOST,
    NUMBERS,
    SPEC,
    TEXTS,
    cells_of,
    conversation,
    expected,
    merge,
    part,
    rows_like,
    sent,
    with_dictionaries,
)

from gpuwin.state.device.panes import DevicePaneState
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory
from gpuwin_spark.service import map_side, map_side_on_device, protocol
from gpuwin_spark.service.map_side import Held, RowsSpec, cells_of_rows
from gpuwin_spark.service.operator_spec import GridSpec

BIG = (1 << 63) - 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of the device brought: a test in which there was none proved nothing."""
    seen: list[int] = []

    def counted(operator: GridSpec, layout: Any, columns: Any, pane: Any, partition: Any) -> Any:
        seen.append(len(pane))
        return map_side_on_device.cells_on_device(operator, layout, columns, pane, partition)

    monkeypatch.setattr(map_side, "cells_on_device", counted)
    return seen


@pytest.mark.parametrize("spec", [NUMBERS, TEXTS], ids=["numbers", "texts"])
@pytest.mark.parametrize(("n", "keys", "partitions"), [(1, 2, 1), (300, 7, 5), (500, 400, 200)])
def test_cells_are_those_of_the_rows(spec: GridSpec, n: int, keys: int, partitions: int, runs: list[int]) -> None:
    rows = rows_like(spec, n, n, keys)
    whole, constants, chunks = sent(spec, rows, partitions, chunk=200)
    parts = list(cells_of_rows(whole, constants, [], chunks, MOST, "cuda"))
    assert runs == [n]
    assert_same(cells_of(parts, spec, partitions), expected(spec, rows))
    assert [p.partition for p in parts] == sorted({part(r[0], partitions) for r in rows})


def test_keys_may_come_with_a_dictionary(runs: list[int]) -> None:
    rows = rows_like(TEXTS, 5, 300, 40)
    whole, constants, chunks = sent(TEXTS, rows, 3, chunk=100)
    parts = list(cells_of_rows(whole, constants, [], with_dictionaries(chunks, 0), MOST, "cuda"))
    assert runs == [300]
    assert_same(cells_of(parts, TEXTS, 3), expected(TEXTS, rows))


@pytest.mark.parametrize("spec", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_parts_become_the_cells_of_one_batch(spec: GridSpec, runs: list[int]) -> None:
    rows = rows_like(spec, 3, 300, 40)
    held: list[Held] = []
    for piece in (rows[:100], rows[100:150], rows[150:]):
        whole, constants, chunks = sent(spec, piece, 4)
        parts = list(cells_of_rows(whole, constants, held, chunks, MOST, "cuda"))
        held = [Held(p.partition, [stream_of(p.cells)]) for p in parts]
    assert len(runs) == 3
    assert_same(cells_of(parts, spec, 4), expected(spec, rows))


def test_arrivals_keep_the_numbers_of_the_rows(runs: list[int]) -> None:
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
    constants = [stream_of_rows(whole.constant_schema.types, [[True]])]
    (only,) = cells_of_rows(whole, constants, [], rows, MOST, "cuda")
    assert runs == [4]
    assert only.cells.to_pydict() == {
        "c0": [7, 8], "c1": [0, 0], "c2": [None, 1], "c3": [True, True], "c4": [3, 9],
    }  # fmt: skip


def test_sums_that_may_overflow_are_added_in_order_on_the_cpu(runs: list[int]) -> None:
    spec = replace(NUMBERS, types=NUMBERS.types[:4], merges=NUMBERS.merges[:2])
    whole = RowsSpec(spec, (0, 1, -1, 2), 1)
    chunks = [stream_of_rows(whole.row_schema.types, [[1, 5, v, 0] for v in (BIG, -5, 3)])]
    constants = [stream_of_rows(whole.constant_schema.types, [[1]])]
    (only,) = cells_of_rows(whole, constants, [], chunks, MOST, "cuda")
    assert runs == []
    assert only.cells.column(3).to_pylist() == [BIG - 2]


def test_a_device_without_room_leaves_the_rows_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, runs: list[int]
) -> None:
    def full(*_: object) -> None:
        raise OutOfDeviceMemory(77)

    monkeypatch.setattr(DevicePaneState, "run_of", full)
    rows = rows_like(NUMBERS, 3, 60, 4)
    whole, constants, chunks = sent(NUMBERS, rows, 2)
    parts = list(cells_of_rows(whole, constants, [], chunks, MOST, "cuda"))
    assert runs == [60]
    assert_same(cells_of(parts, NUMBERS, 2), expected(NUMBERS, rows))
    assert "60 rows become cells on the CPU: the device has not 77 bytes" in caplog.text


@pytest.mark.parametrize(("device", "calls"), [("cuda", 1), ("cpu", 0)])
def test_the_service_takes_the_device_of_the_request(device: str, calls: int, runs: list[int]) -> None:
    rows = rows_like(TEXTS, 8, 40, 5)
    _, constants, chunks = sent(TEXTS, rows, 2)
    frames = conversation([*constants, *chunks], spec=SPEC, device=device)
    assert [kind for kind, _ in frames[:-1]] == [protocol.WINDOWS] * 2
    assert frames[-1][0] == protocol.DONE
    assert len(runs) == calls
