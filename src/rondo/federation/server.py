"""The server of a federation: a run whose rows are elsewhere."""

from __future__ import annotations

import os
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from rondo import __version__
from rondo.algorithm import Client
from rondo.config.inputs import AT_SITES
from rondo.config.load import load
from rondo.config.schema import FaultsConfig, RunConfig
from rondo.data.client_rows import other_rows, resolved
from rondo.data.labels import in_order
from rondo.data.population import Member, Population
from rondo.data.sources import Source
from rondo.engine.crew import Workers
from rondo.engine.network import Network
from rondo.engine.scoring_elsewhere import ScorerElsewhere
from rondo.engine.server.ranks import client_ranks
from rondo.engine.server.rounds import Server
from rondo.engine.transport import Observer
from rondo.engine.wire import Identity
from rondo.errors import ConfigError, Problem, headed
from rondo.federation.keys import ServerKeys
from rondo.federation.plan import Plan
from rondo.federation.roster import FILE, Roster
from rondo.federation.sites import Sites
from rondo.federation.status import RECORD, SITES
from rondo.federation.superlink import SuperLink
from rondo.params import Params
from rondo.runs.assemble import Assembly, Federation, Start, assemble
from rondo.runs.loop import Runner
from rondo.runs.progress import Quiet
from rondo.runs.reopen import check_code
from rondo.runs.result import RunResult
from rondo.runs.runner import begin, locked, manifest
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.manifest import environment, must_equal, recorded
from rondo.tasks import table as tasks
from rondo.tasks.task import Example

ELSEWHERE = ("data.source=", f'data.clients_from="{AT_SITES}"')
"""Overrides that say that the rows are at the sites."""
PORT = 9092
"""The port of Flower's SuperLink for SuperNodes."""
_LARGEST = 2**31
"""Bytes of the largest letter from a site; the gate knows how much an upload may have."""


@dataclass(frozen=True)
class Listening:
    """How a server is reached.

    - ``keys``: its folder of keys.
    - ``host``, ``port``: its address; port 0 is any free one.
    - ``insecure``: without TLS, on the loopback address only.
    - ``wait``: seconds that it waits for all clients before the first round, or for enough of them.
    - ``patience``: seconds that a round waits for a site that is not connected any more.
    """

    keys: Path
    host: str = "0.0.0.0"
    port: int = PORT
    insecure: bool = False
    wait: float = 600.0
    patience: float = 60.0

    def check(self) -> None:
        """Raise :class:`ConfigError` where anybody could read along."""
        if self.insecure and self.host not in ("127.0.0.1", "::1", "localhost"):
            message = f"without TLS only the loopback address is served, not {self.host}: set --listen 127.0.0.1"
            raise ConfigError.at("--insecure", message)


