"""A whole simulated federation in one object, assembled as a run assembles it, for tests of the engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.config import RunConfig
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts, cohort_threads, one_cohort
from rondo.engine.client.fitting import Fitting
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import activation_bytes
from rondo.engine.faults import Rehearsal, are_rehearsed, in_training
from rondo.engine.scoring import Scorer
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.rounds import Server, first_state
from rondo.engine.simulation import Crew, InProcess, Simulation
from rondo.engine.transport import Answer, Observer, Transport
from rondo.engine.wire import Identity
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params
from rondo.tasks.task import Task

IDENTITY = Identity("simulation", "")


@dataclass
class Composed:
    """Makes every part anew on each call from its attributes, so a test may change any of them in between.

    ``uploads``: every upload, by round and client.
    ``answered``: the tensors that each client would keep, by round and client.
    """

    algorithm: Algorithm[Any]
    network: Network
    task: Task
    population: Population
    config: RunConfig
    initial: Params
    prefix: Prefix | None = None
    stop: threading.Event | None = None
    locals: dict[str, Params] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    workers: int = 0
    bytes_per_cost: float = 0.0
    state: Any = None
    uploads: dict[tuple[int, str], Upload] = field(default_factory=dict)
    answered: dict[tuple[int, str], Params] = field(default_factory=dict)
    aggregated: int = 0
    crew: Crew | None = None
    """Trains the clients in place of this process."""

    def __post_init__(self) -> None:
        self.workers = cohort_threads(self.network)
        clients = len(self.population.members)
        self.state = first_state(self.algorithm, self.initial, self.network.weights(), self.config, clients)

    def round(self, attempt: int) -> Round:
        index, start = self.aggregated, self.config.adapter.init_lora_weights
        return Round(index, self.config.rounds, self.config.seed, len(self.population.members), attempt - index, start)

    def measure(self) -> None:
        """Measure the bytes per cost, as a run does before its first round."""
        seen, _ = self.newcomer(0)
        with one_cohort(self.network):
            self.bytes_per_cost = activation_bytes(self.network, self.task, seen, self.population.sample(2))

    @property
    def cohorts(self) -> Cohorts:
        if not self.bytes_per_cost:
            self.measure()
        return Cohorts(self.network, self.task, self.population, self.config, self.bytes_per_cost, self.workers)

    @property
    def local(self) -> LocalRound:
        around = in_training(self.config.faults)
        return _Noting(
            self.algorithm, self.network, self.task, self.config, self.locals, self.prefix, self.stop, around, self
        )

    @property
    def transport(self) -> Transport:
        simulation = Simulation(self.crew or InProcess(self.population, self.local), self.cohorts)
        return Rehearsal(simulation, self.config, IDENTITY) if are_rehearsed(self.config) else simulation

    @property
    def server(self) -> Server:
        clients, sites = self.population.clients, self.network.sites
        return Server(
            self.algorithm,
            self.config,
            clients,
            self.transport,
            sites,
            IDENTITY,
            self.state,
            self.locals,
            self.ledger,
            self.aggregated,
        )

    @property
    def scorer(self) -> Scorer:
        config = self.config
        fitting = Fitting(self.algorithm, self.network, self.task, config.train, config.clients)
        return Scorer(self.algorithm, self.network, self.task, self.population, self.locals, config.evaluation, fitting)

    def run_round(self, index: int, observer: Observer | None = None) -> dict[str, Any]:
        server = self.server
        record = server.run_round(index, observer)
        self.state, self.aggregated = server.state, server.aggregated
        return record

    def train(self, clients: tuple[Client, ...], round: Round, shared: tuple[Shared, ...]) -> list[Answer]:
        examples = tuple(tuple(self.population.members[c.id].train) for c in clients)
        return self.local.train(clients, examples, shared, round)

    def model(self, client: Client, index: int) -> tuple[Params, Base]:
        return self.scorer.model(self.state, client, self.round(index))

    def newcomer(self, index: int) -> tuple[Params, Base]:
        return self.scorer.newcomer(self.state, self.round(index))

    def score_newcomer(self, index: int) -> dict[str, Any]:
        return self.scorer.on_test(self.state, self.round(index))

    def score_clients(self, index: int) -> dict[str, Any]:
        return self.scorer.at_clients(self.state, self.round(index))

    def scores(self, seen: Params, base: Base, examples: Any) -> dict[str, float | None]:
        return self.scorer.scores(seen, base, examples)


@dataclass(frozen=True)
class _Noting(LocalRound):
    composed: Composed | None = None

    def train(self, clients: Any, examples: Any, shared: Any, round: Round) -> list[Answer]:
        answers = super().train(clients, examples, shared, round)
        assert self.composed is not None
        for answer in answers:
            if isinstance(answer.upload, Upload):
                self.composed.uploads[round.attempt, answer.client.id] = answer.upload
                self.composed.answered[round.attempt, answer.client.id] = answer.kept
        return answers
