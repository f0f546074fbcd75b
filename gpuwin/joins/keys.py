"""Keys of several columns in the dictionary of a join.

A null equals nothing, so a row with a null in its key meets no row of the other side. But rows of one side whose keys
are the same, nulls included, are one group, and those whose keys differ are not. So the dictionary knows keys with a
null by side, in a column in front of theirs. (Of keys of one column only one is null, which needs no entry.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.state.keys.dictionary import KeyDictionary

_BOTH = -1  # a key without a null is the same on either side


def dictionary_of(types: Sequence[pa.DataType]) -> KeyDictionary:
    return KeyDictionary([pa.int8(), *types] if len(types) > 1 else types)


def by_side(whole: np.ndarray, side: int, keys: Sequence[pa.Array]) -> list[pa.Array]:
    """The columns that the dictionary is asked for. `whole`: bool[n], the rows without a null in their key."""
    return [pa.array(np.where(whole, _BOTH, side).astype(np.int8)), *keys]


def as_saved(columns: Sequence[pa.Array], keys: int) -> Sequence[pa.Array]:
    """Columns of a snapshot, which up to version 1 had whole keys only."""
    if keys == 1 or len(columns) > keys:
        return columns
    return by_side(np.ones(len(columns[0]), bool), 0, columns)
