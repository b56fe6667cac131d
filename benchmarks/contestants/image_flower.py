"""Flower's simulation engine on Ray on pictures, as in its PyTorch quickstart: each client builds the network, trains,
and sends arrays."""

from __future__ import annotations

import time
from pathlib import Path

from contestant import Outcome, arguments, since_start
from flower_rounds import WEIGHT, TimedFedAvg, simulate
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from image_workloads import IMAGE_WORKLOADS, ImageWorkload


def client_app(workload: ImageWorkload, data: Path) -> ClientApp:
    """The client's side. It uses one torch thread, because two clients share two cores."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        started = time.time()

        from images import build_network, clients, loader, sent, torch, train

        torch.set_num_threads(1)
        dataset = clients(workload, data)[int(context.node_config["partition-id"])]
        model = build_network(workload)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        loss, size = train(model, workload, loader(workload, dataset))
        metrics = {"loss": loss, "started": started, WEIGHT: size}
        arrays = ArrayRecord(sent(model))
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def main() -> None:
    args = arguments(__doc__).parse_args()
    workload, data = IMAGE_WORKLOADS[args.work], args.data.resolve()
    strategy = TimedFedAvg(workload.clients, workload.population)
    counts: list[int] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        from images import build_network, count, sent

        model = build_network(workload)
        counts.append(count(model))
        arrays = ArrayRecord(sent(model))
        del model
        strategy.start(grid, arrays, num_rounds=args.rounds)

    simulate(server, client_app(workload, data), workload.population, args.threads)
    Outcome(since_start(strategy.began_first()), strategy.seconds, strategy.losses, counts[0]).print(workload)


if __name__ == "__main__":
    main()
