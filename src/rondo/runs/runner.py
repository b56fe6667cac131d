"""A run from its first round to its last, and how it is resumed."""

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

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.client.memory import budget, freed_memory_kept
from rondo.engine.out_of_memory import is_out_of_memory
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, RunInterrupted, RunStopped, StopRequested
from rondo.report import pictures
from rondo.report.summary import better, totals
from rondo.runs.assemble import Assembly, Federation, Start, assemble
from rondo.runs.baseline import local_only
from rondo.runs.storage import checkpoint, durable
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.runs.storage.client_store import Kept
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.durable import Journal, written
from rondo.runs.storage.manifest import environment, must_equal

SKIPS = 3
"""This many skipped rounds in a row stop a run."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    ``history``: one dict per round, as in ``metrics.jsonl``.
    ``metrics``: the final scores by kind ("global", or "cold_start" and "personal"; "clients").
    ``summary``: everything in the final table.
    """

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

    ``config``: a path, a dict or a :class:`RunConfig`.
    ``sets``: ``key.path=value`` overrides.
    ``device``: "auto", "cpu" or "cuda".
    ``stop``: set it, from a signal handler or another thread, to end the run after its current step.

    Every round is committed to the disk before the next one starts, and :func:`resume` continues after the last one.
    Raises :class:`ConfigError` for anything that the user must fix, before training starts; :class:`RunStopped` if
    ``SKIPS`` rounds in a row are skipped or the disk cannot be written; :class:`RunInterrupted` after ``stop``.
    """
    began = time.perf_counter()
    assembly = assemble(load(config, sets), device)
    start = assembly.start()
    directory = RunDirectory.create(run_dir, assembly.config.algorithm.name)
    with _locked(directory):
        begin(directory, assembly)
        runner = Runner(assembly, start, directory, observer, stop, began)
        del start  # the first state is given up once the run has a later one
        return runner.run()


def resume(
    run_dir: str | Path,
    *,
    device: str = "auto",
    allow_nondeterministic: bool = False,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Continue a run after its last committed round. The result equals, bit for bit, that of an uninterrupted run.

    ``device``: "auto" is the device it ran on. The resumption is refused, with every difference, if configuration,
    versions, threads, model or data have changed, since equal bits cannot be promised; ``allow_nondeterministic``
    permits it. A finished run is left as it is. Raises as :func:`run` does.
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
        return Runner(assembly, assembly.start(), directory, observer, stop, began, resumed=True).run()


_DATA = ("rows", "examples_sha256", "test_rows", "test_examples_sha256")
"""Keys of ``partition.json`` that show whether the data are still the same."""


def begin(directory: RunDirectory, assembly: Assembly) -> None:
    """Write the files from which a run is resumed before its first checkpoint. The manifest comes last: a folder with
    one counts as a run."""
    with written(directory.path):
        directory.write_config(assembly.config)
        directory.write("partition.json", assembly.population.report)
        directory.write("manifest.json", manifest(assembly))


def manifest(assembly: Assembly) -> dict[str, Any]:
    """Everything that the bits of a run depend on."""
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
    """Lock the directory. Raises :class:`ConfigError` if another process is writing it."""
    with durable.locked(directory.path) as alone:
        if not alone:
            message = f"another process is running in {str(directory.path)!r}; wait for its end, or stop it"
            raise ConfigError.at("RUN_DIR", message)
        yield


class Runner:
    """The rounds of a run, and the files that they write."""

    def __init__(
        self,
        assembly: Assembly,
        start: Start,
        directory: RunDirectory,
        observer: Observer | None,
        stop: threading.Event | None,
        began: float,
        *,
        resumed: bool = False,
    ) -> None:
        self.assembly, self.config, self.task = assembly, assembly.config, assembly.task
        assembly.population.report.clear()  # one entry per client, and on the disk by now
        self.directory, self.observer, self.stop, self.began = directory, observer, stop, began
        self.start: Start | None = start
        self.journal = Journal(directory.metrics)
        self.done = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=SKIPS)
        """The last records. Earlier ones are only in the journal, so memory does not grow with the rounds."""
        self.scores: dict[str, Any] = {}
        self.resumed = resumed

    def run(self) -> RunResult:
        """Run all remaining rounds and finish."""
        self._compose()
        try:
            with freed_memory_kept():
                self._rounds()
            return self._finish()  # outside, since its libraries can take the memory that training gives back
        except StopRequested:
            raise RunInterrupted(self.directory.path) from None
        except RunStopped as stopped:
            if self.done:
                with suppress(RunStopped):  # the cause may be the disk
                    self._write_adapter()
            raise RunStopped(f"{stopped}. Committed rounds are in {self.directory.path}") from None
        except Exception as error:  # in training it costs a client, elsewhere the run
            if not is_out_of_memory(error):
                raise
            message = f"out of memory: {error}. Lower evaluation.batch_size, or give it more memory"
            raise RunStopped(f"{message}. Committed rounds are in {self.directory.path}") from error

    def _compose(self) -> None:
        """Put the federation together, at its start or at the newest checkpoint."""
        start, self.start = self.start, None
        assert start is not None
        point = self._newest_checkpoint(start.state) if self.resumed else None
        self.kept = point.locals if point is not None else Kept(self.directory.checkpoint)
        self.federation = self.assembly.federation(start, self.kept, self.stop)
        if point is not None:
            with written(self.directory.path):
                self._take_up(point, self.federation)

    def _rounds(self) -> None:
        if self.done == 0 and "before" not in self.scores:
            self.scores["before"] = self._on_test(0)
            self._commit(0)
        for index in range(self.done, self.config.rounds):
            self._round(index)

    def _newest_checkpoint(self, first: Any) -> Checkpoint | None:
        """The newest intact checkpoint; None if there is none and no round was recorded. Raises :class:`ConfigError` if
        all are damaged, or if rounds were recorded without one."""
        try:
            point, passed_over = checkpoint.load(self.directory.checkpoint, first, self.journal)
        except FileNotFoundError:
            if not self.directory.metrics.exists() or not self.directory.metrics.read_bytes():
                return None
            message = "metrics.jsonl has rounds, but there is no checkpoint of any: start the run in another folder"
            raise ConfigError.at("RUN_DIR", message, "rondo resume") from None
        except ValueError as error:
            message = f"no checkpoint is as it was written, so the run cannot go on: {error}"
            raise ConfigError.at("RUN_DIR", message, "rondo resume") from None
        if self.observer is not None:
            self.observer.resumed(point.rounds, passed_over)
        elif passed_over:
            warnings.warn(f"going on after round {point.rounds}: {'; '.join(passed_over)}", stacklevel=3)
        return point

    def _take_up(self, point: Checkpoint, federation: Federation) -> None:
        """Continue from ``point``."""
        self.recent.extend(map(json.loads, self.journal.lines(point.journal)[-SKIPS:]))
        self.done = point.rounds
        self.journal.go_on(point.journal)
        checkpoint.clean(self.directory.checkpoint, point)
        federation.server.state, federation.server.ledger = point.state, point.ledger
        self.scores = dict(point.scores)

    def _commit(self, rounds: int) -> None:
        server = self.federation.server
        point = Checkpoint(rounds, server.state, self.kept, server.ledger, self.journal.position, self.scores)
        with written(self.directory.path):
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
        with written(self.directory.path):
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
        with written(self.directory.path):
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
        drawn = {
            "partition.png": pictures.partition(self.directory.read("partition.json")),
            "curve.png": pictures.curve(start, history, self.task.primary, title),
        }
        with written(self.directory.path):
            durable.write_all(self.directory.path, drawn)
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
