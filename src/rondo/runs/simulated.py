"""A run whose clients are all on this machine."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass

from rondo.engine.client.cohorts import Cohorts, cohort_threads, one_cohort
from rondo.engine.client.memory import activation_bytes
from rondo.engine.faults import Rehearsal, are_rehearsed
from rondo.engine.simulation import ByWorkers, Crew, InProcess, Simulation, Workers
from rondo.engine.transport import Transport
from rondo.engine.wire.envelope import Identity
from rondo.params import Params
from rondo.runs.assembly import Assembly, Federation, Start
from rondo.runs.private import Protection


@dataclass(frozen=True)
class Simulated:
    """The rows of all clients are on this machine. Clients train in this process, or at workers."""

    simulated: bool = True

    def start(self, run: Assembly) -> Start:
        """Make the first state and measure a training step. A resumed run measures from its first state too, so that
        its cohorts are those of the run that was stopped."""
        network, first = run.model.network, run.first_state()
        seen, _ = run.scorer({}).newcomer(first, run.round(0))
        with one_cohort(network):
            return Start(first, activation_bytes(network, run.task, seen, run.population.sample(2)))

    def federation(
        self,
        run: Assembly,
        start: Start,
        kept: MutableMapping[str, Params],
        protection: Protection,
        stop: threading.Event | None,
        workers: Workers | None,
    ) -> Federation:
        """A simulated federation before its first round. ``kept`` holds tensors that clients keep."""
        network, config = run.model.network, run.config
        run.keep_tests()
        scorer = run.scorer(kept)
        devices = 1 if workers is None else workers.devices
        threads = cohort_threads(network)
        cohorts = Cohorts(network, run.task, run.population, config, start.bytes_per_cost, threads, devices)
        crew: Crew
        if workers is None:
            crew = InProcess(run.population, run.local_round(kept, stop))
        else:
            crew = ByWorkers(workers, kept, stop)
        identity = Identity("simulation", run.model_sha256)
        transport: Transport = Simulation(crew, cohorts)
        if are_rehearsed(config):
            transport = Rehearsal(transport, config, identity)
        server = run.server(transport, protection.sum, protection.rows, identity, start.state, kept)
        return Federation(server, scorer)
