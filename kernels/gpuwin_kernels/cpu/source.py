"""Kernels generated as source text: written to a private folder of the user and imported from there, so that Numba's
cache on disk works for them.

The folder is `$GPUWIN_CACHE_DIR`, or `$XDG_CACHE_HOME/gpuwin`, or `~/.cache/gpuwin`. Numba does not notice when a
function that a cached one calls has changed, so the name of the subfolder contains a hash of this package's sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType

from gpuwin_kernels.cpu.code_cache import temporary_folder

log = logging.getLogger("gpuwin")
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


def cache_folder() -> Path:
    """Where generated kernels are kept; in the system's temporary folder only if the user has none that is private."""
    return _users() or _temporary()


@cache
def _users() -> Path | None:
    return _kept_in(_folder_of_user())


def _folder_of_user() -> Path | None:
    """None for a user without a home, as a container may have."""
    named = os.environ.get("GPUWIN_CACHE_DIR")
    if named:
        return Path(named)
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "gpuwin"
    except RuntimeError:
        return None


def _kept_in(base: Path | None) -> Path | None:
    """The folder for kernels below `base`; None where there is none, or others can write to it. One that cannot be
    written to may hold the kernels of an image that was warmed.
    """
    if base is None:
        return None
    folder = base / f"kernels-{_sources_hash()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_private(folder) else None
    except OSError:
        return None


def _temporary() -> Path:
    return _kept_in(temporary_folder()) or temporary_folder()


def _written(name: str, source: str) -> Path:
    """The file with this source: in the cache folder, or, where that has no room, in the system's temporary one."""
    try:
        return _write(cache_folder() / name, source)
    except OSError as error:
        folder = _temporary()
        _say_once(cache_folder(), str(error.strerror), folder)
        try:
            return _write(folder / name, source)
        except OSError as too:
            raise OSError(
                too.errno, f"kernels can be written neither to {cache_folder()} nor to {folder} ({too.strerror}): "
                "make room there, or set GPUWIN_CACHE_DIR to a folder that has some",
            ) from too  # fmt: skip


@cache
def _say_once(folder: Path, reason: str, other: Path) -> None:
    log.warning("kernels cannot be written to %s (%s), but to %s", folder, reason, other)


def _write(path: Path, source: str) -> Path:
    """This path, with this source. Raises OSError and leaves nothing behind where it cannot be written."""
    try:
        if path.read_text() == source:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # which a cleaner may have taken away
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def load(name: str, source: str) -> ModuleType:
    """The module with this source, imported once per process. `name` is for people who look into the folder."""
    stem = f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    with _lock:
        if stem in _modules:
            return _modules[stem]
        path = _written(f"{stem}.py", source)
        spec = importlib.util.spec_from_file_location(f"gpuwin_generated.{stem}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"the generated kernels in {path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[stem] = module
        return module
