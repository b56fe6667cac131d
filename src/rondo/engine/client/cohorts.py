"""Which clients train together, and on how many threads.

A cohort shares each forward pass over the frozen layers. On a CPU several cohorts run at once, one thread each: small
operations do not divide well among threads, and two threads with work of their own are faster than one piece of work
on two (docs/log.md). Who is trained with whom depends on the clients of the round, their numbers of examples, the
configuration and the number of threads, never on timing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol, TypeVar

import torch

from rondo.algorithm import Client
from rondo.models.network import Network

T = TypeVar("T")
R = TypeVar("R")


class OfClient(Protocol):
    """A result that says whose it is."""

    @property
    def client(self) -> Client: ...


C = TypeVar("C", bound=OfClient)


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
