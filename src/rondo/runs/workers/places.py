"""Places where the clients of a run train: in its own process, or at workers of Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rondo.config.schema import RunConfig
from rondo.runs.assembly import Assembly
from rondo.runs.device import find_device
from rondo.runs.given import Given
from rondo.runs.workers.hand import Hand, Order, check, facts
from rondo.runs.workers.ray import RayWorkers, ray_workers

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
