"""The cores and the memory that this process may use: those of the machine, or fewer in a container (cgroups)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> float:
    """Cores that this process may use. A container's share of time need not be whole."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        count = os.cpu_count() or 1
    return min(float(count), *_quotas(), float("inf"))


def memory() -> tuple[int, int] | None:
    """Bytes of memory in all, and those that are free for this process; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    for most, used in _memory_limits():
        total, free = min(total, most), min(free, most - used)
    return total, max(free, 0)


def _quotas() -> Iterator[float]:
    for folder in _folders("cpu"):
        limit = _numbers(folder / "cpu.max") or [
            n for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for n in _numbers(folder / name)
        ]
        if len(limit) == 2 and min(limit) > 0:  # "max 100000" has one number, and -1 is no limit
            yield limit[0] / limit[1]


def _memory_limits() -> Iterator[tuple[int, int]]:
    for folder in _folders("memory"):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = [n for name in names for n in _numbers(folder / name)]
            if len(limit) == 2:
                yield limit[0], limit[1]


def _folders(controller: str) -> Iterator[Path]:
    """The control groups of this process and those around them, in both versions of cgroups."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controller if controllers else _CGROUPS
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text(encoding="utf-8").split() if word.lstrip("-").isdigit()]
    except OSError:
        return []
