"""From a configuration to a run, in one straight sequence."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self

import torch

from rondo import algorithms, own_code
from rondo.algorithm import Algorithm, HeadPolicy, Round
from rondo.config.checks import BUILTINS, data_source, own_names
from rondo.config.schema import RunConfig
from rondo.data.client_rows import Dealt, deal_rows, resolved
from rondo.data.labels import find_labels
from rondo.data.named_columns import check_columns
from rondo.data.population import Population, build
from rondo.data.sources import Source
from rondo.data.sources import load as load_source
from rondo.engine.client.cohorts import Cohorts, cohort_threads, one_cohort
from rondo.engine.client.fitting import Fitting
from rondo.engine.client.flops import Flops
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.memory import activation_bytes
from rondo.engine.crew import ByWorkers, Workers
from rondo.engine.faults import Rehearsal, are_rehearsed, in_training
from rondo.engine.scoring import Scorer
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.masked_sum import masked_sum
from rondo.engine.server.ranks import client_ranks
from rondo.engine.server.rounds import Server, first_state
from rondo.engine.simulation import Crew, InProcess, Simulation
from rondo.engine.sums import fixed_point
from rondo.engine.transport import Phase, Transport
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.start import StartVersions
from rondo.errors import ConfigError, Problem
from rondo.models.forms.model import Model, Outline
from rondo.models.forms.outline import look
from rondo.models.forms.trial import try_out
from rondo.models.networks.whole_network import normalises_by_batch
from rondo.models.shortcuts.choose import SAMPLE
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params, adapted_modules, head
from rondo.process import computes
from rondo.runs.collector import collector_paused
from rondo.runs.device import find_device as find_device
from rondo.runs.given import NOTHING, Given
from rondo.runs.wrapping import compressed, make_algorithm, wrapped
from rondo.tasks.make import task_class
from rondo.tasks.task import Task


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


@dataclass(frozen=True)
class Assembly:
    """A run with everything loaded and its rows dealt.

    ``head``: the head policy, None without a head.
    ``initial``: the tensors that clients train, at their start.
    ``prefix``: layers whose output is computed once per example.
    ``flops``: operations of a client's training; None if they are not counted.
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

    def round(self, index: int) -> Round:
        """Round ``index`` of the run, as if no attempt had been skipped."""
        clients, start = len(self.population.members), self.config.adapter.init_lora_weights
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
    def simulated(self) -> bool:
        """Whether the rows of all clients are on this machine."""
        return True

    @property
    def model_sha256(self) -> str:
        """SHA-256 of the base model's identity: weights, configuration and tokenizer."""
        return hashlib.sha256(json.dumps(self.model.identity, sort_keys=True).encode()).hexdigest()

    @property
    def scores_every(self) -> int:
        """Rounds between scores on the test set; 0 scores only after the last round."""
        every = self.config.evaluation.every
        return _rounds_between_scores(self.config, self.population) if every == "auto" else every

    @property
    def best_at_clients(self) -> bool:
        """Whether the best round is the one with the best mean score of the clients on their own rows."""
        return _best_at_clients(self.config, self.algorithm, self.population)

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

    def server(self, transport: Transport, identity: Identity, state: Any, kept: MutableMapping[str, Params]) -> Server:
        """The server, before the first round. ``state``: its first state."""
        clients, sites, ledger = self.population.clients, self.model.network.sites, self.ledger(state)
        return Server(
            self.algorithm,
            self.config,
            clients,
            transport,
            sites,
            identity,
            self.initial,
            state,
            kept,
            ledger=ledger,
            sum=masked_sum(self.config, clients),
        )

    def scorer(self, kept: MutableMapping[str, Params]) -> Scorer:
        """The scorer of the run's models. ``kept``: tensors that clients keep."""
        config, network = self.config, self.model.network
        fitting = Fitting(self.algorithm, network, self.task, config.train, config.clients)
        algorithm, task, population = self.algorithm, self.task, self.population
        return Scorer(algorithm, network, task, population, kept, config.evaluation, fitting, self.prefix)

    def keep_tests(self) -> None:
        """Set memory aside for what the layers below the adapted ones make of the test sets. Call it before anything is
        trained, where these sets are scored: neither a worker nor a site scores them."""
        if self.prefix is not None:
            self.prefix.reserve({name: self.task.scored(test) for name, test in self.population.tests.items()})

    def local_round(self, kept: MutableMapping[str, Params], stop: threading.Event | None = None) -> LocalRound:
        """A simulated client's part of a round. ``kept``: tensors that clients keep."""
        network, around = self.model.network, in_training(self.config.faults)
        return LocalRound(self.algorithm, network, self.task, self.config, kept, self.prefix, stop, around, self.flops)

    def start(self) -> Start:
        """Make the first state and measure a training step. A resumed run measures from its first state too, so that
        its cohorts are those of the run that was stopped."""
        network, first = self.model.network, self.first_state()
        seen, _ = self.scorer({}).newcomer(first, self.round(0))
        with one_cohort(network):
            return Start(first, activation_bytes(network, self.task, seen, self.population.sample(2)))

    def federation(
        self,
        start: Start,
        kept: MutableMapping[str, Params],
        stop: threading.Event | None = None,
        workers: Workers | None = None,
    ) -> Federation:
        """A simulated federation before its first round. ``kept`` holds tensors that clients keep. Clients train in
        this process, or at ``workers``."""
        network, config = self.model.network, self.config
        self.keep_tests()
        scorer = self.scorer(kept)
        devices = 1 if workers is None else workers.devices
        cohorts = Cohorts(
            network, self.task, self.population, config, start.bytes_per_cost, cohort_threads(network), devices
        )
        crew: Crew
        if workers is None:
            crew = InProcess(self.population, self.local_round(kept, stop))
        else:
            crew = ByWorkers(workers, kept, stop)
        identity = Identity("simulation", self.model_sha256)
        transport: Transport = Simulation(crew, cohorts)
        if are_rehearsed(config):
            transport = Rehearsal(transport, config, identity)
        server = self.server(transport, identity, start.state, kept)
        return Federation(server, scorer)


