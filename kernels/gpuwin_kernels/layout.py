"""Layout of cells: their partial columns, how each is merged, and the arrays that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

SUM, MIN, MAX, MOMENTS, FIRST, LAST, USER = "sum", "min", "max", "moments", "first", "last", "user"
BIT_AND, BIT_OR, BIT_XOR, REGISTERS = "bit_and", "bit_or", "bit_xor", "registers"
MOMENTS3, MOMENTS4, COMOMENTS, CORRELATION = "moments3", "moments4", "comoments", "correlation"

#: Merges of float64 statistics, and how many words each keeps. The first is always the count, the next the means.
STATISTICS = {
    MOMENTS: 3,  # n, mean, and the sum of squared distances to the mean
    MOMENTS3: 4,  # and of cubed ones
    MOMENTS4: 5,  # and of their fourth powers
    COMOMENTS: 4,  # n, mean of x, mean of y, and the sum of products of distances
    CORRELATION: 6,  # and the sums of squared distances of x and of y
}
_BITWISE = (BIT_AND, BIT_OR, BIT_XOR, REGISTERS)
MERGES = (SUM, MIN, MAX, *STATISTICS, *_BITWISE, FIRST, LAST, USER)
DTYPES = ("int64", "float64", "int128", "bytes")

_WORDS: dict[str, tuple[str, ...]] = {
    "int64": ("int64",),
    "float64": ("float64",),
    "int128": ("int64", "uint64"),  # high half, signed; low half
    "bytes": ("int64",),  # a code of the byte heap
}
#: The dtypes that each merge is defined for.
MERGE_DTYPES: dict[str, tuple[str, ...]] = {
    SUM: ("int64", "float64", "int128"),
    MIN: DTYPES,
    MAX: DTYPES,
    **dict.fromkeys(STATISTICS, ("float64",)),
    **dict.fromkeys(_BITWISE, ("int64",)),
    FIRST: DTYPES,
    LAST: DTYPES,
    USER: DTYPES,
}


@dataclass(frozen=True)
class UserMerge:
    """A user's own accumulation. The callables are plain functions or Numba dispatchers over scalars.

    `fields`: the dtype of each state field ("int64" or "float64"); `merge(*a, *b)` returns the merged fields as a
    tuple, and must be associative and commutative; `init` are the fields of an empty accumulator and `add(*fields,
    *values)` returns them after one more row.
    """

    fields: tuple[str, ...]
    merge: Callable[..., Any]
    init: tuple[float, ...] = ()
    add: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not self.fields or any(f not in ("int64", "float64") for f in self.fields):
            raise ValueError(f"the fields of an accumulation are int64 or float64, at least one, not {self.fields!r}")
        if self.init and len(self.init) != len(self.fields):
            raise ValueError(f"{len(self.fields)} fields need as many initial values, not {len(self.init)}")


@dataclass(frozen=True)
class CellColumn:
    """One partial column. `dtype` is physical: dates, timestamps, booleans and small integers travel as int64, float32
    as float64.

    `nullable`: a validity byte per cell, 0 until a value was seen. `wrap`: integer sums wrap around instead of raising.
    """

    name: str
    merge: str
    dtype: str
    nullable: bool = False
    wrap: bool = False
    user: UserMerge | None = None

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise ValueError(f"column {self.name!r}: unknown merge {self.merge!r}, expected one of {', '.join(MERGES)}")
        if self.dtype not in MERGE_DTYPES[self.merge]:
            raise ValueError(f"column {self.name!r}: {self.merge} of {self.dtype!r} does not exist")
        if (self.merge == USER) != (self.user is not None):
            raise ValueError(f"column {self.name!r}: merge='user' and a UserMerge go together")

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The NumPy dtypes of the arrays of this column, in the order of `CellArrays.values`."""
        if self.user is not None:
            return self.user.fields
        if self.merge in STATISTICS:
            return ("float64",) * STATISTICS[self.merge]
        if self.merge in (FIRST, LAST):
            return ("int64", "int64", *_WORDS[self.dtype])  # time, seq, value
        return _WORDS[self.dtype]

    @property
    def invertible(self) -> bool:
        """Whether a cell can be taken out of a total again."""
        return self.merge == SUM


@dataclass(frozen=True)
class CellLayout:
    """The partial columns of a cell."""

    columns: tuple[CellColumn, ...]

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"two columns of a layout have the same name: {names}")

    @cached_property
    def uses_heap(self) -> bool:
        """Whether any column holds codes of a byte heap."""
        return any(c.dtype == "bytes" for c in self.columns)


_NO_VALIDITY = np.zeros(0, np.uint8)


class CellArrays(NamedTuple):
    """One column of n cells: an array per word of the column (see `CellColumn.words`), and uint8[n] validity if it is
    nullable.
    """

    values: tuple[np.ndarray, ...]
    valid: np.ndarray | None

    @property
    def validity(self) -> np.ndarray:
        """`valid`, or no bytes where there is none: as kernels take it."""
        return _NO_VALIDITY if self.valid is None else self.valid

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All arrays: the words, then the validity if there is one."""
        return self.values if self.valid is None else (*self.values, self.valid)

    def given(self) -> CellArrays:
        """These arrays as kernels take them."""
        return self._replace(valid=self.validity)

    def each(self, made: Callable[[np.ndarray], np.ndarray]) -> CellArrays:
        """Column of what is made of each of these arrays."""
        return CellArrays(tuple(made(v) for v in self.values), None if self.valid is None else made(self.valid))


def columns_from_arrays(layout: CellLayout, arrays: Sequence[Any]) -> tuple[CellArrays, ...]:
    """Columns of their arrays, on the host or the device: of each column the words, then the validity if it is
    nullable.
    """
    left = iter(arrays)
    return tuple(
        CellArrays(tuple(next(left) for _ in c.words), next(left) if c.nullable else None) for c in layout.columns
    )


def joined_columns(
    parts: Sequence[Sequence[CellArrays]], joined: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> tuple[CellArrays, ...]:
    """Columns of all parts, where `joined` makes one array of those that the parts have in a place."""
    return tuple(
        CellArrays(
            tuple(joined(words) for words in zip(*(c.values for c in same), strict=True)),
            None if same[0].valid is None else joined([c.validity for c in same]),
        )
        for same in zip(*parts, strict=True)
    )
