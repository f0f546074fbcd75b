"""Files that a command is asked to write, tried before it runs for minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .flights import DemoError


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Block that writes a file. Raises DemoError where that fails."""
    try:
        yield
    except OSError as e:
        raise DemoError(f"{file} cannot be written: {e.strerror or e}.") from e


def try_to_write(file: Path) -> None:
    """Opens a file to write to, and leaves it as it was, or away. Raises DemoError if it cannot be written."""
    with writing(file):
        new = not file.exists()
        file.open("a").close()
        if new:
            os.unlink(os.path.realpath(file))  # the file itself, where a link led to none
