"""Cells between host and device, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwin_kernels.cuda.runtime import to_device, to_host
from gpuwin_kernels.layout import STATISTICS, CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64", nullable=True),
        CellColumn("w", "sum", "int128"),
        CellColumn("lo", "min", "float64", nullable=True),
        CellColumn("m", "moments", "float64"),
        CellColumn("f", "first", "int64", nullable=True),
        CellColumn("hi", "max", "int128", nullable=True),
    )
)
"""Every way of merging on the device."""


def random_cells(rng: np.random.Generator, cells: int, layout: CellLayout = LAYOUT) -> tuple[CellArrays, ...]:
    columns = []
    for column in layout.columns:
        words = tuple(
            rng.normal(size=cells) if word == "float64" else rng.integers(0, 50, cells).astype(word)
            for word in column.words
        )
        valid = rng.integers(0, 2, cells).astype(np.uint8) if column.nullable else None
        columns.append(CellArrays(words, valid))
    return tuple(columns)


def uploaded(columns: Sequence[CellArrays]) -> tuple[CellArrays, ...]:
    return tuple(
        CellArrays(tuple(to_device(v) for v in c.values), None if c.valid is None else to_device(c.valid))
        for c in columns
    )


def assert_same_cells(
    layout: CellLayout, expected: Sequence[CellArrays], found: Sequence[CellArrays], what: str = ""
) -> None:
    """Exactly, but for the last bits of floats that were added up. `found` may be on the device."""
    for column, x, y in zip(layout.columns, expected, found, strict=True):
        seen: np.ndarray | slice = slice(None)
        if x.valid is not None:
            valid = y.valid if isinstance(y.valid, np.ndarray) else to_host(y.valid)
            np.testing.assert_array_equal(x.valid, valid, f"{what} validity of {column.name}")
            seen = x.valid != 0
        for p, q in zip(x.values, y.values, strict=True):
            host = q if isinstance(q, np.ndarray) else to_host(q)
            if column.dtype == "float64" and column.merge in ("sum", *STATISTICS):
                np.testing.assert_allclose(p[seen], host[seen], rtol=1e-9, atol=1e-12, err_msg=f"{what} {column.name}")
            else:
                np.testing.assert_array_equal(p[seen], host[seen], f"{what} {column.name}")
