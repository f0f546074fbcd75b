"""A link between two network devices that packets cross late, or not at all, at the pace of this process.

It does what `tc netem` does, which not every kernel has.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import selectors
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

#: linux/if_tun.h: what names the device of a file, a device of whole Ethernet frames, and none but the frame in a read.
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
#: More than a frame has.
_FRAME: Final = 65_536


@dataclass(frozen=True)
class Weather:
    """What happens to packets in either direction: times in seconds, and a share of them that is lost.

    A packet is on its way for `delay`, `jitter` more or less, and so may overtake another.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


class Relay:
    """Two Ethernet devices, of which each emits what the other is given; a link of good weather at first.

    The devices are there from the beginning, under the names given, and may be moved to other namespaces. Use as a
    context manager; the devices go with it.

    Raises:
        OSError: There may be no such devices here.
    """

    def __init__(self, one: str, other: str, seed: int = 0) -> None:
        self.weather = Weather()
        self.lost = 0
        self._chance = random.Random(seed)
        ends = [_tap(one)]
        try:
            ends.append(_tap(other))
        except OSError:
            os.close(ends[0])
            raise
        self._ends = ends[0], ends[1]
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"relay {one}", daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.write(self._waker, b"x")
        self._thread.join()
        for fd in (*self._ends, self._wake, self._waker):
            os.close(fd)

    def _run(self) -> None:
        one, other = self._ends
        waiting: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        with selectors.DefaultSelector() as ready:
            for end, across in ((one, other), (other, one), (self._wake, None)):
                ready.register(end, selectors.EVENT_READ, across)
            while True:
                patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
                for key, _ in ready.select(patience):
                    if key.data is None:
                        return
                    for frame in _frames(key.fd):
                        if self._chance.random() < self.weather.loss:
                            self.lost += 1
                        else:
                            heapq.heappush(waiting, (self._due(), next(order), key.data, frame))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, end, frame = heapq.heappop(waiting)
                    _given(end, frame)

    def _due(self) -> float:
        weather = self.weather
        return time.monotonic() + weather.delay + self._chance.uniform(-weather.jitter, weather.jitter)


def _tap(name: str) -> int:
    """Makes a device; it is there until the file is closed."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd


def _frames(fd: int) -> list[bytes]:
    """The frames that a device was given, up to a hundred."""
    frames: list[bytes] = []
    while len(frames) < 100:
        try:
            frames.append(os.read(fd, _FRAME))
        except OSError:  # there is no more, or the device is down
            break
    return frames


def _given(fd: int, frame: bytes) -> None:
    """Has a device emit a frame, unless it is down: then it is lost, as on a cable that nobody holds."""
    try:
        os.write(fd, frame)
    except OSError:
        return
