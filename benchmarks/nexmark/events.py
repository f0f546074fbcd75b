"""Events of Nexmark's auction house, in Parquet: persons, auctions and bids, one file of each for a micro-batch.

The model is that of https://github.com/nexmark/nexmark with its default numbers. Of fifty events, one is a person who
comes, three are auctions that open, and forty-six are bids. Half of the bids go to the newest auction whose number is a
multiple of a hundred, and three of four come from the newest such person; the others from the last hundred auctions and
the last thousand persons. Prices are 10 to a power between 2 and 8. Event time is the number of the event over the
rate, so it is in order. Columns that no query reads are left out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START_US = 1_700_000_000_000_000
RATE = 10_000  # events a second of event time
OF_FIFTY = {"person": 1, "auction": 3}  # the others are bids
FIRST_ID = 1_000
HOT = 100  # every so many-th auction or person is the one that many choose
LEAD = 10  # ids that are not there yet, and are chosen all the same
IN_FLIGHT, ACTIVE = 100, 1_000
CHANNELS = 10_000
SCHEMAS = {
    "person": "id long, name string, dateTime timestamp",
    "auction": "id long, seller long, dateTime timestamp",
    "bid": "auction long, bidder long, price long, channel string, dateTime timestamp",
}


def events(files: int, events_per_file: int, seed: int = 42) -> Path:
    """A folder with a folder for each kind of event, and in it `files` files. Written once, then kept."""
    folder = Path(tempfile.gettempdir()) / "gpuwin-benchmarks" / f"nexmark-{files}x{events_per_file}"
    if (folder / "_DONE").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(seed)
    for i in range(files):
        numbers = np.arange(i * events_per_file, (i + 1) * events_per_file)
        of_kind = numbers % 50
        people, auctions = OF_FIFTY["person"], OF_FIFTY["person"] + OF_FIFTY["auction"]
        _write(folder / "person", i, _persons(rng, numbers[of_kind < people]))
        _write(folder / "auction", i, _auctions(rng, numbers[(of_kind >= people) & (of_kind < auctions)]))
        _write(folder / "bid", i, _bids(rng, numbers[of_kind >= auctions]))
    (folder / "_DONE").touch()
    return folder


def _write(folder: Path, i: int, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{i:04d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (1_000_000_000 + i, 1_000_000_000 + i))  # the file source reads in the order of these


def _time(numbers: np.ndarray) -> pa.Array:
    return pa.array(START_US + numbers * 1_000_000 // RATE, pa.timestamp("us", "UTC"))


def _last(numbers: np.ndarray, kind: str) -> np.ndarray:
    """The number of the newest person or auction at each event, from 0."""
    first, count = (0, OF_FIFTY["person"]) if kind == "person" else (OF_FIFTY["person"], OF_FIFTY["auction"])
    return numbers // 50 * count + np.clip(numbers % 50 - first, -1, count - 1)


def _chosen(rng: np.random.Generator, last: np.ndarray, hot: int, plus: int, others: int) -> np.ndarray:
    """An id for each event: that of the hot one in `hot - 1` of `hot` cases, else one of the last `others`."""
    first = np.maximum(last - others, 0)
    any_ = first + rng.integers(0, last - first + 1 + LEAD)
    return np.where(rng.integers(0, hot, len(last)) > 0, last // HOT * HOT + plus, any_) + FIRST_ID


def _persons(rng: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    given = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
    family = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
    names = pa.array([f"{g} {f}" for g in given for f in family])
    name = names.take(pa.array(rng.integers(0, len(names), len(numbers))))
    return pa.table({"id": _last(numbers, "person") + FIRST_ID, "name": name, "dateTime": _time(numbers)})


def _auctions(rng: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    seller = _chosen(rng, _last(numbers, "person"), hot=4, plus=0, others=ACTIVE)
    return pa.table({"id": _last(numbers, "auction") + FIRST_ID, "seller": seller, "dateTime": _time(numbers)})


def _bids(rng: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    hot = ["Google", "Facebook", "Baidu", "Apple"]
    channels = pa.array(hot + [f"channel-{i}" for i in range(CHANNELS)])
    cold = len(hot) + rng.integers(0, CHANNELS, len(numbers))
    channel = np.where(rng.integers(0, 2, len(numbers)) > 0, rng.integers(0, len(hot), len(numbers)), cold)
    return pa.table(
        {
            "auction": _chosen(rng, _last(numbers, "auction"), hot=2, plus=0, others=IN_FLIGHT),
            "bidder": _chosen(rng, _last(numbers, "person"), hot=4, plus=1, others=ACTIVE),
            "price": np.rint(10.0 ** (rng.random(len(numbers)) * 6.0) * 100.0).astype(np.int64),
            "channel": channels.take(pa.array(channel)),
            "dateTime": _time(numbers),
        }
    )
