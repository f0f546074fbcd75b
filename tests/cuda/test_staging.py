"""Pinned memory is not filled again before what was copied from it has arrived, whenever copies run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import parallel
from gpuwin_kernels.cuda.staging import Ring, Rings


class SlowDevice:
    """A stream that copies nothing until somebody waits for an event behind it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.queue[self.done]()
            self.done += 1

    def event(self) -> SlowEvent:
        return SlowEvent()

    def copy_to(self, target: np.ndarray) -> Callable[[int, np.ndarray], None]:
        def copy(at: int, piece: np.ndarray) -> None:
            self.queue.append(lambda: target.__setitem__(slice(at, at + len(piece)), piece))

        return copy


class SlowEvent:
    behind: tuple[SlowDevice, int] | None = None

    def record(self, stream: SlowDevice) -> None:
        self.behind = stream, len(stream.queue)

    def synchronize(self) -> None:
        if self.behind is not None:
            self.behind[0].run(self.behind[1])


def pinned(nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def test_late_copies_find_what_they_were_given() -> None:
    device = SlowDevice()
    ring = Ring(192, pinned, device.event, device)
    rng = np.random.default_rng(3)
    wanted, found = [], []
    for size in (1, 64, 5, 191, 192, 193, 700, 3, 64, 64, 1000):
        host = rng.integers(0, 256, size).astype(np.uint8)
        wanted.append(host.copy())
        found.append(np.zeros(size, np.uint8))
        ring.move(host, device.copy_to(found[-1]))
        host[:] = 0  # its owner may do so at once
    assert device.done < len(device.queue), "copies were waited for one by one"
    device.run(len(device.queue))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_copies_are_filled_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: 3)
    monkeypatch.setattr(tuning, "COPY_BYTES", 128)
    copied: list[int] = []
    copyto = np.copyto

    def seen(target: np.ndarray, source: np.ndarray) -> None:
        copied.append(threading.get_ident())
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", seen)
    device = SlowDevice()
    ring = Ring(1024, pinned, device.event, device)
    for size in (1000, 1001, 1024, 4999):
        host = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
        wanted, found = host.copy(), np.zeros(size, np.uint8)
        ring.move(host, device.copy_to(found))
        host[:] = 0  # no thread reads it any more
        device.run(len(device.queue))
        np.testing.assert_array_equal(wanted, found)
    assert len(set(copied)) > 1
    assert threading.get_ident() in copied


def test_a_fault_of_a_thread_that_fills_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: 2)
    monkeypatch.setattr(tuning, "COPY_BYTES", 128)
    ours, copyto = threading.get_ident(), np.copyto

    def broken(target: np.ndarray, source: np.ndarray) -> None:
        if threading.get_ident() != ours:
            raise MemoryError("of another thread")
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", broken)
    with pytest.raises(MemoryError, match="of another thread"):
        parallel.copy(np.zeros(256, np.uint8), np.ones(256, np.uint8))


def test_small_copies_are_not_waited_for() -> None:
    device = SlowDevice()
    ring = Ring(1024, pinned, device.event, device)
    for _ in range(16):
        ring.move(np.ones(8, np.uint8), device.copy_to(np.zeros(8, np.uint8)))
    assert device.done == 0


def test_threads_have_a_ring_each_and_leave_it_to_others() -> None:
    device, made = SlowDevice(), []
    both = threading.Barrier(2)

    def make() -> Ring:
        made.append(Ring(128, pinned, device.event, device))
        return made[-1]

    rings = Rings(make)

    def work() -> None:
        def copy(at: int, piece: np.ndarray) -> None:
            both.wait(timeout=10)

        rings.move(np.ones(1, np.uint8), copy)

    some = [threading.Thread(target=work) for _ in range(2)]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()
    rings.move(np.ones(1, np.uint8), device.copy_to(np.zeros(1, np.uint8)))
    assert len(made) == 2


def test_a_ring_has_a_size() -> None:
    with pytest.raises(ValueError, match="a multiple of 64 bytes, not 100"):
        Ring(100, pinned, SlowDevice().event, None)
