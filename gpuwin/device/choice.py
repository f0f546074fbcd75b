"""Choice of the device that runs the kernels, by what was asked for, what is there, and what a specification needs."""

from __future__ import annotations

import functools
import logging
from typing import Literal

from gpuwin.errors import DeviceError

Device = Literal["cpu", "cuda"]
log = logging.getLogger("gpuwin")


def resolve_device(device: str) -> Device:
    """The device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    ``"auto"`` takes CUDA where it can be used and the CPU elsewhere, and says so once in the log. Numba's
    simulator of CUDA is for tests: only ``"cuda"`` takes it.

    Raises:
        DeviceError: CUDA was asked for and something that it needs is missing; or the name is unknown.
    """
    if device == "cpu":
        return "cpu"
    if device not in ("auto", "cuda"):
        raise DeviceError(f"device must be 'auto', 'cuda' or 'cpu', not {device!r}")
    missing = why_no_cuda() if device == "cuda" else why_auto_is_cpu()
    if missing is None:
        return "cuda"
    if device == "cuda":
        raise DeviceError(f"device='cuda' cannot be used: {missing}. Use device='cpu', or device='auto'.")
    _say_once(missing)
    return "cpu"


def device_of_plan(asked: str, resolved: Device, reason: str | None) -> Device:
    """The device once it is known what is to run: ``reason`` says why that cannot be on CUDA, None where it can.

    Raises:
        DeviceError: it cannot, and CUDA was asked for by name.
    """
    if resolved == "cpu" or reason is None:
        return resolved
    if asked == "cuda":
        raise DeviceError(f"device='cuda' cannot run this: {reason}. Use device='cpu', or device='auto'.")
    _say_once(reason)
    return "cpu"


@functools.cache
def why_no_cuda() -> str | None:
    """Reason why kernels cannot run on a GPU here, or None if they can.

    A GPU that is there is tried first: see `gpuwin.device.check`.
    """
    try:
        from gpuwin_kernels.cuda import runtime
    except ImportError as error:  # numba-cuda, where a package that it needs is missing or does not fit
        return f"numba.cuda cannot be imported: {error}"
    missing = runtime.why_not()
    if missing is not None or runtime.simulated():
        return missing
    from gpuwin.device.check import failed_check

    wrong = failed_check()
    return None if wrong is None else f"the GPU was tried and is not used: {wrong}"


def why_auto_is_cpu() -> str | None:
    """Reason why ``"auto"`` means the CPU here, or None where it means CUDA."""
    from gpuwin_kernels.cuda import driver

    if driver.surely_missing():
        return driver.MISSING
    missing = why_no_cuda()
    if missing is None:
        from gpuwin_kernels.cuda import runtime

        if runtime.simulated():
            return "NUMBA_ENABLE_CUDASIM is set, and the simulator of CUDA is slower than the CPU"
    return missing


@functools.cache
def _say_once(missing: str) -> None:
    log.info("gpuwin runs on the CPU: %s", missing)
