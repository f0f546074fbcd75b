"""The error of what cannot be read."""

from __future__ import annotations

from gpuwin.errors import GpuwinError


class QualifyError(GpuwinError, ValueError):
    """The input is neither a plan nor progress reports; the message says what it is and what to give instead."""
