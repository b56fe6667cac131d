"""RoLoRA's Algorithm 2 on Flower's simulation engine: each client sends the factor of the round."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from contestant import Outcome, arguments, since_start
from flower_rounds import WEIGHT, TimedFedAvg, simulate
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from linear_loop import best_up, loss_of, problem, stepped_down
from linear_workload import LINEAR_WORKLOADS, LinearWorkload


def client_app(workload: LinearWorkload, data: Path) -> ClientApp:
    """The client's side."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        started = time.time()
        xs, ys, _ = problem(data)
        x, y = (part[int(context.node_config["partition-id"])] for part in (xs, ys))
        a, b = (message.content["arrays"][name].numpy() for name in ("a", "b"))
        if message.content["config"]["server-round"] % 2:
            b = best_up(x, y, a)
            loss, result = loss_of(x, y, a, b), {"b": Array(b)}
        else:
            loss, result = loss_of(x, y, a, b), {"a": Array(stepped_down(x, y, a, b, workload.lr))}
        metrics = {"loss": loss, "started": started, WEIGHT: len(x)}
        return Message(RecordDict({"arrays": ArrayRecord(result), "metrics": MetricRecord(metrics)}), reply_to=message)

    return app


class TimedRoLoRA(TimedFedAvg):
    """The server's side: the mean of the factor that was sent, beside the other; A normalised."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, metrics = super().aggregate_train(server_round, replies)
        tensors = {**self.arrays, **(mean or {})}
        if "a" in (mean or {}):
            a = tensors["a"].numpy()
            tensors["a"] = Array(a / np.linalg.norm(a))
        return ArrayRecord(tensors), metrics


def main() -> None:
    args = arguments(__doc__).parse_args()
    workload, data = LINEAR_WORKLOADS[args.work], args.data.resolve()
    strategy = TimedRoLoRA(workload.clients)
    _, ys, start = problem(data)
    up = np.zeros(ys.shape[2])
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord({"a": Array(start), "b": Array(up)}), num_rounds=args.rounds)

    simulate(server, client_app(workload, data), workload.clients, args.threads)
    numbers = len(start) + len(up)
    Outcome(since_start(strategy.began_first()), strategy.seconds, strategy.losses, numbers).print(workload)


if __name__ == "__main__":
    main()
