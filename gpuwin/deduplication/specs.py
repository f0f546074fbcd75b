"""Specification of a deduplication, as a user writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta

import pyarrow as pa

from gpuwin.deduplication.operator import DeduplicateOperator
from gpuwin.deduplication.plan import DeduplicatePlan
from gpuwin.deduplication.snapshots import state_of
from gpuwin.errors import DeviceError, SpecificationError
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.column_names import column_names
from gpuwin.vocabulary.durations import INT64_MAX, Duration, as_timedelta, micros
from gpuwin.vocabulary.instant import check_clock
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.watermarks import BoundedOutOfOrderness, ExplicitWatermark

_IN_ORDER = BoundedOutOfOrderness("0 seconds")


@dataclass(frozen=True)
class Deduplicate:
    """Deduplication of a stream: of rows with equal keys the first to come is passed on, as it is and at once.

    keys: names of the columns that are compared. Null is a value as others are, NaN equals NaN, and -0.0 equals 0.0.
    time: the column with the time of a row; None for a stream without one, whose keys are remembered for ever. A row
        older than the watermark is late, and dropped; so is a row without a time.
    within: how long after its first row a key is remembered. A row that is later than that is a first row again. Of a
        row that comes after one with a later time it is not asked how much older it is. None: as long as rows with the
        key can come, which is until the watermark has passed it where `time` is among the keys, and else for ever.
    watermark: `BoundedOutOfOrderness` or `ExplicitWatermark`. semantics: `watermark_inclusive`, `watermark_precision`,
        `watermark_lag` and `watermark_start` apply. limits: `max_state_bytes` applies.
    collect_late: late rows are kept for `late_rows()`.

    Raises SpecificationError for anything that is not as described.
    """

    keys: Sequence[str]
    time: str | None = None
    within: Duration | None = None
    _: KW_ONLY
    watermark: BoundedOutOfOrderness | ExplicitWatermark = _IN_ORDER
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen, so it can be shared
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared
    collect_late: bool = field(default=False, repr=False)  # no part of the fingerprint: it may change at a restore

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", column_names(self.keys, "a deduplication"))
        if self.time is not None and not (isinstance(self.time, str) and self.time):
            raise SpecificationError(f"time is the name of a column, not {self.time!r}")
        if self.within is not None:
            within = as_timedelta(self.within, "Deduplicate.within")
            if within < timedelta(0):
                raise SpecificationError(f"Deduplicate.within is at least 0, not {within}")
            object.__setattr__(self, "within", within)
        if not isinstance(self.watermark, BoundedOutOfOrderness | ExplicitWatermark):
            raise SpecificationError(
                "the watermark of a deduplication is BoundedOutOfOrderness or ExplicitWatermark, not "
                f"{self.watermark!r}; with ExplicitWatermark, op.advance_watermark(time) moves it"
            )
        if not isinstance(self.semantics, Semantics):
            raise SpecificationError(f"semantics is for example gw.Semantics.SPARK, not {self.semantics!r}")
        if not isinstance(self.collect_late, bool):
            raise SpecificationError(f"collect_late is True or False, not {self.collect_late!r}")
        self._check_limits()
        self._check_timeless()

    def _check_limits(self) -> None:
        if not isinstance(self.limits, Limits):
            raise SpecificationError(f"limits is for example gw.Limits(max_state_bytes=1 << 30), not {self.limits!r}")
        if self.limits.max_open_windows is not None or self.limits.spill_to is not None:
            name = "max_open_windows" if self.limits.spill_to is None else "spill_to"
            raise SpecificationError(
                f"Limits.{name} is not for a deduplication, which has neither windows nor rows to write to disk: it is "
                "bounded by Limits.max_state_bytes"
            )

    def _check_timeless(self) -> None:
        """Raises SpecificationError where there is no time, and something that goes by it."""
        if self.time is not None:
            return
        timed = [
            name
            for name, is_set in (
                ("within", self.within is not None),
                ("watermark", self.watermark != _IN_ORDER),
                ("collect_late", self.collect_late),
            )
            if is_set
        ]
        if timed:
            raise SpecificationError(f"{' and '.join(timed)} goes by event time: name its column, time=...")

    def _plan(self) -> DeduplicatePlan:
        within = INT64_MAX
        if self.within is not None:
            assert isinstance(self.within, timedelta)
            within = micros(self.within)
        elif self.time in self.keys:
            within = 0
        return DeduplicatePlan(
            tuple(self.keys),
            self.time,
            within,
            WatermarkRule(self.watermark, self.semantics),
            self.limits.max_state_bytes,
            self.collect_late,
            repr(replace(self, limits=Limits())),
        )

    def start(
        self, device: str = "auto", *, clock: Callable[[], int] | None = None, schema: pa.Schema | None = None
    ) -> DeduplicateOperator:
        """Running deduplication. The columns are those of the first batch, unless `schema` gives them.

        device: "auto" or "cpu"; keys are compared on the host, so "cuda" raises `gpuwin.DeviceError`. `clock`: as for
        other operators; a deduplication never calls it.
        """
        _check_device(device)
        check_clock(clock)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise SpecificationError(f"schema is a pyarrow.Schema of the rows, not {type(schema).__name__}")
        return DeduplicateOperator.started(self._plan(), schema)

    def restore(self, data: bytes, device: str = "auto", allow_changes: bool = False) -> DeduplicateOperator:
        """Running deduplication that goes on from `DeduplicateOperator.snapshot`. Limits may differ, and with
        `allow_changes` the delay of `BoundedOutOfOrderness`. Raises `gpuwin.SnapshotError` for a damaged one, or one of
        another specification.
        """
        _check_device(device)
        plan = self._plan()
        return DeduplicateOperator(plan, *state_of(plan, data, allow_changes))


def _check_device(device: str) -> None:
    if device == "cuda":
        raise DeviceError('a deduplication compares its keys on the CPU: start it with device="auto" or "cpu"')
    if device not in ("auto", "cpu"):
        raise SpecificationError(f'device is "auto" or "cpu", not {device!r}')
