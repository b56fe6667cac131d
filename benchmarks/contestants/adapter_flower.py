"""Flower's simulation engine on Ray, as in its LLM example: each client builds the model, trains, and sends arrays."""

from __future__ import annotations

import time
from pathlib import Path

from adapters import adapter_state, build_model, clients, train, trained
from contestant import Outcome, arguments, since_start
from flower_rounds import WEIGHT, TimedFedAvg, simulate
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from workloads import WORKLOADS, Workload


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

    simulate(server, client_app(workload, data), workload.clients, args.threads)
    Outcome(since_start(strategy.began_first()), strategy.seconds, strategy.losses, counts[0]).print(workload)


if __name__ == "__main__":
    main()
