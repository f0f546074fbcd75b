"""Names that NumPy has removed and numba-cuda still looks up.

numba-cuda 0.30 registers an implementation of `numpy.row_stack` when it compiles for the first time. NumPy 2.5 has no
such function, so no kernel compiled at all, though everything could be imported. The registration alone needs the
name, so it is there while numba-cuda's module is loaded, and gone afterwards: nobody else sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import numpy as np

_REMOVED = {"row_stack": "vstack"}
"""Names that were removed, and what stands for each."""


def load_array_functions() -> None:
    """Loads the module of numba-cuda that looks them up, where NumPy lacks one; does nothing elsewhere.

    To be called before anything is compiled for CUDA. What is wrong with the module otherwise shows when something is.
    """
    if all(hasattr(np, name) for name in _REMOVED):
        return
    with _names(), suppress(ModuleNotFoundError):  # the CUDA target of Numba itself has no such module
        import_module("numba.cuda.np.arrayobj")


@contextmanager
def _names() -> Iterator[None]:
    lent = [name for name in _REMOVED if not hasattr(np, name)]
    for name in lent:
        setattr(np, name, _standing_for(getattr(np, _REMOVED[name])))
    try:
        yield
    finally:
        for name in lent:
            delattr(np, name)


def _standing_for(function: Any) -> Any:
    """A function of its own: numba-cuda has an implementation for the other one already."""

    def removed(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return removed


__all__ = ["load_array_functions"]