@headed("rondo federate server")
def serve(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    listening: Listening,
    *,
    sets: Sequence[str] = (),
    run_dir: str | Path | None = None,
    device: str = "auto",
    observer: Observer | None = None,
    told: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run ``config`` with the sites of a roster, which have the rows and train. What ``[data]`` and ``[partition]`` say
    of training rows is left alone.

    ``told``: told in a line of sites that come and go.

    The rest is as in :func:`rondo.run`. Raises as it does.
    """
    began = time.perf_counter()
    settings = load(config, [*sets, *ELSEWHERE], check_paths=False)
    check(settings)
    with _link(listening, told) as (link, clients):
        stop = stop or threading.Event()
        observer = observer or Quiet()
        observer.phase("loading")
        run = secrets.token_hex(8)
        sites = _sites(link, clients, settings, listening, told, stop)
        settings = _resolved(settings)
        labels = _labels(settings, sites, run, clients, listening.wait)
        assembly = _assembled(settings, device, labels, sites, run, clients)
        _gather(assembly, listening.wait)
        start = assembly.start()
        directory = RunDirectory.create(run_dir, settings.algorithm.name)
        with locked(directory):
            directory.write(RECORD, _record(run, listening))
            sites.record = directory.path / SITES
            begin(directory, assembly)
            observer.prepared(assembly.population.report)
            runner = Runner(assembly, start, directory, observer, stop, began)
            return _finished(runner, sites)


@headed("rondo resume")
def resume(
    run_dir: str | Path,
    listening: Listening | None = None,
    *,
    device: str = "auto",
    allow_nondeterministic: bool = False,
    allow_code: bool = False,
    observer: Observer | None = None,
    told: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Continue a federation's run after its last committed round, as :func:`rondo.resume` continues a simulation.
    ``listening``: as before where it is left out."""
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    with locked(directory):
        if directory.finished:
            history = directory.rounds()
            return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))
        record, then, settings = directory.read(RECORD), directory.read("manifest.json"), directory.config()
        listening = listening or _listening(record)
        check_code(settings, allow_code, "rondo resume")
        now = {**environment(), "config": recorded(settings), "threads": torch.get_num_threads()}
        must_equal(then, now, whatever=allow_nondeterministic)
        device = str(then.get("device", device)) if device == "auto" else device
        with _link(listening, told) as (link, clients):
            stop, observer = stop or threading.Event(), observer or Quiet()
            observer.phase("loading")
            sites = _sites(link, clients, settings, listening, told, stop)
            labels = tuple(map(str, then.get("labels", ())))
            assembly = _assembled(settings, device, labels, sites, str(record["run"]), clients)
            must_equal(then, manifest(assembly), whatever=allow_nondeterministic)
            sites.record = directory.path / SITES
            _gather(assembly, listening.wait)
            start = assembly.start()
            past_skips = allow_nondeterministic
            runner = Runner(assembly, start, directory, observer, stop, began, resumed=True, past_skips=past_skips)
            return _finished(runner, sites)


def check(config: RunConfig) -> None:
    """Raise :class:`ConfigError` with everything in ``config`` that only a simulation has."""
    problems = []
    for path, there, reason in (
        ("evaluation.local_only", config.evaluation.local_only, "it trains on rows, and the server has none"),
        ("adapter.start_from", config.adapter.start_from is not None, "the sites do not have that folder"),
        ("data.max_train_rows", config.data.max_train_rows is not None, "each site decides on its rows"),
        ("clients.sampling", config.clients.sampling == "weighted", "sizes of sites that are away are not known"),
        ("faults", config.faults != FaultsConfig(), "faults are rehearsed in a simulation"),
        ("problem", config.task.kind == "linear", "rows of a linear problem are drawn in a simulation"),
    ):
        if there:
            problems.append(Problem(path, f"{reason}: remove it"))
    if problems:
        raise ConfigError(problems)


# --- the line to the sites ----------------------------------------------------------------------------------------


@contextmanager
def _link(listening: Listening, told: Callable[[str], None]) -> Iterator[tuple[SuperLink, dict[str, str]]]:
    """A SuperLink that serves, and the site of every client."""
    listening.check()
    keys = ServerKeys.read(listening.keys)
    tls = {} if listening.insecure else {"certificate": keys.certificate, "key": keys.key}
    clients = {client: site.name for site in keys.roster.sites for client in site.clients}
    if not clients:
        raise ConfigError.at(str(listening.keys), "its roster has no site: add one by rondo federate keys make")
    link = SuperLink(_Watched(listening.keys / FILE).roster, (listening.host, listening.port), largest=_LARGEST, **tls)
    try:
        link.start()
        told(f"listening on {listening.host}:{link.port} for {len(clients)} clients")
        yield link, clients
    finally:
        link.stop()


