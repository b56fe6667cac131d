"""A run at the server: its clients and labels, known from the sites' consents and not from rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rondo import __version__
from rondo.algorithm import Client
from rondo.config import task_kinds as tasks
from rondo.config.checks import client_checks, is_path
from rondo.config.inputs import AT_SITES
from rondo.config.schema import FaultsConfig, RunConfig
from rondo.data.client_rows import other_rows, resolved
from rondo.data.files.room import Room
from rondo.data.labels import MOST
from rondo.data.members import Member
from rondo.data.sources import Source, read_rows
from rondo.engine.remote import RemoteScorer, RemoteTransport
from rondo.engine.server.ranks import client_ranks
from rondo.engine.simulation import Workers
from rondo.engine.transport import Transport
from rondo.engine.wire.envelope import Identity
from rondo.errors import ConfigError, Problem
from rondo.federation.plan import Plan
from rondo.federation.server.masked_rounds import MaskedRounds
from rondo.federation.server.saved_sum import SavedSum
from rondo.federation.server.sites import Sites
from rondo.params import Params
from rondo.records.later import as_before
from rondo.records.schema import Partition
from rondo.runs.assembling.assemble import assemble, looked, rows_of_tests, test_files, with_tests
from rondo.runs.assembling.assembly import Assembly, Federation, Start
from rondo.runs.assembling.private import Protection, check_sum
from rondo.runs.assembling.wrapping import compressed, make_algorithm
from rondo.runs.samples import check_samples
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import RowLabels

ROWS_AT_SITES = ("data.source=", f'data.clients_from="{AT_SITES}"')
"""Overrides that say that the rows are at the sites."""


def check(config: RunConfig) -> None:
    """Raise :class:`ConfigError` with everything in ``config`` that only a simulation has."""
    problems, more = [], list(config.data.more_tests.values())
    for path, there, reason in (
        ("evaluation.local_only", config.evaluation.local_only, "it trains on rows, and the server has none"),
        ("adapter.start_from", config.adapter.start_from is not None, "the sites do not have that folder"),
        ("task.chat_template", config.task.chat_template is not None, "the sites do not have that file"),
        ("model.vectors", config.model.vectors is not None, "the sites do not have that file"),
        ("data.max_train_rows", config.data.max_train_rows is not None, "each site decides on its rows"),
        ("partition.deal_tests", config.partition.deal_tests, "the server's test rows stay with it"),
        ("data.more_tests", bool(more) and not all(map(is_path, more)), "the server has files, and no splits"),
        ("data.more_tests", bool(more) and config.data.test_source is None, "they stand beside data.test_source"),
        ("clients.sampling", config.clients.sampling == "weighted", "sizes of sites that are away are not known"),
        ("clients.mode", config.clients.mode == "buffered", "rounds are buffered in a simulation"),
        ("faults", config.faults != FaultsConfig(), "faults are rehearsed in a simulation"),
        ("problem", config.task.kind == "linear", "rows of a linear problem are drawn in a simulation"),
    ):
        if there:
            problems.append(Problem(path, f"{reason}: remove it"))
    classes = task_class(config.task.kind).classes
    if config.guarantee.noise_from is not None and config.task.named_labels is None and classes:
        message = "the classes would be those of the sites' rows, so a name tells of a row: name them all"
        problems.append(Problem("task.labels", message))
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class AtSites:
    """The clients of the run ``saved.run`` are at ``sites``.

    ``saved``: the state of a masked sum.
    """

    sites: Sites
    saved: SavedSum
    simulated: bool = False

    def start(self, run: Assembly) -> Start:
        """Make the first state. No step is taken here, so none is measured."""
        return Start(run.first_state(), 0.0)

    def federation(
        self,
        run: Assembly,
        start: Start,
        kept: MutableMapping[str, Params],
        protection: Protection,
        stop: threading.Event | None,
        workers: Workers | None,
    ) -> Federation:
        """The server, before its first round."""
        config, identity = run.config, Identity(self.saved.run, run.model_sha256)
        enough = config.clients.per_round if config.clients.over_select else None
        expected = config.clients.per_round or len(run.population.members)
        named = expected if config.guarantee.secret_turnout else None
        remote = RemoteTransport(self.sites, identity, max(1, protection.sum.least), enough, named)
        transport: Transport = remote
        if protection.masked is not None:
            transport = rounds = MaskedRounds(remote, self.sites, protection.masked, self.saved, self.sites.tell)
            protection = replace(protection, sum=rounds)
        server = run.server(transport, protection, identity, start.state, kept)
        run.keep_tests()
        scorer = partial(RemoteScorer, server=server, transport=remote)
        return Federation(server, run.scored_by(scorer, kept))


class _Roll(Mapping[str, Member]):
    """The clients of a run as the server knows them: sorted by id, without rows. A client that has not been there yet
    has no examples."""

    def __init__(self, examples: Callable[[], Mapping[str, int]], ranks: Mapping[str, int | None]) -> None:
        self._examples, self._ranks = examples, ranks

    def __getitem__(self, name: str) -> Member:
        return Member(Client(name, self._examples().get(name, 0), self._ranks[name]), (), ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def without_rows(config: RunConfig) -> RunConfig:
    """The configuration with what the data would tell a simulation. Raises :class:`ConfigError` where only rows could
    tell it."""
    if tasks.TABLE[config.task.kind].inputs == "image" and config.task.image_shape is None:
        message = "the server has no picture to learn it from: give height, width and channels"
        raise ConfigError.at("task.image_shape", message)
    return resolved(config, Source("", None, None, None))


def ready(config: RunConfig, device: str, clients: Collection[str]) -> Assembly | None:
    """The run without its clients, as far as it does not need its sites. It is None where label names are asked of the
    sites: then everything is checked that needs neither labels nor weights. Raises :class:`ConfigError`.

    ``clients``: ids of the clients that are known so far.
    """
    check_clients(config, len(clients))
    if not task_class(config.task.kind).classes:
        return loaded(config, device, ())
    if config.task.named_labels is not None:
        return loaded(config, device, tuple(config.task.named_labels))
    _check_unlabelled(config, clients)
    return None


def check_clients(config: RunConfig, count: int) -> None:
    """Raise :class:`ConfigError` where ``count`` clients are too few, or not those that lists have values for, or too
    many for the numbers of a masked sum."""
    if problems := list(client_checks(config, count)):
        raise ConfigError(problems)
    check_sum(config, count)


def _check_unlabelled(config: RunConfig, clients: Collection[str]) -> None:
    """Check the method's options, the test sets and the model's structure. The labels of the test sets stand for those
    of the sites. Raises :class:`ConfigError`."""
    algorithm = make_algorithm(config)
    reads, names = RowLabels.of(config.task), {"0": None, "1": None}
    for key, file in test_files(config).items():
        table = read_rows(file, key, Room.of(config.data))
        labelled = table if reads.columns else []
        values = {name: None for row in labelled if reads.problem(row, 0) is None for name in reads.names(row)}
        other_rows(config, file, tuple(values), key=key)
        names = values if len(values) > 1 else names
    labels = list(names)[:MOST]
    outline = looked(config.changed("task", labels=labels), algorithm, labels)
    problems = list(outline.problems)
    try:
        client_ranks(config, compressed(config.compression, algorithm), outline.sites, len(clients))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)


def loaded(config: RunConfig, device: str, labels: tuple[str, ...]) -> Assembly:
    """The run without clients, its model and its test sets loaded. Raises :class:`ConfigError`."""
    rows = rows_of_tests(config, labels)  # before the model, which may take minutes
    assembly = with_tests(assemble(config, device, labels=labels, with_rows=False), rows)
    population = assembly.population
    report = {**_report(len(population.test), labels), **population.report}
    assembly = replace(assembly, population=replace(population, report=report))
    check_samples(assembly)
    return assembly


def ranks_of(
    assembly: Assembly, clients: Collection[str], before: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """The rank of each client; None where all have the run's. ``before``: the ranks that a run has dealt, which its
    clients keep. Raises :class:`ConfigError` for a client that has none of them."""
    if before is not None:
        if new := sorted(set(clients) - before.keys()):
            message = f"the run has dealt its ranks, and none to {', '.join(new)}: take these clients into a new run"
            raise ConfigError.at("clients.ranks", message)
        return {name: before[name] for name in sorted(clients)}
    sites = assembly.model.network.sites.values()
    ranks = client_ranks(assembly.config, assembly.algorithm, sites, len(clients))
    return None if ranks is None else dict(zip(sorted(clients), ranks, strict=True))


def with_clients(
    assembly: Assembly,
    clients: Collection[str],
    examples: Callable[[], Mapping[str, int]],
    ranks: Mapping[str, int] | None,
) -> Assembly:
    """The run with its clients. ``examples``: gives the numbers of examples that are known."""
    members = _Roll(examples, {name: None if ranks is None else ranks[name] for name in sorted(clients)})
    return replace(assembly, population=replace(assembly.population, members=members))


def at_sites(assembly: Assembly, sites: Sites, saved: SavedSum) -> Assembly:
    """The run ``saved.run``, whose clients are at ``sites``, which have been waited for."""
    examples = {c: n for c, n in sorted(sites.examples().items()) if c in assembly.population.members}
    clients = {c: {"train": n, "validation": 0, "labels": None} for c, n in examples.items()}
    rows = sum(examples.values())
    report = {**assembly.population.report, "clients": clients, "rows": rows, "rows_used": rows}
    population = replace(assembly.population, report=report)
    return replace(assembly, population=population, place=AtSites(sites, saved))


def plan_of(config: RunConfig, run: str, labels: tuple[str, ...] | None, model: str) -> Plan:
    """The plan of a run, for a site that is not named yet."""
    # The section adapter itself says that factors are trained, and a site follows no trackers of the server's.
    absent = {"track", *([] if config.has_factors else ["adapter"])}
    content = as_before(config.model_dump(mode="json", exclude=absent))
    return Plan(run, content, None, labels, model, __version__, torch.get_num_threads())


def _report(test: int, labels: tuple[str, ...]) -> dict[str, Any]:
    """The entries about rows of a simulation's ``partition.json``, as far as a server knows it."""
    of_none = Partition(clients={}).model_dump(exclude={"clients"}, exclude_none=True)
    return of_none | {"test_rows": test, "test_rows_used": test, "classes": list(labels)}
