"""Kernels generated as source text: written to a private folder of the user and imported from there, so that Numba's
cache on disk works for them.

The folder is `$GPUWIN_CACHE_DIR`, or `$XDG_CACHE_HOME/gpuwin`, or `~/.cache/gpuwin`. Numba does not notice when a
function that a cached one calls has changed, so the name of the subfolder contains a hash of this package's sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType

_lock = Lock()
_modules: dict[str, ModuleType] = {}


@cache
def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _is_private(folder: Path) -> bool:
    """Ours alone to write: code is imported from here."""
    if not hasattr(os, "getuid"):
        return True
    info = folder.stat()
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def cache_folder() -> Path:
    """Where generated kernels are kept; a folder for this process only if the user has none that is writable and
    private.
    """
    root = os.environ.get("GPUWIN_CACHE_DIR")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwin"
    folder = base / f"kernels-{_sources_hash()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(folder) and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gpuwin-kernels-"))


def _write(path: Path, source: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(source)
    os.replace(name, path)


def load(name: str, source: str) -> ModuleType:
    """The module with this source, imported once per process. `name` is for people who look into the folder."""
    stem = f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    with _lock:
        if stem in _modules:
            return _modules[stem]
        path = cache_folder() / f"{stem}.py"
        try:
            written = path.read_text()
        except OSError:
            written = ""
        if written != source:
            _write(path, source)
        spec = importlib.util.spec_from_file_location(f"gpuwin_generated.{stem}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"the generated kernels in {path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[stem] = module
        return module
