"""Assignment of the rows of a batch to proto-sessions, by `assign` where their order of arrival does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from gpuwin.state.sessions.bridges import Bridges, PlayedSteps
from gpuwin.state.sessions.tiers import Tier
from gpuwin_kernels.cpu.sessions import cut

Touch = Literal["merge", "split", "forward_split"]
TOUCH_NUMBER: Final = {"merge": 0, "split": 1, "forward_split": 2}  # as the kernel takes it


@dataclass(frozen=True, slots=True)
class Assignment:
    """Proto-sessions of a batch: the one that each row belongs to, and the bounds of all `m`, sorted by (code,
    start).
    """

    slot: np.ndarray  # int32[rows]; -1: the row is late (only `play` with late="after_merge")
    code: np.ndarray  # int32[m]
    start: np.ndarray  # int64[m]
    last: np.ndarray  # int64[m]
    end: np.ndarray  # int64[m]
    touch: Touch = "merge"
    played_on: tuple[Tier, ...] | None = None  # played: the tiers of the state
    joined: tuple[np.ndarray, ...] | None = None  # played: per tier, the open sessions that are part of a proto-session
    joined_slot: np.ndarray | None = None  # played: for those, tier after tier, the proto-session
    steps: PlayedSteps | None = None
    bridges: Bridges | None = None


def as_gaps(gap: int | np.ndarray, rows: int) -> np.ndarray:
    """Gaps as kernels take them, int64[1] or int64[rows]. Raises ValueError for negative gaps, or the wrong number of
    them.
    """
    gaps = np.ascontiguousarray(gap, np.int64) if isinstance(gap, np.ndarray) else np.array([gap], np.int64)
    if isinstance(gap, np.ndarray) and len(gaps) != rows:
        raise ValueError(f"a gap per row needs {rows} gaps, not {len(gaps)}")
    if len(gaps) and int(gaps.min()) < 0:
        raise ValueError("a session gap must not be negative; drop such rows first")
    return gaps if len(gaps) else np.zeros(1, np.int64)


def assign(code: np.ndarray, time: np.ndarray, gap: int | np.ndarray, touch: Touch = "merge") -> Assignment:
    """Proto-sessions of the rows of one batch, where the order of arrival does not matter.

    `code` int32[n] (any codes >= 0), `time` int64[n] microseconds, `gap` microseconds, one for all or int64[n]. A row
    covers [time, time + gap); rows of a key whose intervals overlap (`touch="split"`), or overlap or meet (`"merge"`),
    are one session. Costs one pass over rows that are nearly in order of time, and a sort otherwise.
    """
    if touch == "forward_split":
        raise ValueError("touch='forward_split' depends on the order of arrival: use SessionState.play")
    return Assignment(*cut(code, time, as_gaps(gap, len(code)), touch == "split"), touch)
