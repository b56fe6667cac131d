"""The server of a federation: a run whose rows are at the sites of a roster."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer, Tee
from rondo.errors import ConfigError, DiskFailed, RunInterrupted, RunStopped, StopRequested, headed
from rondo.federation.identity.keys import ServerKeys
from rondo.federation.monitor import monitored
from rondo.federation.plan import End
from rondo.federation.server import standing
from rondo.federation.server.gathering import gather, started
from rondo.federation.server.line.superlink import SuperLink
from rondo.federation.server.listening import Clients, Listening, ends, link
from rondo.federation.server.masked_rounds import check_sites, opening_sites
from rondo.federation.server.record import FILE, Record
from rondo.federation.server.remote_run import (
    ROWS_AT_SITES,
    at_sites,
    check,
    check_clients,
    loaded,
    plan_of,
    ranks_of,
    ready,
    with_clients,
    without_rows,
)
from rondo.federation.server.saved_sum import SavedSum
from rondo.federation.server.sites import Sites
from rondo.federation.server.standing import Attendance
from rondo.federation.server.status import Gauges
from rondo.records.directory import RunDirectory
from rondo.records.durable import written
from rondo.records.manifest import must_equal, tests_of
from rondo.runs import launch
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.device import find_device
from rondo.runs.launch import locked
from rondo.runs.loop import Onlooker
from rondo.runs.watching.progress import Quiet
from rondo.runs.watching.result import RunResult


@headed("rondo federate server")
def serve(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    listening: Listening,
    *,
    run_dir: str | Path | None = None,
    device: str = "auto",
    observer: Observer | None = None,
    told: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run ``config`` with the sites of a roster, which have the rows and train. What ``[data]`` and ``[partition]`` say
    of training rows is left alone.

    ``told``: called with a line of text per site that comes or goes.

    The rest is as in :func:`rondo.run`. Raises as it does, and :class:`~rondo.errors.StopRequested` after ``stop``
    while it waits for sites.
    """
    began = time.perf_counter()
    settings = load(config, ROWS_AT_SITES, check_paths=False)
    check(settings)
    find_device(device)
    RunDirectory.check(run_dir)
    listening.check()
    ServerKeys.read(listening.keys)
    clients = Clients(listening.keys, told)
    check_sites(settings, len(clients.sites))
    stop, observer = stop or threading.Event(), observer or Quiet()
    settings = without_rows(settings)
    observer.phase("loading")
    assembly = ready(settings, device, clients)
    if assembly is not None:
        settings = assembly.config  # with the date that the sites' rows are to have
    with link(listening, clients, told) as line:
        record = Record(secrets.token_hex(8), replace(listening, port=line.port))
        with _served(line, clients, settings, record, listening, told, stop) as (sites, gauges):
            assembly = started(settings, device, assembly, sites, record.run, clients, listening.wait, told)
            clients.begin()
            record.enrol(clients.sites)
            check_clients(settings, len(clients))
            record.ranks = ranks_of(assembly, clients)
            saved = SavedSum(record.run)
            assembly = at_sites(with_clients(assembly, clients, sites.examples, record.ranks), sites, saved)

            def prepare(directory: RunDirectory) -> None:
                _keep(record, sites, directory)
                saved.path = directory.path
                told(record.bits(noise=settings.guarantee.draws_noise))

            seen = Tee(Attendance(sites.standings, clients), gauges, observer)
            return launch.start(assembly, run_dir, Onlooker(seen, stop, began), prepare)


