"""Key codes that are looked up as the rows are read: an array of them would be written and read once more, which costs
as much memory traffic as half of what there is to aggregate.

Whoever reads them trusts no guess: a row without a code stops a kernel before the block it is in, and the caller goes
on from there with codes in an array, for which keys that are new have been entered in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.scratch import borrow, give_back


@dataclass(frozen=True, eq=False, slots=True)
class FoundCodes:
    """Row i has the code index[raw[i] - least], if that is one.

    `raw` int32[n] or int64[n], `index` int32. `enter` gives the codes (int32) of some of `raw`, and new ones to keys
    that have none; `count` is how many there are by then.
    """

    raw: np.ndarray
    least: np.uint64
    index: np.ndarray
    enter: Callable[[np.ndarray], np.ndarray]
    count: Callable[[], int]

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, rows: slice) -> FoundCodes:
        return replace(self, raw=self.raw[rows])

    def array(self) -> np.ndarray:
        """int32[n]; all keys have a code then."""
        return self.enter(self.raw)

    def array_of(self, parts: Sequence[tuple[int, int]]) -> np.ndarray:
        """int32[n], of which only these rows mean something; their keys have a code then."""
        code = empty(len(self.raw), np.int32)
        for lo, hi in parts:
            code[lo:hi] = self.enter(self.raw[lo:hi])
        return code


@dataclass(frozen=True, slots=True)
class SingleCode:
    """Codes of `rows` rows without a key: all of them are 0, and nobody has to write or read them."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: slice) -> SingleCode:
        return SingleCode(len(range(*rows.indices(self.rows))))

    def array(self) -> np.ndarray:
        """int32[n] zeros."""
        return np.zeros(self.rows, np.int32)


Codes = np.ndarray | FoundCodes | SingleCode
"""int32[n], or what they are found with."""


def codes_array(code: Codes) -> np.ndarray:
    """int32[n]."""
    return code if isinstance(code, np.ndarray) else code.array()


@njit(nogil=True, cache=True)
def find_codes(raw, least, index, codes, out):  # type: ignore[no-untyped-def]
    """The codes of a block of rows (at least one); returns whether any is missing, or not below `codes`: one that has
    just been given out. Then `out` means nothing.
    """
    high = np.uint64(0)
    for i in range(raw.shape[0]):  # several rows at once, as nothing is looked up
        high = max(high, np.uint64(raw[i]) - least)
    if high >= np.uint64(index.shape[0]):
        return True
    for i in range(raw.shape[0]):
        out[i] = index[np.uint64(raw[i]) - least]
    most = np.uint32(0)
    for i in range(raw.shape[0]):
        most = max(most, np.uint32(out[i]))
    return most >= np.uint32(codes)


def with_room(table: np.ndarray, panes: int, words: int, codes: int, more: int) -> np.ndarray:
    """A borrowed table [pane, code] of records of `words` words as one for more codes; one record more than that."""
    if codes == more:
        return table
    wider = borrow((panes * more + 1) * words)
    records = table[: panes * codes * words].reshape(panes, codes, words)
    wider[: panes * more * words].reshape(panes, more, words)[:, :codes] = records
    records[:] = 0
    give_back(table)
    return wider
