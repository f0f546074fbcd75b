"""Sensors: a mean per minute with early results every third reading, late corrections, and the readings that came too
late.

    minute 0        | minute 1 ... early  early    on time          late                      dropped
    |------|--------|----------------|-------------------------|------> watermark
                    end              a late row inside         end + 5 minutes
                                     the allowed lateness
"""

from __future__ import annotations

import pyarrow as pa

import gpuwin as gw

per_minute = gw.WindowedAggregation(
    window=gw.TumblingWindow("1 minute"),
    keys=["sensor"],
    time="at",
    aggregates={"readings": gw.count(), "mean": gw.mean("celsius"), "highest": gw.max("celsius")},
    watermark=gw.BoundedOutOfOrderness("10 seconds"),
    allowed_lateness="5 minutes",
    emit=gw.Trigger(early=gw.EveryRows(3), late=gw.EveryRows(1)),
    collect_late=True,
)


def readings(*rows: tuple[str, int, float]) -> pa.Table:
    """Rows of (sensor, seconds, degrees)."""
    return pa.table(
        {
            "sensor": [r[0] for r in rows],
            "at": pa.array([r[1] for r in rows], pa.timestamp("s")),
            "celsius": [r[2] for r in rows],
        }
    )


def main() -> tuple[list[tuple[object, ...]], list[float]]:
    op = per_minute.start()
    batches = [
        readings(("roof", 5, 20.0), ("roof", 15, 21.0), ("roof", 25, 22.0)),  # the third reading fires early
        readings(("roof", 75, 30.0)),  # the watermark passes 60 s: minute 0 is due
        readings(("roof", 40, 26.0)),  # late, but allowed: minute 0 is corrected
        readings(("roof", 500, 18.0)),  # far ahead: minute 0 is evicted
        readings(("roof", 50, 99.0)),  # too late
    ]
    firings = []
    for batch in batches:
        for row in op.process(batch).to_pylist():
            firing = (row["pane"], f"{row['window_start']:%H:%M}", row["readings"], row["mean"])
            print(*firing)
            firings.append(firing)
    too_late = op.late_rows().column("celsius").to_pylist()
    print("too late:", too_late, "of", op.metrics.rows_in)
    return firings, too_late


if __name__ == "__main__":
    main()
