"""The one way into a run's rounds: at their start, and after a stop. A simulation and a federation both go it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rondo import own_code
from rondo.config.checks import check_code
from rondo.config.schema import RunConfig
from rondo.engine.client.memory import budget
from rondo.engine.simulation import Workers
from rondo.errors import ConfigError, Problem
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.records.durable import written
from rondo.records.manifest import RESUME_ANYWAY, environment, must_equal, recorded
from rondo.runs.again import clear
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.wrapping import make_algorithm
from rondo.runs.loop import Onlooker, Runner
from rondo.runs.tracking.observer import tracked
from rondo.runs.watching.result import RunResult
from rondo.runs.workers.places import KEYS


@dataclass(frozen=True)
class Stopped:
    """A run as its directory has it before it goes on, and the device to go on with."""

    directory: RunDirectory
    manifest: dict[str, Any]
    config: RunConfig
    device: str
    planned: int
    """The number of rounds before this resumption, at most that of :attr:`config`."""


def start(
    assembly: Assembly,
    run_dir: str | Path | None,
    onlooker: Onlooker,
    prepare: Callable[[RunDirectory], None] = lambda directory: None,
    *,
    workers: Workers | None = None,
    devices: int | None = None,
    overwrite: bool = False,
) -> RunResult:
    """Run all rounds of ``assembly`` in a new directory.

    ``prepare``: called with it before it counts as a run.
    ``devices``: see :func:`manifest`.
    ``overwrite``: a run that ``run_dir`` holds is removed, once the new one can begin.

    Raises as :func:`rondo.run` does; where ``run_dir`` is refused, or the first state cannot be made, nothing is
    written.
    """
    first = assembly.start()
    if overwrite and run_dir is not None:
        clear(run_dir)
    directory = RunDirectory.create(run_dir, assembly.config.algorithm.name)
    with locked(directory):
        prepare(directory)
        begin(directory, assembly, devices)
        with tracked(directory, assembly.config, onlooker.observer) as observer:
            observer.prepared(assembly.population.report)
            seen = replace(onlooker, observer=observer)
            runner = Runner(assembly.without_report(), first, directory, seen, workers=workers)
            del assembly, first  # the first state is given up once the run has a later one
            return runner.run()


def stopped(
    directory: RunDirectory,
    device: str,
    *,
    sets: Sequence[str] = (),
    allow_code: bool,
    allow_nondeterministic: bool,
    may_grow: bool = False,
) -> Stopped:
    """Read what a run was before its model is loaded. ``device``: "auto" is the device it ran on.

    ``may_grow``: whether the configuration may have more rounds than the run began with.

    Raises :class:`ConfigError` for code that is not allowed, for another environment than the run had, and for other
    rounds where those that are done would have been others.
    """
    then, config = directory.manifest(), directory.config(sets)
    check_code(config, allow_code, "rondo resume")
    planned = then["config"].get("rounds") if isinstance(then.get("config"), dict) else None
    if may_grow and isinstance(planned, int) and planned != config.rounds:
        _may_have_rounds(directory, planned, config, whatever=allow_nondeterministic)
        then["config"]["rounds"] = config.rounds
    now = {**environment(), "config": recorded(config), "threads": torch.get_num_threads()}
    must_equal(then, now, whatever=allow_nondeterministic)
    device = str(then.get("device", device)) if device == "auto" else device
    return Stopped(directory, then, config, device, planned if isinstance(planned, int) else config.rounds)


def check_changes(sets: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for overrides of keys that a run keeps when it goes on."""
    keys = [text.partition("=")[0].strip() for text in sets]
    message = f"a run that goes on keeps its configuration, all but rounds, {' and '.join(KEYS)}"
    if problems := [Problem(key, message) for key in keys if key not in ("rounds", *KEYS)]:
        raise ConfigError(problems, "--set")


