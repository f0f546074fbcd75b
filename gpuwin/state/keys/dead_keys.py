"""Dead keys of a dictionary, which nothing holds a code of any more, and the dictionary without them."""

from __future__ import annotations

import numpy as np

from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary


def may_be_many(keys: KeyDictionary, uses: int, few: int = FEW_KEYS) -> bool:
    """Whether more than half of the keys are dead for certain, where each of `uses` windows or sessions has one key.
    Up to `few` keys are left alone.
    """
    return len(keys) > max(few, 2 * uses)


def without(keys: KeyDictionary, used: np.ndarray) -> tuple[KeyDictionary, np.ndarray] | None:
    """Dictionary of the keys that are in use (int32, ascending, unique), and the map from old codes to new ones, as of
    `KeyDictionary.kept`. None unless they are the minority.
    """
    return keys.kept(used) if 2 * len(used) < len(keys) else None
