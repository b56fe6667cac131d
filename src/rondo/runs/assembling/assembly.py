"""A run with everything loaded: its server, its clients and its scores, and the place of a run whose clients
are all on this machine."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import torch

from rondo import own_code
from rondo.algorithm import Algorithm, HeadPolicy, Round
from rondo.config.checks import own_names
from rondo.config.schema import RunConfig
from rondo.data.population import Population
from rondo.engine.client.cohorts import Cohorts, cohort_threads, one_cohort
from rondo.engine.client.fitting import Fitting
from rondo.engine.client.flops import Flops
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import activation_bytes
from rondo.engine.client.own_trainer import OwnTrainer, load
from rondo.engine.client.trainer import Spend
from rondo.engine.faults import Rehearsal, are_rehearsed, in_training
from rondo.engine.scoring import Scorer
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.rounds import Server, first_state
from rondo.engine.simulation import ByWorkers, Crew, InProcess, Simulation, Workers
from rondo.engine.transport import Transport
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.parcel import StartVersions
from rondo.models.forms.model import Model
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params
from rondo.runs.assembling.private import Protection, counted_by_the_server
from rondo.tasks.task import Task

S = TypeVar("S", bound=Scorer)


@dataclass(frozen=True)
class Federation:
    """The moving parts of a run: the server, and the scorer of its models."""

    server: Server
    scorer: Scorer


@dataclass(frozen=True)
class Start:
    """The start of a run: the server's first state, and the memory of a training step measured from it."""

    state: Any
    bytes_per_cost: float


class Place(Protocol):
    """The place of a run's clients: this machine, or sites."""

    @property
    def simulated(self) -> bool:
        """Whether the rows of all clients are on this machine."""
        ...

    def start(self, run: Assembly) -> Start: ...

    def federation(
        self,
        run: Assembly,
        start: Start,
        kept: MutableMapping[str, Params],
        protection: Protection,
        stop: threading.Event | None,
        workers: Workers | None,
    ) -> Federation: ...


