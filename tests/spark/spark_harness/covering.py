"""Covering designs: few cases that hold every value of every dimension, and every pair where pairs matter."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

Row = dict[str, str]


def covering(
    dimensions: Mapping[str, Sequence[str]],
    pairs: Sequence[tuple[str, str]],
    possible: Callable[[Row], bool],
    *,
    seed: int = 0,
    tries: int = 20,
) -> list[Row]:
    """A deterministic list of rows in which each value of each dimension occurs, and each possible pair of `pairs`.

    Greedy: of `tries` random rows that hold the first goal still open, the one with most open goals is taken. A pair
    that no possible row holds is left out.
    """
    rng = random.Random(seed)
    singles = [((d, v),) for d, values in dimensions.items() for v in values]
    doubles = [((a, x), (b, y)) for a, b in pairs for x, y in itertools.product(dimensions[a], dimensions[b])]
    open_goals: dict[tuple[tuple[str, str], ...], None] = dict.fromkeys([*doubles, *singles])
    rows: list[Row] = []
    while open_goals:
        goal = next(iter(open_goals))
        candidates = []
        for _ in range(tries):
            row = {d: rng.choice(values) for d, values in dimensions.items()}
            row.update(goal)
            _towards(row, open_goals, dimensions, rng, possible)
            if possible(row):
                candidates.append(row)
        del open_goals[goal]
        if not candidates:
            continue
        best = max(candidates, key=lambda r: sum(holds(r, g) for g in open_goals))
        rows.append(best)
        for g in [g for g in open_goals if holds(best, g)]:
            del open_goals[g]
    return rows


def holds(row: Row, goal: tuple[tuple[str, str], ...]) -> bool:
    """Whether the row has all the values of the goal."""
    return all(row[d] == v for d, v in goal)


def _towards(
    row: Row,
    open_goals: Mapping[tuple[tuple[str, str], ...], None],
    dimensions: Mapping[str, Sequence[str]],
    rng: random.Random,
    possible: Callable[[Row], bool],
) -> None:
    """Moves the row, one dimension at a time, to the value that meets most open goals."""
    fixed = set(dict(next(iter(open_goals))))
    order = [d for d in dimensions if d not in fixed]
    rng.shuffle(order)
    for d in order:
        about = [g for g in open_goals if any(x == d for x, _ in g)]
        scored = []
        for v in dimensions[d]:
            changed = {**row, d: v}
            scored.append((possible(changed), sum(holds(changed, g) for g in about), rng.random(), v))
        row[d] = max(scored)[3]
