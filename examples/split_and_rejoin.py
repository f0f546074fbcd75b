"""Split a stream in two, aggregate each half in its own way, and join the results again by key and window.

Splitting is a filter on Arrow data. The results carry their windows, so that they meet where host and window are the
same, once neither half has more to say about that window.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import gpuwin as gw

requests = gw.WindowedAggregation(
    window=gw.TumblingWindow("1 minute"),
    keys=["host"],
    time="at",
    aggregates={"served": gw.count(), "median_ms": gw.median("ms")},
)
failures = gw.WindowedAggregation(
    window=gw.TumblingWindow("1 minute"),
    keys=["host"],
    time="at",
    aggregates={"failed": gw.count(), "statuses": gw.collect_set("status")},
)
per_host = gw.WindowJoin(gw.InheritedWindow(), ["host"], how="full", watermark=gw.ExplicitWatermark())

LOG = pa.table(
    {
        "host": ["a", "a", "b", "a", "b", "a", "b"],
        "at": pa.array([1, 2, 3, 30, 40, 65, 70], pa.timestamp("s")),
        "status": [200, 500, 200, 200, 503, 200, 503],
        "ms": [12, 90, 7, 14, 350, 9, 360],
    }
)


def main() -> list[dict[str, Any]]:
    join = per_host.start()
    tables = []
    good, bad = requests.start(), failures.start()
    for start in range(0, LOG.num_rows, 3):
        batch = LOG.slice(start, 3)
        served = pc.less(batch["status"], 500)
        tables.append(
            join.process(left=good.process(batch.filter(served)), right=bad.process(batch.filter(pc.invert(served))))
        )
        if good.output_watermark is not None and bad.output_watermark is not None:
            tables.append(join.advance_watermark(min(good.output_watermark, bad.output_watermark)))
    tables.append(join.process(left=good.finish(), right=bad.finish()))
    tables.append(join.finish())
    rows = pa.concat_tables(tables).sort_by([("host", "ascending"), ("window_start", "ascending")]).to_pylist()
    for row in rows:
        failed = f"failed {row['failed']} {row['statuses']}"
        print(f"{row['host']} {row['window_start']:%H:%M}  served {row['served']}, {failed}")
    return rows


if __name__ == "__main__":
    main()
