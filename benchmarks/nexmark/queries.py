"""Nexmark's queries that aggregate by event time, as a user of Spark SQL writes them.

Numbers and meanings are those of https://github.com/nexmark/nexmark. Left out are those without a window (a plain
stream of rows, joins and deduplications alone), and query 12, whose windows are of the clock on the wall. A day is a
window here, so that the state is bounded, and `count(DISTINCT ...)`, which Spark's streams have not, is
`approx_count_distinct`, on both sides alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def _by_rank(function: str, name: str) -> str:
    """An aggregate of all bids, and of those of each rank of prices."""
    ranks = (f"{function} FILTER (WHERE {prices}) AS {rank}_{name}" for rank, prices in _RANKS.items())
    return ", ".join([f"{function} AS total_{name}", *ranks])


_BIDS = _by_rank("count(*)", "bids")
_BIDDERS = _by_rank("approx_count_distinct(bidder)", "bidders")
_AUCTIONS = _by_rank("approx_count_distinct(auction)", "auctions")


@dataclass(frozen=True)
class Query:
    """One query. `parts` are views that it reads, by name, each made of those before it.

    `target`: what the ratio of plain Spark's time to gpuwin's should be at least.
    """

    name: str
    about: str
    text: str
    target: float
    mode: str = "append"
    parts: dict[str, str] = field(default_factory=dict)
    joins: bool = False  # whether an operator stays with Spark beside those of gpuwin
    most: float = 600.0  # seconds after which a side is given up


QUERIES = [
    Query(
        "q5",
        "the auctions with most bids in 10 s, every 2 s: windows, the maximum of each, joined with them",
        "SELECT auction, num FROM counts JOIN most ON counts.window = most.window AND num >= most_bids",
        5.0,
        parts={
            "counts": (
                "SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS window, count(*) AS num "
                "FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')"
            ),
            "most": "SELECT window, max(num) AS most_bids FROM counts GROUP BY window",
        },
        joins=True,
    ),
    Query(
        "q5 without a join",
        "one of the auctions with most bids in 10 s, every 2 s: windows, and an aggregate of each",
        "SELECT window, max(struct(num, auction)) AS best FROM counts GROUP BY window",
        5.0,
        parts={
            "counts": (
                "SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS window, count(*) AS num "
                "FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')"
            )
        },
    ),
    Query(
        "q8",
        "who came and opened an auction within the same 10 s: two tumbling windows, joined",
        "SELECT id, name, comers.window.start AS starttime FROM comers JOIN sellers "
        "ON id = seller AND comers.window = sellers.window",
        1.0,
        parts={
            "comers": (
                "SELECT id, name, window(dateTime, '10 seconds') AS window "
                "FROM person GROUP BY id, name, window(dateTime, '10 seconds')"
            ),
            "sellers": (
                "SELECT seller, window(dateTime, '10 seconds') AS window "
                "FROM auction GROUP BY seller, window(dateTime, '10 seconds')"
            ),
        },
        joins=True,
    ),
    Query(
        "q11",
        "bids of a bidder in a session of activity, gap 10 s",
        "SELECT bidder, count(*) AS bid_count, session_window(dateTime, '10 seconds') AS session "
        "FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')",
        2.0,
    ),
    Query(
        "q15",
        "bids, bidders and auctions of a day, by rank of price, in update mode",
        f"SELECT window(dateTime, '1 day').start AS day, {_BIDS}, {_BIDDERS}, {_AUCTIONS} "
        "FROM bid GROUP BY window(dateTime, '1 day')",
        1.0,
        mode="update",
    ),
    Query(
        "q16",
        "the same for each channel",
        f"SELECT channel, window(dateTime, '1 day').start AS day, max(date_format(dateTime, 'HH:mm')) AS minute, "
        f"{_BIDS}, {_BIDDERS}, {_AUCTIONS} FROM bid GROUP BY channel, window(dateTime, '1 day')",
        1.0,
        mode="update",
    ),
    Query(
        "q17",
        "bids and prices of an auction in a day, in update mode",
        f"SELECT auction, window(dateTime, '1 day').start AS day, {_BIDS}, min(price) AS min_price, "
        "max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price "
        "FROM bid GROUP BY auction, window(dateTime, '1 day')",
        1.0,
        mode="update",
    ),
]
