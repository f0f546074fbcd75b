"""Errors of the plugin's Python side."""

from __future__ import annotations

from gpuwin.errors import GpuwinError


class SparkSetupError(GpuwinError, RuntimeError):
    """Java, Spark or the plugin's jar that is missing or unusable; the message names the command that mends it."""
