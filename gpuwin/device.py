"""Which device runs the kernels: what was asked for, and what is there."""

from __future__ import annotations

import functools
import logging
from typing import Literal

from .errors import DeviceError

Device = Literal["cpu", "cuda"]
log = logging.getLogger("gpuwin")


def resolve_device(device: str) -> Device:
    """The device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    ``"auto"`` takes CUDA where it can be used and the CPU elsewhere, and says so once in the log.

    Raises:
        DeviceError: CUDA was asked for and something that it needs is missing; or the name is unknown.
    """
    if device == "cpu":
        return "cpu"
    if device not in ("auto", "cuda"):
        raise DeviceError(f"device must be 'auto', 'cuda' or 'cpu', not {device!r}")
    missing = why_no_cuda()
    if missing is None:
        return "cuda"
    if device == "cuda":
        raise DeviceError(f"device='cuda' cannot be used: {missing}. Use device='cpu', or device='auto'.")
    _say_once(missing)
    return "cpu"


@functools.cache
def why_no_cuda() -> str | None:
    """What keeps kernels from running on a GPU here, or None if nothing does."""
    return "this version of gpuwin has no CUDA backend"


@functools.cache
def _say_once(missing: str) -> None:
    log.info("gpuwin runs on the CPU: %s", missing)
