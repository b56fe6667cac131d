"""The Python API: run, resume, export and evaluate. The command line is a thin layer over these functions."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.data.client_rows import deal_rows, find_labels, resolved
from rondo.data.population import Population, build
from rondo.data.sources import load as load_source
from rondo.engine.client.memory import budget, freed_memory_kept
from rondo.engine.server.ranks import client_ranks
from rondo.engine.transport import Observer
from rondo.engine.wire import Identity
from rondo.errors import ConfigError, Problem, RunInterrupted, RunStopped, StopRequested
from rondo.models.outline import look
from rondo.models.shortcuts.choose import Shortened
from rondo.report import pictures
from rondo.runs.assemble import Prepared, find_device, prepare, write_adapter
from rondo.runs.baseline import local_only
from rondo.runs.collector import collector_paused
from rondo.runs.evaluate import evaluate
from rondo.runs.export import Verification, export
from rondo.runs.storage import checkpoint, durable
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.runs.storage.client_store import Kept
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import Journal
from rondo.runs.storage.manifest import environment, must_equal
from rondo.runs.wrapping import make_algorithm

__all__ = ["RunInterrupted", "RunResult", "RunStopped", "Verification", "evaluate", "export", "resume", "run"]


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``history``: one dict a round (as in ``metrics.jsonl``); ``metrics``: the final scores by kind
    ("global", or "cold_start" and "personal"; "clients"); ``summary``: all that the final table shows."""

    history: list[dict[str, Any]]
    run_dir: Path
    metrics: dict[str, Any]
    summary: dict[str, Any]


SKIPS = 3
"""So many rounds skipped in a row stop a run."""


def run(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    sets: Sequence[str] = (),
    run_dir: str | Path | None = None,
    device: str = "auto",
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run a whole federated fine-tuning and write its run directory.

    ``config``: a path, a dict or a :class:`RunConfig`; ``sets``: ``key.path=value`` overrides; ``device``: "auto",
    "cpu" or "cuda"; ``stop``: set it, from a signal handler or another thread, to end the run after its current step.

    Every round is committed to the disk before the next one starts, and :func:`resume` goes on after the last of them.
    Raises :class:`ConfigError` for anything the user must mend, before training starts; :class:`RunStopped` where
    ``SKIPS`` rounds in a row are skipped or the disk does not take what is written; :class:`RunInterrupted` after
    ``stop``.
    """
    began = time.perf_counter()
    ready = _ready(load(config, sets), device)
    directory = RunDirectory.create(run_dir, ready.prepared.config.algorithm.name)
    with _alone(directory):
        _begin(directory, ready)
        return _Runner(ready, directory, observer, stop, began).run()


def resume(
    run_dir: str | Path,
    *,
    device: str = "auto",
    allow_nondeterministic: bool = False,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Go on with a run after its last committed round; its end is, bit for bit, that of a run that was never stopped.

    ``device``: "auto" is the one that it ran on. Where configuration, versions, threads, model or data are not what
    they were, that cannot be promised: it is refused with every difference, unless ``allow_nondeterministic``. A run
    that is finished is left as it is. Raises as :func:`run` does.
    """
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    with _alone(directory):
        if directory.finished:
            history = directory.rounds()
            return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))
        then = directory.read("manifest.json")
        settings = directory.config()
        device = str(then.get("device", device)) if device == "auto" else device
        now = {**environment(), "config": settings.model_dump(mode="json"), "threads": torch.get_num_threads()}
        must_equal(then, now, whatever=allow_nondeterministic)
        ready = _ready(settings, device)
        dealt = {key: ready.population.report[key] for key in _DATA}
        before = {**then, "partition": directory.read("partition.json")}
        must_equal(before, {**ready.manifest(), "partition": dealt}, whatever=allow_nondeterministic)
        return _Runner(ready, directory, observer, stop, began, resumed=True).run()


_DATA = ("rows", "examples_sha256", "test_rows", "test_examples_sha256")
"""Of ``partition.json``, what tells whether the data are still the same."""


def _begin(directory: RunDirectory, ready: _Ready) -> None:
    """What a run can be resumed from, before its first checkpoint; the manifest, which says that it can, comes last."""
    with _written(directory):
        directory.write_config(ready.prepared.config)
        directory.write("partition.json", ready.population.report)
        directory.write("manifest.json", ready.manifest())


@contextmanager
def _alone(directory: RunDirectory) -> Iterator[None]:
    """Raises :class:`ConfigError` where another process is writing the directory."""
    with durable.locked(directory.path) as alone:
        if not alone:
            words = f"another process is running in {str(directory.path)!r}; wait for its end, or stop it"
            raise ConfigError([Problem("RUN_DIR", words)])
        yield


