"""The Python API: run, export and evaluate. The command line is a thin layer over these functions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rondo.config import ConfigError, Problem, RunConfig, load
from rondo.data.loading import load as load_source
from rondo.engine import checkpoint
from rondo.engine.allocator import freed_memory_kept
from rondo.engine.evaluate import spread
from rondo.engine.population import Population, build
from rondo.engine.simulation import Observer, RunStopped, Simulation
from rondo.prefix import Prefix
from rondo.prepare import (
    Prepared,
    Shortened,
    find_device,
    find_labels,
    make_algorithm,
    prepare,
    resolved,
    write_adapter,
)
from rondo.record import RunDirectory, environment
from rondo.report import pictures
from rondo.results import Verification, evaluate, export
from rondo.server_step import ServerStep

__all__ = ["RunResult", "RunStopped", "Verification", "evaluate", "export", "run"]


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``history``: one dict a round (as in ``metrics.jsonl``); ``metrics``: the final scores by kind
    ("global", or "cold_start" and "personal"; "clients"); ``summary``: all that the final table shows."""

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
) -> RunResult:
    """Run a whole federated fine-tuning and write its run directory.

    ``config``: a path, a dict or a :class:`RunConfig`; ``sets``: ``key.path=value`` overrides; ``device``: "auto",
    "cpu" or "cuda". Raises :class:`ConfigError` for anything the user must mend, before training starts, and
    :class:`rondo.engine.simulation.RunStopped` where a round keeps failing.
    """
    began = time.perf_counter()
    settings = load(config, sets)
    algorithm = make_algorithm(settings)
    target = find_device(device)
    source = load_source(settings)
    settings = resolved(settings, source)
    labels = find_labels(settings, source)
    prepared = prepare(settings, labels, algorithm, target)
    population = build(settings, source, prepared.task, settings.task.label, labels, prepared.ranks)
    _check_population(settings, population)
    directory = RunDirectory.create(run_dir, settings.algorithm.name)
    directory.write_config(settings)
    shortened = prepared.shorten(population)
    directory.write("manifest.json", _manifest(prepared, labels, target, shortened))
    directory.write("partition.json", population.report)
    population = replace(population, report={})  # a line a client, of no further use
    del source
    with freed_memory_kept():
        return _Runner(prepared, population, directory, labels, observer, began, shortened.prefix).run()


