"""The type of the fixture `both` of conftest.py.

It is not in conftest.py itself, since several folders of tests have a module of that name: which of them an import
means depends on the order in which pytest came upon the folders, and a fresh process may find another one.
"""

from __future__ import annotations

from typing import Any, Protocol

from .record import Query, Recording, Run
from .streams import Stream


class Both(Protocol):
    def __call__(
        self, query: Query, stream: Stream, how: Run = ..., *, folder: str = ..., check: bool = ..., **expected: Any
    ) -> tuple[Recording, Recording]: ...
