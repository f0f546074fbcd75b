"""What code asks of a `DeviceArray`, and arrays have: mypy cannot tell, since it sees no types of Numba."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import FunctionType

import numpy as np
import pytest

from gpuwin_kernels.cuda.device_array import DeviceArray, Kernel
from gpuwin_kernels.cuda.primitives import _search
from gpuwin_kernels.cuda.runtime import empty, full, to_device, to_host, together, zeros

NUMBERS = np.arange(6, dtype=np.int64)
ARRAYS = {
    "host": lambda: NUMBERS,
    "copy": lambda: to_device(NUMBERS),
    "slice": lambda: to_device(NUMBERS)[1:5],
    "view": lambda: to_device(NUMBERS).view(np.uint64),
    "piece": lambda: together((6, np.int64), (6, np.uint8))[0],
    "filled": lambda: full(6, 1, np.int64),
    "nothing": lambda: empty(0, np.int64),
}


def members(protocol: type) -> list[str]:
    own = {name for name, value in vars(protocol).items() if isinstance(value, (property, FunctionType))}
    return sorted(own - {"__init__", "__subclasshook__"})


def test_members() -> None:
    assert members(DeviceArray) == ["__getitem__", "__len__", "dtype", "reshape", "shape", "size", "view"]
    assert members(Kernel) == ["__getitem__", "__name__"]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_have_all_members(name: str) -> None:
    array = ARRAYS[name]()
    assert [member for member in members(DeviceArray) if not hasattr(array, member)] == []
    assert array.shape == (len(array),) == (array.size,)


def test_kernels_have_all_members() -> None:
    assert [member for member in members(Kernel) if not hasattr(_search, member)] == []


#: Numba's own classes, outside the simulator: an array over memory that nobody reads, so that no driver is needed.
_OF_NUMBA = """
import json, sys
import numpy as np
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from gpuwin_kernels.cuda.primitives import _search
from gpuwin_kernels.cuda.runtime import part

class Memory:
    def view(self, start, end):
        return Memory()

whole = DeviceNDArray(shape=(4096,), strides=(1,), dtype=np.dtype(np.uint8), gpu_data=Memory())
array = part(whole, 128, 6, np.int64)
asked = json.loads(sys.argv[1])
print(json.dumps([[hasattr(thing, name) for name in names] for thing, names in zip((array, _search), asked)]))
"""


def test_those_of_numba_outside_the_simulator_have_all_members() -> None:
    asked = [members(DeviceArray), members(Kernel)]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", _OF_NUMBA, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == [[True] * len(names) for names in asked]


def test_members_do_what_those_of_numpy_do() -> None:
    array = to_device(NUMBERS)
    np.testing.assert_array_equal(to_host(array[1:5]), NUMBERS[1:5])
    np.testing.assert_array_equal(to_host(array.view(np.uint8)), NUMBERS.view(np.uint8))
    np.testing.assert_array_equal(to_host(array.reshape(2, 3)), NUMBERS.reshape(2, 3))
    assert zeros(3, "float64").dtype == np.dtype(np.float64)
