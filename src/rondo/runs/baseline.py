"""What each client would have without a federation: a baseline to read a run's scores by."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from rondo.algorithms.wrappers.robust import Robust
from rondo.algorithms.wrappers.server_optimizer import ServerStep
from rondo.config.schema import AdmissionConfig, FaultsConfig
from rondo.data.population import Population
from rondo.engine.scoring import spread
from rondo.engine.simulation import Simulation
from rondo.models.shortcuts.prefix import Prefix
from rondo.runs.assemble import Prepared


def local_only(
    prepared: Prepared, population: Population, prefix: Prefix | None, stop: threading.Event | None
) -> dict[str, Any]:
    """The same algorithm and rounds with each client on its own: a federation of one, scored at its end. It has no
    server, so no server optimizer, no gate and no faults. Scores as :func:`rondo.engine.scoring.spread` gives them,
    under "own" on the clients' own validation rows, under "test" on the common test set (None without one)."""
    config, task = prepared.config, prepared.task
    clients = config.clients.model_copy(
        update={"per_round": None, "sampling": "full", "min_clients": 1, "over_select": 0.0, "deadline": None}
    )
    scored = config.evaluation.model_copy(update={"diagnostics_every": 0})
    unharmed = {"faults": FaultsConfig(), "admission": AdmissionConfig()}
    alone_config = config.model_copy(update={"clients": clients, "evaluation": scored, **unharmed})
    algorithm = prepared.algorithm
    while isinstance(algorithm, ServerStep | Robust):
        algorithm = algorithm.algorithm
    own: dict[str, Any] = {}
    test: dict[str, Any] = {}
    for name, member in population.members.items():
        alone = Simulation(
            algorithm,
            prepared.network,
            task,
            replace(population, members={name: member}),
            alone_config,
            prepared.initial,
            prefix=prefix,
            stop=stop,
        )
        for index in range(config.rounds):
            alone.run_round(index)
        seen, base = alone.model(member.client, config.rounds)
        for target, examples in ((own, member.validation), (test, population.test)):
            if examples:
                target[name] = alone.scores(seen, base, examples)
    metric, higher = task.primary, task.higher_is_better
    return {
        "own": spread(own, metric, higher_is_better=higher),
        "test": spread(test, metric, higher_is_better=higher) if test else None,
    }
