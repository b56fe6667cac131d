"""A worker's part of a run, in a process of its own: it assembles the run as any process does, and trains cohorts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from rondo.config.load import load
from rondo.engine.client.job import Common, decode_job, encode_answers
from rondo.engine.client.memory import freed_memory_kept
from rondo.engine.simulation import InProcess
from rondo.errors import Problem
from rondo.records.directory import to_toml
from rondo.records.manifest import environment, must_equal, rows_of
from rondo.runs.assemble import assemble
from rondo.runs.assembly import Assembly
from rondo.runs.given import Given

_REMEDY = Problem("simulation.engine", "every machine of the cluster needs the same packages, data and model")


@dataclass(frozen=True)
class Order:
    """Everything that a worker is told of a run."""

    config: str
    """The configuration as TOML."""
    device: str
    threads: int
    """Torch's threads in the run's own process: what is measured and tried out at a start goes by them."""
    given: Given
    """Rows and a model that a program gave the run."""

    @staticmethod
    def of(assembly: Assembly, given: Given, workers: int) -> Order:
        """The order for one of ``workers``, which share the memory and the disk space for hidden states."""
        simulation = assembly.config.simulation
        share = {key: getattr(simulation, key) // workers for key in ("prefix_memory_mb", "prefix_disk_mb")}
        config = assembly.config.model_copy(update={"simulation": simulation.model_copy(update=share)})
        return Order(to_toml(config), assembly.device.type, torch.get_num_threads(), given)


class Hand:
    """A run at a worker. See :class:`rondo.runs.workers.ray.Hand`."""

    def __init__(self, order: Order) -> None:
        torch.set_num_threads(order.threads)
        config = load(tomllib.loads(order.config), check_paths=False)
        assembly = assemble(config, order.device, given=order.given)
        self.facts: Mapping[str, Any] = facts(assembly)
        self._local = assembly.local_round({})
        self._population = replace(assembly.population, test=(), report={})
        self._common: tuple[str, Common] | None = None
        self._memory = freed_memory_kept()
        self._memory.__enter__()  # until the process ends

    def train(self, job: bytes, name: str, common: bytes) -> bytes:
        held = self._common
        if held is None or held[0] != name:
            self._common = held = (name, Common.decode(common))
        work, kept = decode_job(job, held[1])
        crew = InProcess(self._population, replace(self._local, kept=kept))
        (answers,) = crew.train([work], 1)
        return encode_answers(answers)


def facts(assembly: Assembly) -> dict[str, Any]:
    """Everything that must be the same at every worker for the run to be the same: versions, model and rows."""
    return {
        "versions": environment()["versions"],
        **assembly.identity(),
        "labels": list(assembly.labels),
        "one_at_a_time": assembly.model.network.one_at_a_time,
        "layout": assembly.model.network.layout,
        "partition": rows_of(assembly.population.report),
    }


def check(here: Mapping[str, Any], host: str, there: Mapping[str, Any]) -> None:
    """Raise :class:`rondo.errors.ConfigError` with every difference between the run here and at a worker."""
    must_equal(here, there, whatever=False, remedy=_REMEDY, source=f"worker of Ray ({host})")
