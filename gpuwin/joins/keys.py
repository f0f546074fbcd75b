"""Keys of several columns in the dictionary of a join.

A null equals nothing, so a row with a null in its key meets no row of the other side. But rows of one side with the
same key, nulls included, are one group. So the dictionary holds keys with a null by side, with a column for the side in
front. (Where the key is one column, the null needs no entry.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.state.keys.dictionary import KeyDictionary

_BOTH = -1  # a key without a null is the same on either side


def dictionary_of(types: Sequence[pa.DataType]) -> KeyDictionary:
    """Empty dictionary for keys of these types."""
    return KeyDictionary([pa.int8(), *types] if len(types) > 1 else types)


def by_side(whole: np.ndarray, side: int, keys: Sequence[pa.Array]) -> list[pa.Array]:
    """Key columns for the dictionary. `whole`: bool[n], the rows without a null in their key."""
    return [pa.array(np.where(whole, _BOTH, side).astype(np.int8)), *keys]
