"""Places where the clients of a run train: in its own process, or at workers of Ray."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.client.memory import freed_memory_kept
from rondo.engine.simulation import Common, InProcess, decode_job, encode_answers
from rondo.errors import Problem
from rondo.records.directory import to_toml
from rondo.records.manifest import environment, must_equal, rows_of
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.device import find_device
from rondo.runs.assembling.given import Given
from rondo.runs.workers.ray import RayWorkers, ray_workers

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
        config = assembly.config.changed("simulation", **share)
        return Order(to_toml(config), assembly.device.type, torch.get_num_threads(), given)


class Hand:
    """A run at a worker. ``facts``: versions and settings that must be the same at every worker."""

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
        """The answers to a job. ``name`` is that of the ``common`` bytes."""
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


KEYS = ("simulation.engine", "simulation.workers")
"""Keys that say where clients train."""


@contextmanager
def workers_of(config: RunConfig, device: str) -> Iterator[RayWorkers | None]:
    """Within, the workers that ``config`` asks for, not yet at work; None for the run's own process. Raises
    :class:`ConfigError` before anything is loaded."""
    if config.simulation.engine == "process":
        yield None
        return
    with ray_workers(config.simulation.workers, find_device(device).type) as workers:
        yield workers


def set_to_work(workers: RayWorkers | None, assembly: Assembly, given: Given) -> None:
    """Have the workers load the run, while this process goes on."""
    if workers is not None:
        order = Order.of(assembly, given, workers.count)
        workers.load(Hand, order, partial(check, facts(assembly)))


def devices_of(workers: RayWorkers | None, config: RunConfig) -> int | None:
    """The number of devices for the manifest, where the division into cohorts depends on it; else None."""
    if workers is None or config.simulation.cohort != "auto" or workers.devices == 1:
        return None
    return workers.devices
