"""Batches whose panes nobody writes down give what they give with an array of panes, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.batch.row_panes import TimedPanes, panes_array
from gpuwin.engines.admission import GridAdmission
from gpuwin.grid import WindowGrid
from gpuwin_kernels import tuning

SECOND = 1_000_000
LEAST, MOST = -(1 << 63), (1 << 63) - 1
ROWS = tuning.SPLIT_ROWS + 77
WINDOWS = {
    "tumbling": gw.TumblingWindow("1 minute"),
    "with an offset": gw.TumblingWindow("1 minute", offset="7 seconds"),
    "sliding": gw.SlidingWindow("3 minutes", "1 minute"),
    "with gaps": gw.SlidingWindow("1 minute", "90 seconds"),
    "cumulative": gw.CumulativeWindow("4 minutes", "1 minute"),
    "global": gw.GlobalWindow(),
}
SUMS: dict[str, Any] = {
    "n": gw.count(),
    "i": gw.sum("i"),
    "f": gw.sum("f"),
    "mean": gw.mean("f"),
    "lo": gw.min("f"),
    "last": gw.last("i"),
    "median": gw.median("i"),
}


def batch(seed: int, begin: int, rows: int = ROWS) -> pa.Table:
    """Ten minutes in some disorder, from `begin` (microseconds) on, with nulls in all columns."""
    rng = np.random.default_rng(seed)
    ts = begin + np.sort(rng.integers(0, 600 * SECOND, rows)) - rng.integers(0, 5 * SECOND, rows)
    return pa.table(
        {
            "ts": pa.array(ts, mask=rng.random(rows) < (0.01 if seed % 2 else 0)).view(pa.timestamp("us")),
            "key": pa.array(rng.integers(0, 9, rows), mask=rng.random(rows) < 0.02),
            "i": pa.array(rng.integers(-99, 99, rows), mask=rng.random(rows) < 0.1),
            "f": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1),
        }
    )


def results(spec: gw.WindowedAggregation, stream: list[pa.Table]) -> list[Any]:
    op = spec.start(device="cpu")
    found = [op.process(rows) for rows in stream]
    found.append(op.finish())
    return [*found, op.metrics]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that was asked about is without an array of panes."""
    seen: list[bool] = []
    asked = GridAdmission.at_once

    def watched(self: GridAdmission, *args: Any) -> Any:
        found = asked(self, *args)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(GridAdmission, "at_once", watched)
    return seen


@pytest.mark.parametrize("keys", [[], ["key"]])
@pytest.mark.parametrize("most", [tuning.BATCH_ROWS, 20_000])
@pytest.mark.parametrize("window", WINDOWS)
def test_as_with_an_array(
    window: str, most: int, keys: list[str], taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "BATCH_ROWS", most)
    spec = gw.WindowedAggregation(
        window=WINDOWS[window],
        keys=keys,
        time="ts",
        aggregates=SUMS,
        watermark=gw.BoundedOutOfOrderness("5 seconds"),
    )
    minutes = 60 * SECOND
    stream = [batch(0, -12 * minutes), batch(1, -3 * minutes), batch(2, -6 * minutes), batch(3, 12 * minutes, 500)]
    stream += [batch(4, 20 * minutes, tuning.SPLIT_ROWS), batch(5, 31 * minutes, tuning.SPLIT_ROWS - 1), batch(0, 0, 0)]
    found = results(spec, stream)
    assert any(taken) == (window not in ("with gaps", "global"))
    monkeypatch.setattr(WindowGrid, "divides", lambda *_: False)
    assert results(spec, stream) == found


@pytest.mark.parametrize("begin", [LEAST + 6 * SECOND, LEAST + 90 * SECOND, MOST - 600 * SECOND])
@pytest.mark.parametrize("window", ["tumbling", "with an offset", "sliding"])
def test_times_at_the_ends_of_int64(window: str, begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gw.WindowedAggregation(window=WINDOWS[window], keys=["key"], time="ts", aggregates=SUMS)
    stream = [batch(0, begin)]
    found = results(spec, stream)
    monkeypatch.setattr(WindowGrid, "divides", lambda *_: False)
    assert results(spec, stream) == found


@pytest.mark.parametrize("width", [2, 3, 7, 60 * SECOND])
def test_grids_that_divide(width: int) -> None:
    for origin in (0, 1, width - 1):
        grid = WindowGrid(1, 1, width=width, origin=origin)
        first = LEAST + origin + width
        assert grid.divides(first, first + (1 << 62) - 1)
        assert not grid.divides(first - 1, first)
        assert not grid.divides(first, first + (1 << 62))
        time = np.array([first, first + 1, first + width, -1, 0, 1, MOST - 1, MOST])
        assert panes_array(TimedPanes(grid, time)).tolist() == [(t - origin) // width for t in time.tolist()]
    assert not WindowGrid(1, 1).divides(0, 1)
    assert not WindowGrid(1, 1, endless=True, width=width).divides(0, 1)
    assert not WindowGrid(1, 1, inherited=True, width=width).divides(0, 1)
