"""Sort, scan, select and search on device arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.runtime import concat, full, to_device, to_host, zeros


@pytest.mark.parametrize("n", [0, 1, 2, 33, 70])
def test_pairs_are_sorted_stably(n: int) -> None:
    keys = np.random.default_rng(n).integers(0, 8, n).astype(np.uint64)
    found, places = primitives.sort_pairs(to_device(keys), to_device(np.arange(n, dtype=np.int32)), bits=3)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(to_host(found), keys[order])
    np.testing.assert_array_equal(to_host(places), order)


def test_bits_above_the_range_are_not_looked_at() -> None:
    """A caller who says too few finds out in the simulator, too."""
    keys, places = np.array([4, 3, 1], np.uint64), np.arange(3, dtype=np.int32)
    found, _ = primitives.sort_pairs(to_device(keys), to_device(places), bits=2)
    assert to_host(found).tolist() == [4, 1, 3]


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_scans(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 1 << 62, n)
    small = values % 1000
    np.testing.assert_array_equal(
        to_host(primitives.exclusive_sum(to_device(small))), np.concatenate(([0], np.cumsum(small)))
    )
    largest = primitives.running_max(to_device(values.astype(np.uint64)))
    np.testing.assert_array_equal(to_host(largest), np.maximum.accumulate(values.astype(np.uint64)))


def test_select_and_search() -> None:
    flags = np.array([0, 1, 0, 255, 1], np.uint8)
    np.testing.assert_array_equal(to_host(primitives.select(to_device(flags))), [1, 3, 4])
    keys = np.array([2, 4, 4, 1 << 63], np.uint64)
    wanted = np.array([0, 2, 4, 5, 1 << 63, (1 << 64) - 1], np.uint64)
    for right, side in ((False, "left"), (True, "right")):
        found = to_host(primitives.search(to_device(keys), to_device(wanted), right))
        np.testing.assert_array_equal(found, np.searchsorted(keys, wanted, side))


def test_arrays_are_made_and_joined() -> None:
    parts = [to_device(np.arange(3)), zeros(0, np.int64), full(2, -7, np.int64)]
    np.testing.assert_array_equal(to_host(concat(parts)), [0, 1, 2, -7, -7])


@pytest.mark.parametrize("window", [gw.SlidingWindow("10 minutes", "1 minute"), gw.SessionWindow("1 minute")])
def test_every_sort_of_a_batch_names_the_bits_that_matter(window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 keys and minutes of two hours are 14 bits, or a few more; microseconds of two hours are 33."""
    said: list[int] = []

    def sort_pairs(keys: Any, values: Any, bits: int = 64, first: int = 0) -> tuple[Any, Any]:
        said.append(bits - first)
        return sorted_pairs(keys, values, bits, first)

    sorted_pairs = primitives.sort_pairs
    monkeypatch.setattr(primitives, "sort_pairs", sort_pairs)
    aggregates = {"n": gw.count(), "first": gw.first("v")}
    op = gw.WindowedAggregation(window=window, keys=["key"], time="ts", aggregates=aggregates).start(device="cuda")
    rng = np.random.default_rng(5)
    times = pa.array(rng.integers(0, 7_200_000_000, 60)).view(pa.timestamp("us"))
    closed = op.process(pa.table({"ts": times, "key": rng.integers(0, 100, 60), "v": np.arange(60)}))
    assert closed.num_rows + op.finish().num_rows > 50
    assert max(said) <= (18 if isinstance(window, gw.SlidingWindow) else 42)


# -- libraries, of which the simulator has none ------------------------------------------------------------------------


class OnHost(np.ndarray):
    """An array as CuPy's: its `argsort` is stable. `dtypes`: of the arrays that were sorted."""

    dtypes: ClassVar[list[np.dtype]] = []

    def argsort(self) -> np.ndarray:  # type: ignore[override]
        self.dtypes.append(self.dtype)
        return np.argsort(np.asarray(self), kind="stable")


@pytest.fixture
def without_cccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CuPy stands ready, and nothing is known of `cuda.compute` yet."""
    monkeypatch.setattr(primitives, "as_cupy", lambda array: array.copy_to_host().view(OnHost))
    monkeypatch.setattr(primitives, "as_numba", lambda array: to_device(np.asarray(array)))
    monkeypatch.setattr(primitives, "calling_cupy", lambda nbytes: nullcontext())
    monkeypatch.setitem(sys.modules, "cuda.compute", None)  # nor is it there, unless a test puts one in its place
    for cached in (primitives._compute, primitives._say_once_of):
        cached.cache_clear()
    OnHost.dtypes.clear()
    yield
    for cached in (primitives._compute, primitives._say_once_of):
        cached.cache_clear()


def sorted_by_library(bits: int, first: int = 0, n: int = 70) -> None:
    keys = np.random.default_rng(bits).integers(0, 1 << bits, n, dtype=np.uint64)
    places = np.arange(n, dtype=np.int32)
    found, place = primitives._sorted_by_library(to_device(keys), to_device(places), bits, first)
    order = np.argsort(keys >> np.uint64(first), kind="stable")
    np.testing.assert_array_equal(to_host(found), keys[order])
    np.testing.assert_array_equal(to_host(place), order)


@pytest.mark.parametrize(
    ("bits", "first", "dtype"),
    [
        (5, 0, np.uint8),
        (20, 0, np.uint32),
        (40, 30, np.uint16),
        (40, 8, np.uint32),
        (33, 0, np.uint64),
        (64, 0, np.uint64),
    ],
)
def test_cupy_sorts_keys_as_narrow_as_their_range(without_cccl: None, bits: int, first: int, dtype: type) -> None:
    sorted_by_library(bits, first)
    assert OnHost.dtypes == [np.dtype(dtype)]


class Lacking(ModuleType):
    """`cuda.compute` as it is where its bindings cannot be loaded."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Cannot access 'cuda.compute.{name}' because CUDA bindings are not available.")


def _lacks_its_library(**_: Any) -> Any:
    raise ImportError("libcccl.c.parallel.so: cannot open shared object file")


def _lazy() -> ModuleType:
    module = ModuleType("cuda.compute")
    module.SortOrder = SimpleNamespace(ASCENDING=0)  # type: ignore[attr-defined]
    module.make_radix_sort = _lacks_its_library  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("module", "said"),
    [(Lacking("cuda.compute"), "bindings are not available"), (_lazy(), "cannot open shared object file")],
    ids=["when looked at", "when called"],
)
def test_cupy_sorts_where_cccl_lacks_its_bindings_and_the_log_says_so_once(
    without_cccl: None, module: ModuleType, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = ModuleType("cuda")
    package.compute = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.compute", module)
    for _ in range(2):
        sorted_by_library(20)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert said in record.getMessage()
    assert "CuPy sorts in its place" in record.getMessage()


def test_nothing_is_said_where_cccl_is_not_installed(
    without_cccl: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.delitem(sys.modules, "cuda.compute", raising=False)
    sorted_by_library(20)
    assert not caplog.records
