"""A partition whose cells are on CUDA (in the simulator, where there is no GPU) does what one on the host does."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from service_harness import stream_of
from test_partition import chunk, spec_of

from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, waits
from gpuwin_spark.service.operator_spec import Merge, SessionSpec
from gpuwin_spark.service.partition import BatchTimes, Partition
from gpuwin_spark.service.session_partition import SessionPartition
from gpuwin_spark.service.states import rebuilt

BATCHES = [
    ([("a", 3, 5), ("b", 44, 7), ("a", 61, -2), ("a", 3, 9)], BatchTimes(None, None, None)),
    ([("a", 70, 11), ("b", 45, 1), ("c", 130, 4)], BatchTimes(30, 65, None)),
    ([("c", 131, 9)], BatchTimes(65, 200, 65)),
]


def emitted(partition: Partition) -> list[list[dict[str, object]]]:
    out = []
    for rows, times in BATCHES:
        outcome = partition.batch([chunk(partition.spec, rows)], times, 100)
        found = [row for batch in outcome.windows for row in batch.to_pylist()]
        out.append(sorted(found, key=str))
        partition = outcome.after
    return out


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_modes(mode: str) -> None:
    spec = spec_of(mode=mode)
    device = rebuilt(spec, [], None, "cuda")
    assert isinstance(device, Partition)
    assert isinstance(device.state, DevicePaneState)
    assert isinstance(device.state.keys, DeviceKeyDictionary)
    expected = emitted(Partition.empty(spec))
    assert emitted(device) == expected
    assert sum(map(len, expected)) >= 6


def test_a_device_without_room_hands_the_state_to_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of()
    device = Partition.empty(spec).on_device()

    def full(*_: object) -> None:
        raise OutOfDeviceMemory(77)

    monkeypatch.setattr(DevicePaneState, "add", full)
    assert emitted(device) == emitted(Partition.empty(spec))
    assert not isinstance(device.on_host().state.keys, DeviceKeyDictionary)
    assert "moves to the CPU: the device has not 77 bytes" in caplog.text


@pytest.mark.parametrize("sums", [True, False])
def test_pieces_stay_on_the_host(sums: bool) -> None:
    """Beside cells on the device, which may be without other buffers."""
    types = (pa.string(), pa.int64(), pa.binary(), pa.int64())[: 4 if sums else 3]
    merges = [Merge("pieces", (0,), wrap=False, nullable=False, precision=0)]
    merges += [Merge("sum", (1,), wrap=False, nullable=True, precision=0)] if sums else []
    spec = replace(spec_of(), types=types, merges=tuple(merges))

    def cells(rows: list[tuple[str, int, int]]) -> bytes:
        panes = [(key, t - (t - spec.origin) % spec.grid.width, str(v).encode(), v) for key, t, v in rows]
        arrays = [
            pa.array(list(c), t) for c, t in zip(list(zip(*panes, strict=True))[: len(types)], types, strict=True)
        ]
        return stream_of(pa.RecordBatch.from_arrays(arrays, schema=spec.cell_schema))

    found = []
    for device in ("cpu", "cuda"):
        state = rebuilt(spec, [], None, device)  # type: ignore[arg-type]
        assert state.is_on_device == (device == "cuda")
        rows = []
        for came, times in BATCHES:
            outcome = state.batch([cells(came)], times, 100)
            rows += [row for batch in outcome.windows for row in batch.to_pylist()]
            state = outcome.after
        found.append(sorted(rows, key=str))
    assert found[0] == found[1]
    assert {len(row["c3"]) for row in found[0]} >= {2, 4}, "vacuous: no window has several pieces"


SESSION_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.int64())


def session_spec(mode: str = "append") -> SessionSpec:
    return SessionSpec(mode, SESSION_TYPES, 1, (Merge("sum", (0,), wrap=False, nullable=True, precision=0),))


def proto_sessions(rows: list[tuple[str | None, int, int, int | None]]) -> bytes:
    arrays = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), SESSION_TYPES, strict=True)]
    return stream_of(pa.RecordBatch.from_arrays(arrays, schema=session_spec().cell_schema))


SESSION_BATCHES = [
    ([("a", 0, 10, 1), ("b", 5, 9, None), ("a", 30, 44, 2), (None, 1, 2, 7)], BatchTimes(None, None, None)),
    ([("a", 40, 50, 3), ("a", 9, 30, 4), ("b", 9, 11, 5), ("b", 50, 70, 6), ("b", 60, 61, 1)], BatchTimes(0, 2, None)),
    ([("c", 60, 65, 1), ("a", 1, 2, 9)], BatchTimes(2, 60, 2)),
    ([], BatchTimes(60, 70, 60)),
]


def sessions_done(partition: SessionPartition, room: list[bool]) -> list[object]:
    """What each batch emits, logs and counts; `room`: whether the state is on the device after it."""
    out: list[object] = []
    for rows, times in SESSION_BATCHES:
        before = waits()
        outcome = partition.batch([proto_sessions(rows)] if rows else [], times, 2)
        if outcome.after.is_on_device:
            assert waits() - before <= 3, "for its numbers, for what it left, for what closes"
        tables = [[row for batch in t for row in batch.to_pylist()] for t in (outcome.windows, outcome.logged)]
        counts = (outcome.updated, outcome.removed, outcome.dropped, outcome.logged_cells, outcome.logged_last)
        out.append((*tables, counts, outcome.after.state.cells))
        partition = outcome.after
        room.append(partition.is_on_device)
    return out


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_sessions(mode: str) -> None:
    expected = sessions_done(SessionPartition.empty(session_spec(mode)), [])
    device, there = rebuilt(session_spec(mode), [], None, "cuda"), []  # type: ignore[var-annotated]
    assert isinstance(device, SessionPartition)
    assert sessions_done(device, there) == expected
    assert there == [True] * 4
    assert sum(len(batch[0]) for batch in expected) >= 5  # type: ignore[index]


def test_sessions_that_a_device_has_no_room_for_go_on_on_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sessions_done(SessionPartition.empty(session_spec()), [])
    real, calls = DeviceSessionState.merge_rows, []

    def full_at_the_second(self: DeviceSessionState, *rows: object) -> object:
        calls.append(rows)
        if len(calls) == 2:
            raise OutOfDeviceMemory(77)
        return real(self, *rows)  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceSessionState, "merge_rows", full_at_the_second)
    there: list[bool] = []
    assert sessions_done(SessionPartition.empty(session_spec()).on_device(), there) == expected
    assert there == [True, False, False, False]
    assert "3 open sessions move to the CPU" in caplog.text or "4 open sessions move to the CPU" in caplog.text
