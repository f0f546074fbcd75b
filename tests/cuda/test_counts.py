"""What a warm batch puts on the stream, allocates and waits for, held to the table in docs/gpu.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from on_both import in_order

import gpuwin as gw
from gpuwin_kernels.cuda import scratch
from gpuwin_kernels.cuda.counted import POISON
from gpuwin_kernels.cuda.runtime import launches, sent, waits

SECOND, KEYS = 1_000_000, 40
FIVE = {"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")}
WINDOWS: dict[str, Any] = {
    "tumbling": gw.TumblingWindow("1 minute"),
    "sliding": gw.SlidingWindow("5 minutes", "1 minute"),
    "sessions": gw.SessionWindow("20 seconds"),
}
#: (launches, arrays) at most, of a batch like the last one and of one that closes windows as the last one did.
MOST = {"tumbling": ((11, 6), (13, 5)), "sliding": ((11, 6), (15, 6)), "sessions": ((14, 5), (15, 6))}


def rows_of(batch: int, every: int, text: bool) -> pa.Table:
    """Two rows of each key, five seconds apart, which is one session; `every`: seconds from batch to batch."""
    rng = np.random.default_rng(batch)
    code = np.concatenate((rng.permutation(KEYS), rng.permutation(KEYS)))
    times = pa.array((every * batch + np.repeat([1, 6], KEYS)) * SECOND).view(pa.timestamp("us"))
    key = pa.array([f"user-{c:010d}" for c in code]) if text else pa.array(code)
    return pa.table({"ts": times, "k": key, "v": rng.integers(-99, 99, 2 * KEYS).astype(float)})


def operator(window: str, closes: bool, device: str = "cuda") -> gw.WindowOperator:
    watermark = gw.BoundedOutOfOrderness("0 seconds" if closes else "1 day")
    spec = gw.WindowedAggregation(window=WINDOWS[window], keys=["k"], time="ts", aggregates=FIVE, watermark=watermark)
    return spec.start(device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
@pytest.mark.parametrize("closes", [False, True], ids=["open", "closing"])
@pytest.mark.parametrize("window", MOST)
def test_what_a_warm_batch_takes(window: str, closes: bool, text: bool) -> None:
    op = operator(window, closes)
    most_launches, most_arrays = MOST[window][closes]
    for number in range(8):
        rows = rows_of(number, 60 if closes else 0, text)
        before, launched, arrays, moved, waited = sent.launches.copy(), launches(), sent.arrays, sent.moved, waits()
        out = op.process(rows).num_rows
        if number < 5:
            continue
        assert out == (KEYS if closes else 0)
        assert launches() - launched <= most_launches, sent.launches - before
        assert sent.arrays - arrays <= most_arrays
        assert sent.moved - moved <= 4 + text
        assert waits() - waited == 1


def test_a_batch_that_closes_windows_does_not_end_one_merge_and_begin_another() -> None:
    """Rows lie in as many panes as a window has, so each batch brings cells that are there, and would be merged."""
    spec = gw.WindowedAggregation(
        window=WINDOWS["sliding"],
        keys=["k"],
        time="ts",
        aggregates=FIVE,
        watermark=gw.BoundedOutOfOrderness("5 minutes"),
    )
    host, device = spec.start(device="cpu"), spec.start(device="cuda")
    merges = 0
    for number in range(12):
        rows = pa.concat_tables([rows_of(number + back, 60, False) for back in range(5)])
        launched, merged, waited = launches(), sent.launches["merge"], waits()
        assert in_order(found := device.process(rows)) == in_order(host.process(rows))
        merges += sent.launches["merge"] - merged
        if number >= 7:
            assert found.num_rows == KEYS
            assert launches() - launched <= MOST["sliding"][True][0]
            assert waits() - waited == 1
    assert merges >= 4
    assert in_order(device.finish()) == in_order(host.finish())


@pytest.mark.parametrize("window", MOST)
def test_no_state_lies_in_the_memory_of_a_batch(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena of a batch is overwritten when the next one has its own: all that is in a state, or a dictionary, has
    memory by itself.
    """
    arenas: dict[int, Any] = {}
    learnt = scratch.Scratch.took

    class Spoiling(scratch._Arena):
        def __init__(self, whole: Any, room: int) -> None:
            super().__init__(whole, room)
            if whole is not None:
                spoilt.append(whole)

    def took(self: scratch.Scratch, used: int) -> None:
        """The arena is that of the batch before, of the same operator."""
        learnt(self, used)
        if spoilt:
            known = arenas.pop(id(self), None)
            arenas[id(self)] = spoilt.pop()
            if known is not None:
                known[:] = np.full(len(known), POISON, np.uint8)

    spoilt: list[Any] = []
    monkeypatch.setattr(scratch, "_Arena", Spoiling)
    monkeypatch.setattr(scratch.Scratch, "took", took)
    host, device = operator(window, True, "cpu"), operator(window, True)
    for number in range(7):
        rows = rows_of(number, 60 if number % 3 else 10, True)
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert len(arenas) >= 1
    assert in_order(host.finish()) == in_order(device.finish())


def test_an_arena_is_as_large_as_what_was_taken() -> None:
    room = scratch.Scratch()
    for used, holds in ((9, 1 << 16), (1 << 16, 1 << 16), (1 << 17, 3 << 16), (1 << 16, 3 << 16), (9, 1 << 16)):
        room.took(used)
        assert room.room == holds, used
