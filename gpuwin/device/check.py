"""Check of the device: a small computation there and on the CPU, once in a process, before any work goes to the device.

A driver, a card or a compiler that this version was never tried with can be wrong in ways that no import shows. The
check costs the compilation of kernels that are needed anyway, and some milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.grid import WindowGrid
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.runs import DeviceRun
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.sessions.session_state import SessionState
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.cpu.rows import aggregate_rows as on_cpu
from gpuwin_kernels.cuda.rows import aggregate_rows as on_device
from gpuwin_kernels.cuda.runtime import to_host
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64", nullable=True),
        CellColumn("i", "sum", "int64"),
        CellColumn("lo", "min", "float64", nullable=True),
        CellColumn("hi", "max", "int64"),
    )
)
#: (keys, panes): cells in shared memory, in a dense table, in a hash table.
_REGIMES = ((5, 4), (100, 60), (1_000, 100_000))


def failed_check(rows: int = 4_096, regimes: Sequence[tuple[int, int]] = _REGIMES) -> str | None:
    """Fault of the device, as a sentence; None if it agrees with the CPU."""
    try:
        return _difference(rows, regimes)
    except Exception as error:  # after any error the device cannot be used
        return f"a first computation on it failed: {type(error).__name__}: {error}"


def _difference(rows: int, regimes: Sequence[tuple[int, int]]) -> str | None:
    rng = np.random.default_rng(11)
    for keys, panes in regimes:
        code, time = rng.integers(0, keys, rows).astype(np.int32), rng.integers(-panes * 5, panes * 5, rows)
        bitmap = np.packbits(rng.random(rows) < 0.9, bitorder="little")
        value, whole = RowInput(rng.normal(size=rows), bitmap), RowInput(rng.integers(-(1 << 40), 1 << 40, rows))
        inputs = [RowInput(None), value, whole, value, whole]
        expected = on_cpu(_LAYOUT, inputs, code, time, 10, codes=keys)
        found = on_device(_LAYOUT, inputs, code, time, 10, codes=keys)
        same_cells = np.array_equal(expected.pane, to_host(found.pane)) and np.array_equal(
            expected.code, to_host(found.code)
        )
        on_host = [column.each(to_host) for column in found.columns]
        if not same_cells or not _close(expected.columns, on_host):
            return f"its cells of {rows} rows of {keys} keys differ from the CPU's"
    state = PaneState.empty(_LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(np.arange(keys))], keys)
    host = state.add(Run(expected.pane, expected.code, expected.columns))
    device = DevicePaneState.of(state).add(DeviceRun.of(_LAYOUT, found))
    grid = WindowGrid(5, 2)
    a, b = (next(iter(s.closing_chunks(grid, None, None))) for s in (host, device))
    same_rows = np.array_equal(a.code, b.code) and np.array_equal(a.window, b.window)
    if not same_rows or not _close(a.columns, b.columns):
        return "its windows differ from the CPU's"
    return None if _same_sessions(rng, rows) else "its sessions differ from the CPU's"


def _same_sessions(rng: np.random.Generator, rows: int) -> bool:
    """Two batches of intervals, joined with what is open, of which a half closes."""
    host, device = SessionState.empty(_LAYOUT), DeviceSessionState.empty(_LAYOUT)
    for _ in range(2):
        code, start = rng.integers(0, 10, rows).astype(np.int32), rng.integers(-10 * rows, 10 * rows, rows)
        value, valid, whole = rng.normal(size=rows), (rng.random(rows) < 0.9).astype(np.uint8), np.arange(rows)
        word, nullable = CellArrays((whole,), None), CellArrays((value,), valid)
        cells = (word, nullable, word, nullable, word)
        end = start + rng.integers(1, 200, rows)
        host, device = host.merge_rows(code, start, end, cells)[0], device.merge_rows(code, start, end, cells)[0]
        (a, host), (b, device) = host.close(0), device.close(0)
        pairs = ((a, b), (host.ending(None, None), device.ending(None, None)))
        if not all(
            all(np.array_equal(getattr(x, name), getattr(y, name)) for name in ("code", "start", "last", "end"))
            and _close(x.columns, y.columns)
            for x, y in pairs
        ):
            return False
    return True


def _close(expected: Sequence[CellArrays], found: Sequence[CellArrays]) -> bool:
    for column, x, y in zip(_LAYOUT.columns, expected, found, strict=True):
        valid = np.ones(len(x.values[0]), bool) if x.valid is None else x.valid != 0
        if x.valid is not None and not np.array_equal(valid, np.asarray(y.valid) != 0):
            return False
        p, q = x.values[0][valid], y.values[0][valid]
        added = column.merge == "sum" and column.dtype == "float64"
        if not (np.allclose(p, q, rtol=1e-9, atol=1e-9) if added else np.array_equal(p, q)):
            return False
    return True
