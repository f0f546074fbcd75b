"""A kernel compiles without a device, with a NumPy that has lost a name, too; and the part at fault is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Before anything of CUDA is imported: a library that is not on this machine.
LACKS = """
from cuda import pathfinder
found = pathfinder.load_nvidia_dynamic_lib
def load(name):
    if name == {name!r}:
        raise pathfinder.DynamicLibNotFoundError(f"Failure finding lib{{name}}.so")
    return found(name)
pathfinder.load_nvidia_dynamic_lib = load
"""
#: Before the kernels are imported: a NumPy without `row_stack`, as all are from 2.5 on.
NUMPY_2_5 = """
import numpy
if hasattr(numpy, "row_stack"):
    del numpy.row_stack
"""
SHOW = """
import json
from gpuwin_kernels.cuda import compiler
fault = compiler.fault_of_steps()
print(json.dumps(None if fault is None else [fault.part, str(fault)]))
"""


def printed(script: str) -> str:
    """What Python prints outside Numba's simulator, on the last line."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def test_a_kernel_compiles_with_this_numpy_and_with_one_that_has_no_row_stack() -> None:
    assert json.loads(printed(SHOW)) is None
    assert json.loads(printed(NUMPY_2_5 + SHOW)) is None
    kept = "import gpuwin_kernels.cuda.runtime\nprint(hasattr(numpy, 'row_stack'))"
    assert printed(NUMPY_2_5 + kept) == "False", "nobody else sees the name"


def test_numba_cuda_is_named_where_it_does_not_fit_numpy() -> None:
    unmended = "from gpuwin_kernels.cuda import numpy_names\nnumpy_names.load_array_functions = lambda: None\n"
    part, said = json.loads(printed(NUMPY_2_5 + unmended + SHOW))
    assert part == "numba-cuda"
    assert "row_stack" in said
    assert f"NumPy {__import__('numpy').__version__}" in said


@pytest.mark.parametrize(("name", "part"), [("nvvm", "libNVVM"), ("nvJitLink", "nvJitLink")])
def test_a_library_that_is_missing_is_named(name: str, part: str) -> None:
    found, said = json.loads(printed(LACKS.format(name=name) + SHOW))
    assert found == part
    assert "pip install" in said


def test_the_missing_library_is_named_and_not_those_beside_it() -> None:
    said = 'Failure finding "libnvvm.so.4 or libnvvm.so": No such file; listdir("lib"): libnvJitLink.so.13'
    script = f"from gpuwin_kernels.cuda import compiler; print(compiler._fault('driver', OSError({said!r})).part)"
    assert printed(script) == "libNVVM"


def test_a_merge_that_cuda_has_no_implementation_for_is_found_without_data() -> None:
    script = """
import json, math
from types import SimpleNamespace
import numba, numba.cuda.dispatcher, numpy as np
from gpuwin_kernels.cuda import compiler, ranges
from gpuwin_kernels.layout import CellColumn, UserMerge
numba.cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=compiler.CAPABILITY)
def fault(merge):
    user = UserMerge(("float64",), numba.njit(merge))
    return ranges.fault_of_merge(CellColumn("m", "user", "float64", user=user), compiler.CAPABILITY)
known = lambda a, b: (math.log(a) + 0.5 ** b,)
listed = lambda a, b: (sorted([a, b])[0],)
print(json.dumps([fault(known), fault(listed), fault(lambda a, b: (a + np.log1p(b),))]))
"""
    known, listed, log1p = json.loads(printed(script))
    assert known is None
    assert "sorted" in listed
    assert "log1p" in log1p