@dataclass(frozen=True)
class Assembly:
    """A run with everything loaded and its rows dealt.

    ``head``: the head policy, None without a head.
    ``initial``: the tensors that clients train, at their start.
    ``prefix``: layers whose output is computed once per example.
    ``flops``: operations of a client's training; None if they are not counted.
    ``place``: where its clients are.
    """

    config: RunConfig
    device: torch.device
    algorithm: Algorithm[Any]
    head: HeadPolicy | None
    labels: tuple[str, ...]
    task: Task
    population: Population
    model: Model
    initial: Params
    prefix: Prefix | None
    flops: Flops | None
    place: Place

    def round(self, index: int) -> Round:
        """Round ``index`` of the run, as if no attempt had been skipped."""
        clients, start = len(self.population.members), self.config.adapter.fresh
        return Round(index, self.config.rounds, self.config.seed, clients, init_lora_weights=start)

    def identity(self) -> dict[str, Any]:
        """The manifest's keys that say whose result this is: the model, the layers that are adapted, the head policy,
        and the source of a user's own code."""
        network, names = self.model.network, own_names(self.config)
        parts = [*map(own_code.load, names.values()), network, *network.module.modules()] if names else []
        return {
            **self.model.identity,
            "adapted_modules": {s.path: {"rank": s.rank, "scale": s.scale} for s in network.sites.values()},
            "head": self.head,
            "code_sha256": own_code.sources(*parts),
        }

    def without_report(self) -> Self:
        """The run without the report on its rows, which has an entry per client and is on the disk once the run has
        begun."""
        return replace(self, population=replace(self.population, report={}))

    @property
    def model_sha256(self) -> str:
        """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
        return hashlib.sha256(json.dumps(self.model.identity, sort_keys=True).encode()).hexdigest()

    @property
    def scores_every(self) -> int:
        """Rounds between scores on the test set; 0 scores only after the last round. Left to the run, scores take about
        a fifth of the time at most: a row takes one forward pass in a score, and two or three times as long in a
        training step."""
        train, clients, every = self.config.train, self.population.clients, self.config.evaluation.every
        if every != "auto":
            return every
        rows = sum(c.num_examples for c in clients) / max(1, len(clients)) * (train.local_epochs or 1)
        if train.local_steps is not None:
            rows = train.local_steps * train.batch_size
        trained = 2 * rows * (self.config.clients.per_round or len(clients))
        return max(1, math.ceil(4 * len(self.population.test) / max(1, trained)))

    @property
    def best_at_clients(self) -> bool:
        """Whether the best round is the one with the best mean score of the clients on their own rows: without a test
        set, and with personal models that are scored at their clients, since on the test set only the model of a client
        that has not taken part is scored."""
        if self.config.guarantee.hides_uploads:
            return False
        population = self.population
        scored = self.config.evaluation.clients_every > 0
        scored = scored and any(map(population.own_rows, population.members.values()))
        return not population.test or (self.algorithm.traits.personal and scored)

    def first_state(self) -> Any:
        """The server's state before the first round."""
        clients = len(self.population.members)
        return first_state(self.algorithm, self.initial, self.model.network.weights(), self.config, clients)

    def ledger(self, first: Any) -> Ledger:
        """The ledger before the first round, from the server's first state. Factors of a folder are no start that a
        client could make."""
        if self.config.has_factors and self.config.adapter.start_from is not None:
            return Ledger()
        ranked = self.config.clients.ranks is not None or self.config.clients.bytes_budget is not None
        ranks = (client.rank for client in self.population.clients) if ranked else (None,)
        return Ledger(starts=StartVersions.by_rank(self.algorithm, first, ranks, self.round(0)))

    def server(
        self,
        transport: Transport,
        protection: Protection,
        identity: Identity,
        state: Any,
        kept: MutableMapping[str, Params],
    ) -> Server:
        """The server, before the first round. ``state``: its first state."""
        clients, sites, ledger = self.population.clients, self.model.network.sites, self.ledger(state)
        facts = (protection.sum, protection.rows, sites, identity, self.initial, state, kept, ledger)
        return Server(self.algorithm, self.config, clients, transport, *facts)

    def scorer(self, kept: MutableMapping[str, Params], least: int = 1) -> Scorer:
        """The scorer of the run's models. ``kept``: tensors that clients keep. ``least``: fewest rows that decide a
        metric."""
        return self.scored_by(Scorer, kept, least)

    def scored_by(self, make: Callable[..., S], kept: MutableMapping[str, Params], least: int = 1) -> S:
        """A scorer that ``make`` makes of what :class:`~rondo.engine.scoring.Scorer` takes."""
        config, network = self.config, self.model.network
        fitting = Fitting(self.algorithm, network, self.task, config.train, config.clients)
        algorithm, task, population = self.algorithm, self.task, self.population
        return make(algorithm, network, task, population, kept, config.evaluation, fitting, self.prefix, least)

    def keep_tests(self) -> None:
        """Set memory aside for what the layers below the adapted ones make of the test sets. Call it before anything is
        trained, where these sets are scored: neither a worker nor a site scores them."""
        if self.prefix is not None:
            self.prefix.reserve({name: self.task.scored(test) for name, test in self.population.tests.items()})

    def local_round(
        self,
        kept: MutableMapping[str, Params],
        stop: threading.Event | None = None,
        spend: Spend = counted_by_the_server,
    ) -> LocalRound:
        """A client's part of a round. ``kept``: tensors that clients keep. ``spend``: see
        :class:`~rondo.engine.client.local_round.LocalRound`. Raises :class:`rondo.errors.ConfigError`."""
        around, name = in_training(self.config.faults), self.config.train.trainer
        facts = (self.algorithm, self.model.network, self.task, self.config, kept, spend, self.prefix, stop, around)
        if name is None:
            return LocalRound(*facts, self.flops)
        make = partial(OwnTrainer, function=load(name), model=self.model, rows=self.population.rows, labels=self.labels)
        return LocalRound(*facts, None, make)

    def start(self) -> Start:
        """The start of the run, before it is resumed or begun."""
        return self.place.start(self)

    def federation(
        self,
        start: Start,
        kept: MutableMapping[str, Params],
        protection: Protection,
        stop: threading.Event | None = None,
        workers: Workers | None = None,
    ) -> Federation:
        """The run's federation before its first round. ``kept``: tensors that clients keep."""
        return self.place.federation(self, start, kept, protection, stop, workers)


@dataclass(frozen=True)
class Simulated:
    """The rows of all clients are on this machine. Clients train in this process, or at workers."""

    simulated: bool = True

    def start(self, run: Assembly) -> Start:
        """Make the first state and measure a training step. A resumed run measures from its first state too, so that
        its cohorts are those of the run that was stopped."""
        network, first = run.model.network, run.first_state()
        seen, _ = run.scorer({}).newcomer(first, run.round(0))
        with one_cohort(network):
            return Start(first, activation_bytes(network, run.task, seen, run.population.sample(2)))

    def federation(
        self,
        run: Assembly,
        start: Start,
        kept: MutableMapping[str, Params],
        protection: Protection,
        stop: threading.Event | None,
        workers: Workers | None,
    ) -> Federation:
        """A simulated federation before its first round. ``kept`` holds tensors that clients keep."""
        network, config = run.model.network, run.config
        run.keep_tests()
        scorer = run.scorer(kept)
        devices = 1 if workers is None else workers.devices
        threads = 1 if config.train.trainer is not None else cohort_threads(network)
        cohorts = Cohorts(network, run.task, run.population, config, start.bytes_per_cost, threads, devices)
        crew: Crew
        if workers is None:
            crew = InProcess(run.population, run.local_round(kept, stop))
        else:
            crew = ByWorkers(workers, kept, stop)
        identity = Identity("simulation", run.model_sha256)
        transport: Transport = Simulation(crew, cohorts)
        if are_rehearsed(config):
            transport = Rehearsal(transport, config, identity)
        server = run.server(transport, protection, identity, start.state, kept)
        return Federation(server, scorer)
