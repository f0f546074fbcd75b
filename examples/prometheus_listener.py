"""Watches streaming queries with Prometheus: a listener that adds up their progress, and a page to scrape.

Nothing but the standard library: the text format of Prometheus (version 0.0.4) is a line a number. Counters add up what
batches report; gauges are the last batch's. Beside Spark's own figures there are gpuwin's, from
``stateOperators[].customMetrics``.

    python examples/prometheus_listener.py        # a demonstration query, and what a scrape of it returns
"""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

import gpuwin as gw

#: name in progress -> (name for Prometheus, type, factor to base units, help)
OF_QUERY = {
    "numInputRows": ("spark_streaming_input_rows_total", "counter", 1, "Rows read."),
    "triggerExecution": ("spark_streaming_trigger_seconds", "gauge", 1e-3, "Time of the last trigger."),
    "addBatch": ("spark_streaming_add_batch_seconds", "gauge", 1e-3, "Time of the last batch in Spark's jobs."),
}
OF_OPERATOR = {
    "numRowsTotal": ("spark_streaming_state_rows", "gauge", 1, "Rows (on gpuwin: cells) kept."),
    "memoryUsedBytes": ("spark_streaming_state_bytes", "gauge", 1, "Memory of the state."),
    "numRowsDroppedByWatermark": ("spark_streaming_late_rows_total", "counter", 1, "Rows dropped as late."),
    "commitTimeMs": ("spark_streaming_commit_seconds_total", "counter", 1e-3, "Time of tasks in commits."),
    "gpuwinDeviceTimeMs": ("gpuwin_device_seconds_total", "counter", 1e-3, "Time in the device service."),
    "gpuwinBytesToDevice": ("gpuwin_to_device_bytes_total", "counter", 1, "Bytes sent to the device service."),
    "gpuwinBytesFromDevice": ("gpuwin_from_device_bytes_total", "counter", 1, "Bytes received from it."),
    "gpuwinCellsIn": ("gpuwin_cells_total", "counter", 1, "Cells sent to the device service."),
    "gpuwinSegments": ("gpuwin_log_segments", "gauge", 1, "Segments in the state log, all partitions."),
    "gpuwinCompactions": ("gpuwin_log_compactions_total", "counter", 1, "Compactions of the state log."),
    "gpuwinLogBytesWritten": ("gpuwin_log_written_bytes_total", "counter", 1, "Bytes written to the state log."),
    "gpuwinResidentHits": ("gpuwin_resident_hits_total", "counter", 1, "Partitions whose state was resident."),
    "gpuwinPartitionsOnCuda": ("gpuwin_partitions_on_cuda", "gauge", 1, "Partitions whose state was on the GPU."),
    "gpuwinPartitionsOnCpu": ("gpuwin_partitions_on_cpu", "gauge", 1, "Partitions whose state was on the CPU."),
    "gpuwinServiceRestarts": ("gpuwin_service_restarts_total", "counter", 1, "Times the service died under a task."),
}
FAILED = "spark_streaming_failed_total"


class PrometheusListener(StreamingQueryListener):
    """Keeps the figures of all queries of a session; `page` is what Prometheus scrapes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._failed = 0

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        query = {"query": progress.name or str(progress.id)}
        with self._lock:
            figures = {"numInputRows": progress.numInputRows, **progress.durationMs}
            self._record(OF_QUERY, figures, query)
            for number, operator in enumerate(progress.stateOperators):
                labels = {**query, "operator": operator.operatorName, "number": str(number)}
                figures = {name: getattr(operator, name, None) for name in OF_OPERATOR}
                self._record(OF_OPERATOR, {**figures, **operator.customMetrics}, labels)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        with self._lock:
            self._failed += event.exception is not None

    def _record(self, wanted: dict[str, Any], figures: dict[str, Any], labels: dict[str, str]) -> None:
        for name, (metric, kind, factor, _) in wanted.items():
            if figures.get(name) is not None:
                key = metric, tuple(labels.items())
                before = self._values.get(key, 0.0) if kind == "counter" else 0.0
                self._values[key] = before + figures[name] * factor

    def page(self) -> str:
        """All figures, in the text format."""
        with self._lock:
            values, failed = dict(self._values), self._failed
        lines = []
        for metric, kind, _, text in [*OF_QUERY.values(), *OF_OPERATOR.values()]:
            samples = [(labels, value) for (name, labels), value in values.items() if name == metric]
            if samples:
                lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
                lines += [f"{metric}{{{_labels(labels)}}} {value:.15g}" for labels, value in samples]
        lines += [
            f"# HELP {FAILED} Queries that ended with an error.",
            f"# TYPE {FAILED} counter",
            f"{FAILED} {failed}",
        ]
        return "\n".join(lines) + "\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    escaped = ((k, v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for k, v in labels)
    return ",".join(f'{k}="{v}"' for k, v in escaped)


def serve(listener: PrometheusListener, port: int = 0, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Serves the page in the background; port 0 takes a free one. The caller ends it with ``shutdown``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = listener.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def watched(spark: SparkSession, rows: int) -> str:
    """Runs a query over `rows` rows of the rate source with the listener on, and returns one scrape."""
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    server = serve(listener)
    try:
        events = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 1).load()
        )
        counts = (
            events.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "10 seconds")).agg(F.count("*"))
        )
        query = counts.writeStream.queryName("watched").outputMode("update").format("noop").start()
        while not query.recentProgress:
            query.awaitTermination(0.1)
        query.stop()
        seen = threading.Event()  # the listener hears of a batch a moment later
        for _ in range(300):
            if 'query="watched"' in listener.page() or seen.wait(0.1):
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics") as scrape:
            return str(scrape.read().decode())
    finally:
        spark.streams.removeListener(listener)
        server.shutdown()
        server.server_close()


def main(rows: int = 1000) -> str:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = gw.spark.configure(builder.config("spark.ui.enabled", "false"), device="cpu").getOrCreate()
    try:
        return watched(spark, rows)
    finally:
        spark.stop()


if __name__ == "__main__":
    print(main())
