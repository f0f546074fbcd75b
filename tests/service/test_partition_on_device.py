"""A partition whose cells are on CUDA (in the simulator, where there is no GPU) does what one on the host does."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from test_partition import MERGES, TYPES, chunk, spec_of

from gpuwin.state.device_panes import DevicePaneState
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory
from gpuwin_spark.service.operator_spec import OperatorSpec
from gpuwin_spark.service.partition import Partition, Watermarks
from gpuwin_spark.service.states import rebuilt

NUMERIC = tuple(m for m in MERGES if m.merge != "max")


def numeric(mode: str) -> OperatorSpec:
    """Without the largest text, which has no CUDA kernel."""
    types = (*TYPES[:4], *TYPES[5:])
    merges = tuple(replace(m, columns=tuple(at - 1 if at > 2 else at for at in m.columns)) for m in NUMERIC)
    return OperatorSpec(60, 20, 5, mode, types, 1, merges)


def cells(spec: OperatorSpec, rows: list[tuple[str, int, int]]) -> bytes:
    whole = pa.ipc.open_stream(chunk(spec_of(), rows)).read_all().drop_columns(["c4"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, spec.cell_schema) as writer:
        writer.write_table(whole.rename_columns(spec.cell_schema.names))
    return sink.getvalue().to_pybytes()


BATCHES = [
    ([("a", 3, 5), ("b", 44, 7), ("a", 61, -2)], Watermarks(None, None, None)),
    ([("a", 70, 11), ("b", 45, 1), ("c", 130, 4)], Watermarks(30, 65, None)),
    ([("c", 131, 9)], Watermarks(65, 200, 65)),
]


def emitted(partition: Partition) -> list[list[dict[str, object]]]:
    out = []
    for rows, marks in BATCHES:
        outcome = partition.batch([cells(partition.spec, rows)], marks, 100)
        found = [row for batch in outcome.windows for row in batch.to_pylist()]
        out.append(sorted(found, key=str))
        partition = outcome.after
    return out


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_modes(mode: str) -> None:
    spec = numeric(mode)
    device = rebuilt(spec, [], None, "cuda")
    assert isinstance(device, Partition)
    assert isinstance(device.state, DevicePaneState)
    expected = emitted(Partition.empty(spec))
    assert emitted(device) == expected
    assert sum(map(len, expected)) >= 6


def test_a_device_without_room_hands_the_state_to_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = numeric("append")
    device = Partition.empty(spec).on_device()

    def full(*_: object) -> None:
        raise OutOfDeviceMemory(77)

    monkeypatch.setattr(DevicePaneState, "add", full)
    assert emitted(device) == emitted(Partition.empty(spec))
    assert "moves to the CPU: the device has not 77 bytes" in caplog.text


def test_text_stays_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    partition = Partition.empty(spec_of())
    assert partition.on_device() is partition
    assert "compares text" in caplog.text
