"""Spark's own test suites with the plugin on, and on plain Spark what failed with it, test by test.

    python tests/spark_suites/run.py                     # every suite of suites.txt, on the installed Spark
    python tests/spark_suites/run.py --only StreamingAggregationSuite --only EventTimeWatermarkSuite
    python tests/spark_suites/run.py --without-window    # with spark.gpuwin.withoutWindow and spark.gpuwin.deduplicate
    python tests/spark_suites/run.py --report            # the table of what has been run so far, from results.json

Maven brings the suites, and Spark itself, of the installed Spark's version (or of another patch of it:
`--suites 4.2.0`); ScalaTest's Runner runs each in a JVM of its own. A test that passes on plain Spark and fails with
the plugin on must be listed in `cannot_pass.json`, by name and with its reason, or the run fails; so does a listed test
that passes. A suite about windows in which nothing was offloaded is vacuous: it proved nothing, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.jar import jar_path
from gpuwin_spark.java import find_java

HERE: Final = Path(__file__).parent
#: Counts of every suite that was ever run here; the reports are made of them.
RESULTS: Final = HERE / "results.json"
HEAD: Final = """# Spark's own suites with the plugin on

A report that `python tests/spark_suites/run.py --suites {options}` wrote; what is listed stands in `cannot_pass.json`.

