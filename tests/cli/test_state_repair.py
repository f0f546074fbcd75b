"""The command `gpuwin state repair` on folders that it must not touch, and on file systems that fail it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwin.cli import main

STATE = "state/0/0/gpuwin"


def offsets(batch: int, time: int, partitions: int) -> str:
    metadata = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": time,
        "conf": {"spark.sql.shuffle.partitions": str(partitions)},
    }
    return f"v1\n{json.dumps(metadata)}\n{json.dumps({'logOffset': batch})}"


@pytest.fixture
def hurt(tmp_path: Path) -> Path:
    """A checkpoint of two batches, after which a repartition wrote the offsets of its own and some state."""
    folder = tmp_path / "a checkpoint"
    for name, text in {
        "metadata": "{}",
        "offsets/0": offsets(0, 1000, 2),
        "offsets/1": offsets(1, 2000, 2),
        "offsets/2": offsets(1, 2000, 4),
        "offsets/.2.crc": "",
        "commits/0": "v1\n{}",
        "commits/1": "v1\n{}",
        "state/0/_gpuwin": "format 1",
        f"{STATE}/1.delta": "one",
        f"{STATE}/2.delta": "two",
        f"{STATE}/.2.delta.crc": "sum",
        "state/1/0/2.changelog": "two",
        "state/1/0/3_0a1b-2c.zip": "three",
        "state/1/2/3.snapshot": "three",
        "state/1/2/.3.snapshot.crc": "sum",
        "state/1/_metadata/v2/0": "zero",
        "state/1/_metadata/v2/2": "two",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


AFTER = {
    "offsets/2",
    "offsets/.2.crc",
    "state/1/0/3_0a1b-2c.zip",
    "state/1/2/3.snapshot",
    "state/1/2/.3.snapshot.crc",
    "state/1/_metadata/v2/2",
}


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("uri", [False, True])
def test_what_came_after_the_last_commit_is_set_aside(
    uri: bool, hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(hurt)
    assert main(["state", "repair", hurt.as_uri() if uri else str(hurt)]) == 0
    shown = capsys.readouterr().out
    assert f"{hurt} is again as batch 1 left it, with 2 partitions" in shown
    assert f"(6 files) lies in {hurt / 'gpuwin-repair-2'}" in shown
    aside = {f"gpuwin-repair-2/{name}" if name in AFTER else name: text for name, text in before.items()}
    assert files(hurt) == aside
    # A second repartition, and a second repair.
    (hurt / "offsets" / "2").write_text(offsets(1, 2000, 8))
    assert main(["state", "repair", str(hurt)]) == 0
    assert (hurt / "gpuwin-repair-2-2" / "offsets" / "2").exists()


def committed(folder: Path) -> None:
    (folder / "commits" / "2").write_text("v1\n{}")


def of_the_query(folder: Path) -> None:
    (folder / "offsets" / "2").write_text(offsets(2, 3000, 2))


def of_the_query_with_other_partitions(folder: Path) -> None:
    (folder / "offsets" / "2").write_text(offsets(2, 3000, 4))


def of_spark(folder: Path) -> None:
    (folder / "state" / "0" / "_gpuwin").unlink()


def no_offsets(folder: Path) -> None:
    for file in (folder / "offsets").iterdir():
        file.unlink()


def not_json(folder: Path) -> None:
    (folder / "offsets" / "2").write_text("v1\nmetadata\n{}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (committed, "needs no repair: its last batch, 2, is committed"),
        (of_the_query, "was begun by the query"),
        (of_the_query_with_other_partitions, "was begun by the query"),
        (of_spark, "was not written by gpuwin"),
        (no_offsets, "is no checkpoint"),
        (not_json, "offsets/2 cannot be read"),
    ],
)
def test_other_checkpoints_are_left_alone(
    change: Callable[[Path], None], words: str, hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hurt)
    before = files(hurt)
    assert main(["state", "repair", str(hurt)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert files(hurt) == before


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("nowhere", "There is no folder"),
        ("s3a://bucket/checkpoint", "not in the file system of this machine"),
        (".", "is no checkpoint"),
    ],
)
def test_folders_that_are_no_checkpoint(
    checkpoint: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["state", "repair", checkpoint]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize("fails_at", range(1, len(AFTER) + 1))
def test_a_file_that_cannot_be_moved_undoes_the_repair(
    fails_at: int, hurt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, rename, moves = files(hurt), Path.rename, []

    def fails_once(path: Path, target: Path) -> Path:
        moves.append(path)
        if len(moves) == fails_at:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    assert main(["state", "repair", str(hurt)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing was changed" in line
    assert "No space left on device" in line
    assert files(hurt) == before
    assert not list(hurt.glob("gpuwin-repair-*"))


def test_a_repair_that_was_killed_is_done_by_the_next(hurt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, moves = Path.rename, []

    def dies(path: Path, target: Path) -> Path:
        moves.append(path)
        if len(moves) == len(AFTER):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dies)
    assert main(["state", "repair", str(hurt)]) == 130
    monkeypatch.undo()
    assert (hurt / "offsets" / "2").exists(), "the mark of a checkpoint that is hurt goes last"
    assert main(["state", "repair", str(hurt)]) == 0
    assert not AFTER & files(hurt).keys()
