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

import torch

from rondo.config.checks import check_code
from rondo.config.load import listed, load, located
from rondo.config.schema import RunConfig
from rondo.data.files.tables import Table
from rondo.engine.client.memory import budget
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, headed
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.given import Given
from rondo.runs.loop import Runner
from rondo.runs.samples import check_samples
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import written
from rondo.runs.storage.manifest import environment, must_equal, recorded, rows_of
from rondo.runs.watching.notebook import in_notebook, notebook_progress
from rondo.runs.watching.progress import Quiet
from rondo.runs.watching.result import RunResult
from rondo.runs.workers.places import devices_of, only_places, set_to_work, workers_of

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
    ``observer``: told of the run's progress. In a notebook, None shows progress bars.
    ``stop``: set it, from a signal handler or another thread, to end the run after its current step.

    Every round is committed to the disk before the next one starts, and :func:`resume` continues after the last one.
    Raises :class:`ConfigError` for anything that the user must fix, before training starts; :class:`RunStopped` if
    three rounds in a row are skipped or the disk cannot be written; :class:`RunInterrupted` after ``stop``.
    """
    began = time.perf_counter()
    given = Given(train, test, clients, model, tokenizer)
    settings = load(config, [*listed(sets, "sets"), *given.sets])
    RunDirectory.check(run_dir)
    with _watching(observer, settings) as observer, workers_of(settings, device) as workers:
        observer.phase("loading")
        assembly = assemble(settings, device, given=given)
        check_samples(assembly)
        # From here on paths are absolute, because a stored configuration is read in any working directory.
        assembly = replace(assembly, config=located(assembly.config))
        start = assembly.start()
        directory = RunDirectory.create(run_dir, assembly.config.algorithm.name)
        with locked(directory):
            begin(directory, assembly, devices_of(workers, settings))
            set_to_work(workers, assembly, given)
            observer.prepared(assembly.population.report)
            assembly = assembly.without_report()
            runner = Runner(assembly, start, directory, observer, stop, began, workers=workers)
            del start  # the first state is given up once the run has a later one
            return runner.run()


@headed("rondo resume")
def resume(
    run_dir: str | Path,
    *,
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

    ``sets``: ``key.path=value`` overrides of ``simulation.engine`` and ``simulation.workers``, which say where clients
    train. No bit depends on them.
    ``device``: "auto" is the device it ran on.

    The resumption is refused, with every difference, if configuration, versions, threads, model, data or the source of
    one's own code have changed, since equal bits cannot be promised; ``allow_nondeterministic`` permits it. A run that
    names code of one's own is refused without ``allow_code``, since the directory may be anybody's. A run that stopped
    after skipped rounds stops again, and goes on with ``allow_nondeterministic``. A finished run is left as it is. Rows
    and a model that :func:`run` was given are given again. Raises as :func:`run` does.
    """
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    only_places(sets)
    with locked(directory):
        if directory.finished:
            history = directory.rounds()
            return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))
        then = directory.manifest()
        settings = directory.config(sets)
        check_code(settings, allow_code, "rondo resume")
        device = str(then.get("device", device)) if device == "auto" else device
        now = {**environment(), "config": recorded(settings), "threads": torch.get_num_threads()}
        must_equal(then, now, whatever=allow_nondeterministic)
        given = Given(train, test, clients, model, tokenizer)
        with _watching(observer, settings) as observer, workers_of(settings, device) as workers:
            observer.phase("loading")
            assembly = assemble(settings, device, given=given)
            before = {**then, "partition": rows_of(directory.read("partition.json"))}
            present = manifest(assembly, devices_of(workers, settings))
            after = {**present, "partition": rows_of(assembly.population.report)}
            must_equal(before, after, whatever=allow_nondeterministic)
            start = assembly.start()
            set_to_work(workers, assembly, given)
            observer.prepared(assembly.population.report)
            assembly = assembly.without_report()
            runner = Runner(
                assembly,
                start,
                directory,
                observer,
                stop,
                began,
                resumed=True,
                past_skips=allow_nondeterministic,
                workers=workers,
            )
            del start
            return runner.run()


@contextmanager
def _watching(observer: Observer | None, config: RunConfig) -> Iterator[Observer]:
    """``observer``, or without one progress bars in a notebook."""
    if observer is None and in_notebook():
        with notebook_progress(f"{config.algorithm.name}, seed {config.seed}", config.rounds) as shown:
            yield shown
    else:
        yield observer or Quiet()


def begin(directory: RunDirectory, assembly: Assembly, devices: int | None = None) -> None:
    """Write the files from which a run is resumed before its first checkpoint. The manifest comes last: a folder with
    one counts as a run. ``devices``: those that the division into cohorts depends on."""
    with written(directory.path):
        directory.write_config(assembly.config)
        directory.write("partition.json", assembly.population.report)
        directory.write("manifest.json", manifest(assembly, devices))


def manifest(assembly: Assembly, devices: int | None = None) -> dict[str, Any]:
    """Everything that the bits of a run depend on. ``devices``: see :func:`begin`."""
    config, network = assembly.config, assembly.model.network
    return {
        **environment(),
        "config": recorded(config),
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "activation_memory_mb": budget(network, assembly.task, config.simulation.memory_mb).total >> 20,
        "device": str(assembly.device),
        "devices": devices,
        "precision": config.train.precision,
        **assembly.model.record(),
        "one_at_a_time": network.one_at_a_time,
        "layout": network.layout,
        "scores_every": assembly.scores_every,
        "algorithm": config.algorithm.name,
        "linear": assembly.algorithm.linear and all(c.rank is None for c in assembly.population.clients),
        "personal": assembly.algorithm.traits.personal,
        "model": assembly.model.name,
        "labels": list(assembly.labels),
        **assembly.identity(),
    }


@contextmanager
def locked(directory: RunDirectory) -> Iterator[None]:
    """Lock the directory. Raises :class:`ConfigError` if another process is writing it."""
    with durable.locked(directory.path) as alone:
        if not alone:
            message = f"another process is running in {str(directory.path)!r}; wait for its end, or stop it"
            raise ConfigError.at("RUN_DIR", message)
        yield
