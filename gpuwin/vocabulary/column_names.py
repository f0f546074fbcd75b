"""Names of columns, as a user lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from gpuwin.errors import SpecificationError


def column_names(keys: Sequence[str], what: str, least: int = 1) -> tuple[str, ...]:
    """Names of key columns, all different, as a tuple. Raises SpecificationError for anything else.

    what: they are keys of, for the error. least: how many there must be, 0 or 1.
    """
    if isinstance(keys, str):
        raise SpecificationError(f"keys is a list of column names: write [{keys!r}]")
    if not isinstance(keys, Iterable) or isinstance(keys, Set | Mapping):
        raise SpecificationError(f"keys is a list of column names, not {keys!r}")
    names = tuple(keys)
    named = all(isinstance(name, str) and name for name in names)
    if len(names) < least or not named or len(set(names)) < len(names):
        some = "one or more different" if least else "different"
        raise SpecificationError(f"{what} needs {some} key columns, not {list(names)!r}")
    return names
