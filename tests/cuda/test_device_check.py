"""A device is tried before it is trusted."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwin.device import check as device_check

REGIMES = ((3, 2), (20, 20), (20, 4_000))


def test_a_device_that_computes_as_the_cpu_does_is_used() -> None:
    assert device_check.failed_check(rows=40, regimes=REGIMES) is None


def test_one_that_does_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = device_check.on_device

    def off_by_one(*arguments: Any, **more: Any) -> Any:
        code = arguments[2].copy()
        code[0] = (code[0] + 1) % more["codes"]
        return real(*arguments[:2], code, *arguments[3:], **more)

    monkeypatch.setattr(device_check, "on_device", off_by_one)
    assert "its cells of 40 rows of 3 keys differ" in str(device_check.failed_check(rows=40, regimes=REGIMES))


def test_one_whose_sessions_are_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = device_check.DeviceSessionState.close
    monkeypatch.setattr(device_check.DeviceSessionState, "close", lambda self, upto: real(self, upto + 20))
    assert device_check.failed_check(rows=40, regimes=REGIMES[:1]) == "its sessions differ from the CPU's"


def test_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(device_check, "on_device", broken)
    assert "RuntimeError: an illegal memory access" in str(device_check.failed_check(rows=40, regimes=REGIMES))
