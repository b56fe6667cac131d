"""A run from its configuration to its result, and how it is resumed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.config.load import listed, load, located
from rondo.config.schema import RunConfig
from rondo.data.files.tables import Table
from rondo.data.population import Population
from rondo.data.units import Units
from rondo.engine.transport import Observer
from rondo.errors import headed
from rondo.records.directory import RunDirectory
from rondo.records.manifest import must_equal, rows_of
from rondo.runs import again, launch
from rondo.runs.again import check_taken
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.given import Given
from rondo.runs.launch import Stopped, locked
from rondo.runs.loop import Onlooker
from rondo.runs.samples import check_samples
from rondo.runs.watching.progress import Quiet, bars_in_notebook, in_notebook, logged, progress
from rondo.runs.watching.result import RunResult
from rondo.runs.workers.places import devices_of, set_to_work, workers_of
from rondo.runs.workers.ray import RayWorkers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def run(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    sets: Sequence[str] = (),
    run_dir: str | Path | None = None,
    device: str = "auto",
    train: Table | None = None,
    test: Table | Mapping[str, Table] | None = None,
    clients: Mapping[str, Table] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> RunResult:
    """Run a whole federated fine-tuning and write its run directory.

    ``config``: a path, a dict or a :class:`RunConfig`.
    ``sets``: ``key.path=value`` overrides.
    ``device``: "auto", "cpu", "cuda", "cuda:1" or "mps".
    ``train``, ``test``: rows in place of ``data.source`` and ``data.test_source``: a ``datasets.Dataset``, a
    ``pandas.DataFrame``, or a list with one dict per row.
    ``clients``: such rows by client id, in place of ``data.clients_from``. ``test`` too may be by client id: each
    client's model is then scored on its own test rows.
    ``model``, ``tokenizer``: a model of transformers in place of ``model.name``. It is not changed: the run takes a
    copy that shares its memory, save for weights in other types than float32 or on other devices.
    ``observer``: told of the run's progress. With None, a notebook shows progress bars, and elsewhere the logger
    ``rondo`` has a line per phase and per round (:mod:`rondo.runs.watching.progress`).
    ``stop``: set it, from a signal handler or another thread, to end the run after its current step.
    ``resume``: where ``run_dir`` holds a run of the same configuration, go on with it as :func:`resume` does, and take
    its result if it is finished: a notebook's cell can be run again. It may have more ``rounds`` now.
    ``overwrite``: where ``run_dir`` holds a run, replace it, once the new one is loaded and can begin. Other files in
    the folder are left.

    Every round is committed to the disk before the next one starts, and :func:`resume` continues after the last one.
    Raises :class:`ConfigError` for anything that the user must fix, before training starts; :class:`RunStopped` if
    three rounds in a row are skipped or the disk cannot be written; :class:`RunInterrupted` after ``stop``.

    >>> result = rondo.run(digits, sets=["train.lr=0.05"], run_dir="runs/slower")
    >>> result.run_dir.name
    'slower'
    >>> result = rondo.run(digits, sets=["train.lr=0.05"], run_dir="runs/slower", resume=True)  # read again
    """
    began = time.perf_counter()
    given = Given(train, test, clients, model, tokenizer)
    settings = load(config, [*listed(sets, "sets"), *given.sets])
    again.check_flags(run_dir, resume=resume, overwrite=overwrite)
    if resume and (directory := again.held(run_dir)) is not None:
        changed = again.changes(directory, settings, given)
        if directory.finished:
            check_taken([(directory.path, settings)], device, again.REPLACE, "rondo.run", given)
        # The user has named the code again, in the same configuration.
        return _resume(
            directory.path,
            sets=changed,
            device=device,
            allow_code=True,
            train=train,
            test=test,
            clients=clients,
            model=model,
            tokenizer=tokenizer,
            observer=observer,
            stop=stop,
        )
    again.check_free(run_dir, overwrite=overwrite)
    with _watching(observer, settings) as observer, workers_of(settings, device) as workers:
        onlooker, devices = Onlooker(observer, stop, began), devices_of(workers, settings)
        # No name holds the run here: its report on its rows is given up once it is written.
        return launch.start(
            _new(settings, device, given, workers, observer),
            run_dir,
            onlooker,
            workers=workers,
            devices=devices,
            overwrite=overwrite,
        )


@headed("rondo resume")
def resume(
    run_dir: str | Path,
    *,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    device: str = "auto",
    allow_nondeterministic: bool = False,
    allow_code: bool = False,
    train: Table | None = None,
    test: Table | Mapping[str, Table] | None = None,
    clients: Mapping[str, Table] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Continue a run after its last committed round. The result equals, bit for bit, that of an uninterrupted run.

    ``rounds``: more rounds than the run has; a finished run then goes on. The tensors equal those of a run that had so
    many from the start. It is refused where the rounds done would have been others: a schedule of rates, for instance.
    The round that was the last keeps the scores of a last round.
    ``sets``: ``key.path=value`` overrides of ``rounds``, and of ``simulation.engine`` and ``simulation.workers``, which
    say where clients train. No bit depends on these two.
    ``device``: "auto" is the device it ran on.

    The resumption is refused, with every difference, if configuration, versions, threads, model, data or the source of
    one's own code have changed, since equal bits cannot be promised; ``allow_nondeterministic`` permits it. A run that
    names code of one's own is refused without ``allow_code``, since the directory may be anybody's. A run that stopped
    after skipped rounds stops again, and goes on with ``allow_nondeterministic``. A finished run without more
    ``rounds`` is left as it is. Rows and a model that :func:`run` was given are given again. Raises as :func:`run`
    does.

    >>> result = rondo.run(digits, run_dir="runs/longer")
    >>> len(rondo.resume("runs/longer", sets=["rounds=3"]).history)  # one round more
    3
    """
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    sets = [*listed(sets, "sets"), *([] if rounds is None else [f"rounds={rounds}"])]
    launch.check_changes(sets)
    with locked(directory):
        if directory.finished and directory.config(sets).rounds == directory.config().rounds:
            return launch.finished(directory)
        run = launch.stopped(
            directory,
            device,
            sets=sets,
            allow_code=allow_code,
            allow_nondeterministic=allow_nondeterministic,
            may_grow=True,
        )
        given = Given(train, test, clients, model, tokenizer)
        with _watching(observer, run.config) as observer, workers_of(run.config, run.device) as workers:
            onlooker, whatever = Onlooker(observer, stop, began), allow_nondeterministic
            # No name holds the assembly here, as in a new run.
            return launch.go_on(
                _same(run, given, workers, observer, whatever=whatever),
                directory,
                onlooker,
                past_skips=whatever,
                workers=workers,
            )


