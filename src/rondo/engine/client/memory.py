"""Memory that a step frees is kept for the next one.

Every step frees and takes again some tens of megabytes. Left to itself, glibc gives them back to the system and takes
them anew, page by page: some per cent of the time of a round
(docs/log/decisions.md, "Page faults and freed memory").
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

from rondo.models.network import Network
from rondo.params import Params, add_client_axis, on_device
from rondo.tasks.task import Example, Task

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, freed memory stays with the process; what is not in use goes back at the end. Does nothing where there is
    no glibc. The thresholds stay as they are set here, since they cannot be read."""
    give_back()  # what loading the model and the data has left
    # Tensors of a step are smaller than the first, all of a step's together than the second. More of any costs memory.
    _glibc("mallopt", _MMAP_THRESHOLD, 16 * 2**20)
    _glibc("mallopt", _TRIM_THRESHOLD, 96 * 2**20)
    _glibc("mallopt", _TOP_PAD, 4 * 2**20)
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """Give what is not in use back to the system, for work that will take memory elsewhere: each thread has a heap of
    its own. Does nothing where there is no glibc."""
    _glibc("malloc_trim", 0)


def _glibc(name: str, *numbers: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), name)(*numbers)


CPU_COHORT_BYTES = 128 * 2**20
"""Activations of a cohort beyond which one thread of a CPU gains next to nothing
(docs/log/decisions.md, "Activations per thread")."""


CPU_THREAD_BYTES = 2 * CPU_COHORT_BYTES
"""Activations for each thread of a CPU, of all that trains at once. A client whose step keeps more has layers that
several threads can share: one after the other they take half the memory and 5 to 10 % more time
(docs/log/decisions.md, "Output layer, one client at a time")."""


@dataclass(frozen=True)
class Budget:
    """Limits of training steps. ``total``: bytes of activations of all cohorts that train at once; ``cohort``: bytes up
    to which one cohort may grow by another client; ``cost``: cost of a step up to which it may."""

    total: int
    cohort: int
    cost: int


def budget(network: Network, task: Task, megabytes: int | Literal["auto"]) -> Budget:
    """What ``simulation.memory_mb`` allows. "auto": half of the machine's memory, on a CPU at most
    ``CPU_THREAD_BYTES`` per thread."""
    if megabytes != "auto":
        return Budget(megabytes * 2**20, megabytes * 2**20, sys.maxsize)
    if network.device.type == "cuda":
        half = torch.cuda.get_device_properties(network.device).total_memory // 2
        return Budget(half, half, sys.maxsize)
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    size = next(network.module.parameters()).element_size()
    total = min(half, torch.get_num_threads() * CPU_THREAD_BYTES)
    return Budget(total, CPU_COHORT_BYTES, sys.maxsize if task.cohort_cost is None else task.cohort_cost * 4 // size)


def activation_bytes(network: Network, task: Task, seen: Params, examples: Sequence[Example]) -> float:
    """Bytes per unit of cost that a training step keeps for its backward pass, measured on ``examples``; at least 1.
    ``seen``: the tensors that the network sees, no client axis."""
    if not examples:
        return 1.0
    kept: dict[int, torch.UntypedStorage] = {}
    frozen = {p.untyped_storage().data_ptr() for p in network.module.parameters()}

    def note(tensor: Tensor) -> None:
        """Returns nothing: the backward pass never comes, and a node that got its own output back would hold itself
        for ever."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage  # held, so that its address is not given away again

    def never(_: None) -> Tensor:
        raise AssertionError("there is no backward pass")

    inputs, targets = (on_device(part, network.device) for part in task.collate(examples))
    leaves = {n: t.detach().to(network.device, copy=True).requires_grad_() for n, t in add_client_axis(seen).items()}
    with torch.autograd.graph.saved_tensors_hooks(note, never):
        sums, _ = task.loss(network(leaves, {}, inputs), targets)
        sums.sum()
    cost = len(examples) * max(e.cost for e in examples)  # padding counts
    return max(1.0, sum(s.nbytes() for s in kept.values()) / max(1, cost))