def assemble(
    config: RunConfig,
    device: str,
    *,
    labels: Sequence[str] | None = None,
    with_rows: bool = True,
    given: Given = NOTHING,
    phase: Callable[[Phase], None] = lambda name: None,
) -> Assembly:
    """Load everything that ``config`` names and deal its rows.

    ``labels``: the labels of a run that is opened again.
    ``with_rows``: False leaves the data alone.
    ``given``: rows and a model in place of those that ``config`` names.
    ``phase``: told of the work from now on.

    Raises :class:`ConfigError`. Faults are reported in this order: the algorithm's options, the data, the model's
    structure, its weights.
    """
    computes()
    given.check(config, with_rows=with_rows)
    with collector_paused():  # everything loaded here stays, so the collector would scan it in vain
        algorithm = make_algorithm(config)
        target = find_device(device)
        if target.type == "cuda" and target.index is not None:
            torch.cuda.set_device(target)  # otherwise pinned memory would take up room on the first device
        config, labels, dealt = (
            _dealt(config, labels, given, phase) if with_rows else (config, tuple(labels or ()), None)
        )
        phase("opening")
        outline = looked(config, algorithm, labels, given)
        config = config.model_copy(update={"task": outline.task.completed(config.task)})
        _check_structure(config, algorithm, outline, dealt)
        population = Population({}, (), {})
        if dealt is not None:
            phase("tokenising")
            population = build(config, dealt, outline.task, labels)
        phase("loading")
        model = outline.load(config, target)
        if dealt is not None:
            # Layers that the checkpoint lacks belong to the head and are not adapted: ranks are known only now.
            packed, sites = compressed(config.compression, algorithm), model.network.sites.values()
            ranks = client_ranks(config, packed, sites, len(dealt.rows))
            if ranks is not None:
                population = population.with_ranks(dict(zip(dealt.rows, ranks, strict=True)))
            del dealt  # torch.fx keeps the frames beneath its first import alive until the collector runs
        _must_train(config, algorithm, model)
        algorithm, head_policy, initial = wrapped(config, algorithm, model.network.initial)
        if with_rows:
            _must_score(config, algorithm, population)
        if head_policy == "frozen":
            model.network.freeze_head()
        if config.train.checkpointing:
            model.network.recompute_layers()
        phase("trying")
        task = outline.task
        run = Assembly(config, target, algorithm, head_policy, labels, task, population, model, initial, None, None)
        return tried(run)


