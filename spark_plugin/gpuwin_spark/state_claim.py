"""Claim of a command of Python on the state of a checkpoint on this machine: the lock of `StateClaim.scala`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from .errors import CheckpointError

FILE: Final = "_gpuwin_claim"
#: What a file system says whose files cannot be locked.
_WITHOUT_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def claimed(folder: Path, by: str) -> Iterator[None]:
    """Holds the claim, which ends with the process at the latest.

    Args:
        folder: the checkpoint.
        by: who works on the state, for those who are refused.

    Raises:
        CheckpointError: another process has the claim, or another user's left its file. Nothing was changed.
        OSError: the file of the claim cannot be written.
    """
    place = folder.resolve() / FILE
    held = _locked(place)
    try:
        says = f"{by}, process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        os.truncate(held, 0)
        os.write(held, says.encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # where it cannot be removed, it claims nothing either
            place.unlink()
        os.close(held)


def _locked(place: Path) -> int:
    """Descriptor of the file at this place, locked; the one before may be removed meanwhile, by a command that ends."""
    while True:
        try:
            held = os.open(place, os.O_CREAT | os.O_RDWR, 0o666)
        except PermissionError as e:
            if not place.exists():
                raise
            raise _refusal(place, f" If that was killed, and nothing works there, remove {place} first.") from e
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(held)
            if e.errno not in _WITHOUT_LOCKS:
                raise _refusal(place) from e
            return os.open(place, os.O_RDWR)  # nothing better is to be had
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), place.stat()):
                return held
        os.close(held)


def _refusal(place: Path, more: str = "") -> CheckpointError:
    holder = ""
    with contextlib.suppress(OSError):
        holder = place.read_text(errors="replace")
    return CheckpointError(
        f"The state is claimed by {holder or 'another command'} ({place}). Nothing was changed. Wait for its end, look "
        f"with gpuwin state show, and run this again.{more}"
    )
