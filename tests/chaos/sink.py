"""What Spark's file sink has committed: the files that its log names, and no others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from .stream import OutputRow, counted


def committed(out: Path) -> Counter[OutputRow]:
    """The rows of the sink, as the oracle has them, with how often each is there."""
    found: Counter[OutputRow] = Counter()
    for path in _files(out / "_spark_metadata"):
        found += counted(pq.ParquetFile(path).read())
    return found


def _files(log: Path) -> list[Path]:
    """Batches after the newest compacted file are in files of their own."""
    if not log.exists():
        return []
    compact = max((int(p.stem) for p in log.glob("*.compact") if p.stem.isdigit()), default=-1)
    newer = sorted((p for p in log.iterdir() if p.name.isdigit() and int(p.name) > compact), key=lambda p: int(p.name))
    entries = [log / f"{compact}.compact"] * (compact >= 0) + newer
    lines = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()[1:]]
    return [Path(unquote(urlparse(line["path"]).path)) for line in lines if line["action"] == "add"]