class _Watched:
    """The roster in a file, read again when the file has changed. A broken file leaves the last one in force."""

    def __init__(self, path: Path) -> None:
        self._path, self._stamp, self._roster = path, -1, Roster(())
        self.roster()

    def roster(self) -> Roster:
        """The roster as it is now."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._roster, self._stamp = Roster.read(self._path), stamp
        except (OSError, ConfigError):
            if self._stamp < 0:
                raise
        return self._roster


def _sites(
    link: SuperLink,
    clients: Mapping[str, str],
    config: RunConfig,
    listening: Listening,
    told: Callable[[str], None],
    stop: threading.Event,
) -> Sites:
    deadline = config.clients.deadline
    return Sites(link, clients, deadline=deadline, patience=listening.patience, stop=stop, told=told)


def _finished(runner: Runner, sites: Sites) -> RunResult:
    try:
        result = runner.run()
    except BaseException:
        sites.close(over=False)
        raise
    sites.close(over=True)
    return result


def _record(run: str, listening: Listening) -> dict[str, Any]:
    described = {f.name: getattr(listening, f.name) for f in fields(listening)}
    return {"run": run, **described, "keys": str(Path(listening.keys).resolve())}


def _listening(record: Mapping[str, Any]) -> Listening:
    """How a run's server was reached. Raises :class:`ConfigError` for another's record."""
    try:
        known = {f.name: record[f.name] for f in fields(Listening)}
        return Listening(**{**known, "keys": Path(known["keys"])})
    except (KeyError, TypeError):
        raise ConfigError.at("RUN_DIR", f"{RECORD} is not one that a server has written") from None


# --- a run without rows -------------------------------------------------------------------------------------------


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


def _resolved(config: RunConfig) -> RunConfig:
    """The configuration with what the data would tell a simulation. Raises :class:`ConfigError` where only rows could
    tell it."""
    if tasks.TABLE[config.task.kind].inputs == "image" and config.task.image_shape is None:
        message = "the server has no picture to learn it from: give height, width and channels"
        raise ConfigError.at("task.image_shape", message)
    return resolved(config, Source("", None, None, None))


def _labels(config: RunConfig, sites: Sites, run: str, clients: Mapping[str, str], seconds: float) -> tuple[str, ...]:
    """The label names: those of the configuration, or else of all sites, which are waited for."""
    if not tasks.load(config.task.kind).classes:
        return ()
    if config.task.labels is not None:
        return tuple(config.task.labels)
    sites.offer(_plan(config, run, None, ""))
    wanted = set(clients.values())
    if not sites.wait(seconds, lambda: sites.consents().keys() >= wanted):
        missing = ", ".join(sorted(wanted - sites.consents().keys()))
        message = f"after {seconds:g} s the labels of {missing} are not known: wait longer, or name them in task.labels"
        raise ConfigError.at("--wait", message)
    labels = in_order({label for consent in sites.consents().values() for label in consent.labels})
    if len(labels) < 2:
        raise ConfigError.at("task.label", f"the sites have {len(labels)} distinct labels; classification needs two")
    return labels


def _assembled(
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
        test = tuple(assembly.task.encode(other_rows(config, config.data.test_source, labels)))
    population = Population(_Roll(names, sites, ranks), test, _report(len(test), labels))
    parts = {f.name: getattr(assembly, f.name) for f in fields(assembly)}
    elsewhere = Elsewhere(**{**parts, "population": population}, sites=sites, run=run)
    sites.offer(_plan(config, run, labels, elsewhere.model_sha256))
    return elsewhere


def _plan(config: RunConfig, run: str, labels: tuple[str, ...] | None, model: str) -> Plan:
    absent = None if config.has_factors else {"adapter"}  # the section itself says that factors are trained
    return Plan(run, config.model_dump(mode="json", exclude=absent), (), labels, model, __version__)


def _gather(assembly: Elsewhere, seconds: float) -> None:
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
    """What a simulation's ``partition.json`` tells of rows, as far as a server knows it."""
    counts = ("rows", "rows_used", "rows_bad", "rows_not_sampled", "rows_without_target")
    report: dict[str, Any] = {f"{prefix}{key}": 0 for prefix in ("", "test_") for key in counts}
    report |= {"test_rows": test, "test_rows_used": test, "rows_without_client": 0, "rows_moved": 0}
    report |= {"clients_not_sampled": 0, "clients_too_small": {}, "clients_without_examples": [], "warnings": []}
    return report | {"text": {}, "test_text": {}, "sampled_by": [], "test_sampled_by": [], "classes": list(labels)}
