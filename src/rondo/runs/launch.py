"""The one way into a run's rounds: at their start, and after a stop. A simulation and a federation both go it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rondo.config.checks import check_code
from rondo.config.schema import RunConfig
from rondo.engine.client.memory import budget
from rondo.engine.crew import Workers
from rondo.errors import ConfigError
from rondo.runs.assemble import Assembly
from rondo.runs.loop import Onlooker, Runner
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import written
from rondo.runs.storage.manifest import environment, must_equal, recorded
from rondo.runs.watching.result import RunResult


@dataclass(frozen=True)
class Stopped:
    """What the directory of a run says of it before it goes on, and the device to go on with."""

    directory: RunDirectory
    manifest: dict[str, Any]
    config: RunConfig
    device: str


def start(
    assembly: Assembly,
    run_dir: str | Path | None,
    onlooker: Onlooker,
    prepare: Callable[[RunDirectory], None] = lambda directory: None,
    *,
    workers: Workers | None = None,
    devices: int | None = None,
) -> RunResult:
    """Run all rounds of ``assembly`` in a new directory.

    ``prepare``: called with it before it counts as a run.
    ``devices``: see :func:`manifest`.

    Raises as :func:`rondo.run` does; where ``run_dir`` is refused, or the first state cannot be made, nothing is
    written.
    """
    first = assembly.start()
    directory = RunDirectory.create(run_dir, assembly.config.algorithm.name)
    with locked(directory):
        prepare(directory)
        begin(directory, assembly, devices)
        onlooker.observer.prepared(assembly.population.report)
        runner = Runner(assembly.without_report(), first, directory, onlooker, workers=workers)
        del assembly, first  # the first state is given up once the run has a later one
        return runner.run()


def stopped(
    directory: RunDirectory,
    device: str,
    *,
    sets: Sequence[str] = (),
    allow_code: bool,
    allow_nondeterministic: bool,
) -> Stopped:
    """Read what a run was before its model is loaded. ``device``: "auto" is the device it ran on.

    Raises :class:`ConfigError` for code that is not allowed, and for another environment than the run had.
    """
    then, config = directory.manifest(), directory.config(sets)
    check_code(config, allow_code, "rondo resume")
    now = {**environment(), "config": recorded(config), "threads": torch.get_num_threads()}
    must_equal(then, now, whatever=allow_nondeterministic)
    return Stopped(directory, then, config, str(then.get("device", device)) if device == "auto" else device)


def go_on(
    assembly: Assembly,
    directory: RunDirectory,
    onlooker: Onlooker,
    prepare: Callable[[], None] = lambda: None,
    *,
    past_skips: bool,
    workers: Workers | None = None,
) -> RunResult:
    """Run the rounds that are left of a run whose directory is locked, from its newest checkpoint.

    ``prepare``: called once the first state is there, and before anything is written.
    ``past_skips``: whether a run that stopped after skipped rounds goes on.

    Raises as :func:`rondo.resume` does.
    """
    first = assembly.start()
    prepare()
    onlooker.observer.prepared(assembly.population.report)
    lean = assembly.without_report()
    runner = Runner(lean, first, directory, onlooker, resumed=True, past_skips=past_skips, workers=workers)
    del assembly, first, lean
    return runner.run()


def finished(directory: RunDirectory) -> RunResult:
    """The result of a run that is finished."""
    history = directory.rounds()
    return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))


def begin(directory: RunDirectory, assembly: Assembly, devices: int | None = None) -> None:
    """Write the files from which a run is resumed before its first checkpoint. The manifest comes last: a folder with
    one counts as a run. ``devices``: see :func:`manifest`."""
    with written(directory.path):
        directory.write_config(assembly.config)
        directory.write("partition.json", assembly.population.report)
        directory.write("manifest.json", manifest(assembly, devices))


def manifest(assembly: Assembly, devices: int | None = None) -> dict[str, Any]:
    """Everything that the bits of a run depend on. ``devices``: those that the division into cohorts depends on."""
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
