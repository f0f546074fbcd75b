"""The repair of a checkpoint that Spark's ``repartition`` left unable to start: ``gpuwin state repair``.

``repartition`` first writes the offsets of a batch of its own, a copy of the last committed one's with another number
of partitions, and then reads the state. State of gpuwin it cannot read, and the batch is never committed; a query that
is started then finds an unfinished repartition, and ends. What ``repartition`` wrote is set aside here, so that the
last committed batch is the last again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from .errors import CheckpointError
from .state_claim import claimed

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
#: The file of a version of a state store, or a sum over it.
_STATE_FILE: Final = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(?:delta|snapshot|zip|changelog)(?:\.crc)*")
_METADATA_FILE: Final = re.compile(r"\.?(\d+)(?:\.crc)*")


@dataclass(frozen=True)
class Repair:
    """A repair that was done.

    Attributes:
        checkpoint: the folder.
        batch: the last committed batch, from which the query goes on.
        partitions: those of the state.
        set_aside: the folder, inside the checkpoint, with the files that ``repartition`` had written.
        files: how many they are.
    """

    checkpoint: Path
    batch: int
    partitions: int
    set_aside: Path
    files: int

    def __str__(self) -> str:
        return (
            f"{self.checkpoint} is again as batch {self.batch} left it, with {self.partitions} partitions: start the "
            f"query. What the repartition had written ({self.files} files) lies in {self.set_aside}, which can be "
            "removed."
        )


def repair(checkpoint: str) -> Repair:
    """Sets aside what an unfinished ``repartition`` wrote into a checkpoint of gpuwin. All of it, or nothing.

    No query and no ``repartition`` may run on the checkpoint meanwhile. A repair that was killed can be run again.

    Args:
        checkpoint: the folder that a query has as its ``checkpointLocation``; a path, or a ``file:`` URI.

    Raises:
        CheckpointError: the folder is no checkpoint, or not of gpuwin, or not hurt, or claimed by another command; or a
            file cannot be moved. Nothing was changed.
    """
    folder = _folder(checkpoint)
    try:
        offsets = _batches(folder / "offsets")
        if not (offsets and (folder / "state").is_dir()):
            raise CheckpointError(
                f"{folder} is no checkpoint of a stateful streaming query: it has no offsets or no state."
            )
        if not list((folder / "state").glob("*/_gpuwin")):
            raise CheckpointError(f"The state in {folder} was not written by gpuwin, and this command knows no other.")
        with claimed(folder, "gpuwin state repair"):
            return _repaired(folder)
    except OSError as e:
        raise CheckpointError(f"{folder} could not be repaired, and nothing was changed: {e}") from e


def _repaired(folder: Path) -> Repair:
    if (folder / "_gpuwin_rescaled" / "_ready").exists():
        raise CheckpointError(
            f"A rescaling of {folder} was interrupted. It ends when the query is started with the plugin, or by: "
            f"gpuwin state rescale {folder} --partitions N"
        )
    last, commits = max(_batches(folder / "offsets")), _batches(folder / "commits")
    if last in commits:
        raise CheckpointError(f"{folder} needs no repair: its last batch, {last}, is committed.")
    batch = _copied_from(folder, last, commits)
    if batch is None:
        raise CheckpointError(
            f"{folder} needs no repair: its last batch, {last}, was begun by the query and not by a repartition. "
            "Start the query, which does it again."
        )
    partitions = int(_conf(folder, batch)[_PARTITIONS])
    files = list(_written_after(folder, batch, last))
    return Repair(folder, batch, partitions, _set_aside(folder, files, last), len(files))


def _folder(checkpoint: str) -> Path:
    parts = urlsplit(checkpoint)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        raise CheckpointError(
            f"{checkpoint} is not in the file system of this machine. docs/checkpoints.md says which files to move by "
            "the tools of your store."
        )
    folder = Path(unquote(parts.path) if parts.scheme == "file" else checkpoint).absolute()
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}.")
    return folder


def _batches(log: Path) -> set[int]:
    """The numbers of the batches in a log of Spark."""
    return {int(p.name) for p in log.iterdir() if p.name.isdecimal()} if log.is_dir() else set()


def _copied_from(folder: Path, last: int, commits: set[int]) -> int | None:
    """The batch whose offsets, and whose time, are those of `last`, but for the number of partitions."""
    for batch in sorted((b for b in commits if b < last), reverse=True):
        if not (folder / "offsets" / str(batch)).is_file():
            continue
        before, after = _conf(folder, batch), _conf(folder, last)
        repartitioned = before.pop(_PARTITIONS, None) != after.pop(_PARTITIONS, None) and before == after
        if repartitioned and _without_conf(folder, batch) == _without_conf(folder, last):
            return batch
    return None


def _conf(folder: Path, batch: int) -> dict[str, str]:
    return dict(_entry(folder, batch)[1].get("conf", {}))


def _without_conf(folder: Path, batch: int) -> tuple[list[str], dict[str, object]]:
    lines, metadata = _entry(folder, batch)
    return lines, {k: v for k, v in metadata.items() if k != "conf"}


def _entry(folder: Path, batch: int) -> tuple[list[str], dict[str, dict[str, str]]]:
    """An entry of the log of offsets: its lines but for the second, and that one, which is JSON."""
    path = folder / "offsets" / str(batch)
    lines = path.read_text().splitlines()
    try:
        metadata = json.loads(lines.pop(1))
    except (IndexError, ValueError) as e:
        raise CheckpointError(f"{path} cannot be read, and nothing was changed: {e}") from e
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path} has no metadata, and nothing was changed.")
    return lines, metadata


def _written_after(folder: Path, batch: int, last: int) -> Iterator[Path]:
    """Files that came after a batch was committed. The offsets of the last batch come last: without them nothing is
    amiss.
    """
    for operator in sorted((folder / "state").iterdir()):
        for path in sorted(operator.rglob("*")) if operator.name.isdecimal() else ():
            state = _STATE_FILE.fullmatch(path.name)
            metadata = _METADATA_FILE.fullmatch(path.name) if path.parent.name == "v2" else None
            if (state and int(state[1]) > batch + 1) or (metadata and int(metadata[1]) > batch):
                yield path
    # A repartition that may skip batches commits, as empty ones, those that the query had begun.
    for log, batches in (("commits", range(last, batch, -1)), ("offsets", range(last, last - 1, -1))):
        for number in batches:
            yield from _with_sums(folder / log / str(number))


def _with_sums(path: Path) -> Iterator[Path]:
    """The file, after the sums over it that Hadoop and Spark keep beside it."""
    for name in (f".{path.name}.crc.crc", f"{path.name}.crc", f".{path.name}.crc", path.name):
        if path.with_name(name).exists():
            yield path.with_name(name)


def _set_aside(folder: Path, files: list[Path], last: int) -> Path:
    """Moves the files, or none of them, into a new folder of the checkpoint."""
    number, aside = 1, folder / f"gpuwin-repair-{last}"
    while aside.exists():
        number, aside = number + 1, folder / f"gpuwin-repair-{last}-{number + 1}"
    moved: list[tuple[Path, Path]] = []
    try:
        for path in files:
            target = aside / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            moved.append((path, target))
    except OSError:
        for path, target in reversed(moved):
            target.rename(path)
        _remove_folders(aside)
        raise
    return aside


def _remove_folders(aside: Path) -> None:
    for path in sorted(aside.rglob("*"), reverse=True):
        path.rmdir()
    if aside.is_dir():
        aside.rmdir()
