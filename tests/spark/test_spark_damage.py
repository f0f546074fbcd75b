"""A checkpoint that was damaged, or whose disk is full: the query says what is wrong, and emits no wrong row."""

from __future__ import annotations

import contextlib
import re
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_harness import Case, Recording, SessionCase, Stream, StreamSpec, assert_placed, row_differences, run, write

STREAM = StreamSpec(seed=21, batches=4, rows=60, empty=None)
#: The end of an Arrow stream, a continuation marker and a message of no bytes; but not the key of the manifest.
END_OF_STREAM = re.compile(rb"(?<!\xff)\xff{4}\0{4}")
#: The key of the manifest as Spark keeps it: no nulls, segment -1, chunk 0.
MANIFEST = struct.pack("<qqq", 0, -1, 0)
#: Spark's own sums over the files of a checkpoint. Without them it reads whatever can be decompressed.
NO_FILE_SUMS = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}

#: Without batches of no data, whose versions of the store hold a manifest alone.
CASE = Case("sliding", "append", "string", "counts", trigger="processing", idle_batch="off")
OTHERS = [
    replace(CASE, mode="update", provider="rocksdb_changelog"),
    SessionCase("long", "append", "string", "counts", trigger="processing", idle_batch="off"),
]
ALTERED = [CASE, *(pytest.param(case, marks=pytest.mark.sweep) for case in OTHERS)]


def newest(checkpoint: Path, ends: str) -> Path:
    """The file of the newest version of partition 0, of those whose names end so."""
    return max((checkpoint / "state" / "0" / "0").rglob(f"[0-9]*{ends}"), key=lambda p: int(p.name.split(".")[0]))


def rewritten(spark: SparkSession, path: Path, change: Callable[[bytearray], None]) -> None:
    """Changes what a file of the state store holds, and compresses it again: Spark finds nothing wrong with it."""
    assert spark._jvm is not None
    jvm, conf = spark._jvm, spark.sparkContext._jsc.sc().conf()
    codec = jvm.org.apache.spark.io.CompressionCodec.createCodec(conf, "lz4")
    stream = codec.compressedInputStream(jvm.java.io.FileInputStream(str(path)))
    content = bytearray(stream.readAllBytes())
    stream.close()
    change(content)
    out = codec.compressedOutputStream(jvm.java.io.FileOutputStream(str(path)))
    out.write(bytes(content))
    out.close()
    forget_sum(path)


def last_number(content: bytearray) -> None:
    """Changes the lowest bit of the last number of the first Arrow stream: it can still be read."""
    end = END_OF_STREAM.search(content)
    assert end is not None
    content[end.start() - 8] ^= 1


def entries(content: bytes) -> dict[bytes, bytes]:
    """What a delta file puts: length and key, length and value, to the end that a length of -1 says."""
    found, at = {}, 0
    while (size := int.from_bytes(content[at : at + 4], "big", signed=True)) >= 0:
        key, at = bytes(content[at + 4 : at + 4 + size]), at + 4 + size
        size = int.from_bytes(content[at : at + 4], "big", signed=True)
        found[key], at = bytes(content[at + 4 : at + 4 + max(size, 0)]), at + 4 + max(size, 0)
    return found


def framed(pairs: dict[bytes, bytes]) -> bytes:
    parts = [len(b).to_bytes(4, "big") + b for pair in pairs.items() for b in pair]
    return b"".join([*parts, (-1).to_bytes(4, "big", signed=True)])


def of_format(spark: SparkSession, number: int, row: bytes) -> bytes:
    """The manifest, an UnsafeRow of one field of bytes, with the number of another format, and its sum at the end."""
    (length,) = struct.unpack("<i", row[8:12])
    assert row[16:20] == (5).to_bytes(4, "big")
    content = number.to_bytes(4, "big") + row[20 : 16 + length - 4]
    assert spark._jvm is not None
    crc = spark._jvm.java.util.zip.CRC32C()
    for part in (struct.pack(">qi", -1, 0), content):
        crc.update(part)
    return row[:16] + content + int(crc.getValue()).to_bytes(4, "big") + row[16 + length :]


