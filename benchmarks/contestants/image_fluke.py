"""fluke on pictures: its FedAVG, clients one after another in one process."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torchvision_operators  # isort: skip  # noqa: F401  (before fluke)
from contestant import Outcome, arguments, since_start
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import ClientObserver, FederationObserver
from image_workloads import CLASSES, IMAGE_WORKLOADS
from images import build_network, clients, count, torch


class Watch(FederationObserver, ClientObserver):
    """Notes the time and the mean loss of every round."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.began = 0.0
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._of_clients: list[float] = []

    def start_round(self, round: int, global_model: Any) -> None:
        self.first = self.first or time.time()
        self.began = time.perf_counter()

    def end_fit(self, round: int, client_id: int, model: Any, loss: float, **kwargs: Any) -> None:
        self._of_clients.append(loss)

    def end_round(self, round: int) -> None:
        self.seconds.append(time.perf_counter() - self.began)
        self.losses.append(statistics.fmean(self._of_clients))
        self._of_clients.clear()


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    workload = IMAGE_WORKLOADS[args.work]
    loaders = [
        FastDataLoader(*d.tensors, num_labels=CLASSES, batch_size=workload.batch, shuffle=True)
        for d in clients(workload, args.data)
    ]
    environment = FlukeENV()
    environment.set_seed(workload.seed)
    environment.set_eval_cfg(server=False)
    model = build_network(workload)
    splitter = DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, CLASSES))
    client = {
        "batch_size": workload.batch,
        "local_epochs": 1,
        "loss": torch.nn.CrossEntropyLoss,
        "optimizer": {"name": torch.optim.SGD, "lr": workload.lr, "momentum": workload.momentum},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        "persistency": False,  # a new optimizer in every round
    }
    settings = DDict({"client": client, "server": {"weighted": True}, "model": model})
    algorithm, watch = FedAVG(workload.population, splitter, settings), Watch()
    algorithm.set_callbacks([watch])
    algorithm.run(args.rounds, workload.clients / workload.population, finalize=False)
    if watch.first is None:
        raise SystemExit("no round was started")
    # fluke's progress bars leave the line unfinished.
    print()
    Outcome(since_start(watch.first), watch.seconds, watch.losses, count(model)).print(workload)


if __name__ == "__main__":
    main()
