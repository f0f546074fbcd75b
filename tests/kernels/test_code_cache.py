"""Kernels compile also where neither their own folder nor one of the user's can be written to."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from numba import config, njit
from numba.core import caching

from gpuwin_kernels.cpu import code_cache


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Numba knows no place but the one that it is told; the system's temporary folder."""
    told = [place for place in caching.CacheImpl._locator_classes if "UserProvided" in place.__name__]
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", told)
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="no locator available"):
        njit(cache=True)(twice)
    return tmp_path


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
    code_cache.find_place()
    assert Path(config.CACHE_DIR) != theirs
    assert Path(config.CACHE_DIR).stat().st_mode & 0o077 == 0
    assert njit(cache=True)(twice)(4) == 8


def test_where_there_is_a_place_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    before = config.CACHE_DIR
    code_cache.find_place()
    assert before == config.CACHE_DIR
    assert not caplog.text
