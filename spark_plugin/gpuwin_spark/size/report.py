"""Report of an estimate, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from .costs import Costs
from .estimate import BUSY, Estimate, estimate
from .load import Load


def report(load: Load, costs: Costs, executors: int | None, cores: int, *, as_json: bool = False) -> str:
    """Lines that say what the load needs.

    Args:
        load: the load.
        costs: the costs.
        executors: their number; None for as many as it takes.
        cores: of an executor.
        as_json: one JSON object in place of the lines.
    """
    needed = estimate(load, costs, 1).executors(cores)
    found = estimate(load, costs, executors or needed)
    if as_json:
        figures = {**asdict(found), "executors_needed": needed, "executors": executors or needed}
        return json.dumps({"load": asdict(load), **figures, "measured": costs.measured}, indent=1)
    return "\n".join(_lines(load, costs, found, executors or needed, needed, cores))


def _lines(load: Load, costs: Costs, found: Estimate, executors: int, needed: int, cores: int) -> list[str]:
    counts = found.counts
    what = "sessions" if load.slide is None else "cells"
    batches_an_hour = 3600 / load.interval
    lines = [
        f"a micro-batch of {_seconds(load.interval)}: {_count(counts.rows)} rows become {_count(counts.cells)} {what} "
        f"before the shuffle, and {_count(counts.results)} results leave",
        f"state: {_count(counts.state_cells)} {what} of {_count(counts.state_keys)} keys, "
        f"{_bytes(found.state_bytes)} in all",
        f"memory of the device service: {_bytes(found.service_memory)} on each of {executors} executors",
        f"shuffle: {_bytes(found.shuffle_bytes)} a batch",
        f"state log: {_bytes(found.log_bytes)} a batch, {_bytes(found.log_bytes * batches_an_hour)} an hour",
        f"processor time: {found.seconds_per_million_rows:.2f} s per million rows "
        f"({found.jvm_seconds / counts.rows * 1e6:.2f} in Spark's tasks, "
        f"{found.service_seconds / counts.rows * 1e6:.2f} in the device service)",
        f"executors of {cores} cores, {BUSY:.0%} busy: {needed}",
    ]
    if needed > executors:
        lines.append(f"{executors} executors are too few: the query would fall behind, or leave nothing for a restart")
    if load.partitions < executors:
        lines.append(f"{load.partitions} partitions leave {executors - load.partitions} executors without a state")
    if counts.results > counts.rows:
        ratio = counts.results / counts.rows
        lines.append(f"{ratio:.1f} results leave for each row that comes: the sink has more to do than the source")
    lines.append(f"costs: {costs.measured}; keys drawn evenly; your expressions, source and sink are not in it")
    return lines


def _count(n: float) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if n >= unit:
            return f"{n / unit:,.1f}{name}"
    return f"{n:,.0f}"


def _bytes(n: float) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n / unit:,.1f} {name}"
    return f"{n:,.0f} bytes"


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s"