_resume = resume
"""By another name where an argument is called so."""


def _new(config: RunConfig, device: str, given: Given, workers: RayWorkers | None, observer: Observer) -> Assembly:
    """A new run, which the workers begin to load."""
    assembly = assemble(config, device, given=given, phase=observer.phase)
    _must_protect(assembly.config, assembly.population)
    check_samples(assembly)
    # From here on paths are absolute, because a stored configuration is read in any working directory.
    assembly = replace(assembly, config=located(assembly.config))
    set_to_work(workers, assembly, given)
    return assembly


def _must_protect(config: RunConfig, population: Population) -> None:
    """Raises :class:`ConfigError` where ``delta`` protects no row of a client."""
    if config.guarantee.of_rows:
        units = {name: len(Units.of(member.trained())) for name, member in population.members.items()}
        config.guarantee.check_units(units)


def _same(run: Stopped, given: Given, workers: RayWorkers | None, observer: Observer, *, whatever: bool) -> Assembly:
    """The run that was stopped, which the workers begin to load; from here on it has its new number of rounds. Raises
    :class:`ConfigError` with every difference, unless ``whatever``."""
    assembly = assemble(run.config, run.device, given=given, phase=observer.phase)
    before = {**run.manifest, "partition": rows_of(run.directory.read("partition.json"))}
    now = launch.manifest(assembly, devices_of(workers, run.config))
    must_equal(before, {**now, "partition": rows_of(assembly.population.report)}, whatever=whatever)
    launch.keep_rounds(run, assembly)
    set_to_work(workers, assembly, given)
    return assembly


@contextmanager
def _watching(observer: Observer | None, config: RunConfig) -> Iterator[Observer]:
    """``observer``, or without one progress bars in a notebook, and lines to the logger elsewhere.

    Lines stay in a notebook, which may be handed on: none is of a run whose turnout is a secret.
    """
    if observer is None and in_notebook() and bars_in_notebook():
        with progress(config.rounds, name=f"{config.algorithm.name}, seed {config.seed}") as shown:
            yield shown
    elif observer is None and in_notebook() and config.guarantee.secret_turnout:
        yield Quiet()
    elif observer is None:
        with logged(config.rounds) as shown:
            yield shown
    else:
        yield observer
