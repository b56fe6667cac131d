"""A transport in one process: all clients over one frozen base."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rondo.algorithm import Client, Round, Shared
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts, in_order, in_turn
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import give_back
from rondo.engine.transport import Answer, Turnout, Work


@dataclass(frozen=True)
class Simulation:
    """Trains the clients of ``population`` here, cohort by cohort. See :class:`rondo.engine.transport.Transport`."""

    population: Population
    local: LocalRound
    cohorts: Cohorts

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """Every client that has not failed yet."""
        return Turnout(tuple(c for c in clients if c.id not in failed))

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """Answers in the order of the clients, so that a sum over them does not depend on the cohorts."""
        asked = work.turnout.asked
        cohorts = self.cohorts.plan(asked)

        def train(cohort: tuple[tuple[Client, ...], tuple[Shared, ...]]) -> list[Answer]:
            clients, shared = cohort
            examples = tuple(tuple(self.population.members[c.id].train) for c in clients)
            return self.local.train(clients, examples, shared, round, work.turnout.failing)

        # Ask for broadcasts cohort by cohort: they may differ from client to client.
        handed_out = ((cohort, tuple(map(work.shared, cohort))) for cohort in cohorts)
        yield from in_turn(in_order(train, handed_out, self.cohorts.at_once(cohorts)), asked)
        if work.measured:
            give_back()  # the training threads hold on to memory, and the server works in another thread

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Whether a client shared a cohort, or its threads, with one that failed."""
        cohorts = self.cohorts.plan(asked)
        without = self.cohorts.plan([c for c in asked if c.id not in failed])
        left = [cohort for cohort in cohorts if any(c.id not in failed for c in cohort)]
        return left != without or self.cohorts.at_once(cohorts) != self.cohorts.at_once(without)
