"""Freed memory is kept inside the context and returned at its end."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest

from rondo.engine.client import memory

PROGRAM = """
import contextlib, json, resource, sys
import torch
from rondo.engine.client.memory import freed_memory_kept

def step():
    kept = [torch.ones(2 * 2**20) for _ in range(9)]  # 72 MB in all

def faults(warm):
    for _ in range(warm):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 / 2**20

outside = faults(1)
with freed_memory_kept():
    inside, held = faults(2), resident()
print(json.dumps({"outside": outside, "inside": inside, "held": held, "after": resident()}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc"
)
def test_freed_memory_is_kept_then_returned() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    usage = json.loads(process.stdout)
    assert usage["outside"] > 10_000
    assert usage["inside"] < usage["outside"] / 50
    assert usage["after"] < usage["held"] - 60


def test_freed_memory_kept_does_nothing_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    inside = False
    with memory.freed_memory_kept():
        inside = True
    assert inside
