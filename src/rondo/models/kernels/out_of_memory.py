"""Recognises errors of a lack of memory."""

from __future__ import annotations

import errno
import re

import torch

from rondo.errors import ConfigError

_ON_A_PROCESSOR = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory: you tried to allocate \d+ bytes"
    r"|^could not create a primitive$"
    r"|^unable to mmap .*: Cannot allocate memory \(12\)$",
    re.DOTALL,
)
"""Messages of torch's allocator (c10/core/impl/alloc_cpu.cpp), with and without a reason from the system, of oneDNN,
which gives no detail, and of torch's mapping of a file. A run has tried its model before its first round, so oneDNN
works on this processor."""
_OF_RUST = re.compile(r"\(os error 12\)$")
"""The end of the system's error in Rust's words; safetensors and tokenizers have classes of their own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` was raised because memory ran out: Python's, an accelerator's, the system's, or the
    processor's, for which torch raises a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and _ON_A_PROCESSOR.search(str(error)) is not None:
        return True
    return _OF_RUST.search(str(error)) is not None


def does_not_fit(name: str, error: Exception) -> ConfigError:
    """The fault of a model, named ``name``, for which memory ran out before the first round."""
    reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
    message = f"{name!r} does not fit into the memory: {reason}; give it more memory, or name a smaller model"
    return ConfigError.at("model.name", message)
