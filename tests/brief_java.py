"""Options of JVMs that live for seconds, as those of the tests do, and an archive of the classes that they load.

A JVM that runs a small query spends a third of its processor time on reading, checking and linking some fifteen
thousand classes of Spark. Java can keep them in an archive, which other JVMs of the same Java and the same class path
map into memory ("class data sharing"). The first test that asks for the options makes the archive, in
``.pytest_cache``; ``python tests/brief_java.py`` does so beforehand, and CI beside the linters. Tests that find no
archive run as well, and take longer.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.java import find_java

log = logging.getLogger(__name__)

#: The optimising compiler would take its share of a few seconds, and collectors with threads theirs. Without that
#: compiler the JVM has a small cache of code, which the queries of all tests would fill; and a full collection for
#: each few megabytes of classes at the start is spared.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=200m"


def brief_options() -> str:
    """Options for a JVM with Spark's class path, the archive among them where one can be made."""
    archive = archive_path()
    if not archive.exists():
        _make_once(archive)
    if not archive.exists() or archive.stat().st_size == 0:
        return BRIEF
    # A JVM with another class path does without the archive; it must not say so on its standard output.
    return f"{BRIEF} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"


def archive_path() -> Path:
    """Where the archive for this Java and this Spark is, or would be; that of another version of Spark lies beside it.

    Java takes none of older jars.
    """
    java, spark = find_java(), find_spark()
    jars = spark.jars.resolve()  # a test makes a Spark of links
    key = f"{java.executable.resolve()} {java.description} {jars} {jars.stat().st_mtime_ns}"
    name = f"classes-{spark.version}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    return Path(__file__).parents[1] / ".pytest_cache" / name


def _make_once(archive: Path) -> None:
    """Makes it in a process of its own, unless another one does so now. Where it cannot be made, an empty file stays.

    A Java without an archive of its own classes, such as one made by jlink, makes none.
    """
    archive.parent.mkdir(exist_ok=True)
    with open(archive.with_suffix(".lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not archive.exists():
            done = subprocess.run([sys.executable, __file__, str(archive)], capture_output=True, text=True, check=False)
            if done.returncode or not archive.exists():
                log.warning("there is no archive of classes: the tests take longer, and mean the same\n%s", done.stderr)
                archive.touch()


def make_archive(target: Path) -> None:
    """Makes it by a session with one query on plain Spark and one on gpuwin."""
    for other in target.parent.glob(f"classes-{find_spark().version}-*.jsa"):
        other.unlink()
    from spark_harness import Case, StreamSpec, end_jvm, run, start_session, write

    with tempfile.TemporaryDirectory(dir=target.parent, prefix="classes-") as name:
        folder = Path(name)
        made = folder / target.name
        java = {"spark.driver.extraJavaOptions": f"{BRIEF} -Xlog:disable -XX:ArchiveClassesAtExit={made}"}
        spark = start_session(folder, conf=java)
        case = Case("sliding", "update", "string", "integers", trigger="processing", partitions="2")
        stream = write(StreamSpec(rows=60, batches=2, empty=None), folder / "stream")
        for enabled in (False, True):
            run(spark, case.query, stream, case.how, folder / str(enabled), enabled=enabled)
        end_jvm(spark)  # it writes the archive as it ends
        if made.is_file():
            os.replace(made, target)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "spark"))
    if len(sys.argv) > 1:
        make_archive(Path(sys.argv[1]))
    else:
        brief_options()