def tried(assembly: Assembly) -> Assembly:
    """The run with its network tried on some of its rows, and with the shortcuts that the network allows. Without rows
    nothing is changed. Raises :class:`ConfigError` if the network does not run on them.

    A server without rows to train on tries it on its test sets, so that its scores are, to the last bit, those of a
    simulation, which takes the same shortcuts."""
    config, network, population = assembly.config, assembly.model.network, assembly.population
    with one_cohort(network):
        examples = population.sample(SAMPLE) or tuple(islice(chain(*population.tests.values()), SAMPLE))
        try_out(config.model.name, network, assembly.task, examples)
        if network.layout == "contiguous":
            population = population.warned(_CONTIGUOUS)
        if config.train.micro_batch is not None and network.minds_padding:
            message = "a row's output depends on how far this model's rows are padded, so a step in parts would be "
            raise ConfigError.at("train.micro_batch", f"{message}another step: remove it")
        flops = Flops.of(network, network.initial, assembly.task, examples)
        task, prefix = assembly.model.shorten(assembly.task, examples)
    return replace(assembly, task=task, population=population, prefix=prefix, flops=flops)


_CONTIGUOUS = (
    "model.name: the network does not run on pictures that are laid out pixel by pixel, which is faster, so they are "
    "laid out channel by channel: write flatten or reshape in its forward, not view"
)


def deal(config: RunConfig, given: Given = NOTHING, source: Source | None = None) -> tuple[Population, Task]:
    """The rows of ``config`` as a run would deal them, and the task that reads them; no weights are loaded.
    ``source``: all rows, where they are loaded already. Raises :class:`ConfigError` as :func:`assemble` does."""
    given.check(config, with_rows=True)
    with collector_paused():
        algorithm = make_algorithm(config)
        config, labels, dealt = _dealt(config, None, given, source=source)
        outline = looked(config, algorithm, labels, given)
        config = config.model_copy(update={"task": outline.task.completed(config.task)})
        _check_structure(config, algorithm, outline, dealt)
        return build(config, dealt, outline.task, labels), outline.task


def _dealt(
    config: RunConfig,
    labels: Sequence[str] | None,
    given: Given,
    phase: Callable[[Phase], None] = lambda name: None,
    source: Source | None = None,
) -> tuple[RunConfig, tuple[str, ...], Dealt]:
    """``config`` with everything that its data know, the labels, and the rows, dealt. ``labels``: if they are known."""
    phase("reading")
    if source is None:
        source = load_source(config, given.train, given.test, given.clients)
    phase("dealing")
    config = resolved(config, source)
    own_names_needed = config.privacy.unit is not None and data_source(config) not in BUILTINS
    if own_names_needed and config.task.labels is None and task_class(config.task.kind).classes:
        message = "the classes would be those of the clients' rows, so a name tells of a row: name them all"
        raise ConfigError.at("task.labels", message)
    check_columns(config, source)
    labels = find_labels(config, source) if labels is None else tuple(labels)
    return config, labels, deal_rows(config, source, labels)


def looked(config: RunConfig, algorithm: Algorithm[Any], labels: Sequence[str], given: Given = NOTHING) -> Outline:
    """The outline of the model, which ``algorithm`` can train. Raises :class:`ConfigError`."""
    outline = look(config, labels, given.model, given.tokenizer)
    if algorithm.traits.least_squares and outline.task.least_squares is None:
        message = f"it minimises a squared error exactly, and {config.task.kind} has another loss: "
        raise ConfigError.at("algorithm.name", message + "take a general method, or task.kind = 'linear'")
    return outline


