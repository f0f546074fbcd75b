"""`WindowedAggregation`: a specification that starts operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from gpuwin.operator import WindowOperator
from gpuwin.vocabulary.specification import Specification


@dataclass(frozen=True, repr=False)
class WindowedAggregation(Specification):
    __doc__ = Specification.__doc__

    def start(
        self,
        device: str = "auto",
        clock: Callable[[], int] | None = None,
        schema: pa.Schema | None = None,
    ) -> WindowOperator:
        """Operator with empty state.

        device: "cpu", "cuda", or "auto" (a GPU where there is one that serves).
        clock: returns microseconds; stands in for the system clock in tests and replays.
        schema: of the input, if it is known before the first batch.
        """
        return WindowOperator(self, device=device, clock=clock, schema=schema)

    def restore(
        self,
        data: bytes,
        device: str = "auto",
        clock: Callable[[], int] | None = None,
        allow_changes: bool = False,
    ) -> WindowOperator:
        """Operator that goes on from `WindowOperator.snapshot`, on any device. Limits, `collect_late` and
        `collect_merges` may differ from those of then.

        allow_changes: the delay of `BoundedOutOfOrderness` may differ, too.

        Raises gw.SnapshotError for a payload that is damaged, of another version, or of another specification.
        """
        return WindowOperator.restored(self, data, device, clock, allow_changes)

    __hash__ = Specification.__hash__
