"""Spark's GPU scheduling: an executor has a service for each GPU that it was given, which sees that one only."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from brief_java import brief_options
from spark_harness import (
    Case,
    StreamSpec,
    children,
    differences,
    isolated,
    jvm_pid,
    run,
    services,
    spark_home,
    start_session,
    write,
)

pytestmark = pytest.mark.long

GPUS = ["5", "GPU-7f"]


def test_each_gpu_of_an_executor_has_a_service_that_sees_only_it(tmp_path: Path) -> None:
    seen, wrong, batches = isolated(_on_an_executor_with_two, str(tmp_path))
    assert seen == sorted(GPUS)
    assert wrong == []
    assert batches >= 3


def _on_an_executor_with_two(folder: str) -> tuple[list[str], list[str], int]:
    os.environ["SPARK_HOME"] = str(spark_home(Path(folder)))
    script = Path(folder) / "gpus.sh"
    script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': GPUS})}'\n")
    script.chmod(0o755)
    conf = {
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": brief_options(),
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
    }
    spark = start_session(Path(folder), "local-cluster[1,2,1024]", conf)
    try:
        case = Case("sliding", "update", "string", "integers", trigger="processing", partitions="2")
        stream = write(replace(StreamSpec(seed=3, rows=60, empty=None), batches=3), Path(folder) / "stream")
        plain = run(spark, case.query, stream, case.how, Path(folder) / "plain", enabled=False)
        device = run(spark, case.query, stream, case.how, Path(folder) / "device", enabled=True)
        (executor,) = children(jvm_pid(spark), "CoarseGrainedExecutorBackend")
        seen = [_environment(pid).get("CUDA_VISIBLE_DEVICES", "") for pid in services(executor)]
        return sorted(seen), differences(plain, device), len(device.batches)
    finally:
        spark.stop()


def _environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