"""
#: The end of the name of runs, suites and reports with aggregations without a window, and deduplications, on gpuwin.
ALL_KEYS: Final = "-without-window"
PACKAGE: Final = "org.apache.spark."
#: What Spark's own build gives the JVMs of its tests.
OPENED: Final = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
OPTIONS: Final = (
    "-ea", "-Xmx3g", "-Xss8m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens=java.base/{p}=ALL-UNNAMED" for p in OPENED), "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true", "-Dspark.testing=true", "-Dspark.ui.enabled=false",
    "-Dspark.unsafe.exceptionOnMemoryLeak=true", "-Dspark.memory.debugFill=true",
)  # fmt: skip
Side = Literal["plain", "gpuwin"]


@dataclass(frozen=True)
class Result:
    """One run of a suite.

    Attributes:
        tests: "passed", "failed", or "skipped", by the name of the test.
        messages: first line of each failure, by the name of the test.
        offloaded: stateful operators that the plugin planned on gpuwin, and batch queries that it planned.
        left: operators that it left to Spark.
        seconds: wall time of the JVM.
        error: how the JVM ended, where it gave no results; else empty.
    """

    tests: dict[str, str]
    messages: dict[str, str]
    offloaded: int
    left: int
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class Suite:
    """Both runs of a suite, of one version of Spark. On plain Spark only what failed with the plugin need have run."""

    name: str
    plain: Result
    gpuwin: Result
    listed: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> set[str]:
        """Tests that pass on either side: all that can pass here."""
        return {t for side in (self.plain, self.gpuwin) for t, how in side.tests.items() if how == "passed"}

    @property
    def differ(self) -> set[str]:
        """Tests that pass on plain Spark, and not with the plugin on."""
        return {t for t, how in self.plain.tests.items() if how == "passed" and self.gpuwin.tests.get(t) != "passed"}

    @property
    def ended(self) -> list[str]:
        """How the JVMs ended that did not come to the end of the suite; what is known of such a run is no result."""
        sides = (("gpuwin", self.gpuwin), ("plain Spark", self.plain))
        return [f"on {side}, the suite {run.error}" for side, run in sides if run.error]

    @property
    def faults(self) -> list[str]:
        """Sentences about tests that differ and are not listed, about listed ones that do not differ, and about runs
        that did not come to their end.
        """
        if self.ended:
            return self.ended
        found = [f"{t}: {self.gpuwin.messages.get(t, 'did not run')}" for t in sorted(self.differ - set(self.listed))]
        ran = set(self.listed) & {*self.plain.tests, *self.gpuwin.tests}
        return found + [f"{t}: is listed in cannot_pass.json, and does not differ" for t in sorted(ran - self.differ)]


@dataclass(frozen=True)
class Line:
    """Counts of a suite: tests that can pass here, those that pass with the plugin, those listed, and the stateful
    operators that were offloaded, and left to Spark.
    """

    good: int
    passed: int
    listed: int
    offloaded: int
    left: int

    @staticmethod
    def of(suite: Suite) -> Line:
        """Counts of a suite that has run on both sides."""
        good, ours = len(suite.good), suite.gpuwin
        listed = len(suite.differ & set(suite.listed))
        return Line(good, good - len(suite.differ), listed, ours.offloaded, ours.left)


def class_path(version: str, work: Path) -> str:
    """Class path of Spark's tests, of this version; Maven resolves it once.

    The jar of Spark SQL's tests is unpacked: many tests open their resources (checkpoints of older versions) as files.
    """
    file = work / f"class-path-{version}.txt"
    if not file.exists():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Dspark.version={version}",
                   "dependency:build-classpath", f"-Dmdep.outputFile={file}.new"]  # fmt: skip
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise SystemExit(f"Maven did not bring the tests of Spark {version}. Where it lacks this patch, name "
                             f"another by --suites, such as 4.2.0. It said:\n{done.stdout.strip()}")  # fmt: skip
        Path(f"{file}.new").rename(file)
    classes = file.read_text().strip()
    jar = Path(tests_jar(classes))
    folder = work / version / jar.stem
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work) as half, zipfile.ZipFile(jar) as archive:
            archive.extractall(half)
            shutil.copytree(half, folder)
    return os.pathsep.join([str(folder), *(j for j in classes.split(os.pathsep) if j != str(jar))])


def suites_of(classes: str, patterns: list[str]) -> list[str]:
    """Concrete classes of the test jars whose names match one of the patterns, in the patterns' order."""
    names: list[str] = []
    for place in classes.split(os.pathsep):
        if not re.search(r"spark-(sql|catalyst|core)_[\d.]+-.*-tests(\.jar)?$", place):
            continue
        if place.endswith(".jar"):
            with zipfile.ZipFile(place) as archive:
                inside = archive.namelist()
        else:
            inside = [str(p.relative_to(place)) for p in Path(place).rglob("*.class")]
        inside = [n.removesuffix(".class").replace("/", ".") for n in inside]
        names += [n for n in inside if n.startswith(PACKAGE) and n.endswith("Suite") and "$" not in n]
    wanted = [n for p in patterns for n in sorted(names) if re.fullmatch(p, n.rpartition(".")[2])]
    wanted = list(dict.fromkeys(wanted))
    java = find_java().executable
    command = [str(Path(java).with_name("javap")), "-cp", classes, *wanted]
    shown = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    abstract = set(re.findall(r"^public (?:abstract class|interface) ([\w.]+)", shown, re.M))
    return [n for n in wanted if n not in abstract]