@contextmanager
def _written(directory: RunDirectory) -> Iterator[None]:
    """Raises :class:`RunStopped` for a disk that is full or broken."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else directory.path
        raise RunStopped(f"{where} cannot be written: {error.strerror}") from None
    except SafetensorError as error:  # in which that library wraps the system's
        raise RunStopped(f"{directory.path} cannot be written: {error}") from None


@dataclass(frozen=True)
class _Ready:
    """A configuration with everything loaded and its rows dealt."""

    prepared: Prepared
    population: Population
    labels: tuple[str, ...]
    device: torch.device
    shortened: Shortened

    def manifest(self) -> dict[str, Any]:
        prepared = self.prepared
        config, network = prepared.config, prepared.network
        return {
            **environment(),
            "config": config.model_dump(mode="json"),
            "seed": config.seed,
            "threads": torch.get_num_threads(),
            "activation_memory_mb": budget(network, config.simulation.memory_mb).total >> 20,
            "device": str(self.device),
            "precision": config.train.precision,
            "kernels": prepared.kernels.record(),
            **self.shortened.record(),
            "one_at_a_time": network.one_at_a_time,
            "algorithm": config.algorithm.name,
            "linear": prepared.algorithm.linear,
            "personal": prepared.algorithm.personal,
            "model": prepared.model_name,
            "model_sha256": prepared.model_hash,
            "head": prepared.head,
            "labels": list(self.labels),
            "adapted_modules": {s.path: {"rank": s.rank, "scale": s.scale} for s in network.sites.values()},
        }


def _ready(settings: RunConfig, device: str) -> _Ready:
    """Raises :class:`ConfigError`."""
    with collector_paused():  # what is loaded here stays, and is much to look through
        return _loaded(settings, device)


def _loaded(settings: RunConfig, device: str) -> _Ready:
    algorithm = make_algorithm(settings)
    target = find_device(device)
    source = load_source(settings)
    settings = resolved(settings, source)
    labels = find_labels(settings, source)
    dealt = deal_rows(settings, source, labels)
    structure = look(settings, labels, algorithm, len(dealt.rows))
    population = build(settings, dealt, structure.task, labels, structure.ranks)
    prepared = prepare(settings, algorithm, target, structure)
    ranks = client_ranks(settings, algorithm, prepared.network.sites.values(), len(dealt.rows))
    if ranks != structure.ranks:  # layers that the checkpoint lacks belong to the head, and are not adapted
        population = build(settings, dealt, structure.task, labels, ranks)
    shortened = prepared.shorten(population)
    # torch.fx keeps the frames beneath its first import, and what is in them, until the collector comes by.
    del source, dealt
    return _Ready(prepared, population, labels, target, shortened)


class _Runner:
    """The rounds of a run, and what is written as they pass."""

    def __init__(
        self,
        ready: _Ready,
        directory: RunDirectory,
        observer: Observer | None,
        stop: threading.Event | None,
        began: float,
        *,
        resumed: bool = False,
    ) -> None:
        self.prepared, self.labels = ready.prepared, ready.labels
        self.population = ready.population
        self.population.report.clear()  # a line a client, and on the disk by now
        self.directory, self.observer, self.stop, self.began = directory, observer, stop, began
        self.simulation = self.prepared.simulation(self.population)
        self.simulation.prefix, self.simulation.stop = ready.shortened.prefix, stop
        self.simulation.identity = Identity("simulation", self.prepared.model_hash)
        self.simulation.measure()
        self.journal = Journal(directory.metrics)
        self.done = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=SKIPS)
        """The last records. The others are in the journal: memory does not grow with the rounds."""
        self.scores: dict[str, Any] = {}
        self.kept = Kept(directory.checkpoint)
        self.resumed = resumed

    def run(self) -> RunResult:
        """All rounds that are left, and the end."""
        try:
            with freed_memory_kept():
                self._rounds()
            return self._finish()  # with libraries of its own, which take the place of what training held
        except StopRequested:
            raise RunInterrupted(self.directory.path) from None
        except RunStopped as stopped:
            if self.done:
                with suppress(RunStopped):  # what it stopped for may be the disk
                    self._write_adapter()
            raise RunStopped(f"{stopped}. What was done so far is in {self.directory.path}") from None

    def _rounds(self) -> None:
        if not (self.resumed and self._went_on()):
            self.scores["before"] = self.simulation.score_newcomer(0)
            self._commit(0)
        self.simulation.locals = self.kept
        for index in range(self.done, self.prepared.config.rounds):
            self._round(index)

    def _went_on(self) -> bool:
        """Take up the newest checkpoint that is whole; False where there is none yet. Raises :class:`ConfigError` where
        all are damaged."""
        folder = self.directory.checkpoint
        try:
            point, passed_over = checkpoint.load(folder, self.simulation.state, self.journal)
        except FileNotFoundError:
            if not self.directory.metrics.exists() or not self.directory.metrics.read_bytes():
                return False
            words = "metrics.jsonl has rounds, but there is no checkpoint of any: start the run in another folder"
            raise ConfigError([Problem("RUN_DIR", words)], "rondo resume") from None
        except ValueError as error:
            words = f"no checkpoint is as it was written, so the run cannot go on: {error}"
            raise ConfigError([Problem("RUN_DIR", words)], "rondo resume") from None
        if self.observer is not None:
            self.observer.resumed(point.rounds, passed_over)
        elif passed_over:
            warnings.warn(f"going on after round {point.rounds}: {'; '.join(passed_over)}", stacklevel=3)
        self.recent.extend(map(json.loads, self.journal.lines(point.journal)[-SKIPS:]))
        self.done = point.rounds
        self.journal.go_on(point.journal)
        checkpoint.clean(folder, point)
        self.simulation.state, self.simulation.ledger = point.state, point.ledger
        self.kept, self.scores = point.locals, dict(point.scores)
        return True

    def _commit(self, rounds: int) -> None:
        simulation = self.simulation
        point = Checkpoint(rounds, simulation.state, self.kept, simulation.ledger, self.journal.position, self.scores)
        with _written(self.directory):
            checkpoint.save(self.directory.checkpoint, point)

    def _finish(self) -> RunResult:
        config = self.prepared.config
        history = self.directory.rounds()
        before, after = self.scores["before"], history[-1]["scores"]
        self._write_adapter()
        summary = self._summary(history, before, after)
        metric = self.prepared.task.primary
        start: Mapping[str, Any] = next(iter(before.values()), {})
        title = f"{config.algorithm.name}, {len(self.population.members)} clients"
        # Pictures come last: their library takes most of a second to import.
        pictures.partition(self.directory.read("partition.json"), self.directory.path / "partition.png")
        pictures.curve(start, history, metric, title, self.directory.path / "curve.png")
        with _written(self.directory):
            self.directory.write("summary.json", summary)  # last: a run that has it is finished
        return RunResult(history, self.directory.path, after, summary)

    def _round(self, index: int) -> None:
        config, simulation = self.prepared.config, self.simulation
        started = time.perf_counter()
        record = simulation.run_round(index, self.observer)
        last = index == config.rounds - 1
        found: dict[str, Any] = {}
        if last or _due(index, config.evaluation.every):
            found |= simulation.score_newcomer(index + 1)
        if last or _due(index, config.evaluation.clients_every):
            found |= simulation.score_clients(index + 1)
        record["scores"] = found
        self._note_best(record)
        record["seconds"] = time.perf_counter() - started
        with _written(self.directory):
            self.journal.append(json.dumps(record, ensure_ascii=False).encode())
        self._commit(index + 1)
        self.done = index + 1
        self.recent.append(record)
        if self.observer is not None:
            self.observer.round_done(record)
        if all(r["skipped"] for r in self.recent) and len(self.recent) == min(SKIPS, config.rounds):
            reasons = "; ".join(f"{f['client']}: {f['reason']} ({f['detail']})" for f in record["failed"][:3])
            raise RunStopped(
                f"{len(self.recent)} rounds in a row were skipped, the last: {record['skipped']}. {reasons}"
            )

    def _note_best(self, record: Mapping[str, Any]) -> None:
        """The best score so far on the common test set, and the round after which it was reached."""
        task = self.prepared.task
        first: Mapping[str, Any] = next(iter(record["scores"].values()), {})
        value = first.get(task.primary)
        if not isinstance(value, float):
            return
        best = self.scores.get("best")
        if best is None or (value > best[task.primary] if task.higher_is_better else value < best[task.primary]):
            self.scores["best"] = {"rounds": record["round"] + 1, task.primary: value}

    def _write_adapter(self) -> None:
        seen, base = self.simulation.newcomer(self.done)
        with _written(self.directory):
            write_adapter(self.prepared, self.directory.adapter, seen, base, self.labels)

    def _summary(
        self, history: Sequence[dict[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        config = self.prepared.config
        exchanges = max(1, sum(r["sampled"] for r in history))
        up, down = (sum(r[key] for r in history) for key in ("bytes_up", "bytes_down"))
        first = sum(r["bytes_first_contact"] for r in history)
        summary = {
            "algorithm": config.algorithm.name,
            "rounds": len(history),
            "clients": len(self.population.members),
            "primary": self.prepared.task.primary,
            "head": self.prepared.head,
            "before": dict(before),
            "after": dict(after),
            "best": self.scores.get("best"),
            "bytes": {
                "up": up,
                "down": down,
                "first_contact": first,
                "up_per_client_round": up / exchanges,
                "down_per_client_round": (down - first) / exchanges,
            },
            "failed_clients": sum(len(r["failed"]) for r in history),
            "skipped_rounds": sum(r["skipped"] is not None for r in history),
        }
        if config.evaluation.local_only:
            summary["local_only"] = local_only(self.prepared, self.population, self.simulation.prefix, self.stop)
        summary["seconds"] = {
            "train": sum(r["train_seconds"] for r in history),
            "all": time.perf_counter() - self.began,
        }
        return summary


def _due(index: int, every: int) -> bool:
    return every > 0 and (index + 1) % every == 0
