"""Clickstream: visits of a shop as sessions, with what was looked at and whether the visit ended in an order.

A visit is over when a visitor does nothing for 30 minutes. Events come up to two minutes late.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import gpuwin as gw

visits = gw.WindowedAggregation(
    window=gw.SessionWindow("30 minutes"),
    keys=["visitor"],
    time="at",
    aggregates={
        "clicks": gw.count(),
        "pages": gw.count_distinct("page"),
        "path": gw.collect_list("page"),
        "ordered": gw.any("is_order"),
        "spent": gw.sum("amount"),
    },
    watermark=gw.BoundedOutOfOrderness("2 minutes"),
    semantics=gw.Semantics(order="time"),  # the path as it was walked, not as it came in
)


def batches() -> Iterator[pa.Table]:
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    clicks = [
        ("ada", 0, "/", None),
        ("bob", 1, "/", None),
        ("ada", 7, "/tea", None),
        ("ada", 6, "/cups", None),  # a minute late: it is in the visit, and in its place on the path
        ("ada", 11, "/order", 24.5),
        ("bob", 45, "/tea", None),  # 44 minutes later: another visit
        ("ada", 95, "/", None),
    ]
    for start in range(0, len(clicks), 3):
        part = clicks[start : start + 3]
        yield pa.table(
            {
                "visitor": [c[0] for c in part],
                "at": [noon + timedelta(minutes=c[1]) for c in part],
                "page": [c[2] for c in part],
                "is_order": [c[3] is not None for c in part],
                "amount": pa.array([c[3] for c in part], pa.float64()),
            }
        )


def main() -> list[dict[str, object]]:
    rows = []
    for table in gw.run(visits, batches()):
        for visit in table.to_pylist():
            minutes = (visit["window_end"] - visit["window_start"]) // timedelta(minutes=1) - 30
            print(f"{visit['visitor']}: {minutes} min, {' > '.join(visit['path'])}, spent {visit['spent']}")
            rows.append(visit)
    return rows


if __name__ == "__main__":
    main()
