"""Everything that is to be known of the CUDA kernels on one GPU, in five calls and one JSON file.

    python benchmarks/gpu_check.py --json h200.json --part 1         # what is right: within ten minutes
    python benchmarks/gpu_check.py --json h200.json --part 2         # what is fast
    python benchmarks/gpu_check.py --json h200.json --part 3         # compute-sanitizer, and the tests of the kernels
    python benchmarks/gpu_check.py --json h200.json --part 4         # what is right, beyond that: joins, snapshots
    python benchmarks/gpu_check.py --json h200.json --part 5 --jobs 4  # compute-sanitizer over whole streams
    python benchmarks/gpu_check.py --only equality --rows 200000     # the checks whose names begin so, small
    python benchmarks/gpu_check.py --part 1 --jobs 8                 # what is right, in eight processes at once
    python benchmarks/gpu_check.py --list
    NUMBA_ENABLE_CUDASIM=1 python benchmarks/gpu_check.py --rows 90  # does the script work? figures mean nothing

Checks run in the order of what they are worth, what is right before what is fast: whether a kernel compiles, and what
is installed, without which all ends; a first computation; sorts, scans and dictionaries of keys; the public operator
against the CPU, on fresh random rows, for each shape of window and with a thread for each batch; the walls that nothing
can beat, measured here; rows a second, from small to large; compute-sanitizer; the tests of the kernels. What a check
finds is written to the file as it finds it; what the file has of other calls stays there.

Checks run in a process of their own, which is watched from here. One that fails, dies or takes longer than its limit is
noted, and a new process goes on with the next: after an illegal access a process cannot use the device any more, and a
kernel that does not end cannot be stopped from within. With the process go the processes that it started. The exit code
is 1 if any check did not end well.

A machine without a network may lack libNVVM: `benchmarks/gpu_pack.py` prepares it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STARTUP_SECONDS = 150.0
"""For importing everything, and the first look at the device."""


# -- the process that works --------------------------------------------------------------------------------------------


def work(names: list[str], options: argparse.Namespace, pipe: int) -> int:
    """Runs parts one after the other, and says of each when it begins, what it finds, and how it ends."""
    with os.fdopen(pipe, "w", buffering=1) as out:

        def say(**event: Any) -> None:
            out.write(json.dumps(event, default=str) + "\n")

        from gpu_parts import PARTS

        for name in names:
            say(begin=name, limit=PARTS[name].limit)

            def tell(key: str, value: Any, name: str = name) -> None:
                say(part=name, key=key, value=value)

            try:
                PARTS[name].run(options, tell)
            except BaseException as error:  # the next process goes on with the next part
                say(failed=name, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-3000:])
                traceback.print_exc()
                return 1
            say(end=name)
    return 0


# -- the process that watches ------------------------------------------------------------------------------------------


class Report:
    """What is known so far; the file is written anew with each new fact, and keeps what other calls found."""

    def __init__(self, path: Path | None, options: argparse.Namespace) -> None:
        self.path = path
        self.writing = threading.Lock()
        before = json.loads(path.read_text()) if path is not None and path.exists() else {"calls": [], "parts": {}}
        call = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "part": options.part}
        call |= {"rows": options.rows, "seed": options.seed}
        self.facts: dict[str, Any] = before | {"calls": [*before["calls"], call]}

    def begin(self, names: list[str]) -> None:
        """Drops what was found of these in an earlier call."""
        for name in names:
            self.facts["parts"].pop(name, None)

    def note(self, part: str, **found: Any) -> None:
        with self.writing:
            self.facts["parts"].setdefault(part, {}).update(found)
            if self.path is not None:
                beside = self.path.with_suffix(".part")
                beside.write_text(written(self.facts))
                beside.replace(self.path)

    def note_shares(self) -> None:
        """What share of its wall each rate is, once the walls are known."""
        walls = self.facts["parts"].get("rates: walls", {})
        for part, found in self.facts["parts"].items():
            wall = walls.get("pinned, bytes_per_s" if "pinned" in part else "device, bytes_per_s")
            for key, value in found.items():
                if wall and part.startswith("rates:") and isinstance(value, dict) and "bytes_per_s" in value:
                    self.note(part, **{key: value | {"share_of_wall": value["bytes_per_s"] / wall}})

    def is_bad(self) -> bool:
        return any(is_wrong(part) for part in self.facts["parts"].values())


def written(facts: dict[str, Any]) -> str:
    """Facts as JSON, a line for each call and each part."""
    calls = ",\n".join(f"  {json.dumps(call)}" for call in facts["calls"])
    parts = ",\n".join(f"  {json.dumps(n)}: {json.dumps(found, default=str)}" for n, found in facts["parts"].items())
    return f'{{\n "calls": [\n{calls}\n ],\n "parts": {{\n{parts}\n }}\n}}\n'


def is_wrong(part: dict[str, Any]) -> bool:
    """Whether a check failed, or did not come to its end."""
    return "failed" in part or "stopped" in part


def watch(names: list[str], arguments: list[str], report: Report, ends: float) -> list[str]:
    """Starts a process for the parts, follows it until it ends, and returns those that it did not come to."""
    reading, writing = os.pipe()
    command = [sys.executable, __file__, *arguments, "--worker", str(writing), "--parts", *names]
    process = subprocess.Popen(command, pass_fds=[writing], start_new_session=True)
    os.close(writing)
    left, now, began, limit, text = list(names), "", time.monotonic(), STARTUP_SECONDS, b""
    while True:
        patience = min(began + limit, ends) - time.monotonic()
        ready = select.select([reading], [], [], max(patience, 0.0))[0] if patience > 0 else []
        if not ready:
            os.killpg(process.pid, signal.SIGKILL)
            break
        some = os.read(reading, 1 << 16)
        if not some:
            break
        *lines, text = (text + some).split(b"\n")
        for line in lines:
            event = json.loads(line)
            seconds = round(time.monotonic() - began, 2)
            if "begin" in event:
                now, began, limit = event["begin"], time.monotonic(), event["limit"]
                left.remove(now)
                report.note(now)
            elif "key" in event:
                report.note(event["part"], **{event["key"]: event["value"]})
                print(f"{event['part']}: {event['key']}: {json.dumps(event['value'], default=str)}", flush=True)
            elif "failed" in event:
                report.note(now, failed=event["error"], trace=event["trace"], seconds=seconds)
                print(f"{now}: FAILED: {event['error']}", flush=True)
                now = ""
            else:
                report.note(now, seconds=seconds)
                print(f"{now}: done in {seconds} s", flush=True)
                now = ""
    os.close(reading)
    code = process.wait()
    if now:
        why = f"did not end within {limit:.0f} s, or the time for all was over" if code == -9 else f"exit code {code}"
        report.note(now, stopped=why, seconds=round(time.monotonic() - began, 2))
        print(f"{now}: STOPPED: {why}", flush=True)
    elif code and left == names:
        report.note(left.pop(0), stopped=f"the process did not come to it: exit code {code}")
    return left


def follow(names: list[str], arguments: list[str], report: Report, ends: float) -> None:
    """Has all of the checks run, in one process after another, while there is time; notes those that were not."""
    while names and time.monotonic() < ends - 1:
        names = watch(names, arguments, report, ends)
    for name in names:
        report.note(name, skipped="no time was left")


def follow_at_once(names: list[str], jobs: int, arguments: list[str], report: Report, ends: float) -> None:
    """As `follow`, with so many processes at a time."""
    shares = [names[k::jobs] for k in range(jobs)]
    threads = [threading.Thread(target=follow, args=(share, arguments, report, ends)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _prepare_environment() -> None:
    """For the processes that work: this checkout, where nothing is installed, and CUDA's compiler."""
    here = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "spark_plugin")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    toolkit = Path("/usr/local/cuda")
    pack = ROOT / ".gpu_pack" / "pack.tar.gz"
    if pack.exists():  # by gpu_pack.py
        toolkit = Path(tempfile.gettempdir()) / f"gpuwin-pack-{pack.stat().st_mtime_ns}"
        if not toolkit.exists():
            with tarfile.open(pack) as packed:
                packed.extractall(toolkit, filter="data")
        os.environ["PYTHONPATH"] += os.pathsep + str(toolkit)
    if toolkit.exists():  # Numba's compiler looks there for libNVVM, where it is not among the packages
        os.environ.setdefault("CUDA_HOME", str(toolkit))