def _may_have_rounds(directory: RunDirectory, planned: int, config: RunConfig, *, whatever: bool) -> None:
    """Raise :class:`ConfigError` where a run of ``planned`` rounds cannot go on to those of ``config``: these are
    fewer, patience has ended it, or the rounds that are done would have been others in a run of so many (unless
    ``whatever``)."""
    if config.rounds < planned:
        raise ConfigError.at("rounds", f"{config.rounds}, and the run has {planned}: it can only get more")
    if directory.finished and directory.read("summary.json")["stopped_early"]:
        message = "it ended the run before its last round, and would do so again: start another run"
        raise ConfigError.at("evaluation.patience", message)
    problems = []
    if config.train.schedule != "constant":
        message = (
            f"{config.train.schedule!r} falls to its end over all rounds, so the rates of a run of {planned} were "
        )
        problems.append(Problem("train.schedule", f"{message}others than those of a run of {config.rounds}"))
    if own_code.is_name(config.algorithm.name):
        problems.append(Problem("algorithm.name", "a method of one's own may go by the number of rounds"))
    elif (key := make_algorithm(config).by_total) is not None:
        problems.append(
            Problem(f"algorithm.{key}", "it divides the run's rounds, so another round would be its border")
        )
    if config.clients.bytes_budget is not None and planned == 1:
        problems.append(
            Problem("clients.bytes_budget", "ranks went by the uploads of one round, and a second may differ")
        )
    if problems and not whatever:
        other = Problem("rounds", "start another run, from this one's result: adapter.start_from = 'RUN_DIR/adapter'")
        raise ConfigError([*problems, other, RESUME_ANYWAY])


def keep_rounds(run: Stopped, assembly: Assembly) -> None:
    """Write the number of rounds that a run goes on to, if it is another than before. After a crash in between the run
    is one of its earlier rounds, whose end is to be written again, or one of the new rounds.

    Raises :class:`ConfigError` where patience has counted a score that only a last round has.
    """
    directory, planned, evaluation = run.directory, run.planned, run.config.evaluation
    if planned == run.config.rounds:
        return
    every = evaluation.clients_every if assembly.best_at_clients else assembly.scores_every
    if evaluation.patience and (every == 0 or planned % every) and len(directory.rounds()) >= planned:
        message = f"it counted the score after round {planned}, which only a last round has: start another run"
        raise ConfigError.at("evaluation.patience", message)
    grown = directory.config().model_copy(update={"rounds": run.config.rounds})
    with written(directory.path):
        (directory.path / "summary.json").unlink(missing_ok=True)
        durable.sync(directory.path)
        directory.write_config(grown)
        then = directory.manifest()
        directory.write("manifest.json", {**then, "config": {**then["config"], "rounds": grown.rounds}})


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
    with tracked(directory, assembly.config, onlooker.observer) as observer:
        observer.prepared(assembly.population.report)
        lean, seen = assembly.without_report(), replace(onlooker, observer=observer)
        runner = Runner(lean, first, directory, seen, resumed=True, past_skips=past_skips, workers=workers)
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
        **started_from(config),
        **({"guarantee": config.guarantee.answers} if config.guarantee.promises else {}),
    }


def started_from(config: RunConfig) -> dict[str, str]:
    """The manifest's SHA-256 of the adapter that a run starts from; empty without one. Raises :class:`ConfigError` for
    files that cannot be read."""
    folder = config.adapter.start_from if config.has_factors else None
    if folder is None:
        return {}
    digest = hashlib.sha256()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        try:
            digest.update(hashlib.sha256(Path(folder, name).expanduser().read_bytes()).digest())
        except OSError as error:
            message = f"{folder!r} has no {name} that can be read: {error.strerror}; name the adapter's folder"
            raise ConfigError.at("adapter.start_from", message) from None
    return {"start_sha256": digest.hexdigest()}


@contextmanager
def locked(directory: RunDirectory) -> Iterator[None]:
    """Lock the directory. Raises :class:`ConfigError` if another process is writing it."""
    with durable.locked(directory.path) as alone:
        if not alone:
            message = f"another process is running in {str(directory.path)!r}; wait for its end, or stop it"
            raise ConfigError.at("RUN_DIR", message)
        yield
