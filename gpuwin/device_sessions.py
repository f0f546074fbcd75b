"""Sessions whose rows are cut and aggregated on the device: only proto-sessions come back, and are merged with the open
sessions on the host.
"""

from __future__ import annotations

import logging

import numpy as np

from gpuwin.arrivals import Arrivals
from gpuwin.device_rows import cells_of_rows
from gpuwin.plan import Plan
from gpuwin.progress import WatermarkRule
from gpuwin.session_engine import SessionEngine
from gpuwin.session_rows import OpenSessions, SessionRows
from gpuwin.state.cells import Columns
from gpuwin.state.device_panes import arrays_of, columns_like
from gpuwin.state.sessions import Assignment
from gpuwin_kernels.cpu.rows import SumOverflow
from gpuwin_kernels.cuda.cells import TooFarApart
from gpuwin_kernels.cuda.ranges import RangeOverflow
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, read, to_device, zeros
from gpuwin_kernels.cuda.sessions import cut

log = logging.getLogger("gpuwin")


class DeviceSessionRows(SessionRows):
    """For specifications that do not depend on the order of arrival: see `order_matters`."""

    def cut(self, state: OpenSessions, arrivals: Arrivals, code: np.ndarray) -> tuple[Assignment, Columns]:
        gap = self.gap_of(arrivals)
        try:
            protos = cut(
                to_device(code),
                to_device(arrivals.time),
                to_device(gap) if isinstance(gap, np.ndarray) else gap,
                self.touch == "split",
                len(state.keys),
            )
            pane = zeros(len(arrivals), np.int64)  # a session number is the code, so there is one pane
            cells = cells_of_rows(self.plan, state.heap, len(protos.code), protos.slot, pane, 1, 0, arrivals, (0, 0))
            found = read(protos.code, protos.start, protos.last, protos.end, *arrays_of(cells.columns))
        except OutOfDeviceMemory as error:
            log.warning("gpuwin cut a batch into sessions on the CPU: %s", error)
            return super().cut(state, arrivals, code)
        except (SumOverflow, RangeOverflow, TooFarApart):  # exact, or possible, on the host
            return super().cut(state, arrivals, code)
        # Rows are in their sessions on the device; nobody here asks which one a row is in.
        code, start, last, end, *columns = found
        assignment = Assignment(np.empty(0, np.int32), code, start, last, end, self.touch)
        return assignment, columns_like(cells.columns, columns)


class DeviceSessionEngine(SessionEngine):
    """One specification over one input schema, on CUDA."""

    on_host = False

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.logic = DeviceSessionRows(plan, rule)
