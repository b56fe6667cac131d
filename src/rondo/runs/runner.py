"""A run from its first round to its last, and its resumption."""

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
from rondo.engine.client.memory import budget, freed_memory_kept
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, RunInterrupted, RunStopped, StopRequested
from rondo.report import pictures
from rondo.report.summary import better, totals
from rondo.runs.assemble import Assembly, Federation, assemble
from rondo.runs.baseline import local_only
from rondo.runs.storage import checkpoint, durable
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.runs.storage.client_store import Kept
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import Journal
from rondo.runs.storage.manifest import environment, must_equal

SKIPS = 3
"""Rounds skipped in a row that stop a run."""


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``history``: one dict per round (as in ``metrics.jsonl``); ``metrics``: the final scores by kind
    ("global", or "cold_start" and "personal"; "clients"); ``summary``: everything in the final table."""

    history: list[dict[str, Any]]
    run_dir: Path
    metrics: dict[str, Any]
    summary: dict[str, Any]


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
    assembly = assemble(load(config, sets), device)
    directory = RunDirectory.create(run_dir, assembly.config.algorithm.name)
    with _locked(directory):
        begin(directory, assembly)
        return Runner(assembly, directory, observer, stop, began).run()


def resume(
    run_dir: str | Path,
    *,
    device: str = "auto",
    allow_nondeterministic: bool = False,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Go on with a run after its last committed round; its end is, bit for bit, that of a run that was never stopped.

    ``device``: "auto" is the one it ran on. Where configuration, versions, threads, model or data have changed, equal
    bits cannot be promised: the resumption is refused with every difference, unless ``allow_nondeterministic``. A
    finished run is left as it is. Raises as :func:`run` does.
    """
    began = time.perf_counter()
    directory = RunDirectory.open(run_dir)
    with _locked(directory):
        if directory.finished:
            history = directory.rounds()
            return RunResult(history, directory.path, history[-1]["scores"], directory.read("summary.json"))
        then = directory.read("manifest.json")
        settings = directory.config()
        device = str(then.get("device", device)) if device == "auto" else device
        now = {**environment(), "config": settings.model_dump(mode="json"), "threads": torch.get_num_threads()}
        must_equal(then, now, whatever=allow_nondeterministic)
        assembly = assemble(settings, device)
        dealt = {key: assembly.population.report[key] for key in _DATA}
        before = {**then, "partition": directory.read("partition.json")}
        must_equal(before, {**manifest(assembly), "partition": dealt}, whatever=allow_nondeterministic)
        return Runner(assembly, directory, observer, stop, began, resumed=True).run()


_DATA = ("rows", "examples_sha256", "test_rows", "test_examples_sha256")
"""Keys of ``partition.json`` that tell whether the data are still the same."""


def begin(directory: RunDirectory, assembly: Assembly) -> None:
    """Write the files that a run is resumed from before its first checkpoint. The manifest, which makes the folder a
    run's, comes last."""
    with _written(directory):
        directory.write_config(assembly.config)
        directory.write("partition.json", assembly.population.report)
        directory.write("manifest.json", manifest(assembly))


def manifest(assembly: Assembly) -> dict[str, Any]:
    """What ran, on what: everything that the bits of a run depend on."""
    config, network = assembly.config, assembly.model.network
    return {
        **environment(),
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "activation_memory_mb": budget(network, assembly.task, config.simulation.memory_mb).total >> 20,
        "device": str(assembly.device),
        "precision": config.train.precision,
        **assembly.model.record(),
        "one_at_a_time": network.one_at_a_time,
        "algorithm": config.algorithm.name,
        "linear": assembly.algorithm.linear,
        "personal": assembly.algorithm.personal,
        "model": assembly.model.name,
        "model_sha256": assembly.model.sha256,
        "head": assembly.head,
        "labels": list(assembly.labels),
        "adapted_modules": {s.path: {"rank": s.rank, "scale": s.scale} for s in network.sites.values()},
    }


@contextmanager
def _locked(directory: RunDirectory) -> Iterator[None]:
    """Raises :class:`ConfigError` where another process is writing the directory."""
    with durable.locked(directory.path) as alone:
        if not alone:
            words = f"another process is running in {str(directory.path)!r}; wait for its end, or stop it"
            raise ConfigError.at("RUN_DIR", words)
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


