"""Errors of the plugin's Python side."""

from __future__ import annotations

from gpuwin.errors import GpuwinError


class SparkSetupError(GpuwinError, RuntimeError):
    """Java, Spark or the plugin's jar that is missing or unusable; the message names the command that mends it."""


class CheckpointError(GpuwinError, ValueError):
    """A folder that is no checkpoint of gpuwin, or one with which what was asked cannot be done. Nothing was changed
    in it, unless the message says what was.
    """
