"""What every engine of open sessions does with its state beside aggregating: sizes, names, snapshots."""

from __future__ import annotations

from gpuwin.engines.session_rows import OpenSessions, SessionRows
from gpuwin.engines.step import Parts
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.names import Names


class SessionUpkeep:
    """One specification over one input schema."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        self.plan = plan
        self.rule = rule
        self.logic = SessionRows(plan, rule)

    def begin(self, progress: Progress = BEFORE_TIME) -> OpenSessions:
        return self.logic.begin()

    def size(self, state: OpenSessions) -> tuple[int, int]:
        return self.logic.sizes(state)

    def cells(self, state: OpenSessions) -> int:
        return self.size(state)[0]

    def names(self, state: OpenSessions) -> Names:
        return Names(state.keys, state.heap)

    def renamed(self, state: OpenSessions, names: Names) -> OpenSessions:
        return self.logic.renamed(state, names)

    def spilled(self, state: OpenSessions, excess: int, folder: str) -> OpenSessions:
        return self.logic.spilled(state, excess, folder)

    def open_windows(self, state: OpenSessions, progress: Progress) -> int:
        return state.open

    def save(self, state: OpenSessions) -> Parts:
        return self.logic.parts(state)

    def load(self, parts: Parts) -> OpenSessions:
        return self.logic.from_parts(parts)
