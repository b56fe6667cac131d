"""Cores, threads, bfloat16 and accelerators, as torch sees them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rondo.doctor import limits
from rondo.doctor.finding import Finding

_SIDE = 1024
"""Rows and columns of the product that is timed."""


def computing() -> Iterator[Finding]:
    """Everything that needs torch. Importing it takes most of the time, and is a test itself."""
    try:
        import torch
    except Exception as error:  # a library of the system is missing, or the build is for another processor
        yield Finding("torch's library", "fault", f"torch cannot be imported ({type(error).__name__})", own=str(error))
        return
    yield from _threads(torch.get_num_threads())
    yield _bfloat16()
    yield _accelerator()


def _threads(threads: int) -> Iterator[Finding]:
    cores, whole = limits.cores(), os.cpu_count() or 1
    share = "" if cores == whole else f" of {whole}"
    text = f"{threads} of torch's on {cores:g}{share} cores"
    if threads > max(1, round(cores)):
        remedy = f"set OMP_NUM_THREADS={max(1, int(cores))}: more threads than cores wait for each other"
        yield Finding("threads", "note", text, remedy)
    else:
        yield Finding("threads", "ok", text)
    names = re.compile(r"(OMP|GOMP|KMP|MKL|OPENBLAS)_[A-Z_]+")
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if names.fullmatch(name))
    plain = [s for s in settings if re.fullmatch(r"\w+=[\w.,-]*", s)]
    others = [s.partition("=")[0] for s in settings if s not in plain]
    yield Finding("thread settings", "ok", ", ".join([*plain, *others]) or "none")


def _bfloat16() -> Finding:
    import torch

    from rondo.models.kernels.precision import faster_bf16

    level = torch.backends.cpu.get_cpu_capability()
    if not faster_bf16():
        return Finding("processor", "ok", f'{level}, bfloat16 is no faster: precision = "fast" is as "exact"')
    gain = _seconds(torch.float32) / _seconds(torch.bfloat16)
    text = f"{level}, bfloat16 {gain:.1f} times as fast as float32"
    if gain < 1:
        return Finding("processor", "note", text, 'precision = "exact" in [train] may be faster; time both')
    return Finding("processor", "ok", text)


def _seconds(dtype: Any) -> float:
    """The best time of three products."""
    import torch

    factor = torch.ones(_SIDE, _SIDE, dtype=dtype)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        factor @ factor
        times.append(time.perf_counter() - began)
    return min(times)


def _accelerator() -> Finding:
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        listed = ", ".join(f"{d.name} ({d.total_memory / 2**30:.0f} GiB)" for d in devices)
        return Finding("accelerator", "note", f"{listed}; Rondo is not measured on a GPU yet")
    if torch.backends.mps.is_available():
        return Finding("accelerator", "note", "mps; Rondo is not tested on it")
    if Path("/proc/driver/nvidia/version").exists():
        build = torch.version.cuda or "processors alone"
        return Finding("accelerator", "note", f"a GPU's driver is here, but torch, built for {build}, sees no GPU")
    return Finding("accelerator", "ok", "none")
