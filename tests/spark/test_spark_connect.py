"""Spark Connect: the plugin is the server's, and a client's queries are offloaded as they are.

`pytest -m sweep tests/spark/test_spark_connect.py`, where grpcio, grpcio-status, googleapis-common-protos and zstandard
are installed, which PySpark's client needs and gpuwin does not.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_harness import SPARK, await_until, isolated, row_differences, spark_home

from gpuwin_spark.jar import jar_path

QUERY_COLUMNS = ("key", "start", "end", "n", "k_total")


@pytest.mark.sweep
def test_queries_of_a_client_are_offloaded(tmp_path: Path) -> None:
    if SPARK < (4, 0):
        pytest.skip("PySpark before 4.0 brings no Connect server")
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = _server(tmp_path, port)
    try:
        await_until(lambda: _listens(port) or server.poll() is not None, "the Connect server", within=120)
        assert server.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
        done = isolated(_client, str(tmp_path), port)
    finally:
        server.kill()
        server.wait()
    plain, device = done["false"], done["true"]
    assert device["operators"] == ["gpuwin"]
    assert plain["operators"] == ["stateStoreSave"]
    assert plain["rows"]
    assert not list(row_differences(plain["rows"], device["rows"], QUERY_COLUMNS))
    assert "GpuWindow" in device["explained"], device["explained"]


def _server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The server in the foreground, started as docs/production.md has it."""
    home = spark_home(folder)
    with open(folder / "server.log", "wb") as log:
        return subprocess.Popen(
            [
                *(str(home / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jar_path()),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--conf", f"spark.connect.grpc.binding.port={port}"),
                *(
                    "--conf",
                    "spark.plugins=io.gpuwin.GpuWindowPlugin",
                    "--conf",
                    f"spark.gpuwin.python={sys.executable}",
                ),
                *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.gpuwin.device=cpu"),
                *("--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}", "spark-internal"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **{k: v for k, v in os.environ.items() if k != "PYSPARK_SUBMIT_ARGS"},
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _client(folder: str, port: int) -> dict[str, dict[str, Any]]:
    """One query without and with the plugin, by a client that knows nothing of gpuwin but the name of its switch."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    source = str(Path(folder) / "source")
    events = spark.range(4000).select(
        (F.col("id") % 7).cast("string").alias("key"),
        F.timestamp_seconds(1_700_000_000 + F.col("id")).alias("ts"),
        (F.col("id") * 3).alias("value"),
    )
    events.repartition(4).write.parquet(source)
    found: dict[str, dict[str, Any]] = {}
    for enabled in ("false", "true"):
        spark.conf.set("spark.gpuwin.enabled", enabled)
        stream = spark.readStream.schema("key string, ts timestamp, value long").option("maxFilesPerTrigger", 1)
        windows = (
            stream.parquet(source)
            .withWatermark("ts", "4000 seconds")
            .groupBy("key", F.window("ts", "2 minutes", "30 seconds"))
            .agg(F.count("*").alias("n"), F.sum("value").alias("k_total"))
            .select("key", "window.start", "window.end", "n", "k_total")
        )
        query = (
            windows.writeStream.format("memory")
            .queryName(f"windows_{enabled}")
            .outputMode("complete")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(Path(folder) / f"checkpoint-{enabled}"))
            .start()
        )
        query.awaitTermination()
        operators = {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}
        rows = [tuple(r) for r in spark.table(f"windows_{enabled}").collect()]
        found[enabled] = {"operators": sorted(operators), "rows": rows, "explained": windows._explain_string()}
    spark.stop()
    return found
