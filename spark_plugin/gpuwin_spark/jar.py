"""The plugin's jar: compiled from the Scala sources against exactly the Spark that is installed.

pyspark's ``jars`` folder contains the Scala compiler, so a Java runtime is all it takes: no Maven, no build tool, no
binary in the repository. The jar is kept in a cache, under a name made of Spark's version and a hash of the sources.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from .java import find_java


class JarError(RuntimeError):
    """The jar cannot be made; the message says what is missing."""


def jar_path() -> str:
    """The path of the plugin's jar for the installed Spark; compiles it on first use (some ten seconds).

    Raises:
        JarError: pyspark or Java is missing, or the sources do not compile against this Spark.
    """
    sources = scala_sources()
    jars, version = _spark()
    target = cache_folder() / f"gpuwin-spark-{version}-{_digest(sources, version)}.jar"
    if target.exists():
        return str(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if not target.exists():
            _build(sources, jars, target)
    return str(target)


def scala_sources() -> list[Path]:
    """The Scala files: beside this package in a checkout, inside it where it was installed from a wheel."""
    here = Path(__file__).resolve().parent
    for folder in (here / "scala", here.parent / "scala"):
        found = sorted(folder.rglob("*.scala"))
        if found:
            return found
    raise JarError(f"the Scala sources of the plugin are neither in {here} nor beside it; reinstall gpuwin")


def cache_folder() -> Path:
    """Where jars are kept: ``$XDG_CACHE_HOME/gpuwin``, else ``~/.cache/gpuwin``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuwin"


def _spark() -> tuple[Path, str]:
    try:
        version = metadata.version("pyspark")
        files = metadata.files("pyspark") or []
    except metadata.PackageNotFoundError as e:
        raise JarError("pyspark is not installed here; run: pip install 'gpuwin[spark]'") from e
    home = os.environ.get("SPARK_HOME")
    if home and (Path(home) / "jars").is_dir():
        return Path(home) / "jars", _version_of(Path(home) / "jars") or version
    init = next((f for f in files if str(f) == "pyspark/__init__.py"), None)
    if init is None:
        raise JarError("the installed pyspark has no files; reinstall it: pip install --force-reinstall pyspark")
    return Path(str(init.locate())).parent / "jars", version


def _version_of(jars: Path) -> str | None:
    for jar in jars.glob("spark-core_*.jar"):
        return jar.stem.rsplit("-", 1)[-1]
    return None


def _digest(sources: list[Path], version: str) -> str:
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(sources: list[Path], jars: Path, target: Path) -> None:
    classpath = os.pathsep.join(str(j) for j in sorted(jars.glob("*.jar")))
    if not list(jars.glob("scala-compiler*.jar")):
        raise JarError(f"there is no Scala compiler in {jars}; install pyspark from PyPI: pip install 'gpuwin[spark]'")
    with tempfile.TemporaryDirectory(prefix="gpuwin-scalac-") as folder:
        classes = Path(folder) / "classes"
        classes.mkdir()
        arguments = Path(folder) / "arguments"
        words = ["-nowarn", "-d", classes, "-classpath", classpath, *sources]
        arguments.write_text("\n".join(f'"{w}"' for w in words))
        command = [find_java(), "-cp", classpath, "scala.tools.nsc.Main", f"@{arguments}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()[-4000:]
            raise JarError(f"the plugin does not compile against the Spark in {jars}:\n{said}")
        _pack(classes, target)


def _pack(classes: Path, target: Path) -> None:
    """Zips the classes under a name of its own and moves it into place, so that nobody sees half a jar."""
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    os.close(handle)
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as jar:
        for file in sorted(classes.rglob("*")):
            if file.is_file():
                jar.write(file, file.relative_to(classes))
    os.chmod(name, 0o644)
    os.replace(name, target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
