"""The device service stopped before batches of a run, so that they wait for it, and then killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from .processes import await_until, kill, service


class ServiceKills:
    """Kills of the service in the middle of batches: given to `run` as `before_batch`, and joined after it.

    Attributes:
        killed: processes that were killed while a batch waited for them.
    """

    BATCHES: Final = (1, 3)

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._threads: list[threading.Thread] = []
        self.killed: set[int] = set()

    def before_batch(self, batch: int, query: StreamingQuery | None) -> None:
        """Stops the service before the batches that are struck."""
        if batch not in self.BATCHES:
            return
        assert query is not None
        pid = service(self._spark)
        os.kill(pid, signal.SIGSTOP)
        self._threads.append(threading.Thread(target=self._strike, args=(pid, query)))
        self._threads[-1].start()

    def join(self) -> None:
        """Waits for the last kill."""
        for thread in self._threads:
            thread.join()

    def _strike(self, pid: int, query: StreamingQuery) -> None:
        before = _batches_done(query)
        await_until(lambda: query.status["isTriggerActive"] and self._a_task_runs(), "a task of the batch to begin")
        time.sleep(0.7)  # now it waits for the stopped service
        if _batches_done(query) == before:
            self.killed.add(pid)
        kill(pid)

    def _a_task_runs(self) -> bool:
        tracker = self._spark.sparkContext.statusTracker()
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)


def _batches_done(query: StreamingQuery) -> int:
    return sum("addBatch" in p["durationMs"] for p in query.recentProgress)