@headed("rondo resume")
def resume(
    run_dir: str | Path,
    listening: Listening | None = None,
    *,
    device: str = "auto",
    allow_nondeterministic: bool = False,
    allow_code: bool = False,
    roster_changed: bool = False,
    observer: Observer | None = None,
    told: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Continue a federation's run after its last committed round, as :func:`rondo.resume` continues a simulation.
    ``listening``: as before where it is left out.
    ``roster_changed``: go on with the roster as it is now, where its sites or their clients are not those of the run.

    Raises as :func:`serve` does."""
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    with locked(directory):
        if directory.finished:
            return launch.finished(directory)
        record = Record.read(directory)
        listening = listening or record.listening
        run = launch.stopped(directory, device, allow_code=allow_code, allow_nondeterministic=allow_nondeterministic)
        settings = run.config
        listening.check()
        clients = Clients(listening.keys, told)
        clients.begin()
        changes = record.changes_to(clients.roster(), allowed=roster_changed, told=told)
        stop, observer = stop or threading.Event(), observer or Quiet()
        observer.phase("loading")
        check_clients(settings, len(clients))
        assembly = loaded(settings, run.device, tuple(map(str, run.manifest.get("labels", ()))))
        ranks = ranks_of(assembly, clients, record.ranks)
        _check_same(run.manifest, directory, with_clients(assembly, clients, dict, ranks), allow_nondeterministic)
        with (
            link(listening, clients, told) as line,
            _served(line, clients, settings, record, listening, told, stop) as (sites, gauges),
        ):
            sites.counts |= _counts(directory)
            sites.offer(plan_of(settings, record.run, assembly.labels, assembly.model_sha256))
            gather(settings, sites, clients, listening.wait, told, resumed=True)
            saved = SavedSum(record.run, directory.path)
            assembly = at_sites(with_clients(assembly, clients, sites.examples, ranks), sites, saved)

            def prepare() -> None:
                record.enrol(clients.sites, changes)
                record.ranks = ranks
                _keep(record, sites, directory)
                if changes:
                    with written(directory.path):
                        directory.write("partition.json", assembly.population.report)

            attendance = Attendance(sites.standings, clients, record.resumed)
            onlooker = Onlooker(Tee(attendance, gauges, observer), stop, began)
            # What made sites refuse or fail may be mended there, which a simulation's faults are not.
            return launch.go_on(assembly, directory, onlooker, prepare, past_skips=True)


def _check_same(before: Mapping[str, Any], directory: RunDirectory, now: Assembly, whatever: bool) -> None:
    """Raise :class:`ConfigError` if the run is not the one of ``directory``, whose manifest is ``before``."""
    before = {**before, "partition": tests_of(directory.read("partition.json"))}
    must_equal(before, {**launch.manifest(now), "partition": tests_of(now.population.report)}, whatever=whatever)


@contextmanager
def _served(
    line: SuperLink,
    clients: Clients,
    config: RunConfig,
    record: Record,
    listening: Listening,
    told: Callable[[str], None],
    stop: threading.Event,
) -> Iterator[tuple[Sites, Gauges]]:
    """Within, the run's sites are served, and its monitor."""
    sites = Sites(
        line,
        clients,
        deadline=config.clients.deadline,
        patience=listening.patience,
        stop=stop,
        told=told,
        most=config.admission.max_examples,
        opening=opening_sites(config),
        computes=record.computes,
    )
    gauges = Gauges(config, sites, lambda: ends(listening.keys, clients.roster()))
    with monitored(listening.monitor, gauges.health), _closing(sites):
        yield sites, gauges


def _keep(record: Record, sites: Sites, directory: RunDirectory) -> None:
    """Write, from now on, what is known of the sites."""
    record.path = directory.path / FILE
    with written(directory.path):
        record.write()
    sites.standings.keep(directory.path / standing.FILE)


def _counts(directory: RunDirectory) -> dict[str, int]:
    """The numbers of examples that the clients had when the run began. Raises :class:`ConfigError`."""
    try:
        return {client: int(entry["train"]) for client, entry in directory.read("partition.json")["clients"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError.at("RUN_DIR", "partition.json is not one that a server has written") from None


@contextmanager
def _closing(sites: Sites) -> Iterator[None]:
    """Within, sites are served. They are told the end of the run, unless it goes on later: it was stopped, or the disk
    is full."""
    try:
        yield
    except Exception as error:
        goes_on = isinstance(error, StopRequested | RunInterrupted | DiskFailed)
        sites.close(None if goes_on else End(_for_sites(error)))
        raise
    except BaseException:
        sites.close(None)
        raise
    sites.close(End())


def _for_sites(error: Exception) -> str:
    """The reason why a run failed, without what is in the server's rows, on its disk, and at other sites."""
    if isinstance(error, ConfigError):
        return f"it cannot run as it is ({error.problems[0].path}); its owner sees why"
    if isinstance(error, RunStopped):
        return "the run stopped after faults; its owner sees why"
    return f"the server failed ({type(error).__name__}); its owner sees why"
