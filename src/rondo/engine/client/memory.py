"""Memory of training steps: freed memory is kept for the next step, and activations have limits.

Every step frees some tens of megabytes and takes them again. By default glibc returns them to the system and gets them
back page by page, which costs some per cent of a round's time
(docs/dev/log/decisions.md, "Page faults and freed memory").
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rondo.models.loading.pretrained import plain_parts
from rondo.models.networks.network import Network
from rondo.params import Params, add_client_axis, buffer, on_device
from rondo.tasks.task import Example, Task

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory stays with the process; unused memory goes back to the system at the end. Does nothing
    without glibc. The thresholds stay as set here, because they cannot be read and so not restored."""
    give_back()  # memory left over from loading the model and the data
    # One tensor of a step is smaller than the first threshold, all of them together are smaller than the second. Larger
    # thresholds cost memory.
    _glibc("mallopt", _MMAP_THRESHOLD, 16 * 2**20)
    _glibc("mallopt", _TRIM_THRESHOLD, 96 * 2**20)
    _glibc("mallopt", _TOP_PAD, 4 * 2**20)
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """Return unused memory to the system, for work that will take memory in another thread: each thread has its own
    heap. Does nothing without glibc."""
    _glibc("malloc_trim", 0)


def _glibc(name: str, *numbers: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), name)(*numbers)


CPU_COHORT_BYTES = 128 * 2**20
"""Bytes of a cohort's activations beyond which one CPU thread gains next to nothing
(docs/dev/log/decisions.md, "Activations per thread")."""


CPU_THREAD_BYTES = 2 * CPU_COHORT_BYTES
"""Bytes of activations per CPU thread, over all cohorts that train at once. A client whose step keeps more has layers
that several threads can share: such clients, one after the other, take half the memory and 5 to 10 % more time
(docs/dev/log/decisions.md, "Output layer, one client at a time")."""


@dataclass(frozen=True)
class Budget:
    """Limits of training steps."""

    total: int
    """Bytes of activations of all cohorts that train at once."""
    cohort: int
    """Bytes of activations up to which one cohort may grow by another client."""
    cost: int
    """Cost of a step up to which one cohort may grow by another client."""


def budget(network: Network, task: Task, megabytes: int | Literal["auto"]) -> Budget:
    """The limits that ``simulation.memory_mb`` sets. "auto" is half of the device's memory, on a CPU at most
    ``CPU_THREAD_BYTES`` per thread, and so much where the system does not tell its memory (Windows)."""
    if megabytes != "auto":
        return Budget(megabytes * 2**20, megabytes * 2**20, sys.maxsize)
    if network.device.type == "cuda":
        half = torch.cuda.get_device_properties(network.device).total_memory // 2
        return Budget(half, half, sys.maxsize)
    tells = hasattr(os, "sysconf")
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if tells else sys.maxsize
    size = next((p.element_size() for p in network.module.parameters()), 4)
    total = min(half, torch.get_num_threads() * CPU_THREAD_BYTES)
    return Budget(total, CPU_COHORT_BYTES, sys.maxsize if task.cohort_cost is None else task.cohort_cost * 4 // size)


def activation_bytes(network: Network, task: Task, seen: Params, examples: Sequence[Example]) -> float:
    """Bytes that a training step keeps for its backward pass, per unit of cost; measured on ``examples``, at least 1.
    ``seen`` are the tensors that the network sees, without a client axis. Of layers that run again in the backward
    pass, a step keeps all inputs, and everything within one of them at a time."""
    if not examples:
        return 1.0
    kept = _kept_bytes(network, task, seen, examples)
    if layers := network.recomputed:
        inputs, last = sum(layer.kept for layer in layers), layers[-1]
        last.on = False
        try:
            kept = inputs - last.kept + _kept_bytes(network, task, seen, examples)
        finally:
            last.on = True
    cost = len(examples) * max(e.cost for e in examples)  # padding counts
    return max(1.0, kept / max(1, cost))


def _kept_bytes(network: Network, task: Task, seen: Params, examples: Sequence[Example]) -> int:
    kept: dict[int, torch.UntypedStorage] = {}
    weights = (part for p in network.module.parameters() for _, part in plain_parts("", p))
    frozen = {part.untyped_storage().data_ptr() for part in weights}

    def note(tensor: Tensor) -> None:
        """Returns nothing: no backward pass follows, and a node that got its own output back would keep itself alive
        for ever."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage  # kept alive, so that its address is not reused

    def never(_: None) -> Tensor:
        raise AssertionError("there is no backward pass")

    inputs, targets = (on_device(part, network.device) for part in task.collate(examples))
    leaves = {n: t.detach().to(network.device, copy=True) for n, t in add_client_axis(seen).items()}
    for name, tensor in leaves.items():
        tensor.requires_grad_(tensor.is_floating_point() and not buffer(name))
    with torch.autograd.graph.saved_tensors_hooks(note, never):
        sums, _ = task.loss(network(leaves, {}, inputs), targets)
        sums.sum()
    return sum(s.nbytes() for s in kept.values())
