"""Errors of gpuwin, one class for each kind. After any error of an operator, its state is as it was before the call."""

from __future__ import annotations

import builtins


class GpuwinError(Exception):
    """Base class of everything that gpuwin raises on purpose."""


class SpecificationError(GpuwinError, ValueError, TypeError):
    """Error of a specification, or of a call, that means nothing or contradicts itself."""


class SchemaError(GpuwinError, ValueError):
    """Error of a batch that does not fit the specification: a missing column, a wrong type, or data that is not
    Arrow.
    """


class OverflowError(GpuwinError, builtins.OverflowError):
    """Error of an exact result (a sum of integers or of decimals, a count) that does not fit its type.

    ``column`` names the partial column, where it is known.
    """

    column: str = ""


class LimitExceeded(GpuwinError, RuntimeError):
    """Error of a batch that would take the state over one of `gw.Limits`, or fire more often than memory can hold."""


class SnapshotError(GpuwinError, ValueError):
    """Error of a snapshot that is damaged, of another version, or of another specification."""


class DeviceError(GpuwinError, RuntimeError):
    """Error of a device that is not there, or cannot run what was asked for."""
