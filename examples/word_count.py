"""Word count: one window for ever, told after every batch, and how to go on after a restart."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

import gpuwin as gw

counts = gw.WindowedAggregation(
    window=gw.GlobalWindow(),
    keys=["word"],
    time="at",
    aggregates={"count": gw.count()},
    emit=gw.OnUpdate(),
)


def words(line: str) -> pa.Table:
    split = line.lower().split()
    return pa.table({"word": split, "at": [datetime(2026, 1, 1, tzinfo=UTC)] * len(split)})


def main() -> dict[str, int]:
    op = counts.start()
    totals: dict[str, int] = {}
    for line in ("the quick brown fox", "jumps over the lazy dog", "the end"):
        changed = op.process(words(line)).to_pylist()
        totals.update({row["word"]: row["count"] for row in changed})
        print({row["word"]: row["count"] for row in changed})
        op = counts.restore(op.snapshot())  # as a new process would
    return totals


if __name__ == "__main__":
    main()