class Runner:
    """The rounds of a run, and the files written as they pass."""

    def __init__(
        self,
        assembly: Assembly,
        directory: RunDirectory,
        observer: Observer | None,
        stop: threading.Event | None,
        began: float,
        *,
        resumed: bool = False,
    ) -> None:
        self.assembly, self.config, self.task = assembly, assembly.config, assembly.task
        assembly.population.report.clear()  # one line per client, and on the disk by now
        self.directory, self.observer, self.stop, self.began = directory, observer, stop, began
        self.journal = Journal(directory.metrics)
        self.done = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=SKIPS)
        """The last records. Earlier ones are in the journal: memory does not grow with the rounds."""
        self.scores: dict[str, Any] = {}
        self.resumed = resumed

    def run(self) -> RunResult:
        """All rounds that are left, and the end."""
        first = self.assembly.first_state()
        point = self._newest_checkpoint(first) if self.resumed else None
        self.kept = point.locals if point is not None else Kept(self.directory.checkpoint)
        self.federation = self.assembly.federation(first, self.kept, self.stop)
        if point is not None:
            self._take_up(point, self.federation)
        try:
            with freed_memory_kept():
                self._rounds()
            return self._finish()  # with libraries of its own, which take the place of training's memory
        except StopRequested:
            raise RunInterrupted(self.directory.path) from None
        except RunStopped as stopped:
            if self.done:
                with suppress(RunStopped):  # the cause may be the disk
                    self._write_adapter()
            raise RunStopped(f"{stopped}. What was done so far is in {self.directory.path}") from None

    def _rounds(self) -> None:
        if self.done == 0 and "before" not in self.scores:
            self.scores["before"] = self._on_test(0)
            self._commit(0)
        for index in range(self.done, self.config.rounds):
            self._round(index)

    def _newest_checkpoint(self, first: Any) -> Checkpoint | None:
        """The newest whole checkpoint, None where there is none yet. Raises :class:`ConfigError` where all are
        damaged."""
        try:
            point, passed_over = checkpoint.load(self.directory.checkpoint, first, self.journal)
        except FileNotFoundError:
            if not self.directory.metrics.exists() or not self.directory.metrics.read_bytes():
                return None
            words = "metrics.jsonl has rounds, but there is no checkpoint of any: start the run in another folder"
            raise ConfigError.at("RUN_DIR", words, "rondo resume") from None
        except ValueError as error:
            words = f"no checkpoint is as it was written, so the run cannot go on: {error}"
            raise ConfigError.at("RUN_DIR", words, "rondo resume") from None
        if self.observer is not None:
            self.observer.resumed(point.rounds, passed_over)
        elif passed_over:
            warnings.warn(f"going on after round {point.rounds}: {'; '.join(passed_over)}", stacklevel=3)
        return point

    def _take_up(self, point: Checkpoint, federation: Federation) -> None:
        """Go on from ``point``."""
        self.recent.extend(map(json.loads, self.journal.lines(point.journal)[-SKIPS:]))
        self.done = point.rounds
        self.journal.go_on(point.journal)
        checkpoint.clean(self.directory.checkpoint, point)
        federation.server.state, federation.server.ledger = point.state, point.ledger
        self.scores = dict(point.scores)

    def _commit(self, rounds: int) -> None:
        server = self.federation.server
        point = Checkpoint(rounds, server.state, self.kept, server.ledger, self.journal.position, self.scores)
        with _written(self.directory):
            checkpoint.save(self.directory.checkpoint, point)

    def _round(self, index: int) -> None:
        config, server = self.config, self.federation.server
        started = time.perf_counter()
        record = server.run_round(index, self.observer)
        last = index == config.rounds - 1
        record["scores"] = {}
        if last or _due(index, config.evaluation.every):
            record["scores"] |= self._on_test(index + 1)
        if last or _due(index, config.evaluation.clients_every):
            record["scores"] |= self.federation.scorer.at_clients(server.state, server.round(index + 1))
        metric, higher = self.task.primary, self.task.higher_is_better
        if (best := better(self.scores.get("best"), record, metric, higher_is_better=higher)) is not None:
            self.scores["best"] = best
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

    def _on_test(self, rounds: int) -> dict[str, Any]:
        server = self.federation.server
        return self.federation.scorer.on_test(server.state, server.round(rounds))

    def _write_adapter(self) -> None:
        server = self.federation.server
        seen, base = self.federation.scorer.newcomer(server.state, server.round(self.done))
        with _written(self.directory):
            durable.write_folder(
                self.directory.adapter,
                lambda folder: self.assembly.model.save(folder, seen, base, self.assembly.labels),
            )

    def _finish(self) -> RunResult:
        history = self.directory.rounds()
        before, after = self.scores["before"], history[-1]["scores"]
        self._write_adapter()
        summary = self._summary(history, before, after)
        start: Mapping[str, Any] = next(iter(before.values()), {})
        title = f"{self.config.algorithm.name}, {summary['clients']} clients"
        # Pictures come last: their library takes most of a second to import.
        pictures.partition(self.directory.read("partition.json"), self.directory.path / "partition.png")
        pictures.curve(start, history, self.task.primary, title, self.directory.path / "curve.png")
        with _written(self.directory):
            self.directory.write("summary.json", summary)  # last: a run that has it is finished
        return RunResult(history, self.directory.path, after, summary)

    def _summary(
        self, history: Sequence[dict[str, Any]], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        summary = {
            "algorithm": self.config.algorithm.name,
            "rounds": len(history),
            "clients": len(self.assembly.population.members),
            "primary": self.task.primary,
            "head": self.assembly.head,
            "before": dict(before),
            "after": dict(after),
            "best": self.scores.get("best"),
            **totals(history),
        }
        if self.config.evaluation.local_only:
            summary["local_only"] = local_only(self.assembly, self.stop)
        summary["seconds"] = {
            "train": sum(r["train_seconds"] for r in history),
            "all": time.perf_counter() - self.began,
        }
        return summary


def _due(index: int, every: int) -> bool:
    return every > 0 and (index + 1) % every == 0
