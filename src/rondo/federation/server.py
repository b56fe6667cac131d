"""The server of a federation: a run whose rows are at the sites of a roster."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, headed
from rondo.federation.elsewhere import ELSEWHERE, assembled, check, gather, labels_of, without_rows
from rondo.federation.listening import Listening, link
from rondo.federation.sites import Sites
from rondo.federation.status import RECORD, SITES
from rondo.federation.superlink import SuperLink
from rondo.runs.assemble import find_device
from rondo.runs.loop import Runner
from rondo.runs.progress import Quiet
from rondo.runs.reopen import check_code
from rondo.runs.result import RunResult
from rondo.runs.runner import begin, locked, manifest
from rondo.runs.samples import check_samples
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.manifest import environment, must_equal, recorded


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

    ``told``: called with a line of text per site that comes or goes.

    The rest is as in :func:`rondo.run`. Raises as it does, and :class:`~rondo.errors.StopRequested` after ``stop``
    while it waits for sites.
    """
    began = time.perf_counter()
    settings = load(config, [*sets, *ELSEWHERE], check_paths=False)
    check(settings)
    find_device(device)
    RunDirectory.check(run_dir)
    with link(listening, told) as (line, clients):
        stop = stop or threading.Event()
        observer = observer or Quiet()
        observer.phase("loading")
        run = secrets.token_hex(8)
        sites = _sites(line, clients, settings, listening, told, stop)
        settings = without_rows(settings)
        labels = labels_of(settings, sites, run, clients, listening.wait)
        assembly = assembled(settings, device, labels, sites, run, clients)
        check_samples(assembly)
        gather(assembly, listening.wait)
        start = assembly.start()
        directory = RunDirectory.create(run_dir, settings.algorithm.name)
        with locked(directory):
            directory.write(RECORD, _record(run, replace(listening, port=line.port)))
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
    ``listening``: as before where it is left out. Raises as :func:`serve` does."""
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    with locked(directory):
        if directory.finished:
            history = directory.rounds()
            return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))
        record, then, settings = directory.read(RECORD), directory.manifest(), directory.config()
        listening = listening or _listening(record)
        check_code(settings, allow_code, "rondo resume")
        now = {**environment(), "config": recorded(settings), "threads": torch.get_num_threads()}
        must_equal(then, now, whatever=allow_nondeterministic)
        device = str(then.get("device", device)) if device == "auto" else device
        with link(listening, told) as (line, clients):
            stop, observer = stop or threading.Event(), observer or Quiet()
            observer.phase("loading")
            sites = _sites(line, clients, settings, listening, told, stop)
            labels = tuple(map(str, then.get("labels", ())))
            assembly = assembled(settings, device, labels, sites, str(record["run"]), clients)
            must_equal(then, manifest(assembly), whatever=allow_nondeterministic)
            sites.record = directory.path / SITES
            gather(assembly, listening.wait)
            start = assembly.start()
            past_skips = allow_nondeterministic
            runner = Runner(assembly, start, directory, observer, stop, began, resumed=True, past_skips=past_skips)
            return _finished(runner, sites)


def _sites(
    line: SuperLink,
    clients: Mapping[str, str],
    config: RunConfig,
    listening: Listening,
    told: Callable[[str], None],
    stop: threading.Event,
) -> Sites:
    deadline = config.clients.deadline
    return Sites(line, clients, deadline=deadline, patience=listening.patience, stop=stop, told=told)


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
    """The way in which a run's server was reached. Raises :class:`ConfigError` for another's record."""
    try:
        known = {f.name: record[f.name] for f in fields(Listening)}
        return Listening(**{**known, "keys": Path(known["keys"])})
    except (KeyError, TypeError):
        raise ConfigError.at("RUN_DIR", f"{RECORD} is not one that a server has written") from None