@dataclass(frozen=True)
class Known:
    """A check. `limit`: seconds after which it is stopped. `call`: the value of --part that it belongs to, 0 for all.
    `essential`: nothing can be checked after it has failed.
    """

    limit: float
    call: int
    essential: bool


def _known_parts(report: Report) -> dict[str, Known]:
    """The checks, asked of another process: nothing that is checked is imported in this one."""
    command = [sys.executable, __file__, "--names"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STARTUP_SECONDS, check=True)
        return {name: Known(**known) for name, known in json.loads(done.stdout.splitlines()[-1]).items()}
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        told = getattr(error, "stderr", None) or str(error)
        report.note("start", failed=str(told)[-3000:])
        print(told, file=sys.stderr)
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write what is found")
    parser.add_argument(
        "--part", type=int, choices=(1, 2, 3, 4, 5), help="one call of five; all checks if none is named"
    )
    parser.add_argument("--only", action="append", help="checks whose names begin so; may be repeated")
    parser.add_argument("--list", action="store_true", help="names the checks and their limits, and ends")
    parser.add_argument("--rows", type=int, default=1 << 30, help="rows of the largest measurements")
    parser.add_argument("--check-rows", type=int, help="rows of each comparison: 2,000,000, or as many as --rows")
    parser.add_argument("--seed", type=int, help="of the random rows; the time of day if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once; figures mean nothing with several")
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything together")
    parser.add_argument("--names", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parts", nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.check_rows = options.check_rows or min(options.rows, 2_000_000)
    options.seed = int(time.time()) if options.seed is None else options.seed
    if options.worker is not None:
        return work(options.parts, options, options.worker)
    if options.names:
        from gpu_parts import PARTS

        print(
            json.dumps(
                {name: {"limit": p.limit, "call": p.call, "essential": p.essential} for name, p in PARTS.items()}
            )
        )
        return 0

    _prepare_environment()
    report = Report(options.json, options)
    known = _known_parts(report)
    names = [n for n in known if not options.only or any(n.startswith(wanted) for wanted in options.only)]
    names = [n for n in names if not options.part or known[n].call in (0, options.part)]
    if options.list or not names:
        print("\n".join(f"{known[n].limit:5.0f} s  {n}" for n in (names or known)))
        return 0 if options.list and known else 2
    report.begin(names)
    ends = time.monotonic() + options.seconds
    arguments = ["--rows", str(options.rows), "--check-rows", str(options.check_rows), "--seed", str(options.seed)]
    first = [name for name in names if known[name].essential]
    follow(first, arguments, report, ends)
    wrong = [name for name in first if is_wrong(report.facts["parts"][name])]
    others = [name for name in names if name not in first]
    if wrong:
        for name in others:
            report.note(name, skipped=f"{wrong[0]} did not end well")
    else:
        follow_at_once(others, max(options.jobs, 1), arguments, report, ends)
    report.note_shares()
    for name, part in report.facts["parts"].items():
        ended = next((str(part[how]) for how in ("failed", "stopped", "skipped", "not run") if how in part), "well")
        print(f"{name}: {ended}")
    return int(report.is_bad())


if __name__ == "__main__":
    sys.exit(main())