def test_a_broken_or_full_cache_of_kernels_stops_nothing(tmp_path: Path) -> None:
    """As that of the kernels for the CPU: what numba-cuda raises there went to the batch."""
    script = f"""
import json, logging, os, sys
os.environ["NUMBA_CACHE_DIR"] = {str(tmp_path)!r}
said = []
logging.Handler.emit = lambda self, record: said.append(record.getMessage())
logging.getLogger("gpuwin").addHandler(logging.Handler())
from pathlib import Path
from types import SimpleNamespace
import numba.cuda.dispatcher
from gpuwin_kernels.cuda import cells, runtime
cache = cells._mark_codes._cache
target = SimpleNamespace(refresh=lambda: None, codegen=lambda: SimpleNamespace(magic_tuple=lambda: ("sm_90",)))
assert cache.load_overload("signature", target) is None and not said
Path(cache.cache_path).mkdir(parents=True, exist_ok=True)
(Path(cache.cache_path) / cache._cache_file._index_name).write_bytes(b"half a fi")
assert cache.load_overload("signature", target) is None
assert cache.load_overload("signature", target) is None
def full(*_):
    raise OSError(28, "No space left on device")
cache._save_overload = full
cache.save_overload("signature", None)
print(json.dumps([type(cells._mark_codes).__name__, isinstance(cache, numba.cuda.dispatcher.CUDACache), *said]))
"""
    kind, known, unread, unwritten = json.loads(printed(script))
    assert (kind, known) == ("CUDADispatcher", True)
    assert "cannot be read" in unread
    assert str(tmp_path) in unread
    assert "No space left on device" in unwritten


def test_ptx_that_the_assembler_cannot_read_is_told_from_ptx_that_is_wrong() -> None:
    script = """
import json, re
from gpuwin_kernels.cuda import compiler
ptx = compiler._ptx(compiler.CAPABILITY)
newer, wrong = re.sub(r"\\.version \\S+", ".version 99.0", ptx), ptx.replace("atom.", "gnome.")
faults = [compiler.fault_of_assembler(text, compiler.CAPABILITY) for text in (ptx, newer, wrong)]
print(json.dumps([fault and fault.part for fault in faults]))
"""
    assert json.loads(printed(script)) == [None, "PTX version", "nvJitLink"]


#: A driver and a pool that seem to be there, as they do to what looks no further than at imports.
SEEMINGLY = """
from gpuwin_kernels.cuda import runtime
runtime._installed = lambda module: True
runtime._without_driver = runtime._without_pool = lambda: None
from types import SimpleNamespace
from numba import cuda
cuda.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
print(runtime.why_not())
"""


def test_what_is_missing_is_said_before_a_kernel_is_launched() -> None:
    """Where there is no driver: on a machine with a GPU the kernel runs, and libNVVM is really there."""
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a driver")
    said = printed(SEEMINGLY)
    assert said.startswith("no kernel compiles, because of driver: CudaSupportError")
    assert "because of libNVVM" in printed(LACKS.format(name="nvvm") + SEEMINGLY)


def test_auto_is_the_cpu_where_numba_cuda_cannot_be_imported() -> None:
    lacks = "import sys\nsys.modules['cuda.bindings'] = None\n"
    driver = "from gpuwin_kernels.cuda import driver\ndriver.surely_missing = lambda: False\n"
    script = lacks + driver + "from gpuwin.device.choice import *\nprint(resolve_device('auto'), why_auto_is_cpu())"
    said = printed(script)
    assert said.startswith("cpu numba.cuda cannot be imported: NVIDIA CUDA Python bindings not found")


def test_auto_is_the_cpu_without_an_import_of_numba_cuda_where_there_is_no_driver() -> None:
    """Its import takes 0.2 s and 70 MiB, of each executor, too."""
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a driver")
    script = "import sys\nfrom gpuwin.device.choice import *\nprint(resolve_device('auto'), why_auto_is_cpu())\n"
    assert printed(script) == "cpu no NVIDIA driver was found on this machine (libcuda)"
    assert printed(script + "print('numba.cuda' in sys.modules)") == "False"


def test_a_library_of_the_driver_that_is_there_is_left_to_numba(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    script = "from gpuwin_kernels.cuda import driver\nprint(driver._loads({place!r}))"
    assert printed(script.format(place=str(tmp_path / "libcuda.so.1"))) == "True", "Numba says why it does not load"
    assert printed(script.format(place=str(tmp_path / "other"))) == "False"


def test_it_says_so_as_a_command() -> None:
    told = json.loads(printed("from gpuwin_kernels.cuda.compiler import main\nmain()"))
    assert told["fault"] is None
    assert told["target"].startswith("sm_")
    assert float(told["ptx"]) >= 7
