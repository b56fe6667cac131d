"""Flower's simulation engine on Ray with rounds that are timed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WEIGHT = "num-examples"


class TimedFedAvg(FedAvg):
    """FedAvg that notes the time of each round, from its configuration to its new model.

    Ray starts beside the server, so the first round counts from the start of its first client's work, the metric
    ``started`` of its replies.
    """

    def __init__(self, clients: int, population: int | None = None) -> None:
        population = clients if population is None else population
        super().__init__(
            fraction_train=clients / population,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=population,
        )
        self.clients = clients
        self.began = 0.0
        self.first: float | None = None
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def began_first(self) -> float:
        """The moment when the first client began. Raises SystemExit if none did."""
        if self.first is None:
            raise SystemExit("no round was finished")
        return self.first

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.began = time.time()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if any(r.has_error() for r in replies) or len(replies) != self.clients:
            raise RuntimeError(f"round {server_round}: not all of the {self.clients} clients finished")
        if self.first is None:
            self.began = self.first = min(r.content["metrics"]["started"] for r in replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.seconds.append(time.time() - self.began)
        self.losses.append(metrics["loss"])
        return arrays, metrics


def simulate(server: ServerApp, client: ClientApp, population: int, threads: int) -> None:
    """Run the simulation, with one core per client."""
    run_simulation(
        server,
        client,
        num_supernodes=population,
        backend_config={"init_args": {"num_cpus": threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
