"""Types of arrays, streams and kernels of the device, for annotations: Numba's own have none.

Nothing looks at these as a program runs. Numba's arrays fit `DeviceArray`, those of its simulator, and NumPy's, which
`CellArrays` says that it holds, on the device as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

Number = int | float | np.generic
"""A number of the host, as arrays are filled with."""
Length: TypeAlias = "tuple[int, np.typing.DTypeLike]"
"""(values, dtype) of an array that is to be made."""


class DeviceArray(Protocol):
    """Array in device memory, whose values the host sees once it has copied them: `reading.read`, `runtime.to_host`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> DeviceArray: ...

    def view(self, dtype: np.typing.DTypeLike, /) -> DeviceArray: ...

    def reshape(self, rows: int, columns: int, /) -> DeviceArray: ...


class Stream(Protocol):
    """Stream of the device, which does everything on it in the order in which it was asked for."""

    def synchronize(self) -> None: ...


class Event(Protocol):
    """Event on a stream, which the host can wait for."""

    def record(self, stream: Stream | int) -> None: ...

    def synchronize(self) -> None: ...


class Kernel(Protocol):
    """Kernel, as `runtime.launch` takes it: with a grid it is what launches it."""

    @property
    def __name__(self) -> str: ...

    def __getitem__(self, grid: tuple[object, ...], /) -> Callable[..., None]: ...


__all__ = ["DeviceArray", "Event", "Kernel", "Length", "Number", "Stream"]
