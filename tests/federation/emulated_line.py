"""Hosts on this machine, each a network namespace, joined by lines with latency, loss and a rate.

Packets pass through this program, which holds them back, drops some, and hands the others on: what ``tc netem`` does,
where the kernel lacks it. It needs root, ``ip`` and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_QUEUE = 1000
"""Most packets that wait on a line, as in netem."""


@dataclass(frozen=True)
class Line:
    """What every packet meets on its way out of a host. ``rate``: bits per second."""

    delay: float = 0.0
    loss: float = 0.0
    rate: float = float("inf")


def allowed() -> bool:
    """Whether this process may make namespaces and lines."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and os.access("/dev/net/tun", os.R_OK | os.W_OK)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """The hosts ``names``, whose packets go out over ``line``. Which ones are lost follows from ``seed``."""

    def __init__(self, names: Sequence[str], line: Line, seed: int = 0) -> None:
        self._names, self._line, self._draw = list(names), line, random.Random(seed)
        self.sent = dict.fromkeys(names, 0)
        """Bytes of IP packets that each host has sent, lost ones included."""
        self._tag = f"{os.getpid():x}"
        self._devices: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return f"10.77.0.{self._names.index(name) + 1}"

    def command(self, name: str) -> list[str]:
        """Words before a command that is to run on a host."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def _namespace(self, name: str) -> str:
        return f"rondo-{self._tag}-{name}"

    def __enter__(self) -> Self:
        for place, name in enumerate(self._names):
            space, device = self._namespace(name), f"r{self._tag}{place}"
            _ip("netns", "add", space)
            handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22s", device.encode(), _IFF_TUN | _IFF_NO_PI, b""))
            self._devices.append(handle)
            _ip("link", "set", device, "netns", space)
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", space, "link", "set", each, "up")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for handle in self._devices:
            os.close(handle)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._namespace(name)], check=False, capture_output=True)

    def _forward(self) -> None:
        """Take packets from the hosts and hand them on when they are due."""
        by_address = {bytes((10, 77, 0, i + 1)): handle for i, handle in enumerate(self._devices)}
        due: list[tuple[float, int, int, bytes]] = []
        leaving: dict[int, deque[float]] = {handle: deque() for handle in self._devices}
        number = 0
        with selectors.DefaultSelector() as ready:
            for place, handle in enumerate(self._devices):
                ready.register(handle, selectors.EVENT_READ, self._names[place])
            while not self._over.is_set():
                wait = 0.1 if not due else max(0.0, due[0][0] - time.monotonic())
                for key, _ in ready.select(min(wait, 0.1)):
                    packet = os.read(key.fd, 2**16)
                    to = by_address.get(packet[16:20])
                    if to is None or packet[0] >> 4 != 4:
                        continue  # only IPv4 between the hosts
                    self.sent[key.data] += len(packet)
                    now, queue = time.monotonic(), leaving[key.fd]
                    while queue and queue[0] <= now:
                        queue.popleft()
                    if len(queue) >= _QUEUE or self._draw.random() < self._line.loss:
                        continue
                    free = max(now, queue[-1] if queue else now) + 8 * len(packet) / self._line.rate
                    queue.append(free)
                    number += 1
                    heapq.heappush(due, (free + self._line.delay, number, to, packet))
                while due and due[0][0] <= time.monotonic():
                    _, _, to, packet = heapq.heappop(due)
                    try:
                        os.write(to, packet)
                    except BlockingIOError:
                        continue  # the host's own queue is full: one more packet lost
