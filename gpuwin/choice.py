"""Choice of the engine for a specification: panes where they suffice, a ledger per (key, window) where triggers need
one, sessions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gpuwin.device.choice import Device
from gpuwin.engines.step import EngineStart
from gpuwin.grid import WindowGrid
from gpuwin.planning.plan import Plan
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Complete, EveryRow, OnChange, OnClose, OnUpdate, Trigger
from gpuwin.vocabulary.windows import CalendarWindow, SessionWindow
from gpuwin_kernels.cpu.raising import may_raise
from gpuwin_kernels.layout import CellColumn


def keeps_ledger(spec: Specification) -> bool:
    """Whether each (key, window) needs a ledger entry beside its contents."""
    return _reason_for_ledger(spec) is not None


def _reason_for_ledger(spec: Specification) -> str | None:
    """Part of a specification that needs a ledger entry for each (key, window); None where none does."""
    emit, semantics = spec.emit, spec.semantics
    if isinstance(emit, Complete):
        return None
    kept_after_close = isinstance(spec.allowed_lateness, timedelta) and spec.allowed_lateness > timedelta(0)
    if isinstance(emit, Trigger | EveryRow):
        return "triggers and emission after each row"
    if spec.accumulation != "accumulating" and (isinstance(emit, OnUpdate) or kept_after_close):
        return f"{spec.accumulation!r} results of {'OnUpdate' if isinstance(emit, OnUpdate) else 'allowed lateness'}"
    if isinstance(emit, OnClose) and kept_after_close and semantics.late_firing == "row":
        return "late_firing='row' with allowed lateness"
    by_row = semantics.watermark_advance == "row"
    by_key = semantics.watermark_scope == "key"
    by_row_kept = "allowed lateness with a watermark by row or by key"
    if isinstance(spec.window, SessionWindow):
        return by_row_kept if kept_after_close and (by_row or by_key) else None
    if by_key:
        return "a watermark per key"
    if not by_row:
        return None
    if semantics.late_by == "window" and WindowGrid.of(spec.window).overlaps:
        return "a watermark by row, where windows overlap and rows are late by the window"
    return by_row_kept if kept_after_close else None


def order_matters(spec: Specification) -> bool:
    """Whether the order of arrival decides which rows make a session."""
    semantics = spec.semantics
    by_row = semantics.watermark_advance == "row" or semantics.watermark_scope == "key"
    return by_row or semantics.session_touch == "forward_split" or semantics.session_late_check == "after_merge"


def _reaches_back(plan: Plan) -> bool:
    from gpuwin.engines.sessions.rows import reaches_back

    return reaches_back(plan)


def cpu_only(plan: Plan) -> str | None:
    """Reason why a plan cannot run on CUDA, or None where it can."""
    spec = plan.spec
    if isinstance(spec.window, SessionWindow):
        from gpuwin.engines.sessions.every_row import serves

        if order_matters(spec) or serves(spec, plan):
            return "sessions that depend on the order of arrival, row by row, have no CUDA kernel"
    if isinstance(spec.window, CalendarWindow):
        return "windows of a calendar have no CUDA kernel"
    ledger = "emission on change" if isinstance(spec.emit, OnChange) else _reason_for_ledger(spec)
    if ledger is not None:
        return f"there is no CUDA engine for {ledger}"
    return next(filter(None, map(_merge_on_cpu_only, plan.layout.columns)), None)


def _merge_on_cpu_only(column: CellColumn) -> str | None:
    """Reason why the merge of a column cannot run on CUDA, or None where it can, as all but those of users can."""
    if column.user is None:
        return None
    if may_raise(column.user.merge, 2 * column.user.fields):
        return (
            f"the merge of the accumulation in {column.name!r} may raise an error, and no kernel of CUDA can: it has "
            "a raise, an assert, or a division by what may be zero"
        )
    from gpuwin_kernels.cuda import ranges, runtime

    fault = None if runtime.simulated() else ranges.fault_of_merge(column, runtime.capability())
    return None if fault is None else f"the merge of the accumulation in {column.name!r} is not for CUDA: {fault}"


def engine_of(plan: Plan, rule: WatermarkRule, device: Device = "cpu") -> EngineStart[Any]:
    """Engine for a plan; on CUDA only for a plan that is not `cpu_only`."""
    spec = plan.spec
    if device == "cuda":
        if isinstance(spec.window, SessionWindow):
            from gpuwin.device.sessions import DeviceSessionEngine

            return EngineStart(DeviceSessionEngine(plan, rule))
        from gpuwin.device.panes import DevicePaneEngine

        return EngineStart(DevicePaneEngine(plan, rule))
    if isinstance(spec.emit, OnChange):
        from gpuwin.engines.changes import ChangeEngine

        return EngineStart(ChangeEngine(plan, rule))
    if isinstance(spec.emit, Trigger) and spec.emit.evict is not None:
        from gpuwin.engines.evicting import EvictingEngine

        return EngineStart(EvictingEngine(plan, rule))
    if isinstance(spec.window, SessionWindow):
        from gpuwin.engines.sessions.every_row import EveryRowSessions, serves

        if serves(spec, plan):
            return EngineStart(EveryRowSessions(plan, rule))
        if keeps_ledger(spec) or (isinstance(spec.emit, OnClose | OnUpdate) and _reaches_back(plan)):
            from gpuwin.engines.triggers.sessions import SessionTriggerEngine
            from gpuwin.engines.triggers.sessions_in_rounds import SessionTriggerEngineInRounds, needs_rounds

            in_rounds = needs_rounds(plan, rule)
            return EngineStart((SessionTriggerEngineInRounds if in_rounds else SessionTriggerEngine)(plan, rule))
        from gpuwin.engines.sessions import closing
        from gpuwin.engines.sessions.engine import SessionEngine

        once = closing.emits_once(plan, rule)
        return EngineStart((closing.ClosingSessionEngine if once else SessionEngine)(plan, rule))
    if keeps_ledger(spec):
        from gpuwin.engines.triggers.windows import TriggerEngine

        return EngineStart(TriggerEngine(plan, rule))
    from gpuwin.engines.closing_panes import ClosingPaneEngine
    from gpuwin.engines.panes import PaneEngine, emits_once

    return EngineStart(ClosingPaneEngine(plan, rule) if emits_once(spec) else PaneEngine(plan, rule))
