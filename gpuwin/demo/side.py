"""One side of a comparison: ``python -m gpuwin.demo.side SPECIFICATION`` runs one streaming query and reports on it.

Each side has a process, and so a Spark, of its own: the two cannot disturb one another, and one that takes too long can
be ended. It starts its Spark, describes the query, says that it is ready, and begins when a line comes on standard
input. Standard output carries one JSON object a line; everything else goes to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final


@dataclass(frozen=True)
class SideSpec:
    """Work of one side. Everything but `device` is the same on both sides.

    Attributes:
        query: ``module:function`` of a function from a streaming DataFrame to a DataFrame.
        arguments: more keyword arguments for it.
        schema: Spark's schema of the input, as DDL.
        source: folder of Parquet files; each is a micro-batch, in the order of their times of change.
        sink: folder for the result as Parquet, or None to compute it and throw it away.
        checkpoint: folder that does not exist yet.
        device: "cpu", "cuda" or "auto" with gpuwin; None for plain Spark.
        mode: Spark's output mode.
        conf: Spark's configuration.
    """

    query: str
    schema: str
    source: str
    sink: str | None
    checkpoint: str
    device: str | None
    mode: str = "append"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


#: The nodes of Spark's own plan that gpuwin takes the place of.
_OWN_NODES: Final = ("StateStoreSave", "StateStoreRestore", "SessionWindowStateStoreSave", "Expand")
_POLL_SECONDS: Final = 0.1


def main() -> int:
    spec = SideSpec(**json.loads(sys.argv[1]))
    # Whatever else is printed here, by Python or by the JVM, must not end up between the reports.
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    begin = threading.Event()
    threading.Thread(target=_listen, args=(begin,), daemon=True).start()
    try:
        run(spec, reports, begin)
    except Exception as e:
        import traceback

        traceback.print_exc()
        say(reports, event="failed", message=_reason(e))
        return 1
    return 0


def _listen(begin: threading.Event) -> None:
    """Standard input stays open while whoever started this process lives; Spark's JVM goes with this process."""
    if sys.stdin.readline():
        begin.set()
        sys.stdin.read()
    os._exit(3)


def run(spec: SideSpec, reports: IO[str], begin: threading.Event) -> None:
    """Runs the query over everything in `spec.source` once `begin` is set, and reports each batch and the end."""
    from pyspark.sql import SparkSession

    from gpuwin_spark import configure, explain
    from gpuwin_spark.java import prepare_environment

    module, _, function = spec.query.partition(":")
    build = getattr(importlib.import_module(module), function)  # before Spark, which takes seconds to start
    prepare_environment()
    builder = SparkSession.builder.appName("gpuwin demo")
    for key, value in spec.conf.items():
        builder = builder.config(key, value)
    if spec.device is not None:
        builder = configure(builder, device=spec.device)
    spark = builder.getOrCreate()
    try:
        # Spark takes its time to analyze thousands of windows a row. That is done beside what else is prepared.
        stream = spark.readStream.schema(spec.schema).option("maxFilesPerTrigger", "1").parquet(spec.source)
        writer = build(stream, **spec.arguments).writeStream.outputMode(spec.mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", spec.checkpoint)
        writer = writer.format("noop") if spec.sink is None else writer.format("parquet").option("path", spec.sink)
        say(reports, event="ready")
        begin.wait()
        say(reports, event="started")
        started = time.monotonic()
        query = writer.start()
        reported = -1
        while True:
            ended = bool(query.awaitTermination(_POLL_SECONDS))
            before, reported = reported, _report_batches(query, reported, started, reports)
            if before < 0 <= reported:
                plan = str(query._jsq.explainInternal(False))
                say(reports, event="planned", nodes=[n for n in _OWN_NODES if re.search(rf"\b{n}\b", plan)])
            if ended:
                break
        seconds = time.monotonic() - started
        explanation = explain(query) if spec.device is not None else ""
        say(reports, event="finished", seconds=seconds, explanation=explanation)
    finally:
        spark.stop()


def _report_batches(query: Any, reported: int, started: float, reports: IO[str]) -> int:
    for progress in query.recentProgress:
        if progress["batchId"] > reported and "addBatch" in progress["durationMs"]:
            reported = progress["batchId"]
            operators = progress["stateOperators"]
            say(
                reports,
                event="batch",
                number=reported,
                rows=progress["numInputRows"],
                milliseconds=progress["durationMs"]["triggerExecution"],
                elapsed=time.monotonic() - started,
                state_rows=sum(o["numRowsTotal"] for o in operators),
                state_bytes=sum(o["memoryUsedBytes"] for o in operators),
                operators=[o["operatorName"] for o in operators],
            )
    return reported


def say(reports: IO[str], **what: Any) -> None:
    reports.write(json.dumps(what) + "\n")
    reports.flush()


def _reason(error: BaseException) -> str:
    """Reason of a failure, without the JVM's stack: the innermost message that gpuwin or Spark wrote for a reader."""
    text = str(error)
    own = re.search(r"GpuWindowException: (.*?)(?:\n\s+at |\n\nDriver stacktrace|\Z)", text, re.DOTALL)
    said = own[1] if own else text.split("\n\tat ")[0].split("\n\nDriver stacktrace")[0]
    return f"{type(error).__name__}: " + "\n".join(said.strip()[:2000].splitlines()[:8])


if __name__ == "__main__":
    sys.exit(main())
