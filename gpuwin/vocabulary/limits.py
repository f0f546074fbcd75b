"""Limits of the state of an operator."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.whole import whole


@dataclass(frozen=True)
class Limits:
    """Bounds of an operator's state; None is no bound.

    max_open_windows: (key, window) pairs that have rows and are not yet evicted.
    max_state_bytes: bytes of the state in memory.
    spill_to: a directory. Without it a batch that would exceed `max_state_bytes` raises `gw.LimitExceeded` and changes
        nothing. With it the largest parts of the state are written there as Arrow files instead, and read in place;
        only what cannot be spilled (keys, text, the newest parts) is then held against the limit. Windows and sessions
        with a ledger (triggers, `EveryRow`, a watermark per key, late firings) are written as a whole, and come back
        when their key has rows or time has reached them. The files are gone when the operator is.
    """

    max_open_windows: int | None = None
    max_state_bytes: int | None = None
    spill_to: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("max_open_windows", "max_state_bytes"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, f"Limits.{name} (None: no limit)", 1))
        if self.spill_to is not None:
            if not isinstance(self.spill_to, str | os.PathLike):
                raise SpecificationError(f"Limits.spill_to is a directory, not {self.spill_to!r}")
            object.__setattr__(self, "spill_to", os.fspath(self.spill_to))
            if self.max_state_bytes is None:
                raise SpecificationError(
                    "Limits.spill_to says where, but without max_state_bytes nothing is ever spilled"
                )
