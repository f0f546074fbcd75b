"""Counters of an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters of an operator, as they are now. Counts are over its life (and survive `snapshot`), sizes are of now.

    rows_in: rows given to `process`.
    rows_late: rows that were dropped because all their windows had passed (or by their time, if the semantics say so).
    rows_unassigned: rows that belong to no window: in a gap between windows, or without a valid session gap.
    rows_null_time: rows without a time, or without a bound of the window that they bring along; dropped.
    window_rows_late: (row, window) pairs that were dropped; a late row counts once for each of its windows, and so
        does a row that is late for some of its windows only.
    windows_open: (key, window) pairs with rows that have not been evicted.
    cells: live (key, pane) cells, or open sessions, plus raw rows kept for aggregates such as the median; those of
        evicted windows count until they are dropped, a few batches later.
    state_bytes: memory taken by the state.
    key_growths: how often rows with new keys found the dictionary of keys on the device full, and waited for a larger
        one; since the state came to the device. 0 on the CPU.
    watermark: as `WindowOperator.watermark`.
    """

    rows_in: int = 0
    rows_late: int = 0
    rows_unassigned: int = 0
    rows_null_time: int = 0
    window_rows_late: int = 0
    windows_open: int = 0
    cells: int = 0
    state_bytes: int = 0
    key_growths: int = 0
    watermark: int | None = None
