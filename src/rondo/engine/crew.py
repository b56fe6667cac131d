"""Cohorts trained by workers, which are processes of the run's owner, wherever they run.

A cohort's answers depend on its job alone: the workers' clients, rows and base are the same, and what clients keep
between rounds stays here and travels with the job. So a worker may be lost at any time, and another does its cohorts
again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from rondo.engine.client.job import Common, Job, decode_answers, encode_job
from rondo.engine.transport import Answer
from rondo.errors import RunStopped, StopRequested
from rondo.params import Params

DEATHS = 3
"""Worker deaths on one cohort after which the run stops."""
_SECONDS = 0.2
"""Seconds between looks at the stop event."""


@dataclass(frozen=True)
class JobResult:
    """News of a job: its answers as bytes, or the reason why its worker is lost."""

    number: int
    answers: bytes | None
    lost: str = ""


class Workers(Protocol):
    """Processes that train cohorts."""

    @property
    def devices(self) -> int:
        """Accelerators that train beside each other; 1 where workers share the processor."""

    @property
    def lost(self) -> Sequence[str]:
        """The workers lost so far, in words."""

    def idle(self, threads: int) -> Sequence[int]:
        """The workers that have room for another cohort on ``threads`` threads, by their numbers."""

    def keep(self, common: bytes) -> Any:
        """Keep bytes that several jobs need where every worker can read them, and return what names them."""

    def send(self, worker: int, number: int, job: bytes, common: Any, threads: int) -> None:
        """Give a worker the job ``number``."""

    def replies(self, seconds: float) -> Sequence[JobResult]:
        """News since the last call, waited for until there is some or ``seconds`` are over. Each job sent has one.
        Raises what a worker's training raised."""


@dataclass
class ByWorkers:
    """A :class:`rondo.engine.simulation.Crew` of ``workers``."""

    workers: Workers
    kept: Mapping[str, Params]
    """Tensors that clients kept, by client id."""
    stop: threading.Event | None = None
    """Set to end training."""
    _numbers: int = 0
    _last: dict[str, int] = field(default_factory=dict)
    """The worker that trained a client last, which may still have the output of its frozen layers."""

    def train(self, jobs: Iterable[Job], at_once: int) -> Iterator[list[Answer]]:
        """See :meth:`rondo.engine.simulation.Crew.train`. Raises :class:`StopRequested` after ``stop``, without waiting
        for the workers, and :class:`RunStopped` where several workers died at one cohort."""
        threads = max(1, torch.get_num_threads() // at_once)
        coming = self._encoded(jobs)
        sent: dict[int, _Sent] = {}
        again: deque[int] = deque()
        finished: dict[int, list[Answer]] = {}
        turn = self._numbers
        left = True
        while True:
            while turn in finished:
                yield finished.pop(turn)
                turn += 1
            if (sent or left) and self.stop is not None and self.stop.is_set():
                raise StopRequested
            idle = self.workers.idle(threads)
            while idle and (again or (left and len(finished) <= len(sent))):  # few answers wait for their turn
                if again:
                    number = again.popleft()
                elif (job := next(coming, None)) is not None:
                    number, sent[number] = self._numbers, job
                    self._numbers += 1
                else:
                    left = False
                    break
                self._send(number, sent[number], idle, threads)
                idle = self.workers.idle(threads)
            if not sent and not left:
                return
            for reply in self.workers.replies(_SECONDS):
                if reply.number not in sent:
                    continue  # from a round that was given up
                if reply.answers is not None:
                    finished[reply.number] = decode_answers(reply.answers)
                    del sent[reply.number]
                    continue
                job = sent[reply.number]
                job.deaths += 1
                if job.deaths == DEATHS:
                    names = ", ".join(job.clients[:3]) + (", ..." if len(job.clients) > 3 else "")
                    raise RunStopped(f"{DEATHS} workers died training {names}, the last: {reply.lost}")
                again.append(reply.number)

    def _encoded(self, jobs: Iterable[Job]) -> Iterator[_Sent]:
        common: Common | None = None
        for job in jobs:
            if common is None:
                common = Common.of(job)
                name = self.workers.keep(common.encode())
            yield _Sent(tuple(c.id for c in job.clients), encode_job(job, self.kept, common), name)

    def _send(self, number: int, job: _Sent, idle: Sequence[int], threads: int) -> None:
        last = self._last.get(job.clients[0])
        worker = last if last is not None and last in idle else idle[0]
        self._last |= dict.fromkeys(job.clients, worker)
        self.workers.send(worker, number, job.data, job.common, threads)


@dataclass
class _Sent:
    """A job that is not done yet."""

    clients: tuple[str, ...]
    data: bytes
    common: Any
    deaths: int = 0
