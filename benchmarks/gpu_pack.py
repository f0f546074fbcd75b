"""A pack of what a GPU machine without a network may lack, for `gpu_check.py`: libNVVM with libdevice, and cuda-cccl.

    python benchmarks/gpu_pack.py     # needs a network, and no GPU; writes .gpu_pack/pack.tar.gz, some 35 MB

Take the file along with the repository. `gpu_check.py` unpacks it there, and lets Numba's compiler and Python find what
is in it. Wheels are those for another Python and another machine than this one; of nvidia-nvvm only the library and the
device functions are kept, without the compiler `cicc`, which nothing here calls.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACK = ROOT / ".gpu_pack" / "pack.tar.gz"
MOST_BYTES = 60_000_000
#: Versions of glibc that wheels are tagged with; pip takes just those that are named.
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
#: Where Numba's compiler looks for a file of the wheel, below CUDA_HOME.
NVVM_FILES = {
    "nvidia/cu13/lib/libnvvm.so.4": "nvvm/lib64/libnvvm.so.4",
    "nvidia/cu13/nvvm/libdevice/libdevice.10.bc": "nvvm/libdevice/libdevice.10.bc",
}


def download(requirement: str, python: str, folder: Path) -> Path:
    """The wheel of a requirement for another Python on x86-64, without what it needs itself."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder), requirement]
    for glibc in GLIBC:
        command += ["--platform", f"manylinux_2_{glibc}_x86_64"]
    subprocess.run([*command, "--platform", "manylinux2014_x86_64", "--platform", "any"], check=True)
    return next(folder.glob(f"{requirement.partition('=')[0].replace('-', '_')}-*.whl"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python on the GPU machine")
    parser.add_argument("--nvvm", default="13.0.88", help="version of nvidia-nvvm: that of its driver, or older")
    parser.add_argument("--cccl", default="1.2.1", help="version of cuda-cccl")
    options = parser.parse_args()
    PACK.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nvvm = download(f"nvidia-nvvm=={options.nvvm}", options.python, folder)
        cccl = download(f"cuda-cccl=={options.cccl}", options.python, folder)
        content = folder / "content"
        with zipfile.ZipFile(nvvm) as wheel:
            for inside, place in NVVM_FILES.items():
                (content / place).parent.mkdir(parents=True, exist_ok=True)
                (content / place).write_bytes(wheel.read(inside))
        with zipfile.ZipFile(cccl) as wheel:
            wheel.extractall(content)
        with tarfile.open(PACK, "w:gz") as pack:
            pack.add(content, ".")
    size = PACK.stat().st_size
    print(f"{PACK}: {size / 1e6:.1f} MB, with {nvvm.name} and {cccl.name}")
    if size > MOST_BYTES:
        print(f"That is more than {MOST_BYTES / 1e6:.0f} MB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
