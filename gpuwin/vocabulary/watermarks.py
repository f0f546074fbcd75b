"""Watermarks: how event time goes on, as a promise that rows older than the watermark no longer come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import Duration, as_timedelta


@dataclass(frozen=True)
class BoundedOutOfOrderness:
    """Watermark at the largest time seen, minus `delay`. It never goes back."""

    delay: Duration = "0 seconds"

    def __post_init__(self) -> None:
        delay = as_timedelta(self.delay, "BoundedOutOfOrderness.delay")
        if delay < timedelta(0):
            raise SpecificationError(f"BoundedOutOfOrderness.delay must not be negative, and is {delay}")
        object.__setattr__(self, "delay", delay)


@dataclass(frozen=True)
class EventClock:
    """Watermark at the largest time seen, minus `wait`, that goes on with the system clock until a row is further
    (Bytewax).

    The system clock is read once per batch; an empty batch lets an idle stream close its windows. With
    `wait=timedelta.max` nothing is ever late, and only the end of the stream closes windows.
    """

    wait: Duration = "0 seconds"

    def __post_init__(self) -> None:
        wait = as_timedelta(self.wait, "EventClock.wait")
        if wait < timedelta(0):
            raise SpecificationError(f"EventClock.wait must not be negative, and is {wait}")
        object.__setattr__(self, "wait", wait)


@dataclass(frozen=True)
class SystemClock:
    """Watermark at the moment at which a batch arrives, which is also the time of its rows. No time column is
    needed.
    """


@dataclass(frozen=True)
class ExplicitWatermark:
    """Watermark that moves only by `WindowOperator.advance_watermark`."""


@dataclass(frozen=True)
class MultipleInputs:
    """Watermark of several inputs, each with one of its own: `process(batch, source=i)`, `advance_watermark(time,
    source=i)`, with which an input that has gone quiet is moved on.

    The watermark of the operator is the smallest of them (`policy="min"`: not before every input has one), or the
    largest.
    """

    inputs: tuple[BoundedOutOfOrderness | ExplicitWatermark, ...]
    policy: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Iterable):
            raise SpecificationError(
                f"MultipleInputs takes a list of watermarks, one for each input, not {self.inputs!r}"
            )
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if len(self.inputs) < 2:
            raise SpecificationError("MultipleInputs needs at least two watermarks, one for each input")
        for one in self.inputs:
            if not isinstance(one, BoundedOutOfOrderness | ExplicitWatermark):
                idle = ": move an idle input by op.advance_watermark(time, source=...)"
                raise SpecificationError(
                    "an input of MultipleInputs has a BoundedOutOfOrderness or an ExplicitWatermark, not "
                    f"{one!r}{idle if isinstance(one, EventClock) else ''}"
                )
        if self.policy not in ("min", "max"):
            raise SpecificationError(f'MultipleInputs.policy is "min" or "max", not {self.policy!r}')


Watermark = BoundedOutOfOrderness | EventClock | SystemClock | ExplicitWatermark | MultipleInputs
