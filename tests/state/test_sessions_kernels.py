"""The kernels below sessions, rows and joins, each against the plainest way to say the same."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.joins import assign_windows, common_spans, pair_groups, probe, union_groups
from gpuwin_kernels.cpu.order import lower_bounds, merged_order, order_by_code
from gpuwin_kernels.cpu.ordered_set import after, before, empty_set, insert, remove
from gpuwin_kernels.cpu.sessions import clear_positions, find_touching, live_of_codes, with_bits
from gpuwin_kernels.cpu.slices import float_keys

EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=30)


def arrays(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([r[0] for r in rows], np.int32), np.array([r[1] for r in rows], np.int64)


@pytest.mark.parametrize("rows", [0, 1, 40, 500, 30_000])
@pytest.mark.parametrize("kind", ["ordered", "nearly", "reversed", "shuffled", "equal", "extreme"])
@pytest.mark.parametrize("codes", [1, 7, 10**6])
def test_order_is_stable_and_sorted(rows: int, kind: str, codes: int) -> None:
    rng = np.random.default_rng(rows + codes)
    code = rng.integers(0, codes, rows).astype(np.int32)
    key = np.sort(rng.integers(-(2**40), 2**40, rows))
    if kind == "nearly":
        key = key + rng.integers(-(2**30), 2**30, rows)
    elif kind == "reversed":
        key = key[::-1].copy()
    elif kind == "shuffled":
        key = rng.permutation(key)
    elif kind == "equal":
        key[:] = 5
    elif kind == "extreme":
        key = rng.choice(np.array(EXTREMES), rows)
    assert (order_by_code(code, key) == np.lexsort((key, code))).all()


@settings(max_examples=100, deadline=None)
@given(pairs, pairs)
def test_merging_and_searching_sorted_lists(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    a, b = sorted(a), sorted(b)
    both = a + b
    order = merged_order(*arrays(a), *arrays(b))
    assert [both[i] for i in order] == sorted(both)
    assert [i for i in order if i < len(a)] == list(range(len(a)))
    for wanted in (b, b[::-1]):
        assert lower_bounds(*arrays(a), *arrays(wanted)).tolist() == [bisect.bisect_left(a, w) for w in wanted]


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 4096, 4097, 300_000])
def test_ordered_set(size: int) -> None:
    rng = np.random.default_rng(size)
    words, first = empty_set(size)
    members: list[int] = []
    for i in rng.integers(0, size, 1500).tolist():
        at = bisect.bisect_left(members, i)
        there = at < len(members) and members[at] == i
        if rng.random() < 0.4 and there:
            remove(words, first, i)
            members.pop(at)
        elif rng.random() < 0.6 and not there:
            insert(words, first, i)
            members.insert(at, i)
        at = bisect.bisect_left(members, i)
        beyond = bisect.bisect_right(members, i)
        assert before(words, first, i) == (members[at - 1] if at else -1)
        assert after(words, first, i) == (members[beyond] if beyond < len(members) else -1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), max_size=15), st.data())
def test_what_touches_in_a_tier(drawn: list[tuple[int, int, int]], data: st.DataObject) -> None:
    tier: list[tuple[int, int, int]] = []
    for c, s, width in sorted(drawn):
        if not tier or tier[-1][0] != c or tier[-1][2] < s:
            tier.append((c, s, s + width))
    dead = data.draw(st.sets(st.integers(0, max(len(tier) - 1, 0)), max_size=len(tier)))
    wanted: list[tuple[int, int, int]] = []
    for c, s, width in sorted(
        data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), max_size=8))
    ):
        if not wanted or wanted[-1][0] != c or wanted[-1][2] < s:
            wanted.append((c, s, s + width))
    code, start = arrays([(c, s) for c, s, _ in tier])
    end = np.array([e for _, _, e in tier], np.int64)
    bits = with_bits(np.zeros((len(tier) + 7) // 8, np.uint8), np.array(sorted(dead), np.int64))
    want_code, want_start = arrays([(c, s) for c, s, _ in wanted])
    want_end = np.array([e for _, _, e in wanted], np.int64)
    for strict in (False, True):
        found = find_touching(code, start, end, bits, want_code, want_start, want_end, strict)
        expected = [
            i
            for i, (c, s, e) in enumerate(tier)
            if i not in dead
            and any(c == k and ((s < y and x < e) if strict else (s <= y and x <= e)) for k, x, y in wanted)
        ]
        assert found.tolist() == expected
    assert clear_positions(bits, len(tier)).tolist() == [i for i in range(len(tier)) if i not in dead]
    some = np.array([0, 2], np.int32)
    assert live_of_codes(code, bits, some).tolist() == [
        i for i, (c, _, _) in enumerate(tier) if i not in dead and c in (0, 2)
    ]


@settings(max_examples=100, deadline=None)
@given(pairs, pairs, st.booleans(), st.booleans())
def test_join_kernels(
    left: list[tuple[int, int]], right: list[tuple[int, int]], keep_left: bool, keep_right: bool
) -> None:
    left, right = sorted(left), sorted(right)
    none = np.zeros((len(left) + 7) // 8, np.uint8)
    code, time = arrays(right)
    who, position = probe(*arrays(left), none, code, time - 2, time + 1)
    expected = [
        (w, i) for w, (c, t) in enumerate(right) for i, (k, x) in enumerate(left) if c == k and t - 2 <= x <= t + 1
    ]
    assert list(zip(who.tolist(), position.tolist(), strict=True)) == expected
    a, b = pair_groups(*arrays(left), *arrays(right), keep_left, keep_right)
    found = sorted(zip(a.tolist(), b.tolist(), strict=True))
    wanted = [(i, j) for i, x in enumerate(left) for j, y in enumerate(right) if x == y]
    wanted += [(i, -1) for i, x in enumerate(left) if keep_left and x not in right]
    wanted += [(-1, j) for j, y in enumerate(right) if keep_right and y not in left]
    assert found == sorted(wanted)
    codes, windows, left_first, right_first = union_groups(*arrays(left), *arrays(right))
    groups = list(zip(codes.tolist(), windows.tolist(), strict=True))
    assert groups == sorted(set(left + right))
    for g, pair in enumerate(groups):
        assert left[left_first[g] : left_first[g + 1]] == [x for x in left if x == pair]
        assert right[right_first[g] : right_first[g + 1]] == [x for x in right if x == pair]


@pytest.mark.parametrize("sizes", [(200_000, 150_000), (150_000, 200_000), (200_000, 0), (0, 0)])
@pytest.mark.parametrize("codes", [1, 3, 60_000])
def test_pairs_by_all_threads(sizes: tuple[int, int], codes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(codes)

    def side(rows: int) -> tuple[np.ndarray, np.ndarray]:
        code, window = rng.integers(0, codes, rows).astype(np.int32), rng.integers(0, 200_000, rows)
        order = np.lexsort((window, code))
        return code[order], window[order]

    both = *side(sizes[0]), *side(sizes[1])
    for keep in ((False, False), (True, True)):
        found = []
        for threads in (1, 3):
            monkeypatch.setattr(tuning, "threads", lambda threads=threads: threads)
            found.append(pair_groups(*both, *keep))
            gone = np.packbits(both[0] % 5 == 0, bitorder="little")
            found[-1] += probe(*both[:2], gone, *both[2:], both[3] + 9)
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
        assert len(found[0][0]) >= (sum(sizes) if keep[0] and not all(sizes) else 0)


def test_assigning_windows() -> None:
    row, window = assign_windows(np.zeros(3, np.int64), np.array([2, 5, 1]), np.array([4, 5, 2]))
    assert (row.tolist(), window.tolist()) == ([0, 0, 2], [2, 3, 1])


def test_common_spans() -> None:
    """Spans that touch, hold, miss or are cut by those of the others, of codes that come before, between and after."""
    mine = [(0, 1, 9), (2, 1, 9), (2, 1, 9), (2, 5, 7), (2, 8, 9), (4, 0, 3)]
    others = [(1, 0, 9), (2, -5, 1), (2, 2, 4), (2, 6, 8), (3, 0, 9), (4, 1, 2), (5, 0, 9)]

    def arrays(spans: list[tuple[int, int, int]]) -> list[np.ndarray]:
        code, first, beyond = (np.array(column) for column in zip(*spans, strict=True))
        return [code.astype(np.int32), first, beyond]

    found = common_spans(*arrays(mine), *arrays(others))
    assert [a.tolist() for a in found] == [[1, 1, 2, 2, 3, 5], [2, 6, 2, 6, 6, 1], [4, 8, 4, 8, 7, 2]]


def test_keys_of_floats_are_in_order() -> None:
    values = np.array([-np.inf, -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.5, 1e300, np.inf, np.nan])
    keys = float_keys(values)
    assert (np.diff(keys) > 0).all()
    assert float_keys(np.array([-0.0]))[0] == keys[4]
    assert float_keys(np.array([-np.nan]))[0] == keys[-1]
