"""Hosts for a cluster: addresses of the loopback interface, or network namespaces joined by a switch that can be cut.

All hosts have the files, the process ids and the clock of this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Protocol

from .relay import Relay

#: Addresses of the hosts. Nothing outside the namespaces sees them.
_NETWORK: Final = "10.231.77"


class NotAllowed(Exception):
    """Something that this machine does not let us do, or that its kernel does not have, in a sentence."""


class Places(Protocol):
    """Hosts by their numbers, from 0 on."""

    def address(self, host: int) -> str: ...

    def command(self, host: int) -> list[str]:
        """What runs a command on a host, in front of it. The process is then the command's own."""


class Loopback:
    """127.0.0.1, 127.0.0.2, ..., which Spark takes for different hosts."""

    def address(self, host: int) -> str:
        return f"127.0.0.{host + 1}"

    def command(self, host: int) -> list[str]:
        return ["env", f"SPARK_LOCAL_IP={self.address(host)}"]


class Hosts:
    """Network namespaces, each with one link to a switch, which is a bridge in a namespace of its own.

    Use as a context manager; all of it goes with it, and processes on it have to end before. Needs the rights of an
    administrator.
    """

    def __init__(self, count: int) -> None:
        self._count, self._stack = count, ExitStack()
        self._prefix = f"gpuwin-{os.getpid()}-{id(self):x}"
        self._switch = f"{self._prefix}-switch"

    def __enter__(self) -> Hosts:
        """Raises `NotAllowed` where there may be no namespaces."""
        try:
            self._add(self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for host in range(self._count):
                name, port = self._name(host), self._port(host)
                self._add(name)
                _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
                _ip("-n", name, "link", "set", "lo", "up")
                self._take(host)
        except NotAllowed:
            self._stack.close()
            raise
        return self

    def address(self, host: int) -> str:
        return f"{_NETWORK}.{host + 1}"

    def command(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(host), "env", f"SPARK_LOCAL_IP={self.address(host)}"]

    def cut(self, host: int) -> None:
        """Pulls the cable of a host: what is on its way is lost, and nobody is told."""
        _ip("-n", self._switch, "link", "set", self._port(host), "down")

    def let_back(self, host: int) -> None:
        """Puts the cable back."""
        _ip("-n", self._switch, "link", "set", self._port(host), "up")

    def relay(self, host: int) -> Relay:
        """Puts a link that can be made slow and lossy in the place of the one that a host has.

        Raises:
            NotAllowed: There may be no such link here.
        """
        ends = [f"gw{os.getpid() % 100_000}-{host}{end}" for end in "ab"]  # 15 letters at most
        try:
            relay = self._stack.enter_context(Relay(*ends))
        except OSError as e:
            raise NotAllowed(f"/dev/net/tun cannot be used: {e}") from e
        _ip("-n", self._switch, "link", "delete", self._port(host))
        for end, (namespace, device) in zip(ends, self._ends(host), strict=True):
            _ip("link", "set", end, "netns", namespace, "name", device)
        _ip("-n", self._switch, "link", "set", self._port(host), "master", "switch", "up")
        self._take(host)
        return relay

    def disturb(self, host: int, *how: str) -> None:
        """Makes the link of a host a bad one, in both directions; `how` is a queueing discipline in the words of `tc`.

        Raises:
            NotAllowed: The kernel has no such discipline.
        """
        for namespace, device in self._ends(host):
            _ran(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *how])

    def lost(self, host: int) -> int:
        """How many packets the bad link of a host has lost."""
        said = [_ran(["tc", "-n", name, "-s", "qdisc", "show", "dev", device]) for name, device in self._ends(host)]
        return sum(int(n) for n in re.findall(r"dropped (\d+)", "".join(said)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _add(self, namespace: str) -> None:
        _ip("netns", "add", namespace)
        self._stack.callback(_ip, "netns", "delete", namespace)

    def _take(self, host: int) -> None:
        """Gives a host's end of its link the host's address."""
        _ip("-n", self._name(host), "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", self._name(host), "link", "set", "eth0", "up")

    def _ends(self, host: int) -> tuple[tuple[str, str], ...]:
        """Both ends of a link: namespace and device."""
        return (self._switch, self._port(host)), (self._name(host), "eth0")

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def _port(self, host: int) -> str:
        return f"port{host}"


def _ip(*arguments: str) -> None:
    _ran(["ip", *arguments])


def _ran(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotAllowed(f"the command {command[0]} is not on this machine") from None
    if done.returncode:
        raise NotAllowed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
