"""Cores, accelerators, memory and disk, as far as this process may use them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rondo.doctor.finding import Finding, Mark

SYSTEM, CGROUP = Path("/"), "sys/fs/cgroup"
"""The root of the system's files about itself, and in it the control group of a container, as the container sees it."""
_MEMORY = (1 << 30, 3 << 30)
"""Bytes of free memory below which the demo does not fit, and below which little else does."""
_DISK = (200 << 20, 4 << 30)
"""Bytes of free disk below which a run cannot be written, and below which a language model does not fit."""


def threads(system: Path = SYSTEM) -> Iterator[Finding]:
    """torch's threads on the cores of this process."""
    import torch

    count, available = torch.get_num_threads(), cores(system)
    text = f"{count} of torch's on {available:g} cores"
    if count > max(1, round(available)):
        remedy = f"set OMP_NUM_THREADS={max(1, int(available))}: more threads than cores wait for each other"
        yield Finding("threads", "note", text, remedy)
    else:
        yield Finding("threads", "ok", text)


def accelerator() -> Iterator[Finding]:
    """The processor's level, and GPUs."""
    import torch

    from rondo.models.kernels.precision import faster_bf16

    fast = "faster" if faster_bf16() else 'no faster: precision = "fast" is as "exact"'
    yield Finding("processor", "ok", f"{torch.backends.cpu.get_cpu_capability()}, bfloat16 is {fast}")
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        listed = ", ".join(f"{d.name} ({_gib(d.total_memory)})" for d in devices)
        yield Finding("accelerator", "ok", f"{listed}, CUDA {torch.version.cuda}")
    elif torch.backends.mps.is_available():
        yield Finding("accelerator", "note", "mps; Rondo is not tested on it")
    elif Path("/proc/driver/nvidia/version").exists():
        build = torch.version.cuda or "processors alone"
        yield Finding("accelerator", "note", f"a GPU's driver is here, but torch, built for {build}, sees no GPU")
    else:
        yield Finding("accelerator", "ok", "none")


def memory(system: Path = SYSTEM) -> Iterator[Finding]:
    """Memory that is free for this process."""
    try:
        lines = (system / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        yield Finding("memory", "ok", "this system does not tell")
        return
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    if (limit := _numbers(system / CGROUP / "memory.max")) and (used := _numbers(system / CGROUP / "memory.current")):
        total, free = min(total, limit[0]), max(0, min(free, limit[0] - used[0]))
    yield Finding("memory", _mark(free, _MEMORY), f"{_gib(free)} free of {_gib(total)}")


def disk() -> Iterator[Finding]:
    """The folders that runs and models of the hub are written into."""
    from huggingface_hub import constants

    for name, folder, remedy in (
        ("working folder", Path.cwd(), "name another place by --run-dir"),
        ("model cache", Path(constants.HF_HUB_CACHE), "set HF_HOME to a folder that can be written"),
    ):
        there = next((place for place in (folder, *folder.parents) if place.is_dir()), folder)
        if not os.access(there, os.W_OK | os.X_OK):
            yield Finding(name, "note", "cannot be written", remedy)
        else:
            free = shutil.disk_usage(there).free
            yield Finding(name, _mark(free, _DISK), f"{_gib(free)} free")


def cores(system: Path = SYSTEM) -> float:
    """Cores that this process may use: a container's share of time need not be whole."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        count = os.cpu_count() or 1
    limit = _numbers(system / CGROUP / "cpu.max")  # "max 100000" has one number
    return min(float(count), limit[0] / limit[1]) if len(limit) == 2 else float(count)


def _numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text(encoding="utf-8").split() if word.isdigit()]
    except OSError:
        return []


def _mark(free: int, bounds: tuple[int, int]) -> Mark:
    return "fault" if free < bounds[0] else "note" if free < bounds[1] else "ok"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