def forget_sum(path: Path) -> None:
    """Removes Hadoop's sum over a file of the local file system."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def half_done(spark: SparkSession, case: Case, folder: Path, conf: Mapping[str, str] = NO_FILE_SUMS) -> Stream:
    """Runs all but the last batch."""
    stream = write(STREAM, folder / "stream")
    done = resumed(spark, case, Stream(stream.batches[:-1]), folder, conf)
    assert done.error is None
    return stream


def resumed(
    spark: SparkSession, case: Case, stream: Stream, folder: Path, conf: Mapping[str, str] = NO_FILE_SUMS
) -> Recording:
    how = replace(case.how, conf={**case.how.conf, **conf})
    return run(spark, case.query, stream, how, folder / "device", enabled=True)


def assert_goes_on(spark: SparkSession, case: Case, stream: Stream, folder: Path) -> None:
    """Does the last batches again, and compares them with those of an undisturbed run by Spark."""
    rest = resumed(spark, case, stream, folder)
    plain = run(spark, case.query, stream, case.how, folder / "plain", enabled=False)
    assert rest.error is None, rest.error
    assert_placed(rest, ["gpuwin"])
    wanted = {b.id: b for b in plain.batches}
    assert rest.batches
    for batch in rest.batches:
        assert not list(row_differences(wanted[batch.id].rows or (), batch.rows or (), plain.columns)), batch.id
    assert any(b.rows for b in rest.batches)
    assert max(wanted) == rest.batches[-1].id


@pytest.mark.parametrize("case", ALTERED, ids=str)
def test_segment_that_was_altered(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """One bit of a number in a segment is another, and the store can be read: no row comes of it."""
    stream = half_done(spark, case, tmp_path)
    ends = ".changelog" if case.provider.startswith("rocksdb") else ".delta"
    damaged = newest(tmp_path / "device" / "checkpoint", ends)
    kept = damaged.read_bytes()
    rewritten(spark, damaged, last_number)
    broken = resumed(spark, case, stream, tmp_path)
    assert broken.error is not None
    assert re.search(r"chunk 0 of segment \d+ is not what was written", broken.error.message), broken.error
    assert "restore it from a copy" in broken.error.message
    assert not broken.all_rows()
    damaged.write_bytes(kept)
    forget_sum(damaged)
    assert_goes_on(spark, case, stream, tmp_path)


def test_manifest_that_was_altered(spark: SparkSession, tmp_path: Path) -> None:
    stream = half_done(spark, CASE, tmp_path)

    def change(content: bytearray) -> None:
        manifest = entries(content)[MANIFEST]
        content[content.index(manifest) + len(manifest) - 24] ^= 1  # in the last of the segments

    rewritten(spark, newest(tmp_path / "device" / "checkpoint", ".delta"), change)
    broken = resumed(spark, CASE, stream, tmp_path)
    assert broken.error is not None
    assert "its manifest is not what was written" in broken.error.message
    assert not broken.all_rows()


def with_format(spark: SparkSession, number: int, checkpoint: Path) -> None:
    """Gives the manifests of the newest version of partition 0 the number of another format."""

    def change(content: bytearray) -> None:
        was = entries(content)
        content[:] = framed({k: of_format(spark, number, v) if k == MANIFEST else v for k, v in was.items()})

    rewritten(spark, newest(checkpoint, ".delta"), change)


def test_log_of_another_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = half_done(spark, CASE, tmp_path)
    with_format(spark, 2, tmp_path / "device" / "checkpoint")
    refused = resumed(spark, CASE, stream, tmp_path)
    assert refused.error is not None
    assert "has format 2 and this gpuwin reads formats 3 to 6" in refused.error.message
    assert not refused.all_rows()


def test_log_without_narrowed_integers_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Format 3, of a build before: its chunks are what small chunks are today."""
    stream = half_done(spark, CASE, tmp_path)
    with_format(spark, 3, tmp_path / "device" / "checkpoint")
    assert_goes_on(spark, CASE, stream, tmp_path)


@pytest.mark.parametrize("provider", ["hdfs", pytest.param("rocksdb_changelog", marks=pytest.mark.sweep)])
def test_file_with_a_flipped_byte(provider: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark notices, by its own sums over files, before gpuwin sees anything."""
    case = replace(CASE, provider=provider)
    stream = half_done(spark, case, tmp_path, {})
    damaged = newest(tmp_path / "device" / "checkpoint", ".delta" if provider == "hdfs" else ".changelog")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0x10
    damaged.write_bytes(content)
    forget_sum(damaged)
    broken = resumed(spark, case, stream, tmp_path, {})
    assert broken.error is not None
    assert not broken.all_rows()


def test_disk_that_is_full(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with what the file system said, and goes on once there is room."""
    checkpoint = tmp_path / "device" / "checkpoint"
    checkpoint.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", checkpoint], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode()}")
    try:
        stream = half_done(spark, CASE, tmp_path)
        filler = checkpoint / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as f:
            while f.write(bytes(4096)):
                pass
        full = resumed(spark, CASE, stream, tmp_path)
        assert full.error is not None
        assert "No space left on device" in full.error.message
        filler.unlink()
        assert_goes_on(spark, CASE, stream, tmp_path)
    finally:
        subprocess.run(["umount", checkpoint], check=True)