def run(
    suite: str, side: Side, classes: str, keep: Path, timeout: float, tests: Iterable[str] = (), all_keys: bool = False
) -> Result:
    """Runs one suite, or some of its tests, in a JVM of its own. `all_keys`: with spark.gpuwin.withoutWindow
    and spark.gpuwin.deduplicate.
    """
    with tempfile.TemporaryDirectory(prefix="spark-suite-") as folder:
        at = Path(folder)
        for made in ("target/tmp", "xml", "tmp"):
            (at / made).mkdir(parents=True)
        log = at / "suite.log"
        java = [str(find_java().executable), *OPTIONS, f"-Djava.io.tmpdir={at / 'tmp'}", f"-Dspark.test.home={at}",
                f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", f"-Dsuite.log={log}"]  # fmt: skip
        if side == "gpuwin":
            classes = os.pathsep.join([jar_path(), classes])
            java += ["-Dspark.plugins=io.gpuwin.GpuWindowPlugin", "-Dspark.gpuwin.device=cpu",
                     "-Dspark.gpuwin.explain=ALL", "-Dspark.gpuwin.batch.overlap=2",
                     f"-Dspark.gpuwin.withoutWindow={str(all_keys).lower()}",
                     f"-Dspark.gpuwin.deduplicate={str(all_keys).lower()}",
                     f"-Dspark.gpuwin.python={sys.executable}"]  # fmt: skip
        java += ["-cp", classes, "org.scalatest.tools.Runner"]
        java += ["-R", tests_jar(classes), "-oW", "-u", "xml", "-s", suite]
        java += [word for test in tests for word in ("-t", test)]
        began, error = time.monotonic(), ""
        environment = {**os.environ, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
        try:
            with open(at / "out", "wb") as out:
                code = subprocess.run(java, cwd=at, stdout=out, stderr=out, timeout=timeout, check=False,
                                      env=environment).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code, error = -1, f"was ended after {timeout:.0f} s"
        seconds = round(time.monotonic() - began, 1)
        found, messages = outcomes(at / "xml")
        if not found and not error:
            error = f"ended with {code}: " + " / ".join((at / "out").read_text(errors="replace").splitlines()[-5:])
        said = log.read_text(errors="replace") if log.exists() else ""
        for name, content in (("out", at / "out"), ("log", log)):
            if content.exists():
                shutil.copy(content, keep / f"{suite}-{side}.{name}")
    offloaded = len(re.findall(r"PlanLog\$?: gpuwin: (?:operator .* runs on gpuwin|a batch query)", said))
    left = len(re.findall(r"PlanLog\$?: gpuwin: operator .* runs on Spark", said))
    return Result(found, messages, offloaded, left, seconds, error)


def tests_jar(classes: str) -> str:
    """The jar of Spark SQL's tests, or the folder that it was unpacked to."""
    return next(j for j in classes.split(os.pathsep) if re.search(r"spark-sql_[\d.]+-.*-tests(\.jar)?$", j))


def outcomes(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """How each test ended, and the first line of each failure, from the XML files that ScalaTest wrote."""
    tests: dict[str, str] = {}
    messages: dict[str, str] = {}
    for case in (c for f in sorted(folder.glob("*.xml")) for c in ET.parse(f).iter("testcase")):
        name = case.attrib["name"]
        failure = next((f for kind in ("failure", "error") for f in case.iter(kind)), None)
        if failure is not None:
            tests[name] = "failed"
            messages[name] = (failure.attrib.get("message") or failure.text or "").strip().split("\n")[0][:300]
        else:
            tests[name] = "skipped" if case.find("skipped") is not None else "passed"
    return tests, messages


def read(runs: str, work: Path) -> Iterator[Suite]:
    """Suites of a version, or of one with `ALL_KEYS`, that have been run on both sides."""
    listed = json.loads((HERE / "cannot_pass.json").read_text())
    for file in sorted((work / runs).glob("*.json")):
        found = json.loads(file.read_text())
        if {"plain", "gpuwin"} <= found.keys():
            name = file.stem
            reasons = listed.get(name, {})
            if runs.endswith(ALL_KEYS):
                reasons = {**reasons, **listed.get(name + ALL_KEYS, {})}
            yield Suite(name, Result(**found["plain"]), Result(**found["gpuwin"]), reasons)


def recorded(runs: str, suites: Iterable[Suite] = ()) -> dict[str, Line]:
    """Lines of `results.json` of a version, or of one with `ALL_KEYS`, by suite; those of `suites` take the place of
    older ones, and are written. A suite that did not come to its end is left out.
    """
    every = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    lines = {**every.get(runs, {}), **{s.name: asdict(Line.of(s)) for s in suites if not s.ended}}
    every[runs] = dict(sorted(lines.items()))
    if suites:
        shown = (
            f' "{v}": {{\n' + ",\n".join(f"  {json.dumps(n)}: {json.dumps(line)}" for n, line in of.items()) + "\n }"
            for v, of in sorted(every.items())
        )
        RESULTS.write_text("{\n" + ",\n".join(shown) + "\n}\n")
    return {name: Line(**line) for name, line in every[runs].items()}


def page(lines: dict[str, Line], runs: str) -> str:
    """The page of a version's runs, or of those with `ALL_KEYS`: how it was made, and the table."""
    version = runs.removesuffix(ALL_KEYS)
    options = version if runs == version else f"{version} --{ALL_KEYS.removeprefix('-')}"
    return HEAD.format(options=options) + report(lines, runs) + "\n"


def report(lines: dict[str, Line], runs: str) -> str:
    """Table of the suites, in Markdown, and a line of all of them."""
    head = "| suite | can pass here | with gpuwin | listed | offloaded | left to Spark |"
    setting = ", spark.gpuwin.withoutWindow=true, spark.gpuwin.deduplicate=true" if runs.endswith(ALL_KEYS) else ""
    said = [f"Spark {runs.removesuffix(ALL_KEYS)}{setting}", "", head, "|---|---:|---:|---:|---:|---:|"]
    for name, line in lines.items():
        vacuous = " (vacuous)" if not line.offloaded else ""
        said.append(
            f"| {name} | {line.good} | {line.passed} | {line.listed} | {line.offloaded}{vacuous} | {line.left} |"
        )
    good, passed = sum(line.good for line in lines.values()), sum(line.passed for line in lines.values())
    share = 100 * passed / good if good else 0.0
    offloading = sum(bool(line.offloaded) for line in lines.values())
    said += ["", f"{passed} of {good} tests that can pass here pass with gpuwin ({share:.1f} %); "
             f"{offloading} of {len(lines)} suites offload."]  # fmt: skip
    return "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="SUITE", help="a class without its package; may be repeated")
    parser.add_argument("--again", action="store_true", help="run what has been run, too")
    parser.add_argument("--side", action="append", choices=["plain", "gpuwin"], help="one side only")
    parser.add_argument("--all", action="store_true", help="run all tests on plain Spark, too, not only what failed")
    parser.add_argument(
        "--without-window",
        action="store_true",
        help="aggregations without a window, and deduplications, on gpuwin, too",
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--suites", metavar="VERSION", help="of Spark's jars, where Maven has not the installed one")
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for one suite (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "gpuwin-spark-suites",
                        help="folder for class paths, results and logs (default: %(default)s)")  # fmt: skip
    options = parser.parse_args()
    installed = find_spark().version
    version = options.suites or installed
    if version.split(".")[:2] != installed.split(".")[:2]:
        parser.error(f"suites of Spark {version} need a jar for it, and PySpark {installed} is installed here")
    runs = version + (ALL_KEYS if options.without_window else "")
    keep = options.work / runs
    keep.mkdir(parents=True, exist_ok=True)
    if not options.report:
        classes = class_path(version, options.work)
        every = (HERE / "suites.txt").read_text().splitlines()
        patterns = options.only or [line for line in every if line and not line.startswith("#")]
        for suite in suites_of(classes, patterns):
            file = keep / f"{suite.rpartition('.')[2]}.json"
            found = json.loads(file.read_text()) if file.exists() else {}
            for side in options.side or ("gpuwin", "plain"):
                if side in found and not options.again:
                    continue
                failed = sorted(found["gpuwin"]["messages"]) if side == "plain" and "gpuwin" in found else []
                if side == "plain" and not options.all and not failed:
                    result = Result({}, {}, 0, 0, 0.0)
                else:
                    result = run(suite, side, classes, keep, options.timeout, () if options.all else failed,
                                 options.without_window)  # fmt: skip
                found[side] = asdict(result)
                file.write_text(json.dumps(found, indent=1))
                passed = sum(how == "passed" for how in result.tests.values())
                print(f"{file.stem} {side}: {passed} of {len(result.tests)} passed, {result.offloaded} operators "
                      f"offloaded, {result.seconds} s {result.error}", flush=True)  # fmt: skip
    suites = list(read(runs, options.work))
    lines = recorded(runs, suites)
    print(report(lines, runs))
    if suites:
        (HERE / f"report-{runs}.md").write_text(page(lines, runs))
    faults = [f"{s.name}: {fault}" for s in suites for fault in s.faults]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
