"""Kernels compile also where neither their own folder nor one of the user's can be written to."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from numba import config, njit
from numba.core import caching

from gpuwin_kernels.cpu import code_cache, source


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Numba knows no place but the one that it is told; the system's temporary folder."""
    told = [place for place in caching.CacheImpl._locator_classes if "UserProvided" in place.__name__]
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", told)
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code_cache._alone.cache_clear()
    with pytest.raises(RuntimeError, match="no locator available"):
        njit(cache=True)(twice)
    yield tmp_path
    code_cache._alone.cache_clear()


def twice(x: int) -> int:
    return 2 * x


def test_code_is_kept_in_a_folder_of_the_user(nowhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    code_cache.find_place()
    assert njit(cache=True)(twice)(21) == 42
    (folder,) = nowhere.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.rglob("*.nbi"))
    assert str(folder) in caplog.text


@pytest.mark.parametrize("mode", [0o777, stat.S_IRWXU | stat.S_IXGRP])
def test_a_folder_that_others_can_enter_is_not_trusted(nowhere: Path, mode: int) -> None:
    code_cache.find_place()
    (theirs,) = nowhere.iterdir()
    theirs.chmod(mode)
    config.CACHE_DIR = ""
    code_cache._alone.cache_clear()
    code_cache.find_place()
    assert Path(config.CACHE_DIR) != theirs
    assert Path(config.CACHE_DIR).stat().st_mode & 0o077 == 0
    assert njit(cache=True)(twice)(4) == 8


def test_where_there_is_a_place_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    before = config.CACHE_DIR
    code_cache.find_place()
    assert before == config.CACHE_DIR
    assert not caplog.text


KERNEL = """
from gpuwin_kernels.cpu.code_cache import njit


@njit(nogil=True, cache=True)
def twice(x):
    return 2 * x
"""


def kernel(folder: Path, told: Path) -> ModuleType:
    """A module with a kernel, imported anew, as another process does. `told`: where Numba keeps its code."""
    path = folder / "a_kernel.py"
    if not path.exists():
        path.write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("a_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patched_cache(told):
        spec.loader.exec_module(module)
    return module


@contextmanager
def patched_cache(folder: Path) -> Iterator[None]:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 40])
def test_half_a_file_is_compiled_anew(kind: str, left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the loss of power leaves it."""
    assert kernel(tmp_path, tmp_path / "kept").twice(3) == 6
    (file,) = (tmp_path / "kept").rglob(f"*.{kind}")
    file.write_bytes(file.read_bytes()[:left])
    again = kernel(tmp_path, tmp_path / "kept").twice
    assert again(4) == 8
    assert str(file.parent) in caplog.text
    caplog.clear()
    whole = kernel(tmp_path, tmp_path / "kept").twice
    assert whole(5) == 10
    assert sum(whole.stats.cache_hits.values()) == 1
    assert not caplog.text


def test_code_that_has_no_room_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    assert kernel(tmp_path, tmp_path / "kept").twice(3) == 6
    assert kernel(tmp_path, tmp_path / "kept").twice(4) == 8
    assert len(caplog.messages) == 1
    assert "No space left on device" in caplog.text
    assert "NUMBA_CACHE_DIR" in caplog.text


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is known of folders yet; the system's temporary one is in `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for known in (source._users, code_cache._alone):
        known.cache_clear()
    yield tmp_path
    for known in (source._users, code_cache._alone):
        known.cache_clear()


def test_a_user_without_a_home_keeps_kernels_in_the_temporary_folder(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GPUWIN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert source.load("nobodys", "x = 41 + 1\n").x == 42
    (own,) = folders.iterdir()
    assert own.stat().st_mode & 0o077 == 0
    assert list(own.rglob("nobodys*.py"))


def test_kernels_that_have_no_room_go_to_the_temporary_folder(
    folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GPUWIN_CACHE_DIR", str(folders / "home"))
    within, replace = str(folders / "home"), os.replace

    def full(old: str, new: Path) -> None:
        if str(new).startswith(within):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(os, "replace", full)
    assert source.load("roomless", "x = 40 + 2\n").x == 42
    assert "No space left on device" in caplog.text
    assert not [path for path in (folders / "home").rglob("*") if path.is_file()]
    within = str(folders)
    with pytest.raises(OSError, match="set GPUWIN_CACHE_DIR to a folder that has some"):
        source.load("roomless", "x = 39 + 3\n")


def test_a_folder_that_was_taken_away_is_made_again(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWIN_CACHE_DIR", str(folders / "home"))
    assert source.load("before", "x = 1\n").x == 1
    shutil.rmtree(folders / "home")
    assert source.load("after", "x = 2\n").x == 2
    (file,) = (folders / "home").rglob("after*.py")
    assert file.parent.stat().st_mode & 0o077 == 0


def test_kernels_of_a_folder_that_cannot_be_written_to_are_read(
    folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in an image that was warmed, and runs with a read-only file system."""
    monkeypatch.setenv("GPUWIN_CACHE_DIR", str(folders / "home"))
    text = "x = 43 - 1\nfile = __file__\n"
    warmed = Path(source.load("warmed", text).file)
    source._modules.clear()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    assert Path(source.load("warmed", text).file) == warmed
    assert not caplog.text
