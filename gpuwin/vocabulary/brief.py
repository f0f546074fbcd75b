"""Text of a description: the fields that differ from their defaults, as a user would write them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


def brief(description: Any) -> str:
    """`Name(field=value, ...)` of a frozen dataclass, without the fields that have their default.

    Equal descriptions have equal texts and different ones different texts: snapshots are compared by them.
    """
    written = []
    for field in fields(description):
        value = getattr(description, field.name)
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        if made is MISSING or value != made:
            written.append(f"{field.name}={value!r}")
    return f"{type(description).__name__}({', '.join(written)})"
