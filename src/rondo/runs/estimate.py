"""The bytes, the time and the memory of a run, from a few of its steps."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from rondo.config.load import Source, load, located
from rondo.config.schema import RunConfig
from rondo.engine.client.cohorts import Cohorts, cohort_threads
from rondo.engine.client.memory import freed_memory_kept
from rondo.records.summary import totals
from rondo.report.terminal import human_bytes
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.private import rehearsal

_ROUNDS = 2
"""Rounds that are tried: methods that take turns send other tensors in the second."""


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a run. Bytes are counted, seconds extrapolated from one and two steps per client."""

    rounds: int
    clients: int
    """Clients in the population."""
    per_round: int
    """Clients in the first round, or uploads in a buffered one."""
    steps: float
    """Steps of the longest client of a cohort, in the mean over the cohorts of the first round."""
    up: float
    """Bytes from a client in a round, in the mean over the first two."""
    down: float
    """Bytes to a client in the second round: in the first one it makes the start itself."""
    seconds_per_round: float
    """Seconds of training in a round; scores come on top."""
    step_bytes: float
    """Bytes that the largest step of a client keeps for its backward pass."""
    process_bytes: int | None
    """The largest memory of this process so far; None where the system does not tell."""

    @property
    def bytes(self) -> float:
        """Bytes of the whole run, both ways."""
        return self.rounds * self.per_round * (self.up + self.down)

    def lines(self) -> Iterator[str]:
        """The estimate in words."""
        yield f"{self.rounds} rounds of {self.per_round} of {self.clients} clients"
        yield f"up, per client and round: {human_bytes(self.up)}; down: {human_bytes(self.down)}"
        yield f"bytes of the run, both ways: {human_bytes(self.bytes)}"
        minutes = self.rounds * self.seconds_per_round / 60
        yield f"training: about {self.seconds_per_round:.2g} s per round, {minutes:.2g} minutes; scores come on top"
        memory = "" if self.process_bytes is None else f"; the process took {human_bytes(self.process_bytes)}"
        yield f"activations of a client's largest step: {human_bytes(self.step_bytes)}{memory}"


def estimate(config: Source | os.PathLike[str], device: str = "auto") -> Estimate:
    """Try the first two rounds of a run with one step per client, and with two, and write nothing.

    A method whose local training has a fixed number of epochs of its own trains these in full. Raises
    :class:`rondo.errors.ConfigError` as :func:`rondo.run` does.
    """
    assembly = assemble(located(load(config)), device)
    start = assembly.start()
    with freed_memory_kept():
        records, longer = (_tried(_shortened(assembly, steps), start) for steps in (1, 2))
    network, full = assembly.model.network, assembly.config
    cohorts = Cohorts(network, assembly.task, assembly.population, full, start.bytes_per_cost, cohort_threads(network))
    clients = assembly.population.clients
    chosen = rehearsal(full, clients).sum.sample(clients, assembly.round(0))
    steps = mean(max(_steps(full, client.num_examples) for client in cohort) for cohort in cohorts.plan(chosen))
    short, long = (records[-1]["train_seconds"], longer[-1]["train_seconds"])
    costliest = max(assembly.population.costliest(client.id) for client in chosen)
    batch = min(full.train.batch_size, full.train.micro_batch or full.train.batch_size)
    return Estimate(
        rounds=full.rounds,
        clients=len(assembly.population.members),
        per_round=full.clients.buffer or len(chosen),
        steps=steps,
        up=totals(records)["bytes"]["up_per_client_round"],
        down=longer[-1]["bytes_down"] / max(1, longer[-1]["sampled"]),
        seconds_per_round=short + max(0.0, long - short) * (steps - 1),
        step_bytes=start.bytes_per_cost * batch * costliest,
        process_bytes=records[-1].get("process_memory_bytes"),
    )


def _shortened(assembly: Assembly, steps: int) -> Assembly:
    """The run with ``steps`` steps per local training, without diagnostics."""
    config = assembly.config.changed("train", local_steps=steps, local_epochs=None)
    return replace(assembly, config=config.changed("evaluation", diagnostics_every=0))


def _tried(assembly: Assembly, start: Any) -> list[Mapping[str, Any]]:
    """The records of the first rounds."""
    protection = rehearsal(assembly.config, assembly.population.clients)
    server = assembly.federation(start, {}, protection).server
    return [server.run_round(attempt) for attempt in range(min(_ROUNDS, assembly.config.rounds))]


def _steps(config: RunConfig, rows: int) -> int:
    """Steps of a client with so many rows in a round."""
    if config.train.local_steps is not None:
        return config.train.local_steps
    return math.ceil(rows / config.train.batch_size) * (config.train.local_epochs or 1)
