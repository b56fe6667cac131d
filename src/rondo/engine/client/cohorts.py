"""Cohorts: the clients that train together, and the number of threads they train on.

A cohort shares each forward pass over the frozen layers. On a CPU several cohorts run at once, one thread each, because
small operations do not divide well among threads: two threads with work of their own are faster than two threads on one
piece of work (docs/dev/log/decisions.md, "Threads and linear layers").
The division depends on the clients of the round, their ranks and the cost of their examples, on the bytes that a step
keeps, the configuration, the machine's memory and the number of threads, never on timing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch

from rondo.algorithm import Client
from rondo.config.schema import RunConfig
from rondo.data.population import Population
from rondo.engine.client.memory import Budget, budget
from rondo.models.networks.network import Network
from rondo.process import on_threads
from rondo.tasks.task import Task

T = TypeVar("T")
R = TypeVar("R")


class OfClient(Protocol):
    """A result that names its client."""

    @property
    def client(self) -> Client: ...


C = TypeVar("C", bound=OfClient)


_FURTHER_THREAD = 0.75
"""Worth of a cohort's second thread, and of each after it, relative to a thread with a cohort of its own. Measured: 0.8
to 0.9 on two threads, less where more threads share a product
(docs/dev/log/decisions.md, "Output layer, one client at a time")."""


@dataclass(frozen=True)
class Cohorts:
    """Divides the clients of a round into cohorts, by the cost of each client's steps."""

    network: Network
    task: Task
    population: Population
    config: RunConfig
    bytes_per_cost: float
    """Bytes that a training step keeps for its backward pass, per unit of cost
    (:func:`rondo.engine.client.memory.activation_bytes`)."""
    workers: int
    """Most cohorts that may train at once on a device."""
    devices: int = 1
    """Devices, each with memory of its own."""

    def plan(self, clients: Sequence[Client]) -> list[tuple[Client, ...]]:
        """The clients of a round, divided into cohorts."""
        alone = self.config.guarantee.of_rows or self.config.train.trainer is not None
        if self.network.one_at_a_time is not None or alone:
            return [(c,) for c in clients]
        cost = self._step(clients)
        allowed = self._budget()
        at_once = self._at_once(cost)
        bytes_per_cohort = min(allowed.cohort, allowed.total // at_once)
        return divided(
            clients,
            self.config.simulation.cohort,
            workers=at_once * self.devices,
            cost=min(allowed.cost, int(bytes_per_cohort / self.bytes_per_cost)),
            cost_per_client=cost,
        )

    def at_once(self, cohorts: Sequence[Sequence[Client]]) -> int:
        """The number of these cohorts that train at once on a device."""
        cost = self._step([c for cohort in cohorts for c in cohort])
        largest = max(map(len, cohorts), default=1)
        return max(1, min(len(cohorts), self._at_once(largest * cost)))

    def _at_once(self, cost: int) -> int:
        threads = self.workers
        if threads == 1:
            return 1
        allowed = max(1, min(threads, int(self._budget().total / (self.bytes_per_cost * cost))))
        # Every cohort has the same number of threads; threads left over are idle.
        return max(range(allowed, 0, -1), key=lambda n: n * (1 + _FURTHER_THREAD * (threads // n - 1)))

    def _budget(self) -> Budget:
        return budget(self.network, self.task, self.config.simulation.memory_mb)

    def _step(self, clients: Sequence[Client]) -> int:
        """The cost of the largest forward pass in a step of any of ``clients``."""
        costliest = max((self.population.costliest(c.id) for c in clients), default=1)
        train = self.config.train
        return min(train.batch_size, train.micro_batch or train.batch_size) * max(1, costliest)


def divided(
    clients: Sequence[Client], size: int | Literal["auto"], *, workers: int, cost: int, cost_per_client: int
) -> list[tuple[Client, ...]]:
    """Cohorts of at most ``size`` clients of equal rank. With "auto", a cohort has as many clients as ``cost`` allows
    when each client's step costs ``cost_per_client``, but few enough to give every worker a cohort.

    Clients keep their order within a rank, and cohorts come in the order of their first clients, so that few results
    wait in :func:`in_turn`.
    """
    largest = max(1, cost // max(1, cost_per_client)) if size == "auto" else size
    if size == "auto":
        largest = min(largest, -(-len(clients) // workers))
    cohorts: list[list[Client]] = []
    for rank in dict.fromkeys(c.rank for c in clients):
        members = [c for c in clients if c.rank == rank]
        count = -(-len(members) // largest)
        if size == "auto":  # equally many for every worker
            count = min(len(members), -(-count // workers) * workers)
        # Make cohorts of nearly equal size, rather than a small last one.
        cohorts += [members[i * len(members) // count : (i + 1) * len(members) // count] for i in range(count)]
    place = {c.id: i for i, c in enumerate(clients)}
    return [tuple(c) for c in sorted(cohorts, key=lambda c: place[c[0].id])]


def cohort_threads(network: Network) -> int:
    """Most cohorts that may train at once: one per thread on a CPU; one on an accelerator, or if the network's calls
    cannot run in several threads."""
    if network.device.type != "cpu" or network.one_thread:
        return 1
    return torch.get_num_threads()


@contextlib.contextmanager
def one_cohort(network: Network) -> Iterator[None]:
    """Inside, torch uses as many threads as one cohort has in training. Work done once before training is small, so
    threads that share it gain little, and they wait for each other where the machine is busy."""
    with on_threads(max(1, torch.get_num_threads() // cohort_threads(network))):
        yield


def in_order(work: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    """Results of ``work`` on every item, in the order of the items. ``count`` workers share torch's threads evenly, and
    never more than ``count`` results wait."""
    if count == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    pending: deque[Future[R]] = deque()
    share = max(1, threads // count)
    pool = ThreadPoolExecutor(count, "rondo-cohort", initializer=torch.set_num_threads, initargs=(share,))
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
    """The results of cohorts in the order of ``clients``, so that a sum over them does not depend on the cohorts. With
    cohorts from :func:`divided`, at most one cohort per rank waits for its turn."""
    waiting: dict[str, C] = {}
    turn = 0
    for cohort in cohorts:
        waiting |= {result.client.id: result for result in cohort}
        while turn < len(clients) and clients[turn].id in waiting:
            yield waiting.pop(clients[turn].id)
            turn += 1
