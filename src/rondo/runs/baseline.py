"""Each client trained alone: a baseline for a run's scores."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from rondo.algorithms.wrappers.compressed import Compressed
from rondo.algorithms.wrappers.robust import Robust
from rondo.algorithms.wrappers.server_optimizer import ServerStep
from rondo.config.schema import AdmissionConfig, FaultsConfig
from rondo.engine.scoring import spread
from rondo.runs.assembling.assembly import Assembly
from rondo.runs.assembling.private import rehearsal


def local_only(assembly: Assembly, stop: threading.Event | None) -> dict[str, Any]:
    """Train each client alone, with the same algorithm and rounds: a federation of one, scored at its end. It has no
    server, so no server optimizer, compression, admission or faults.

    Returns scores as :func:`rondo.engine.scoring.spread` gives them: under "own" on the clients' own rows,
    under "test" on the common test set (None without one).
    """
    config, task = assembly.config, assembly.task
    config = config.changed("clients", per_round=None, sampling="full", min_clients=1, over_select=0.0, deadline=None)
    config = config.changed("evaluation", diagnostics_every=0)
    config = config.model_copy(update={"faults": FaultsConfig(), "admission": AdmissionConfig()})
    algorithm = assembly.algorithm
    while isinstance(algorithm, ServerStep | Robust | Compressed):
        algorithm = algorithm.algorithm
    own_scores: dict[str, Any] = {}
    test_scores: dict[str, Any] = {}
    for name, member in assembly.population.members.items():
        population = replace(assembly.population, members={name: member})
        single = replace(assembly, config=config, algorithm=algorithm, population=population)
        federation = single.federation(single.start(), {}, rehearsal(config, population.clients), stop)
        server, scorer = federation.server, federation.scorer
        for index in range(config.rounds):
            server.run_round(index)
        seen, base = scorer.model(server.state, member.client, server.round(config.rounds))
        if own := population.own_rows(member):
            own_scores[name] = scorer.scores(seen, base, own)
        if population.test:
            test_scores[name] = scorer.scores(seen, base, population.test, test="test")
    metric, higher = task.primary, task.higher_is_better
    return {
        "own": spread(own_scores, metric, higher_is_better=higher),
        "test": spread(test_scores, metric, higher_is_better=higher) if test_scores else None,
    }
