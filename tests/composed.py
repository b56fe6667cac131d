"""A simulated federation of parts that a test makes, put together by the product's own assembly."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.config import RunConfig
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts
from rondo.engine.client.flops import Flops
from rondo.engine.faults import Rehearsal
from rondo.engine.scoring import Scorer
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.rounds import Server
from rondo.engine.simulation import Job, Simulation, Workers
from rondo.engine.transport import Answer, Observer, Transport, Turnout, Work
from rondo.engine.wire.envelope import Identity
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params
from rondo.runs.assembling.assembly import Assembly, Federation, Simulated, Start
from rondo.runs.assembling.private import rehearsal
from rondo.tasks.task import Task


@dataclass
class Composed:
    """A federation assembled anew on each call, so a test may change any attribute in between.

    ``elsewhere``: workers that train the clients in place of this process.
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
    flops: Flops | None = None
    stop: threading.Event | None = None
    elsewhere: Workers | None = None
    locals: dict[str, Params] = field(default_factory=dict)
    ledger: Ledger = field(init=False)
    bytes_per_cost: float = 0.0
    state: Any = None
    uploads: dict[tuple[int, str], Upload] = field(default_factory=dict)
    answered: dict[tuple[int, str], Params] = field(default_factory=dict)
    aggregated: int = 0

    def __post_init__(self) -> None:
        self.state = self.assembly.first_state()
        self.ledger = self.assembly.ledger(self.state)

    @property
    def assembly(self) -> Assembly:
        model: Any = SimpleNamespace(network=self.network, identity={})
        return Assembly(
            self.config,
            self.network.device,
            self.algorithm,
            None,
            (),
            self.task,
            self.population,
            model,
            self.initial,
            self.prefix,
            self.flops,
            Simulated(),
        )

    @property
    def identity(self) -> Identity:
        return Identity("simulation", self.assembly.model_sha256)

    @property
    def federation(self) -> Federation:
        if not self.bytes_per_cost:
            self.measure()
        start = Start(self.state, self.bytes_per_cost)
        protection = rehearsal(self.config, self.population.clients)
        return self.assembly.federation(start, self.locals, protection, self.stop, self.elsewhere)

    @property
    def server(self) -> Server:
        server = self.federation.server
        noting = _Noting(server.transport, self.uploads, self.answered)
        return replace(server, transport=noting, ledger=self.ledger, aggregated=self.aggregated)

    @property
    def simulation(self) -> Simulation:
        """The transport, without rehearsed faults."""
        transport = self.federation.server.transport
        if isinstance(transport, Rehearsal):
            transport = transport.transport
        assert isinstance(transport, Simulation)
        return transport

    @property
    def cohorts(self) -> Cohorts:
        return self.simulation.cohorts

    @property
    def scorer(self) -> Scorer:
        return self.assembly.scorer(self.locals)

    def measure(self) -> None:
        """Measure the bytes per cost, as a run does before its first round."""
        self.bytes_per_cost = self.assembly.start().bytes_per_cost

    def round(self, attempt: int) -> Round:
        return replace(self.assembly.round(self.aggregated), skipped=attempt - self.aggregated)

    def run_round(self, index: int, observer: Observer | None = None) -> dict[str, Any]:
        server = self.server
        record = server.run_round(index, observer)
        self.state, self.aggregated = server.state, server.aggregated
        return record

    def train(self, clients: tuple[Client, ...], round: Round, shared: tuple[Shared, ...]) -> list[Answer]:
        """The answers of one cohort."""
        (answers,) = self.simulation.crew.train([Job(round, clients, shared)], 1)
        return answers

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
class _Noting:
    """A transport that notes every answer on its way to the server."""

    transport: Transport
    uploads: dict[tuple[int, str], Upload]
    answered: dict[tuple[int, str], Params]

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        return self.transport.expected(clients, round, failed)

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        for answer in self.transport.exchange(round, work):
            if isinstance(answer.upload, Upload) and answer.kept is not None:
                self.uploads[round.attempt, answer.client.id] = answer.upload
                self.answered[round.attempt, answer.client.id] = answer.kept
            yield answer

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        return self.transport.must_repeat(asked, failed)
