"""A run at the server: its clients and labels, known from the sites' consents and not from rows."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rondo import __version__
from rondo.algorithm import Client
from rondo.config.checks import is_path
from rondo.config.inputs import AT_SITES
from rondo.config.schema import FaultsConfig, RunConfig
from rondo.data.client_rows import other_rows, resolved
from rondo.data.labels import MOST, merged
from rondo.data.population import Member, Population
from rondo.data.sources import Source
from rondo.engine.crew import Workers
from rondo.engine.network import Network
from rondo.engine.scoring_elsewhere import ScorerElsewhere
from rondo.engine.server.ranks import client_ranks
from rondo.engine.server.rounds import Server
from rondo.engine.wire import Identity
from rondo.errors import ConfigError, Problem
from rondo.federation.plan import Plan
from rondo.federation.sites import Sites
from rondo.params import Params
from rondo.runs.assemble import Assembly, Federation, Start, assemble
from rondo.tasks import table as tasks
from rondo.tasks.task import Example

ELSEWHERE = ("data.source=", f'data.clients_from="{AT_SITES}"')
"""Overrides that say that the rows are at the sites."""


def check(config: RunConfig) -> None:
    """Raise :class:`ConfigError` with everything in ``config`` that only a simulation has."""
    problems, more = [], list(config.data.more_tests.values())
    for path, there, reason in (
        ("evaluation.local_only", config.evaluation.local_only, "it trains on rows, and the server has none"),
        ("adapter.start_from", config.adapter.start_from is not None, "the sites do not have that folder"),
        ("task.chat_template", config.task.chat_template is not None, "the sites do not have that file"),
        ("data.max_train_rows", config.data.max_train_rows is not None, "each site decides on its rows"),
        ("data.more_tests", bool(more) and not all(map(is_path, more)), "the server has files, and no splits"),
        ("data.more_tests", bool(more) and config.data.test_source is None, "they stand beside data.test_source"),
        ("clients.sampling", config.clients.sampling == "weighted", "sizes of sites that are away are not known"),
        ("faults", config.faults != FaultsConfig(), "faults are rehearsed in a simulation"),
        ("problem", config.task.kind == "linear", "rows of a linear problem are drawn in a simulation"),
    ):
        if there:
            problems.append(Problem(path, f"{reason}: remove it"))
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class Elsewhere(Assembly):
    """A run whose clients are at ``sites``."""

    sites: Sites
    run: str

    def start(self) -> Start:
        """Make the first state. No step is taken here, so none is measured."""
        return Start(self.first_state(), 0.0)

    def federation(
        self,
        start: Start,
        kept: MutableMapping[str, Params],
        stop: threading.Event | None = None,
        elsewhere: Workers | None = None,
    ) -> Federation:
        """The server, before its first round."""
        config, identity = self.config, Identity(self.run, self.model_sha256)
        enough = config.clients.per_round if config.clients.over_select else None
        transport = Network(self.sites, identity, enough)
        clients, sites = self.population.clients, self.model.network.sites
        server = Server(self.algorithm, config, clients, transport, sites, identity, start.state, kept)
        own = self.scorer(kept)
        parts = {f.name: getattr(own, f.name) for f in fields(own)}
        return Federation(server, ScorerElsewhere(**parts, server=server, transport=transport))


class _Roll(Mapping[str, Member]):
    """The clients of a run as the server knows them: sorted by id, without rows. A client that has not been there yet
    has no examples."""

    def __init__(self, names: Sequence[str], sites: Sites, ranks: Sequence[int] | None) -> None:
        self._names, self._sites, self._ranks = names, sites, ranks

    def __getitem__(self, name: str) -> Member:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            raise KeyError(name)
        rank = None if self._ranks is None else self._ranks[place]
        return Member(Client(name, self._sites.examples().get(name, 0), rank), (), ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def without_rows(config: RunConfig) -> RunConfig:
    """The configuration with what the data would tell a simulation. Raises :class:`ConfigError` where only rows could
    tell it."""
    if tasks.TABLE[config.task.kind].inputs == "image" and config.task.image_shape is None:
        message = "the server has no picture to learn it from: give height, width and channels"
        raise ConfigError.at("task.image_shape", message)
    return resolved(config, Source("", None, None, None))


def labels_of(config: RunConfig, sites: Sites, run: str, clients: Mapping[str, str], seconds: float) -> tuple[str, ...]:
    """The label names: those of the configuration, or else of all sites, which are waited for."""
    if not tasks.load(config.task.kind).classes:
        return ()
    if config.task.labels is not None:
        return tuple(config.task.labels)
    sites.offer(plan_of(config, run, None, ""))
    wanted = set(clients.values())
    if not sites.wait(seconds, lambda: sites.consents().keys() >= wanted):
        missing = ", ".join(sorted(wanted - sites.consents().keys()))
        message = f"after {seconds:g} s the labels of {missing} are not known: wait longer, or name them in task.labels"
        raise ConfigError.at("--wait", message)
    labels = merged(consent.labels for consent in sites.consents().values())
    if len(labels) < 2:
        raise ConfigError.at("task.label", f"the sites have {len(labels)} distinct labels; classification needs two")
    if len(labels) > MOST:
        message = f"the sites have {len(labels)} distinct labels, where {MOST} are the most: name them in task.labels"
        raise ConfigError.at("task.label", message)
    return labels


def assembled(
    config: RunConfig, device: str, labels: tuple[str, ...], sites: Sites, run: str, clients: Mapping[str, str]
) -> Elsewhere:
    """The run, offered to the sites."""
    assembly = assemble(config, device, labels=labels, with_rows=False)
    names = sorted(clients)
    if config.clients.min_clients > len(names) or (config.clients.per_round or 0) > len(names):
        message = f"the roster has {len(names)} clients: lower clients.per_round and clients.min_clients"
        raise ConfigError.at("clients", message)
    ranks = client_ranks(config, assembly.algorithm, assembly.model.network.sites.values(), len(names))
    test: tuple[Example, ...] = ()
    if config.data.test_source is not None:
        test = tuple(assembly.task.encode(other_rows(config, config.data.test_source, labels, key="data.test_source")))
    more = {
        name: tuple(assembly.task.encode(other_rows(config, file, labels, key=f"data.more_tests.{name}")))
        for name, file in config.data.more_tests.items()
    }
    population = Population(_Roll(names, sites, ranks), test, _report(len(test), labels), more)
    parts = {f.name: getattr(assembly, f.name) for f in fields(assembly)}
    elsewhere = Elsewhere(**{**parts, "population": population}, sites=sites, run=run)
    sites.offer(plan_of(config, run, labels, elsewhere.model_sha256))
    return elsewhere


def plan_of(config: RunConfig, run: str, labels: tuple[str, ...] | None, model: str) -> Plan:
    """The plan of a run, for a site that is not named yet."""
    absent = None if config.has_factors else {"adapter"}  # the section itself says that factors are trained
    return Plan(run, config.model_dump(mode="json", exclude=absent), None, labels, model, __version__)


def gather(assembly: Elsewhere, seconds: float) -> None:
    """Wait for all clients, or for so long. Raises :class:`ConfigError` if there are too few then."""
    sites, names = assembly.sites, set(assembly.population.members)
    if not sites.wait(seconds, lambda: names <= set(sites.present())):
        there, needed = len(set(sites.present())), assembly.config.clients.min_clients
        if there < needed:
            message = f"after {seconds:g} s {there} of {len(names)} clients take part, and clients.min_clients is "
            raise ConfigError.at("--wait", f"{message}{needed}: wait longer")
    clients = {c: {"train": n, "validation": 0, "labels": None} for c, n in sorted(sites.examples().items())}
    rows = sum(sites.examples().values())
    assembly.population.report.update(clients=clients, rows=rows, rows_used=rows)


def _report(test: int, labels: tuple[str, ...]) -> dict[str, Any]:
    """The entries about rows of a simulation's ``partition.json``, as far as a server knows it."""
    counts = ("rows", "rows_used", "rows_bad", "rows_not_sampled", "rows_without_target")
    report: dict[str, Any] = {f"{prefix}{key}": 0 for prefix in ("", "test_") for key in counts}
    report |= {"test_rows": test, "test_rows_used": test, "rows_without_client": 0, "rows_moved": 0}
    report |= {"clients_not_sampled": 0, "clients_too_small": {}, "clients_without_examples": [], "warnings": []}
    return report | {"text": {}, "test_text": {}, "sampled_by": [], "test_sampled_by": [], "classes": list(labels)}
