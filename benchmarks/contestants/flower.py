"""Flower's simulation engine on Ray, as in its LLM example: each client builds the model, trains, and sends arrays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from contestant import Outcome, adapter_state, arguments, build_model, clients, since_start, train, trained
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import WORKLOADS, Workload

WEIGHT = "num-examples"


def client_app(workload: Workload, data: Path) -> ClientApp:
    """The client's side. It uses one torch thread, because two clients share two cores."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        started = time.time()

        import torch
        from peft import set_peft_model_state_dict

        torch.set_num_threads(1)
        dataset = clients(workload, data)[int(context.node_config["partition-id"])]
        model = build_model(workload)
        set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
        loss = train(model, workload, dataset)
        metrics = {"loss": loss, "started": started, WEIGHT: len(dataset)}
        arrays = ArrayRecord(adapter_state(model))
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    return app


class TimedFedAvg(FedAvg):
    """FedAvg that notes the time of each round, from its configuration to its new model.

    Ray starts beside the server, so the first round counts from the start of its first client's work.
    """

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.clients = clients
        self.began = 0.0
        self.first: float | None = None
        self.seconds: list[float] = []
        self.losses: list[float] = []

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


def main() -> None:
    args = arguments(__doc__).parse_args()
    workload, data = WORKLOADS[args.work], args.data.resolve()
    strategy = TimedFedAvg(workload.clients)
    counts: list[int] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        model = build_model(workload)
        counts.append(sum(p.numel() for p in trained(model)))
        arrays = ArrayRecord(adapter_state(model))
        del model
        strategy.start(grid, arrays, num_rounds=args.rounds)

    run_simulation(
        server,
        client_app(workload, data),
        num_supernodes=workload.clients,
        backend_config={"init_args": {"num_cpus": args.threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    if strategy.first is None:
        raise SystemExit("no round was finished")
    Outcome(since_start(strategy.first), strategy.seconds, strategy.losses, counts[0]).print(workload)


if __name__ == "__main__":
    main()
