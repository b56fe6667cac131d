"""A transport to simulated clients, and the crews that train them over one frozen base: here, or by workers, which are
processes of the run's owner, wherever they run.

A cohort's answers depend on its job alone: the workers' clients, rows and base are the same, and what clients keep
between rounds stays here and travels with the job. So a worker may be lost at any time, and another does its cohorts
again. The bytes of jobs pass between processes that trust each other. Tensors common to a round's jobs travel once per
round (:class:`Common`)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts, in_order, in_turn
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import give_back
from rondo.engine.transport import Answer, Turnout, Work
from rondo.engine.wire import serialization
from rondo.errors import RunStopped, StopRequested
from rondo.lowrank import GrowingSum
from rondo.params import Params


@dataclass(frozen=True)
class Job:
    """A cohort's work in a round."""

    round: Round
    clients: tuple[Client, ...]
    shared: tuple[Shared, ...]
    """One broadcast per client."""


@dataclass(frozen=True)
class Common:
    """The common part of a round's jobs: the tensors and base changes of the first job's broadcasts. Most methods
    send every client the same."""

    tensors: tuple[Tensor, ...]
    base: Mapping[str, GrowingSum]

    @staticmethod
    def of(job: Job) -> Common:
        """The part of ``job`` that later ones share."""
        return Common(tuple(_distinct(job)), job.shared[0].base)

    def encode(self) -> bytes:
        return serialization.pack(self)

    @staticmethod
    def decode(data: bytes) -> Common:
        common = serialization.unpack(data, Common((), {}))
        assert isinstance(common, Common)
        return common


@dataclass(frozen=True)
class _Travelling:
    """A job without what is common. ``places`` says, for each client, where each of its tensors lies in the common
    ones followed by ``tensors``. A tensor that clients share stays one tensor, since a cohort computes with it once."""

    round: Round
    clients: tuple[Client, ...]
    places: tuple[Mapping[str, int], ...]
    tensors: tuple[Tensor, ...]
    base: Mapping[str, GrowingSum] | None
    """None where it is the common one."""
    kept: Mapping[str, Params]


def encode_job(job: Job, kept: Mapping[str, Params], common: Common) -> bytes:
    """``job`` and the tensors that its clients ``kept``, without what is ``common``."""
    place = {id(t): i for i, t in enumerate(common.tensors)}
    rest = [t for t in _distinct(job) if id(t) not in place]
    place |= {id(t): len(common.tensors) + i for i, t in enumerate(rest)}
    base = job.shared[0].base  # a cohort's clients have one base
    same = base.keys() == common.base.keys() and all(change is common.base[path] for path, change in base.items())
    ids = {c.id for c in job.clients}
    return serialization.pack(
        _Travelling(
            job.round,
            job.clients,
            tuple({name: place[id(t)] for name, t in shared.params.items()} for shared in job.shared),
            tuple(rest),
            None if same else base,
            {c: tensors for c in ids if (tensors := kept.get(c)) is not None},
        )
    )


def decode_job(data: bytes, common: Common) -> tuple[Job, Mapping[str, Params]]:
    """The job from :func:`encode_job`, and what its clients kept."""
    like = _Travelling(Round(0, 1, 0, 0), (Client("", 0),), (), (), None, {})
    read = serialization.unpack(data, like)
    assert isinstance(read, _Travelling)
    tensors, base = (*common.tensors, *read.tensors), common.base if read.base is None else read.base
    shared = tuple(Shared({name: tensors[i] for name, i in places.items()}, base) for places in read.places)
    return Job(read.round, read.clients, shared), read.kept


def encode_answers(answers: Sequence[Answer]) -> bytes:
    tree = []
    for answer in answers:
        failure = answer.failure
        reason = None if failure is None else (failure.client, failure.reason, failure.detail)
        upload = answer.upload
        assert not isinstance(upload, bytes)
        tree.append((answer.client, upload, answer.kept, answer.loss, reason, answer.work, answer.flops))
    return serialization.pack(tree)


def decode_answers(data: bytes) -> list[Answer]:
    tree = serialization.unpack(data, Upload(Client("", 0), {}, 1.0))
    return [
        Answer(client, upload, kept, loss, None if reason is None else ClientFailed(*reason), work=work, flops=flops)
        for client, upload, kept, loss, reason, work, flops in tree
    ]


def _distinct(job: Job) -> list[Tensor]:
    """The tensors of the broadcasts, each once."""
    return list({id(t): t for shared in job.shared for t in shared.params.values()}.values())


class Crew(Protocol):
    """Trains cohorts."""

    def train(self, jobs: Iterable[Job], at_once: int) -> Iterator[list[Answer]]:
        """The answers to every job, in the order of the jobs, which are asked for one by one. A cohort has the threads
        that it would have if ``at_once`` cohorts trained at once in this process, so its bits are the same anywhere."""


@dataclass(frozen=True)
class InProcess:
    """Trains the clients of ``population`` here, each cohort on threads of its own."""

    population: Population
    local: LocalRound

    def train(self, jobs: Iterable[Job], at_once: int) -> Iterator[list[Answer]]:
        return in_order(self._train, jobs, at_once)

    def _train(self, job: Job) -> list[Answer]:
        examples = tuple(self.population.members[c.id].trained() for c in job.clients)
        return self.local.train(job.clients, examples, job.shared, job.round)


@dataclass(frozen=True)
class Simulation:
    """Has clients trained cohort by cohort. See :class:`rondo.engine.transport.Transport`."""

    crew: Crew
    cohorts: Cohorts

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """Every client that has not failed yet."""
        return Turnout(tuple(c for c in clients if c.id not in failed))

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """Answers in the order of the clients, so that a sum over them does not depend on the cohorts."""
        asked = work.turnout.asked
        cohorts = self.cohorts.plan(asked)
        # Ask for broadcasts cohort by cohort: they may differ from client to client.
        jobs = (Job(round, cohort, tuple(map(work.shared, cohort))) for cohort in cohorts)
        yield from in_turn(self.crew.train(jobs, self.cohorts.at_once(cohorts)), asked)
        if work.measured:
            give_back()  # the training threads hold on to memory, and the server works in another thread

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Whether a client shared a cohort, or its threads, with one that failed."""
        cohorts = self.cohorts.plan(asked)
        without = self.cohorts.plan([c for c in asked if c.id not in failed])
        left = [cohort for cohort in cohorts if any(c.id not in failed for c in cohort)]
        return left != without or self.cohorts.at_once(cohorts) != self.cohorts.at_once(without)


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
        """Raises :class:`StopRequested` after ``stop``, without waiting for the workers, and :class:`RunStopped` where
        several workers died at one cohort."""
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
