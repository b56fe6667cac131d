"""Memory that a step frees is kept for the next one.

Every step frees and takes again some tens of megabytes. Left to itself, glibc gives them back to the system and takes
them anew, page by page: some per cent of the time of a round (docs/log.md).
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
from rondo.params import Params, add_client_axis
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
"""Activations of a cohort beyond which one thread of a CPU gains next to nothing (docs/log.md)."""


CPU_THREAD_BYTES = 2 * CPU_COHORT_BYTES
"""Activations for each thread of a CPU, of all that trains at once. A client whose step keeps more has layers that
several threads can share: one after the other they take half the memory and 5 to 10 % more time (docs/log.md)."""


CPU_COHORT_TOKENS = 2048
"""Tokens of its step likewise, where the base has two bytes a number; half as many where it has four. Where few layers
are adapted, little is kept for the backward pass, but what is thrown away at once grows all the same."""


@dataclass(frozen=True)
class Budget:
    """Bytes of activations: of all cohorts that train at once, and of one cohort that is to grow by another client.
    ``tokens``: of a step of such a cohort."""

    total: int
    cohort: int
    tokens: int


def budget(network: Network, megabytes: int | Literal["auto"]) -> Budget:
    """What ``simulation.memory_mb`` allows. "auto": half of the memory that there is, and
    on a CPU no more than ``CPU_THREAD_BYTES`` a thread."""
    if megabytes != "auto":
        return Budget(megabytes * 2**20, megabytes * 2**20, sys.maxsize)
    if network.device.type == "cuda":
        half = torch.cuda.get_device_properties(network.device).total_memory // 2
        return Budget(half, half, sys.maxsize)
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    size = next(network.module.parameters()).element_size()
    total = min(half, torch.get_num_threads() * CPU_THREAD_BYTES)
    return Budget(total, CPU_COHORT_BYTES, 2 * CPU_COHORT_TOKENS // size)


def activation_bytes(network: Network, task: Task, seen: Params, examples: Sequence[Example]) -> float:
    """Bytes a token that a training step keeps for its backward pass, measured on ``examples``."""
    kept: dict[int, torch.UntypedStorage] = {}
    frozen = {p.untyped_storage().data_ptr() for p in network.module.parameters()}

    def note(tensor: Tensor) -> None:
        """Nothing is left for the backward pass, which does not come: a node that got its own output back would hold
        itself for ever."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage  # which keeps its address from being given away

    def never(_: None) -> Tensor:
        raise AssertionError("there is no backward pass")

    inputs, targets = task.collate(examples)
    inputs, targets = ({n: t.to(network.device) for n, t in part.items()} for part in (inputs, targets))
    leaves = {n: t.detach().clone().requires_grad_() for n, t in add_client_axis(seen).items()}
    with torch.autograd.graph.saved_tensors_hooks(note, never):
        sums, _ = task.loss(network(leaves, {}, inputs).logits, targets)
        sums.sum()
    return sum(s.nbytes() for s in kept.values()) / max(1, inputs["input_ids"].numel())
