"""Iceberg tables, read by following their metadata, without Spark and at any time."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from gpuwin_spark.installed_spark import find_spark

from .maven import Unreachable, added_jars

#: The newest Iceberg, and the lines of Spark that it is built for.
ICEBERG, LINES = "1.11.0", ("4.0", "4.1")
#: A catalog of tables in a folder, `lake`: what a session needs, but for the folder.
CONF: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
#: The setting that names the folder. A session takes it until its first use of the catalog.
WAREHOUSE: Final = "spark.sql.catalog.lake.warehouse"


def iceberg_jars() -> tuple[Path, ...]:
    """Iceberg for the installed Spark.

    Raises:
        Unreachable: There is no such Iceberg, or Maven did not bring it.
    """
    line = find_spark().line
    if line not in LINES:
        raise Unreachable(f"Iceberg {ICEBERG} is built for Spark {', '.join(LINES)}, and Spark {line} is installed.")
    return added_jars("org.apache.iceberg", f"iceberg-spark-runtime-{line}_2.13", ICEBERG)


def snapshots_in(table: Path) -> list[dict[str, Any]]:
    """The snapshots of a table, oldest first; none where there is no table."""
    return list(_metadata(table).get("snapshots", []))


def tables_in(table: Path) -> list[pa.Table]:
    """The rows of a table, file by file: those of its current snapshot."""
    metadata = _metadata(table)
    current = metadata.get("current-snapshot-id")
    manifests = [
        manifest
        for snapshot in metadata.get("snapshots", [])
        if snapshot["snapshot-id"] == current
        for manifest in _records(_path(snapshot["manifest-list"]))
    ]
    files = []
    for manifest in manifests:
        assert manifest["content"] == 0, "rows deleted within a file are not understood here"
        entries = _records(_path(manifest["manifest_path"]))
        files += [_path(entry["data_file"]["file_path"]) for entry in entries if entry["status"] != _DELETED]
    return [pq.ParquetFile(file).read() for file in sorted(files)]


_DELETED: Final = 2


def _metadata(table: Path) -> dict[str, Any]:
    versions = {int(p.name.split(".")[0][1:]): p for p in (table / "metadata").glob("v*.metadata.json")}
    return dict(json.loads(versions[max(versions)].read_text())) if versions else {}


def _path(name: str) -> Path:
    return Path(unquote(urlparse(name).path))


def _records(file: Path) -> Iterator[Any]:
    """The records of an Avro file (https://avro.apache.org/docs/1.12.0/specification)."""
    data = io.BytesIO(file.read_bytes())
    assert data.read(4) == b"Obj\x01", file
    header = _value(data, {"type": "map", "values": "bytes"}, {})
    schema, codec = json.loads(header["avro.schema"]), header.get("avro.codec", b"null")
    assert codec in (b"null", b"deflate"), codec
    sync = data.read(16)
    while data.tell() < len(data.getbuffer()):
        count, size = _long(data), _long(data)
        block = data.read(size)
        content = io.BytesIO(zlib.decompress(block, -15) if codec == b"deflate" else block)
        named: dict[str, Any] = {}
        for _ in range(count):
            yield _value(content, schema, named)
        assert data.read(16) == sync, file


def _long(data: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = data.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _value(data: io.BytesIO, schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _value(data, schema[_long(data)], named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _value(data, kind, named)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema
    if kind in named and kind != schema:
        return _value(data, named[kind], named)
    match kind:
        case "null":
            return None
        case "boolean":
            return data.read(1) == b"\x01"
        case "int" | "long":
            return _long(data)
        case "float" | "double":
            return data.read(4 if kind == "float" else 8)
        case "bytes":
            return data.read(_long(data))
        case "string":
            return data.read(_long(data)).decode()
        case "fixed":
            return data.read(schema["size"])
        case "record":
            return {field["name"]: _value(data, field["type"], named) for field in schema["fields"]}
        case "array":
            return [_value(data, schema["items"], named) for _ in _items(data)]
        case "map":
            return {_value(data, "string", named): _value(data, schema["values"], named) for _ in _items(data)}
    raise AssertionError(f"a type of Avro that is not understood here: {schema}")


def _items(data: io.BytesIO) -> Iterator[int]:
    """As many steps as an array or a map has items."""
    while count := _long(data):
        if count < 0:
            count = -count
            _long(data)  # the size of the block
        yield from range(count)
