"""Out of memory is told from other failures by a real failed allocation."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from safetensors import SafetensorError

from rondo.models.kernels.out_of_memory import is_out_of_memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_failed_allocation_is_out_of_memory(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**50, dtype=dtype)
    assert type(failed.value) is RuntimeError  # torch has no class of its own for it
    assert is_out_of_memory(failed.value)


def test_failed_gradient_is_out_of_memory() -> None:
    """The backward pass hands on what its thread raised."""
    value = torch.ones(1, requires_grad=True)
    value.register_hook(lambda _: torch.empty(2**50))
    with pytest.raises(RuntimeError) as failed:
        (value * 2).sum().backward()
    assert is_out_of_memory(failed.value)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        # Seen with an address space of 120 MB beyond what the run had; with less, oneDNN may end the process.
        RuntimeError("could not create a primitive"),
        # Seen where weights are mapped: safetensors' error, and torch's.
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        SafetensorError("Cannot allocate memory (os error 12)"),
        RuntimeError("unable to mmap 90868376 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    ],
)
def test_errors_of_other_allocators_are_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_other_failures_are_not_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(failed.value)
    assert not is_out_of_memory(RuntimeError("could not create a primitive descriptor for a matmul primitive"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert not is_out_of_memory(RuntimeError("not enough memory: you tried to allocate a name"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"))
