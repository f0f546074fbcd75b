"""`device="cuda"` gives the rows of `device="cpu"`: each kind of window, each emission, through the public operator."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.device import panes as device_engine
from gpuwin_kernels.cuda import runtime

AGGREGATES = {
    "n": gw.count(),
    "present": gw.count("v"),
    "total": gw.sum("v"),
    "exact": gw.sum("i"),
    "mean": gw.mean("v"),
    "least": gw.min("v"),
    "most": gw.max("i"),
    "spread": gw.std("v"),
    "first": gw.first("i"),
    "at_most": gw.max_by("i", "v"),
}


def batch(rng: np.random.Generator, rows: int, first: int, last: int) -> pa.Table:
    """Whole numbers as floats, so that sums are exact in any order."""
    seconds = rng.integers(first, last, rows)
    return pa.table(
        {
            "ts": pa.array(seconds * 1_000_000).view(pa.timestamp("us")),
            "k": pa.array(rng.choice(["a", "b", None], rows)),
            "v": pa.array(rng.integers(-9, 9, rows).astype(float), mask=rng.random(rows) < 0.2),
            "i": rng.integers(-(1 << 40), 1 << 40, rows),
            "gap": pa.array(rng.integers(-1, 7, rows) * 1_000_000, mask=rng.random(rows) < 0.1),
        }
    )


def spec(window: Any, emit: Any, **more: Any) -> gw.WindowedAggregation:
    watermark = gw.BoundedOutOfOrderness("3 seconds")
    return gw.WindowedAggregation(
        window=window, keys=["k"], time="ts", aggregates=AGGREGATES, emit=emit, watermark=watermark, **more
    )


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Rows by key and window; moments to the places that do not depend on the order in which they are merged."""
    rows = table.to_pylist()
    for row in rows:
        if row.get("spread") is not None:
            row["spread"] = float(f"{row['spread']:.12g}")
    return sorted(rows, key=lambda row: str((row["k"], row["window_start"], row["window_end"])))


@pytest.mark.parametrize(
    ("window", "emit"),
    [
        (gw.TumblingWindow("10 seconds"), gw.OnClose()),
        pytest.param(gw.SlidingWindow("20 seconds", "10 seconds"), gw.OnClose(), marks=pytest.mark.long),
        (gw.SlidingWindow("20 seconds", "10 seconds"), gw.OnUpdate()),
        (gw.SlidingWindow("5 seconds", "10 seconds", offset="2 seconds"), gw.OnClose()),
        (gw.CumulativeWindow("40 seconds", "10 seconds"), gw.OnClose()),
        (gw.GlobalWindow(), gw.Complete()),
        (gw.SessionWindow("4 seconds"), gw.OnClose()),
        (gw.SessionWindow(gw.column("gap")), gw.OnUpdate()),
    ],
    ids=["tumbling", "sliding", "sliding, on update", "gaps", "cumulative", "global", "sessions", "gap per row"],
)
def test_same_rows_as_the_cpu(window: Any, emit: Any) -> None:
    rng = np.random.default_rng(1)
    specification = spec(window, emit)
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    assert device.device == "cuda"
    for step in range(3):
        rows = batch(rng, 8, 10 * step - 15, 10 * step + 8)
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    restored = specification.restore(device.snapshot(), device="cpu")
    before = device.metrics
    assert host.metrics.rows_late == before.rows_late
    assert host.metrics.window_rows_late == before.window_rows_late
    assert host.metrics.rows_unassigned == before.rows_unassigned
    assert host.metrics.windows_open == before.windows_open
    last = in_order(host.finish())
    assert last == in_order(device.finish()) == in_order(restored.finish())


@pytest.mark.parametrize("window", [gw.SlidingWindow("20 seconds", "10 seconds"), gw.SessionWindow("4 seconds")])
@pytest.mark.parametrize("delay", ["1 second", "8 seconds"])
def test_a_delay_that_changes(window: Any, delay: str) -> None:
    """Both go on from a snapshot of the host, which knows windows that have closed."""
    rng = np.random.default_rng(3)
    patient = spec(window, gw.OnClose(), allowed_lateness="30 seconds")
    first = patient.start(device="cpu")
    first.process(batch(rng, 60, 0, 60))
    changed = replace(patient, watermark=gw.BoundedOutOfOrderness(delay), allowed_lateness="30 seconds")
    host, device = (changed.restore(first.snapshot(), device=name, allow_changes=True) for name in ("cpu", "cuda"))
    assert device.device == "cuda"
    for step in range(2):
        rows = batch(rng, 60, 10 + 10 * step, 75 + 10 * step)
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert host.metrics.rows_late == device.metrics.rows_late
    assert in_order(host.finish()) == in_order(device.finish())


