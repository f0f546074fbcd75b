"""Cells by (pane, key) that a GPU makes of the rows of one task: there keys are encoded, and rows sorted and merged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.state import PaneState
from gpuwin_kernels.layout import CellArrays, CellLayout

from .buffers import BufferCodec
from .cell_tables import record_batch
from .operator_spec import GridSpec

log = logging.getLogger("gpuwin")


def cells_on_device(
    operator: GridSpec, layout: CellLayout, columns: Sequence[pa.Array], pane: np.ndarray, partition: np.ndarray
) -> tuple[pa.RecordBatch, np.ndarray] | None:
    """Cells, each once, and their partitions, int64[m]; None where the device has no room for them.

    Args:
        operator: whose they are.
        layout: their partial columns, and the partition as the last one.
        columns: of a cell, one of each of n rows.
        pane: int64[n].
        partition: int64[n].

    Raises:
        gpuwin.OverflowError: an exact sum left its type.
    """
    from gpuwin.state.device.keys import DeviceKeyDictionary
    from gpuwin.state.device.panes import DevicePaneState

    try:
        host = PaneState.empty(layout, operator.key_types)
        state = DevicePaneState.of(replace(host, keys=DeviceKeyDictionary.of(host.keys)))
        buffers = BufferCodec(operator, state.heap).decode([columns[i] for i in operator.buffers_at], None)
        keys = columns[: operator.keys]
        run = state.run_of(pane, keys, (*buffers, CellArrays((partition,), None))).on_host()
        *found, numbers = run.columns
        texts = state.heap.with_texts_of(CellLayout(layout.columns[:-1]), found)
        start = operator.grid.starts_of_panes(run.pane)
        encoded = BufferCodec(operator, texts).encode(tuple(found), hidden=True)
        return record_batch(operator.cell_schema, state.keys.take(run.code), (start,), encoded), numbers.values[0]
    except MemoryError as error:
        log.warning("%d rows become cells on the CPU: %s", len(pane), error)
        return None
