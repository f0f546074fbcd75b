"""What a state calls its keys and its texts: append-only tables that all versions of a state share.

A batch that fails may have entered keys on its way. They would do no harm, but the state would not be what it was: so
they are taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import KeyDictionary


@dataclass(frozen=True, slots=True)
class Names:
    """The dictionary of keys and the heap of bytes behind a state."""

    keys: KeyDictionary
    heap: BytesHeap

    def sizes(self) -> tuple[int, int]:
        return len(self.keys), len(self.heap)

    def back_to(self, sizes: tuple[int, int]) -> Names | None:
        """With the first so many keys and texts, under their old codes; None if there are no others."""
        if self.sizes() == sizes:
            return None
        keys, heap = self.keys, self.heap
        if len(keys) != sizes[0]:
            keys = keys.kept(np.arange(sizes[0], dtype=np.int32))[0]
        if len(heap) != sizes[1]:
            heap = heap.kept(np.arange(sizes[1]))[0]
        return Names(keys, heap)