class _Runner:
    """The rounds of a run, and what is written as they pass."""

    def __init__(
        self,
        prepared: Prepared,
        population: Population,
        directory: RunDirectory,
        labels: Sequence[str],
        observer: Observer | None,
        began: float,
        prefix: Prefix | None,
    ) -> None:
        self.prepared, self.population, self.directory = prepared, population, directory
        self.labels, self.observer, self.began = labels, observer, began
        self.simulation = prepared.simulation(population)
        self.simulation.prefix = prefix
        self.simulation.locals = checkpoint.Kept(directory.checkpoint)
        self.history: list[dict[str, Any]] = []

    def run(self) -> RunResult:
        config = self.prepared.config
        before = self.simulation.score_newcomer(0)
        try:
            for index in range(config.rounds):
                self._round(index)
        except RunStopped as stopped:
            if self.history:
                self._write_adapter()
            raise RunStopped(f"{stopped}. What was done so far is in {self.directory.path}") from None
        after: dict[str, Any] = self.history[-1]["scores"]
        self._write_adapter()
        summary = self._summary(before, after)
        self.directory.write("summary.json", summary)
        metric = self.prepared.task.primary
        start: Mapping[str, Any] = next(iter(before.values()), {})
        title = f"{config.algorithm.name}, {len(self.population.members)} clients"
        # Pictures come last: their library takes most of a second to import.
        pictures.partition(self.directory.read("partition.json"), self.directory.path / "partition.png")
        pictures.curve(start, self.history, metric, title, self.directory.path / "curve.png")
        return RunResult(self.history, self.directory.path, after, summary)

    def _round(self, index: int) -> None:
        config, simulation = self.prepared.config, self.simulation
        started = time.perf_counter()
        record, changed = simulation.run_round(index, self.observer)
        last = index == config.rounds - 1
        found: dict[str, Any] = {}
        if last or _due(index, config.evaluation.every):
            found |= simulation.score_newcomer(index + 1)
        if last or _due(index, config.evaluation.clients_every):
            found |= simulation.score_clients(index + 1)
        record["scores"] = found
        record["seconds"] = time.perf_counter() - started
        point = checkpoint.Checkpoint(index + 1, simulation.state, simulation.locals)
        checkpoint.save(self.directory.checkpoint, point, changed)
        self.directory.add_round(record)
        self.history.append(record)
        if self.observer is not None:
            self.observer.round_done(record)

    def _write_adapter(self) -> None:
        seen, base = self.simulation.newcomer(self.prepared.config.rounds)
        write_adapter(self.prepared, self.directory.adapter, seen, base, self.labels)

    def _summary(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        history, config = self.history, self.prepared.config
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
            "bytes": {
                "up": up,
                "down": down,
                "first_contact": first,
                "up_per_client_round": up / exchanges,
                "down_per_client_round": (down - first) / exchanges,
            },
            "failed_clients": sum(len(r["failed"]) for r in history),
        }
        if config.evaluation.local_only:
            summary["local_only"] = self._local_only()
        summary["seconds"] = {
            "train": sum(r["train_seconds"] for r in history),
            "all": time.perf_counter() - self.began,
        }
        return summary

    def _local_only(self) -> dict[str, Any]:
        """The same algorithm and rounds with each client on its own: a federation of one, scored at its end. It has no
        server, so no server optimizer."""
        rounds, task = self.prepared.config.rounds, self.prepared.task
        own: dict[str, Any] = {}
        test: dict[str, Any] = {}
        settings = self.prepared.config.clients.model_copy(
            update={"per_round": None, "sampling": "full", "min_clients": 1}
        )
        scored = self.prepared.config.evaluation.model_copy(update={"diagnostics_every": 0})
        alone_config = self.prepared.config.model_copy(update={"clients": settings, "evaluation": scored})
        algorithm = self.prepared.algorithm
        if isinstance(algorithm, ServerStep):
            algorithm = algorithm.algorithm
        for name, member in self.population.members.items():
            alone = Simulation(
                algorithm,
                self.prepared.network,
                task,
                replace(self.population, members={name: member}),
                alone_config,
                self.prepared.initial,
                prefix=self.simulation.prefix,
            )
            for index in range(rounds):
                alone.run_round(index)
            seen, base = alone.model(member.client, rounds)
            for target, examples in ((own, member.validation), (test, self.population.test)):
                if examples:
                    target[name] = alone.scores(seen, base, examples)
        metric, higher = task.primary, task.higher_is_better
        return {
            "own": spread(own, metric, higher_is_better=higher),
            "test": spread(test, metric, higher_is_better=higher) if test else None,
        }


def _due(index: int, every: int) -> bool:
    return every > 0 and (index + 1) % every == 0


def _check_population(config: RunConfig, population: Population) -> None:
    count, wanted = len(population.members), config.clients.per_round
    if wanted is not None and wanted > count:
        raise ConfigError([Problem("clients.per_round", f"{wanted}, but there are only {count} clients")])
    if config.clients.min_clients > count:
        raise ConfigError(
            [Problem("clients.min_clients", f"{config.clients.min_clients}, but there are {count} clients")]
        )


def _manifest(prepared: Prepared, labels: Sequence[str], device: torch.device, shortened: Shortened) -> dict[str, Any]:
    config, network = prepared.config, prepared.network
    return {
        **environment(),
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "precision": config.train.precision,
        "kernels": prepared.kernels.record(),
        **shortened.record(),
        "one_at_a_time": network.one_at_a_time,
        "algorithm": config.algorithm.name,
        "linear": prepared.algorithm.linear,
        "personal": prepared.algorithm.personal,
        "model": prepared.model_name,
        "model_sha256": prepared.model_hash,
        "head": prepared.head,
        "labels": list(labels),
        "adapted_modules": {s.path: {"rank": s.rank, "scale": s.scale} for s in network.sites.values()},
    }
