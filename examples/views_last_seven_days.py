"""Views of the last seven days, every minute, told only when the number changes.

A sliding window of 7 days every minute puts each row into 10,080 windows. The state holds one counter per user and
minute in which something happened, and `OnChange` reports a user when the count differs from the window before, the
last zero included.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

import gpuwin as gw

views = gw.WindowedAggregation(
    window=gw.SlidingWindow("7 days", "1 minute"),
    keys=["user_id"],
    time="timestamp",
    aggregates={"views": gw.count()},
    emit=gw.OnChange(),
)


def main() -> list[tuple[str, datetime, int]]:
    start = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
    events = [
        ("ada", timedelta(seconds=10)),
        ("ada", timedelta(seconds=50)),
        ("bob", timedelta(minutes=3)),
        ("ada", timedelta(days=2)),
    ]
    changes: list[tuple[str, datetime, int]] = []
    for table in gw.run(views, [pa.table({"user_id": [u], "timestamp": [start + at]}) for u, at in events]):
        changes += [(row["user_id"], row["window_end"], row["views"]) for row in table.to_pylist()]
    for user, until, count in sorted(changes, key=lambda change: change[1]):
        print(f"{until:%d %b %H:%M}  {user}: {count} views in the last 7 days")
    return changes


if __name__ == "__main__":
    main()