def _check_structure(config: RunConfig, algorithm: Algorithm[Any], outline: Outline, dealt: Dealt | None) -> None:
    """Raise :class:`ConfigError` with everything that the model's structure does not allow, clients' ranks included."""
    problems: list[Problem] = list(outline.problems)
    try:
        if dealt is not None and outline.sites:
            client_ranks(config, compressed(config.compression, algorithm), outline.sites, len(dealt.rows))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if dealt is not None:
        fixed_point(config, len(dealt.rows))


def _must_train(config: RunConfig, algorithm: Algorithm[Any], model: Model) -> None:
    """Raises :class:`ConfigError` where the method is about low-rank factors and the network takes none, where
    ``model.head`` is set for a network without a head, where ``train.micro_batch`` would change the step, and where
    private steps would have no gradient of a row or no epsilon. A method and a network of the user's own are left to
    agree."""
    initial, both_own = model.network.initial, model.form == "tensors" and own_code.is_name(config.algorithm.name)
    if algorithm.traits.needs_factors and not both_own and not adapted_modules(initial):
        message = f"{config.algorithm.name} trains low-rank factors, and this network has no adapted layer: "
        message += "add a section [adapter], or take one of "
        message += ", ".join(n for n, e in algorithms.TABLE.items() if not e.traits.needs_factors)
        if own_code.is_name(config.algorithm.name):
            message += "; a method of your own that trains whole tensors sets needs_factors=False in its traits"
        raise ConfigError.at("algorithm.name", message)
    if config.train.micro_batch is not None and normalises_by_batch(model.network):
        message = "the network normalises by the batch, and a part of a batch is another batch: remove it"
        raise ConfigError.at("train.micro_batch", message)
    if config.privacy.unit == "example" and importlib.util.find_spec("dp_accounting") is None:
        message = "epsilon is computed by dp-accounting, which is not installed: pip install dp-accounting==0.6.0"
        raise ConfigError.at("privacy.unit", message)
    if config.privacy.unit == "example" and normalises_by_batch(model.network):
        message = (
            "the network normalises by the batch, so no gradient is of one row: take one with another normalisation"
        )
        raise ConfigError.at("model.name", message)
    if config.model.head is not None and not any(map(head, initial)):
        raise ConfigError.at("model.head", "this network has no task head; remove it")


def _best_at_clients(config: RunConfig, algorithm: Algorithm[Any], population: Population) -> bool:
    """Without a test set, and with personal models that are scored at their clients: on the test set only the model of
    a client that has not taken part is scored."""
    if config.hides_uploads:
        return False
    scored = config.evaluation.clients_every > 0 and any(map(population.own_rows, population.members.values()))
    return not population.test or (algorithm.traits.personal and scored)


def _must_score(config: RunConfig, algorithm: Algorithm[Any], population: Population) -> None:
    """Raises :class:`ConfigError` where ``patience`` waits for a score that no round has."""
    evaluation = config.evaluation
    if evaluation.patience and config.privacy.adversary is not None and not population.test:
        message = "no round is scored without test rows, since [privacy] shows no scores of clients: set"
        raise ConfigError.at("evaluation.patience", f"{message} data.test_source, or remove it")
    wanted = "clients_every" if _best_at_clients(config, algorithm, population) else "every"
    if evaluation.patience and getattr(evaluation, wanted) == 0:
        message = f"no round but the last is scored, so the run cannot end early: set evaluation.{wanted}"
        raise ConfigError.at("evaluation.patience", message)


def _rounds_between_scores(config: RunConfig, population: Population) -> int:
    """Rounds between scores on the test set such that they take about a fifth of the time at most. A row takes one
    forward pass in a score, and two or three times as long in a training step."""
    clients, train = population.clients, config.train
    rows = sum(c.num_examples for c in clients) / max(1, len(clients)) * (train.local_epochs or 1)
    if train.local_steps is not None:
        rows = train.local_steps * train.batch_size
    trained = 2 * rows * (config.clients.per_round or len(clients))
    return max(1, math.ceil(4 * len(population.test) / max(1, trained)))
