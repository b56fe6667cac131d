"""Out of memory, told from other failures."""

from __future__ import annotations

import re

import torch

_ON_A_PROCESSOR = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory: you tried to allocate \d+ bytes"
    r"|^could not create a primitive$"
)
"""The words of torch's allocator (c10/core/impl/alloc_cpu.cpp), with and without a reason from the system, and those of
oneDNN, which says no more where it cannot have the memory for a product of a new shape. A run has tried its model
before its first round, so oneDNN works on this processor."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` was raised because memory ran out: Python's, an accelerator's, or the processor's, for which
    torch raises a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _ON_A_PROCESSOR.search(str(error)) is not None