def test_windows_from_upstream_and_a_median() -> None:
    """Inherited windows, and an aggregate whose rows stay on the host beside cells on the device."""
    rng = np.random.default_rng(2)
    start = pa.array(rng.integers(0, 3, 9) * 10_000_000).view(pa.timestamp("us"))
    end = pa.array(np.asarray(start).astype(np.int64) + 10_000_000).view(pa.timestamp("us"))
    rows = batch(rng, 9, 0, 30).append_column("window_start", start).append_column("window_end", end)
    specification = gw.WindowedAggregation(
        window=gw.InheritedWindow(),
        keys=["k"],
        time="ts",
        aggregates={"n": gw.count(), "median": gw.median("v"), "exact": gw.sum("i")},
    )
    results = []
    for device in ("cpu", "cuda"):
        op = specification.start(device=device)
        results.append(in_order(pa.concat_tables([op.process(rows), op.finish()])))
    assert results[0] == results[1]
    assert len(results[0]) >= 3


def test_a_snapshot_of_the_cpu_goes_on_on_the_device() -> None:
    rng = np.random.default_rng(3)
    specification = spec(gw.TumblingWindow("10 seconds"), gw.OnClose())
    host = specification.start(device="cpu")
    host.process(batch(rng, 8, 0, 20))
    device = specification.restore(host.snapshot(), device="cuda")
    rows = batch(rng, 8, 10, 40)
    assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert in_order(host.finish()) == in_order(device.finish())


def test_overflow_leaves_the_state_as_it_was() -> None:
    specification = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), keys=[], time="ts", aggregates={"s": gw.sum("i")}
    )
    op = specification.start(device="cuda")
    time = pa.array([1_000_000]).view(pa.timestamp("us"))
    op.process(pa.table({"ts": time, "i": [(1 << 63) - 1]}))
    before = op.snapshot()
    with pytest.raises(gw.OverflowError):
        op.process(pa.table({"ts": time, "i": [1]}))
    assert op.snapshot() == before
    assert op.finish().column("s").to_pylist() == [(1 << 63) - 1]


def test_out_of_device_memory_halves_the_batch_then_moves_to_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(4)
    specification = spec(gw.TumblingWindow("10 seconds"), gw.OnClose())
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    for op in (host, device):
        op.process(batch(np.random.default_rng(9), 6, 0, 20))
    rows = batch(rng, 8, 10, 40)
    monkeypatch.setattr(device_engine, "FEWEST_ROWS", 4)
    calls = []
    real = device_engine.rows_to_device_run

    def too_large(*arguments: Any) -> Any:
        calls.append(len(arguments[-1]))
        if len(calls) in (1, 3):  # the whole batch, and its second half
            raise runtime.OutOfDeviceMemory(123)
        return real(*arguments)

    def not_at_once(*_: Any) -> Any:
        raise runtime.OutOfDeviceMemory(124)

    monkeypatch.setattr(device_engine.BatchTaker, "take", not_at_once)
    monkeypatch.setattr(device_engine, "rows_to_device_run", too_large)
    assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert calls == [8, 4, 4]
    assert "moved the state of" in caplog.text
    assert "has not 123 bytes" in caplog.text
    assert in_order(host.finish()) == in_order(device.finish())


def test_what_has_no_cuda_kernel_is_said() -> None:
    time = pa.array([1_000_000]).view(pa.timestamp("us"))
    rows = pa.table({"ts": time})
    each_row = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), keys=[], time="ts", aggregates={"n": gw.count()}, emit=gw.EveryRow()
    )
    with pytest.raises(gw.DeviceError, match="after each row"):
        each_row.start(device="cuda").process(rows)
    assert each_row.start(device="auto").process(rows).num_rows == 1
    taken = each_row.start(device="cpu")
    taken.process(rows)
    with pytest.raises(gw.DeviceError, match="after each row"):  # and not that the snapshot cannot be read
        each_row.restore(taken.snapshot(), device="cuda")
    late = replace(each_row, emit=gw.OnClose(), allowed_lateness="1 minute", accumulation="retracting")
    with pytest.raises(gw.DeviceError, match="'retracting' results of allowed lateness"):
        late.start(device="cuda").process(rows)


@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("3 seconds")])
def test_more_columns_than_one_pass_takes(window: Any) -> None:
    """A record of the device has a flag for each of 62 inputs."""
    rng, names = np.random.default_rng(62), [f"c{i}" for i in range(63)]
    sums = {f"sum of {name}": gw.sum(name) for name in names} | {"n": gw.count(), "least": gw.min("c62")}
    many = gw.WindowedAggregation(window=window, keys=["k"], time="ts", aggregates=sums)
    host, device = (many.start(device=d) for d in ("cpu", "cuda"))
    for first in (0, 20):
        rows = batch(rng, 6, first, first + 12)
        for number, name in enumerate(names):
            values = rng.integers(-9, 9, 6).astype(float if number % 2 else int)
            rows = rows.append_column(name, pa.array(values, mask=rng.random(6) < 0.2))
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert in_order(host.finish()) == in_order(device.finish())


