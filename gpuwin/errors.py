"""What can go wrong, one class each. Whatever is raised by an operator, its state is what it was before the call."""

from __future__ import annotations

import builtins


class GpuwinError(Exception):
    """Base class of everything that gpuwin raises on purpose."""


class SpecificationError(GpuwinError, ValueError, TypeError):
    """A specification that means nothing or contradicts itself: raised when it is written, before any data."""


class SchemaError(GpuwinError, ValueError):
    """A batch that does not fit the specification: a missing column, a wrong type, something that is not Arrow data."""


class OverflowError(GpuwinError, builtins.OverflowError):
    """An exact result (a sum of integers or of decimals, a count) does not fit its type.

    ``column`` names the partial column, where it is known.
    """

    column: str = ""


class LimitExceeded(GpuwinError, RuntimeError):
    """A batch would take the state over one of `gw.Limits`, or would fire more often than memory can hold."""


class SnapshotError(GpuwinError, ValueError):
    """A snapshot that is damaged, of a newer version, or of another specification."""


class DeviceError(GpuwinError, RuntimeError):
    """The device asked for is not there, or cannot run what was asked for."""
