"""A kernel that is compiled to see whether kernels can be, and the part of CUDA's compiler at fault if it cannot.

    python -m gpuwin_kernels.cuda.compiler    # prints a line of JSON

Numba turns Python into PTX by libNVVM, nvJitLink assembles that to machine code, and the driver loads it. These come
in packages of their own, each of which can be missing, too old, or newer than what reads its output. None of that shows
when a module is imported. The first two steps need neither a driver nor a device.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
from numba import cuda

from gpuwin_kernels.cuda import numpy_names

numpy_names.load_array_functions()  # before anything is compiled

Part = Literal["numba-cuda", "libNVVM", "nvJitLink", "PTX version", "driver"]
CAPABILITY = (9, 0)
"""What is compiled for where no device is at hand: an H100 or H200."""

_MENDS: dict[Part, str] = {
    "numba-cuda": "install a version of numba-cuda that knows this Python and NumPy",
    "libNVVM": "install nvidia-nvvm (pip install 'gpuwin[cuda13]'), or name a CUDA toolkit by CUDA_HOME",
    "nvJitLink": "install nvidia-nvjitlink (pip install 'gpuwin[cuda13]'), a version that knows the GPU",
    "PTX version": "nvidia-nvjitlink and the driver must read the PTX that nvidia-nvvm writes: install both packages "
    "in the same version, or a newer driver",
    "driver": "update the NVIDIA driver, or install the extra that fits it: gpuwin[cuda12] or gpuwin[cuda13]",
}
#: What the text of an error speaks of, the most telling first; anything else is put down to the step that failed.
_SIGNS: tuple[tuple[str, Part], ...] = (
    (r"failure finding \W*libnvvm", "libNVVM"),  # what follows lists the libraries that are there
    (r"unsupported[ ._]*(?:\.version|ptx)|ptx[ _]version", "PTX version"),
    (r"nvjitlink|ptxas", "nvJitLink"),
    (r"nvvm|libdevice", "libNVVM"),
    (r"libcuda|cuda_error|cudaapierror|cudasupporterror", "driver"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The part of the compiler that is to blame, and what it said."""

    part: Part
    said: str

    @property
    def mend(self) -> str:
        """Advice about it."""
        return _MENDS[self.part]

    def __str__(self) -> str:
        return f"no kernel compiles, because of {self.part}: {self.said} ({self.mend})"


@cuda.jit  # not kept on disk, for code from there would say nothing of the compiler
def _add_one(values):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.shape[0]:
        cuda.atomic.add(values, i, 1)


def fault_on_device() -> Fault | None:
    """Fault that keeps a kernel from running on the device at hand; None if it runs. Driver and pool must be there."""
    try:
        stream = cuda.legacy_default_stream()
        values = cuda.to_device(np.zeros(1, np.int64), stream=stream)
        _add_one[1, 32, stream](values)
        found = int(values.copy_to_host()[0])
    except Exception as error:
        # What does not compile without a driver either is no matter of the driver: the steps say more.
        return fault_of_steps(cuda.get_current_device().compute_capability) or _fault("driver", error)
    return None if found == 1 else Fault("driver", f"0 + 1 was {found} on the device")


def fault_of_steps(capability: tuple[int, int] = CAPABILITY) -> Fault | None:
    """Fault that keeps a kernel from being compiled to machine code for a device of this capability; None if nothing
    does.
    """
    try:
        ptx = _ptx(capability)
    except Exception as error:
        return _fault("numba-cuda", error)
    return fault_of_assembler(ptx, capability)


def fault_of_assembler(ptx: str, capability: tuple[int, int]) -> Fault | None:
    """Fault that keeps nvJitLink from making machine code of PTX; None if nothing does."""
    try:
        from cuda.bindings import nvjitlink

        data = ptx.encode()
        handle = nvjitlink.create(1, [f"-arch=sm_{capability[0]}{capability[1]}"])
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            return _fault("nvJitLink", error, log.decode(errors="replace").strip("\0\n "))
        finally:
            nvjitlink.destroy(handle)
    except Exception as error:
        return _fault("nvJitLink", error)
    return None


def _ptx(capability: tuple[int, int]) -> str:
    function: Any = _add_one.py_func
    signature = "void(int64[::1])"
    ptx, _ = cuda.compile(function, signature, cc=capability, device=False, abi="numba", output="ptx")
    return str(ptx)


def _fault(step: Part, error: Exception, log: str = "") -> Fault:
    said = " ".join(f"{type(error).__name__}: {log or error}".split())
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    part = next((p for sign, p in _SIGNS if re.search(sign, f"{kinds} {said}", re.IGNORECASE)), step)
    if part == "numba-cuda":
        said = f"{_installed('numba-cuda')} with NumPy {np.__version__} and {_installed('numba')}: {said}"
    return Fault(part, said)


def _installed(distribution: str) -> str:
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"no {distribution}"


def main() -> int:
    """Prints {"target", "ptx": PTX version, "fault": null or {"part", "said", "mend"}} for the device at hand, else for
    `CAPABILITY`; exit code 1 if there is a fault.
    """
    capability = CAPABILITY
    with suppress(Exception):  # without a driver or a device, what is compiled is not run
        capability = tuple(cuda.get_current_device().compute_capability)
    fault = fault_of_steps(capability)
    report: dict[str, object] = {"target": f"sm_{capability[0]}{capability[1]}", "ptx": None, "fault": None}
    if fault is None:
        report["ptx"] = re.findall(r"\.version (\S+)", _ptx(capability))[0]
    else:
        report["fault"] = asdict(fault) | {"mend": fault.mend}
    print(json.dumps(report))
    return int(fault is not None)


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["CAPABILITY", "Fault", "fault_of_assembler", "fault_of_steps", "fault_on_device"]
