"""Which clients train together, and on how many threads.

A cohort shares each forward pass over the frozen layers. On a CPU several cohorts run at once, one thread each: small
operations do not divide well among threads, and two threads with work of their own are faster than one piece of work
on two (docs/log.md). Who is trained with whom depends on the clients of the round, their numbers of examples, the
configuration and the number of threads, never on timing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from rondo.algorithm import Client
from rondo.model import Network
from rondo.params import Params, add_client_axis
from rondo.tasks import Example, Task

T = TypeVar("T")
R = TypeVar("R")


class OfClient(Protocol):
    """A result that says whose it is."""

    @property
    def client(self) -> Client: ...


C = TypeVar("C", bound=OfClient)

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


def plan(
    clients: Sequence[Client], size: int | Literal["auto"], *, workers: int, tokens: int, tokens_a_client: int
) -> list[tuple[Client, ...]]:
    """Cohorts of at most ``size`` clients of equal rank; "auto": as many as ``tokens`` allow, each step of a client
    being ``tokens_a_client``, and few enough that every worker has one.

    Their order is kept within a rank, and cohorts come in the order of their first clients, so that :func:`in_turn`
    has few results waiting.
    """
    largest = max(1, tokens // max(1, tokens_a_client)) if size == "auto" else size
    if size == "auto":
        largest = min(largest, -(-len(clients) // workers))
    cohorts: list[list[Client]] = []
    for rank in dict.fromkeys(c.rank for c in clients):
        same = [c for c in clients if c.rank == rank]
        count = -(-len(same) // largest)
        if size == "auto":  # as many for each worker
            count = min(len(same), -(-count // workers) * workers)
        # Cohorts of nearly equal size, rather than a small last one.
        cohorts += [same[i * len(same) // count : (i + 1) * len(same) // count] for i in range(count)]
    place = {c.id: i for i, c in enumerate(clients)}
    return [tuple(c) for c in sorted(cohorts, key=lambda c: place[c[0].id])]


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


def workers(network: Network) -> int:
    """How many cohorts may train at once: as many as there are threads on a CPU, one on an accelerator."""
    if network.device.type != "cpu" or network.one_at_a_time is not None:
        return 1
    return torch.get_num_threads()


@contextlib.contextmanager
def one_cohort(network: Network) -> Iterator[None]:
    """As many of torch's threads as a cohort has in training. What is computed once before it is small: threads that
    share it gain little, and wait for each other where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers(network)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_order(work: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    """``work`` on every item by ``count`` threads that share torch's threads evenly; results in the order of the items,
    never more than ``count`` of them waiting."""
    if count == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    pending: deque[Future[R]] = deque()
    each = max(1, threads // count)
    pool = ThreadPoolExecutor(count, "rondo-cohort", initializer=torch.set_num_threads, initargs=(each,))
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        pool.shutdown(wait=True)
        with contextlib.suppress(RuntimeError):
            torch.set_num_threads(threads)  # a worker's setting reaches the thread that started it


def in_turn(cohorts: Iterable[Sequence[C]], clients: Sequence[Client]) -> Iterator[C]:
    """The results of cohorts in the order of ``clients``, so that a sum over them does not depend on who trained with
    whom. Of what :func:`plan` gives, at most a cohort a rank waits for its turn."""
    waiting: dict[str, C] = {}
    turn = 0
    for cohort in cohorts:
        waiting |= {one.client.id: one for one in cohort}
        while turn < len(clients) and clients[turn].id in waiting:
            yield waiting.pop(clients[turn].id)
            turn += 1
