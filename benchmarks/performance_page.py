"""Puts the figures of benchmarks/results/*.json into docs/performance.md, between its two marks.

python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
MARKS = ("<!-- figures: written by benchmarks/performance_page.py -->", "<!-- end of figures -->")


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text()))


def duration(seconds: int) -> str:
    for unit, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {word}"
    return f"{seconds} s"


def queries() -> list[str]:
    others = sorted(path.stem for path in RESULTS.glob("spark_queries_*.json"))
    tables = [queries_of(name) for name in ("spark_queries", *others)]
    return [line for table in tables for line in ("", *table)][1:]


def _window(w: dict[str, Any]) -> str:
    """The window of a workload, and its aggregates where they are not the usual ones."""
    if w["aggregates"] == "deduplicated":
        return f"none; first rows of keys, each for {duration(w['size'])}"
    window = duration(w["size"]) if w["slide"] else f"sessions, gap {duration(w['size'])}" if w["size"] else "none"
    if w["slide"] not in (0, w["size"]):
        window += f" every {duration(w['slide'])}"
    return window if w["aggregates"] == "sum,count" else f"{window}; {w['aggregates'].replace(',', ', ')}"


def queries_of(name: str) -> list[str]:
    results = list(read(name).values())
    machine = results[0]["machine"]
    lines = [
        f"### Queries on Spark {machine['spark']}",
        "",
        "Seconds of a query over Parquet files, one micro-batch a file (a batch query reads all at once): the best",
        "of the runs, and their median; ratio: plain Spark's time over gpuwin's.",
        "Written by `benchmarks/spark_queries.py`.",
        "",
        "| window | rows | keys | state store | plain Spark, best | gpuwin, best | ratio | target "
        "| plain Spark, median | gpuwin, median | ratio of medians | runs | load |",
        "|" + "---|" * 13,
    ]
    for result in results:
        w = result["workload"]
        window = _window(w)
        store = "batch query" if w.get("batch") else w["provider"]
        keys = f"{w['keys']:,} strings" if w.get("key") == "string" else f"{w['keys']:,}"
        cells = [f"{w['files']} × {w['rows_per_file']:,}", keys, store]
        for name in ("best", "median"):
            found = result[name]
            most = f"not done in {w['most']:.0f} s" if "most" in w else "not done"
            cells += [f"{found['plain']:.1f}" if "plain" in found else most, f"{found['gpuwin']:.1f}"]
            cells.append(f"{found['ratio']:.1f}" if found["ratio"] else "-")
            cells += [f"{result['target']:g}"] if name == "best" else []
        load = result.get("load_before", next(iter(result["machine"].get("load", [])), None))
        cells += [str(len(result["runs"]["gpuwin"]["seconds"])), "not noted" if load is None else f"{load:.1f}"]
        lines.append(f"| {window} | " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        f"{machine['cpus']} cores, {machine['machine']}, Python {machine['python']}, Spark {machine['spark']}, "
        "`local[2]`, service on the CPU.",
        "The machine was shared: a load above 2 (before the runs; after them in older figures) means that others were",
        "computing, for both sides alike.",
    ]


def nexmark() -> list[str]:
    results = sorted(read("nexmark").items(), key=lambda named: float(named[1]["best"]["ratio"]))
    some = results[0][1]["query"]
    lines = [
        "### Nexmark",
        "",
        "Seconds of the queries of [Nexmark](https://github.com/nexmark/nexmark) that aggregate by event time, over",
        f"{some['files'] * some['events_per_file']:,} events in Parquet, {some['files']} micro-batches, `local[2]`:",
        "the best of the runs; the load before a query is what the one before left. The joins stay with Spark. Written",
        "by `benchmarks/nexmark/measure.py`.",
        "",
        "| | | plain Spark | gpuwin | ratio | target | runs | load before |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results:
        best = result["best"]
        lines.append(
            f"| {name} | {result['query']['about']} | {best['plain']:.1f} | {best['gpuwin']:.1f} | {best['ratio']:.1f} "
            f"| {result['target']:g} | {len(result['runs']['gpuwin']['seconds'])} | {result['load_before']:.1f} |"
        )
    return lines


def partitions() -> list[str]:
    lines = [
        "### Small batches and many partitions",
        "",
        "Milliseconds of a warm micro-batch, 1,000 keys, 10 min every 1 min, `local[2]`, both sides with the same",
        "conf, in turns: the median, and in brackets of processor time of the JVM, its children and the service. By",
        "itself Spark renames checkpoint files through `FileContext`, which starts processes; cases that are not of",
        "Spark's defaults set",
        '`FileSystemBasedCheckpointFileManager` on both sides. A share above "at most" missed its aim. Written by',
        "`benchmarks/spark_partitions.py`.",
        "",
        "| | plain Spark | gpuwin | share | of processor time | at most | runs | load before |",
        "|---|---|---|---|---|---|---|---|",
    ]
    if not (RESULTS / "spark_partitions.json").exists():
        return [*lines[:6], "", "No run on a quiet machine has been recorded yet."]
    for name, c in read("spark_partitions")["cases"].items():
        plain, device = (f"{c[s]['trigger_ms']:,.0f} ({c[s]['cpu_ms']:,.0f})" for s in ("plain", "gpuwin"))
        share = c["share"]
        lines.append(
            f"| {name} | {plain} | {device} | {share['trigger_ms']:.2f} | {share['cpu_ms']:.2f} | {c['target']:g} "
            f"| {c['repeat']} | {c['load_before'][0]:.1f} |"
        )
    return lines


def kafka() -> list[str]:
    results = list(read("kafka_throughput").values())
    lines = [
        "### From a Kafka topic",
        "",
        "Seconds from the first offset of a topic of four partitions to the last, into the noop sink, broker and",
        "query on the same two cores: the best of the runs. Reading: Spark reads and parses the topic, and does",
        "nothing with it. It is the least that plain Spark can take, and, of Avro, gpuwin, too; JSON gpuwin reads",
        "itself, with less. A poll: the source's `kafka.max.poll.records`, for all three; Kafka's default is 500.",
        "The machine was up to twice as slow on some days: compare within a line. Written by",
        "`benchmarks/pipelines/kafka_throughput.py`.",
        "",
        "| window | rows | values | a poll | plain Spark | gpuwin | ratio | reading | runs | load before |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        w, best = result["workload"], result["best"]
        window = (
            f"{duration(w['size'])} every {duration(w['slide'])}" if w["slide"] else f"sessions, {duration(w['size'])}"
        )
        reading = result.get("reading_seconds")
        lines.append(
            f"| {window} | {w['files']} × {w['rows_per_file']:,} | {result['payload']} "
            f"| {result['poll_records']:,} | {best['plain']:.1f} | {best['gpuwin']:.1f} | {best['ratio']:.1f} "
            f"| {f'{reading:.1f}' if reading else 'not measured'} "
            f"| {len(result['runs']['gpuwin']['seconds'])} | {result['load_before']:.1f} |"
        )
    return lines


def pace() -> list[str]:
    results = read("kafka_pace")
    some = next(iter(results.values()))
    lines = [
        "### The highest steady rate from Kafka",
        "",
        f"JSON of {some['keys']:,} keys into windows of 1 min every 1 s, and into sessions with a gap of 5 s, back to",
        "Kafka as JSON, broker, producer and query on the same two cores. The rate is raised by a quarter until the",
        "query falls behind, or the producer does not reach it, since no core is left for it. A step more or less is",
        "chance: plain Spark's rate over sliding windows was between 30,000 and 58,000 in three runs. Latency is that",
        "at half of the highest rate, from the moment at which a window could close to its result in the topic. One",
        "run; the load before the second side is what the first one left. Written by",
        "`benchmarks/pipelines/kafka_pace.py`.",
        "",
        "| | highest steady rate, rows/s | ended by | latency at rows/s | p50, ms | p99, ms | load before |",
        "|---|---|---|---|---|---|---|",
    ]
    for query, result in results.items():
        for side, name in (("plain", "plain Spark"), ("gpuwin", "gpuwin")):
            of, last = result[side], result[side]["steps"][-1]
            ended = f"{last['seconds_behind']:.0f} s behind at {last['rate']:,} (the producer: {last['reached']:,})"
            lines.append(
                f"| {query}, {name} | {of['rows_per_second']:,} | {ended} | {of['steady']:,} | {of['p50_ms']:,.0f} "
                f"| {of['p99_ms']:,.0f} | {of['load_before']:.1f} |"
            )
    return lines


def predictions() -> list[str]:
    found = read("scaling")
    lines = [
        "### What `gpuwin size` predicts",
        "",
        "Predictions over what was measured, in queries that the costs were not fitted to: processor time of",
        "Spark's tasks and of the device service for a million rows, the most memory of the service, bytes of the",
        "state log and of the shuffle. Written by `benchmarks/scaling.py`.",
        "",
        "| query, rows of a micro-batch | processor time | memory | log | shuffle |",
        "|---|---|---|---|---|",
    ]
    for name in found["check"]:
        of = found["ratios"][name]
        figures = ("cpu_seconds_per_million", "service_memory", "log_bytes", "shuffle_bytes")
        lines.append(f"| {name} | " + " | ".join(f"{of[f]:.2f}" for f in figures) + " |")
    return [*lines, "", f"Load before: {found['check_load_before']}."]


def growth() -> list[str]:
    g = read("spark_growth")
    shape, ms, size = g["shape"], g["median_batch_ms"], g["median_batch_bytes"]
    return [
        "### When the state grows",
        "",
        f"Batches of {shape['rows']:,} rows beside a state of {shape['small']:,} and of {shape['large']:,} cells "
        f"({shape['provider']}, {shape['mode']}). Written by `benchmarks/spark_growth.py`.",
        "",
        "| | small state | large state | ratio |",
        "|---|---|---|---|",
        f"| median batch, ms | {ms['small']:.0f} | {ms['large']:.0f} | {g['time_ratio']:.2f} |",
        f"| bytes written to the checkpoint | {size['small']:,.0f} | {size['large']:,.0f} | {g['bytes_ratio']:.2f} |",
    ]


def restarts() -> list[str]:
    lines = [
        "### A restart with much state",
        "",
        "Seconds from `start()` on a checkpoint with this many groups to the end of a batch of 1,000 rows, in a new",
        "process that has run a small query of the same kind: the best of the runs. `local[2]`, append mode, sums,",
        "counts and maxima; each side's checkpoint of its own making, on a local disk. RocksDB opens its files where",
        "the HDFS-backed store reads all groups; gpuwin reads all, of either. Sizes are those of the checkpoint. The",
        "load before is what the line before left. Written by `benchmarks/spark_restart.py`.",
        "",
        "| window | groups | state store | plain Spark | gpuwin | ratio | state, MiB | gpuwin's, MiB | runs | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(read("spark_restart").values(), key=lambda r: float(r["ratio"])):
        seconds = " | ".join(f"{r[side]['best']:.2f}" for side in ("plain", "gpuwin"))
        size = " | ".join(f"{r[side]['state_bytes'] / 2**20:.0f}" for side in ("plain", "gpuwin"))
        about = f"{r['shape']} | {r['groups']:,} | {r['provider']}"
        lines.append(f"| {about} | {seconds} | {r['ratio']:.1f} | {size} | {r['repeat']} | {r['load_before']} |")
    return lines


#: What the soak measures -> how the page names it, and its unit.
SOAKED = {
    "batch_ms": ("a batch", "ms"),
    "state_rows": ("cells of the state", ""),
    "service_mib": ("device service, resident", "MiB"),
    "driver_alive_mib": ("Spark's JVM, alive on the heap", "MiB"),
    "state_mib": ("state in the checkpoint", "MiB"),
    "checkpoint_mib": ("the checkpoint", "MiB"),
}


def soak() -> list[str]:
    lines = ["### A long run", ""]
    for provider, found in read("spark_soak").items():
        shape, tenths = found["shape"], found["deciles"]
        pace = f", a batch each {shape['pace']} ms" if "pace" in shape else ", one batch after the other"
        lines += [
            f"{shape['batches']:,} micro-batches of {shape['rows']:,} rows of {shape['keys']:,} keys over 24 simulated",
            f"hours, one hour every ten minutes, {provider}{pace}. Medians of the first",
            f"and the last tenth of those after {shape['warm']:,}; of sizes on disk the lowest, since Spark clears old",
            "versions every 10 s. Written by `benchmarks/spark_soak.py`.",
            "",
            "| | first tenth | last tenth | ratio | target |",
            "|---|---|---|---|---|",
        ]
        for name, (what, unit) in SOAKED.items():
            first, last = (f"{t[name]:,.{1 if unit == 'MiB' else 0}f} {unit}".strip() for t in (tenths[0], tenths[-1]))
            lines.append(f"| {what} | {first} | {last} | {found['last_to_first'][name]:.2f} | {found['target']:g} |")
    return lines


def kernels() -> list[str]:
    k = read("kernels_cpu")
    seconds: dict[str, dict[str, float]] = k["seconds"]
    processor: dict[str, dict[str, float]] = k["processor"]

    def cell(name: str, column: str, digits: int) -> str:
        if column not in seconds[name]:
            return "-"
        return f"{seconds[name][column]:.{digits}f} ({processor[name][column]:.{digits}f})"

    def row(name: str, columns: Sequence[str], digits: int) -> str:
        return f"| {name} | " + " | ".join(cell(name, column, digits) for column in columns) + " |"

    contestants = ("gpuwin", "polars", "duckdb", "loop to Arrow", "plain loop")  # older figures lack the fourth
    return [
        "### CPU kernels",
        "",
        f"Seconds for {k['rows']:,} rows in memory, two threads for all, the best of the repeats: passed, and in",
        f"brackets of processor time of all threads. The machine has two cores, and a load of {k['load']:.0f} then;",
        "above two, compare processor time. The loop is two threads of Numba into a dense table, written for the case",
        "(behind Arrow's `dictionary_encode` where keys are strings): with a result in Arrow, and, as a harder bar,",
        "the table alone. Written by `benchmarks/kernels_cpu.py`.",
        "",
        "| | gpuwin | Polars | DuckDB | loop, to Arrow | loop, table alone |",
        "|---|---|---|---|---|---|",
        *(row(name, contestants, 3) for name, found in seconds.items() if "polars" in found),
        "",
        "The same through `op.process`, by the number of batches:",
        "",
        "| | 1 | 10 | 1,000 |",
        "|---|---|---|---|",
        *(row(name, ("1", "10", "1000"), 2) for name in seconds if name.startswith("op.process")),
    ]


def shapes() -> list[str]:
    measured, again = read("shapes"), read("shapes_again")
    then = {result["shape"]: result for result in again["results"]}
    peers = ", ".join(f"{name} {version}" for name, version in measured["peers"].items())
    lines = [
        "### The engine beside others, by shape of work",
        "",
        "How many times as fast as the fastest other engine, the losses first: in batches, as a stream brings rows",
        "(ten, or as many as the shape says), and in one. The others answer one query over all rows, which are in",
        f"memory; two threads each, the load before {measured['load_before'][0]:.1f}. {peers}.",
        "Tumbling windows of a minute, 10,000 integer keys and the five usual aggregates where nothing else is said.",
        "Over sliding windows of 10,000 keys the sums of the others have only windows in whose last pane a row came,",
        "a few of a hundred less; with a million keys they say every window, as gpuwin always does.",
        f"Again: all of it on {again['day']}, {again['why']}, the last five",
        f"shapes in runs of their own; the load before {again['load_before'][0]:.1f}.",
        "The machine is faster on some days.",
        "Written by `benchmarks/shapes/measure.py`.",
        "",
        "| | rows | in batches | in one | again: in batches | in one | wanted | again: gpuwin, s | fastest other, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def least(result: dict[str, Any]) -> float:
        return float(min((*result["ratio"].values(), *then[result["shape"]]["ratio"].values())))

    for first in sorted(measured["results"], key=least):
        cells = [f"{first['rows']:,}"]
        for result in (first, then[first["shape"]]):
            in_one = result["ratio"].get("gpuwin in 1")
            (batches, ratio), *_ = result["ratio"].items()
            cells += [f"{ratio:.2f}", "-" if in_one is None else f"{in_one:.2f}"]
        fastest = result["fastest"]
        cells += [f"{first['least']:g}", f"{result['seconds'][batches]:.3f}"]
        cells += [f"{fastest} {result['seconds'][fastest]:.3f}"]
        lines.append(f"| {first['shape']} | " + " | ".join(cells) + " |")
    return lines


def joins() -> list[str]:
    measured = read("joins")
    return [
        "### Joins beside others",
        "",
        "Seconds of a join of two streams of an hour, and how many times as fast as the fastest other engine gpuwin",
        "is, the losses first. gpuwin gets both sides in ten batches, where nothing else is said, and gives out pairs",
        "as windows close or rows meet; the others answer one query over all rows. 10,000 integer keys, an inner join,",
        f"two threads each, the best of the runs; the load before {measured['load_before'][0]:.1f}, and then what the",
        "line before left. Polars compares times after it has joined by keys, so intervals are left to the others.",
        "Written by `benchmarks/shapes/joins.py`.",
        "",
        *beside_others(measured["results"], "rows a side", "pairs"),
    ]


def rows() -> list[str]:
    measured = read("rows")
    return [
        "### Row by row beside others",
        "",
        "Seconds for the first row of each key (`gw.Deduplicate`), for the sum of the rows of a key so far at each row",
        "(`gw.EveryRow`), and for the mean of the last ones (`gw.GlobalWindow` with `gw.KeepLast`), and how many times",
        "as fast as the fastest other engine gpuwin is, the losses first. gpuwin gets ten batches, the others answer",
        "one query over all rows; two threads each, the best of the runs; the load before "
        f"{measured['load_before'][0]:.1f}. Written",
        "by `benchmarks/shapes/rows.py`.",
        "",
        *beside_others(measured["results"], "rows", "results"),
    ]


def beside_others(results: list[dict[str, Any]], *counted: str) -> list[str]:
    """Table of cases beside other engines, of whose rows and results are `counted`, the losses first."""
    engines = ("Polars", "DuckDB", "DataFusion", "chDB")
    lines = [f"| | {' | '.join((*counted, 'ratio', 'gpuwin', *engines))} |", "|" + "---|" * 8]
    for result in sorted(results, key=lambda r: float(r["ratio"])):
        seconds = result["seconds"]
        cells = [f"{result['rows']:,}", f"{result[counted[1]]:,}", f"{result['ratio']:.2f}", f"{seconds['gpuwin']:.3f}"]
        cells += [f"{seconds[name]:.3f}" if name in seconds else "-" for name in engines]
        lines.append(f"| {result['case']} | " + " | ".join(cells) + " |")
    return lines


def memory_of_shapes() -> list[str]:
    results = sorted(read("shapes_memory")["results"], key=lambda r: -r["over_smallest"])
    lines = [
        "### Memory beside others, by shape of work",
        "",
        "The most MiB that a run takes beyond its rows, ten batches of the same shapes, each engine in a process of",
        "its own; times: over the smallest of all. Where keys are few, gpuwin's are machine code that Numba loads once",
        "in a process: a second run takes no more. Written by `benchmarks/shapes/measure.py --memory`.",
        "",
        "| | times | gpuwin | Polars | DuckDB | DataFusion | chDB |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        mib = (f"{result['mib'][engine]:,.0f}" for engine in ("gpuwin", "Polars", "DuckDB", "DataFusion", "chDB"))
        lines.append(f"| {result['shape']} | {result['over_smallest']:.1f} | " + " | ".join(mib) + " |")
    return lines


def batches() -> list[str]:
    measured = read("batch_overhead")
    if "workloads" not in measured:  # figures of before the other workloads were in it
        return batches_of_one_workload(measured)
    lines = [
        "### What a call of op.process costs",
        "",
        "Microseconds of a call, warm, on two threads: passed, and in brackets of processor time. Beyond rows: less",
        "the rows at what they cost in batches of a million; and results: less the result rows at what they cost where",
        f"many close at once, as well. The load at the end was {measured['load']:.1f}. Written by",
        "`benchmarks/batch_overhead.py`.",
        "",
        "| | rows | results | call | beyond rows | and results |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in measured["workloads"].items():
        for size, results in found["results"].items():
            columns = []
            for less in ((0, 0), (1, 0), (1, 1)):
                passed, busy = (
                    k["calls"][size] - less[0] * int(size) * k["row"] - less[1] * results * k["result"]
                    for k in (found["passed"], found["processor"])
                )
                columns.append(f"{passed * 1e6:.0f} ({busy * 1e6:.0f})")
            lines.append(f"| {name} | {int(size):,} | {results:,.0f} | " + " | ".join(columns) + " |")
    return lines


def batches_of_one_workload(measured: dict[str, Any]) -> list[str]:
    passed, busy = measured["passed"], measured["processor"]
    sizes = [int(name) for name in passed if name != "row"]
    lines = [
        "### What a call of op.process costs",
        "",
        "Microseconds, tumbling windows, 10,000 keys, five aggregates, warm. Overhead: less the rows, at what a row",
        f"costs in batches of a million ({passed['row'] * 1e9:.1f} ns, {busy['row'] * 1e9:.1f} ns of processor time).",
        "Written by `benchmarks/batch_overhead.py`.",
        "",
        "| rows of the batch | call | overhead | call, processor | overhead, processor |",
        "|---|---|---|---|---|",
    ]
    for rows in sizes:
        cells = [f"{x * 1e6:.0f}" for t in (passed, busy) for x in (t[str(rows)], t[str(rows)] - rows * t["row"])]
        lines.append(f"| {rows:,} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    sections = [
        queries(),
        nexmark(),
        kafka(),
        pace(),
        partitions(),
        predictions(),
        growth(),
        restarts(),
        soak(),
        kernels(),
        shapes(),
        joins(),
        rows(),
        memory_of_shapes(),
        batches(),
    ]
    figures = "\n".join(line for section in sections for line in ("", *section)).removeprefix("\n")
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{figures}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
