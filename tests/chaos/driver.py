"""The process that is killed: a Spark application on a small cluster, and its query, from where its checkpoint says.

python -m tests.chaos.driver FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from brief_java import brief_options
from spark_harness import FAST, PROVIDERS, jvm_pid, start_session

from .queries import QUERIES
from .sinks import SINKS
from .sources import SOURCES


def main(folder: Path) -> None:
    """Runs the query until every row is done. What it is: `folder`/settings.json."""
    settings = json.loads((folder / "settings.json").read_text())
    conf = {
        **FAST,
        **PROVIDERS[settings["provider"]],
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": brief_options(),
        "spark.driver.extraJavaOptions": brief_options(),
        "spark.gpuwin.log.maxSegments": "4",
        "spark.gpuwin.mapside": "device",  # batches as small as these would else be made cells in the JVM
        "spark.executorEnv.GPUWIN_FAILPOINTS": str(folder / "steps"),
        **settings["conf"],
    }
    given = {key: value for key, value in conf.items() if value}  # what is empty stays as Spark has it
    spark = start_session(folder, settings["master"], given)
    publish(folder / "jvm.pid", str(jvm_pid(spark)))
    query_of = QUERIES[settings["query"]]
    results = query_of.on_spark(SOURCES[settings["source"]].read(spark, folder))
    writer = results.writeStream.outputMode(query_of.mode)
    writer = writer.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True)
    query = SINKS[settings["sink"]].start(results, writer, folder / "out")
    query.awaitTermination()
    progress = [json.loads(p.json) for p in query.recentProgress]
    operators = sorted({o["operatorName"] for p in progress for o in p["stateOperators"]})
    publish(folder / "operators.json", json.dumps(operators))
    spark.stop()


def publish(path: Path, text: str) -> None:
    """Writes a file that appears whole."""
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    os.replace(aside, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