def _raising(a: float, b: float) -> float:
    if a < 0.0:
        raise ValueError("negative")
    return a + b


def _with_merge(merge: Any) -> gw.WindowedAggregation:
    own = gw.accumulation(state={"a": 0.0}, add=lambda a, x: a + x, merge=merge, result=lambda a: a, name="own")
    return gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), keys=["k"], time="ts", aggregates={"own": own("v"), "n": gw.count()}
    )


@pytest.mark.parametrize("merge", [_raising, lambda a, b: a / b], ids=["raises", "divides"])
def test_a_merge_that_may_raise_is_the_cpus(merge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of a device that raises ends before it has stored, and one that divides by zero stores an infinity."""
    rows = [pa.table({"ts": pa.array([1]).view(pa.timestamp("us")), "k": [1], "v": [v]}) for v in (-1.0, 2.0)]
    with pytest.raises(gw.DeviceError, match="merge of the accumulation in 'user own v' may raise"):
        _with_merge(merge).start(device="cuda").process(rows[0])
    monkeypatch.setattr("gpuwin.operator.resolve_device", lambda _: "cuda")  # as where there is a GPU
    by_itself = _with_merge(merge).start(device="auto")
    by_itself.process(rows[0])
    assert by_itself.device == "cpu"


def test_an_accumulation_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(17)
    host, device = (_with_merge(lambda a, b: a + b).start(device=d) for d in ("cpu", "cuda"))
    for first in (0, 8, 30):
        rows = batch(rng, 60, first, first + 12)
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert device.device == "cuda"
    assert in_order(host.finish()) == in_order(device.finish())


def test_a_merge_that_does_not_compile_for_cuda_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "simulated", lambda: False)
    monkeypatch.setattr(runtime, "capability", lambda: (9, 0))
    monkeypatch.setattr("gpuwin_kernels.cuda.ranges.fault_of_merge", lambda column, capability: "KeyError: log1p")
    monkeypatch.setattr("gpuwin.operator.resolve_device", lambda _: "cuda")
    schema = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("v", pa.float64())])
    assert _with_merge(lambda a, b: a + b).start(device="auto", schema=schema).device == "cpu"
    with pytest.raises(gw.DeviceError, match="'user own v' is not for CUDA: KeyError: log1p"):
        _with_merge(lambda a, b: a + b).start(device="cuda", schema=schema)


def test_without_a_gpu_the_error_names_what_is_missing() -> None:
    """In a process without the simulator."""
    if runtime.why_not() is None and not runtime.simulated():
        pytest.skip("there is a GPU here")
    program = """if True:
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        import gpuwin as gw
        window, aggregates = gw.TumblingWindow("1 second"), {"n": gw.count()}
        spec = gw.WindowedAggregation(window=window, keys=[], time="t", aggregates=aggregates)
        print(spec.start(device="auto").device, spec.start(device="auto").device)
        try:
            spec.start(device="cuda")
        except gw.DeviceError as error:
            print(error)
    """
    environment = {"NUMBA_ENABLE_CUDASIM": "0", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert "cpu cpu" in done.stdout
    assert done.stdout.count("gpuwin runs on the CPU") == 1
    assert "device='cuda' cannot be used: no NVIDIA driver" in done.stdout or "is not installed" in done.stdout


def test_of_the_rows_of_sessions_only_proto_sessions_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a batch has: what is read is a few arrays of one value for each session."""
    read_back: list[int] = []
    real = runtime.to_host

    def counted(array: Any) -> np.ndarray:
        read_back.append(array.size * array.dtype.itemsize)
        return real(array)

    monkeypatch.setattr(runtime, "to_host", counted)
    spec = gw.WindowedAggregation(
        window=gw.SessionWindow("10 seconds"), keys=["k"], time="ts", aggregates={"n": gw.count(), "s": gw.sum("v")}
    )
    op = spec.start(device="cuda")
    seconds = np.tile([0, 1, 40, 41], 25)
    rows = pa.table(
        {"ts": pa.array(seconds * 1_000_000).view(pa.timestamp("us")), "k": np.arange(100) % 2, "v": np.ones(100)}
    )
    out = op.process(rows)
    assert read_back, "nothing was read"
    assert max(read_back) < 4 * len(rows), read_back
    assert [*out["n"].to_pylist(), *op.finish()["n"].to_pylist()] == [25] * 4
