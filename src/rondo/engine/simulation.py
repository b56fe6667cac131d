"""A transport to simulated clients: one crew trains all of them over one frozen base."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rondo.algorithm import Client, Round
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts, in_order, in_turn
from rondo.engine.client.job import Job
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import give_back
from rondo.engine.transport import Answer, Turnout, Work


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
        """See :meth:`Crew.train`."""
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
