"""Tables of keys that many threads enter at once: few keys fit a small table, and no thread goes round a full one."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from lockstep import run_in_step

import gpuwin as gw
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin_kernels.cuda import byte_keys, key_table, keys, runtime
from gpuwin_kernels.cuda.key_table import NO_SLOT, TICKETS
from gpuwin_kernels.cuda.runtime import to_device, to_host
from gpuwin_kernels.cuda.scalar import EMPTY

SLOTS, LIMIT = 64, 32


def entered_numbers(numbers: list[int]) -> tuple[list[int], np.ndarray, int]:
    """(slots, table, tickets) after a thread for each number has entered it, all in step."""
    table, counters = np.full(SLOTS, keys._FREE), np.zeros(3, np.int64)
    arguments = [(table, counters, LIMIT, np.int64(number)) for number in numbers]
    slots = run_in_step(keys._entered, arguments, table, counters)
    return [int(s) for s in slots], table, int(counters[TICKETS])


def entered_texts(texts: list[bytes]) -> tuple[list[int], np.ndarray, int]:
    data = b"".join(texts)
    words = np.frombuffer(data + bytes(-len(data) % 8 + 8), np.uint64)
    offsets = np.cumsum([0, *map(len, texts)])
    table, counters = np.full(SLOTS, EMPTY), np.zeros(3, np.int64)
    heap, heap_at = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    arguments = [
        (row, (offsets[row], np.int64(len(text)), np.uint64(crc32(text) << 32 | crc32(text))), (words, offsets, 0),
         (heap_at, heap), table, counters, LIMIT)
        for row, text in enumerate(texts)
    ]  # fmt: skip
    slots = run_in_step(byte_keys._entered, arguments, table, counters)
    return [int(s) for s in slots], table, int(counters[TICKETS])


ENTERED = {
    "numbers": lambda keys: entered_numbers([7 * key - 20 for key in keys]),
    "texts": lambda keys: entered_texts([b"a text, number %d" % key for key in keys]),
}


@pytest.mark.parametrize("kind", ENTERED)
def test_threads_that_find_one_slot_free_take_one_ticket(kind: str) -> None:
    rows = np.random.default_rng(1).integers(0, 10, 6 * LIMIT).tolist()
    slots, _, tickets = ENTERED[kind](rows)
    assert NO_SLOT not in slots
    assert tickets == len(set(rows)) == len(set(slots)) == 10
    assert len(set(zip(rows, slots, strict=True))) == 10, "equal keys have one slot, and others have others"


@pytest.mark.parametrize("kind", ENTERED)
def test_keys_beyond_the_limit_are_refused_and_all_threads_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where threads in step have filled the last slot before anyone has counted."""
    monkeypatch.setattr(key_table, "PROBES", 8)
    slots, table, tickets = ENTERED[kind](list(range(4 * SLOTS)))
    given = [slot for slot in slots if slot != NO_SLOT]
    assert len(given) == len(set(given)) == LIMIT
    assert tickets == np.count_nonzero(table != (EMPTY if kind == "texts" else keys._FREE)) > LIMIT


def test_ten_keys_of_many_rows_need_no_larger_table() -> None:
    """On a device the first rows come to the empty table all at once."""
    n = 600 if runtime.simulated() else 2_000_000
    index = np.random.default_rng(2).integers(0, 10, n)
    _, first = np.unique(index, return_index=True)
    expected = np.argsort(np.argsort(first))[index]
    texts = pa.DictionaryArray.from_arrays(index, pa.array([f"key {k}" for k in range(10)])).dictionary_decode()
    for column in (pa.array(index * 1_000_003), texts):
        device = DeviceKeyDictionary([column.type])
        np.testing.assert_array_equal(device.encode([column], n), expected)
        assert device.growths == 0


def test_growths_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "_SMALLEST", 4)
    table = keys.DeviceKeys()
    assert to_host(table.encode(to_device(np.arange(2)))).tolist() == [0, 1]
    assert table.growths == 0
    assert to_host(table.encode(to_device(np.arange(30)))).tolist() == list(range(30))
    assert table.growths == 2, "four slots, then 16, then 64"
    table.encode(to_device(np.arange(30)))
    assert table.growths == 2

    pairs = DeviceKeyDictionary([pa.int64(), pa.string()])
    assert pairs.growths == 0
    pairs.encode([pa.array([1, 2, 3]), pa.array(["a", "b", "c"])], 3)
    assert pairs.growths == 3, "of each column, and of the pairs"
    assert pairs.kept(np.array([0, 2], np.int32))[0].growths == 3, "none for the smaller one, which knows its size"


def metrics_of(device: str) -> Any:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"), keys=["key"], time="ts", aggregates={"n": gw.count()}
    )
    op = spec.start(device=device)
    times = pa.array([0, 1, 2], pa.timestamp("us"))
    assert op.metrics.key_growths == 0
    op.process(pa.table({"ts": times, "key": ["a", "b", "c"]}))
    return op.metrics


def test_the_metrics_say_how_often_the_dictionary_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "_SMALLEST", 4)
    assert metrics_of("cpu").key_growths == 0
    assert metrics_of("cuda").key_growths == 1
