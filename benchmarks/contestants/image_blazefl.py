"""BlazeFL on pictures, with its FedAvg on a thread pool, as in its quickstart. A client has one torch thread, because
two clients share two cores."""

from __future__ import annotations

import copy
import statistics
import threading
import time
from enum import StrEnum
from pathlib import Path

import contestant  # isort: skip  # noqa: F401  (notes the start before the large imports)
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgDownlinkPackage,
    FedAvgPartitionType,
    FedAvgThreadPoolClientTrainer,
    FedAvgUplinkPackage,
)
from blazefl.core import ModelSelector, PartitionedDataset, deserialize_model, serialize_model
from contestant import Outcome, arguments, since_start
from image_workloads import IMAGE_WORKLOADS, ImageWorkload
from images import build_network, clients, count, torch, train
from torch.utils.data import DataLoader, Dataset


class Names(StrEnum):
    """BlazeFL's name for the only model."""

    NETWORK = "network"


class Selector(ModelSelector[Names]):
    """Makes the network. Copies are cheaper than new draws, and safe on several threads."""

    def __init__(self, workload: ImageWorkload) -> None:
        self.network = build_network(workload)

    def select_model(self, model_name: Names) -> torch.nn.Module:
        return copy.deepcopy(self.network)


class Pictures(PartitionedDataset[FedAvgPartitionType]):
    """Every client's pictures."""

    def __init__(self, workload: ImageWorkload, data: Path) -> None:
        self.datasets = clients(workload, data)

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Dataset:
        assert cid is not None
        return self.datasets[cid]

    def get_dataloader(
        self,
        type_: FedAvgPartitionType,
        cid: int | None,
        batch_size: int | None,
        generator: torch.Generator | None,
    ) -> DataLoader:
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=True, generator=generator)


class Trainer(FedAvgThreadPoolClientTrainer):
    """BlazeFL's trainer with the workload's optimizer (its own has no momentum), which reports the loss."""

    workload: ImageWorkload

    def train(
        self,
        model: torch.nn.Module,
        model_parameters: torch.Tensor,
        train_loader: DataLoader,
        device: str,
        epochs: int,
        lr: float,
        stop_event: threading.Event,
        cid: int,
    ) -> FedAvgUplinkPackage:
        deserialize_model(model, model_parameters)
        loss, size = train(model, self.workload, train_loader)
        return FedAvgUplinkPackage(cid, serialize_model(model), size, {"loss": loss})


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    workload = IMAGE_WORKLOADS[args.work]
    selector, pictures = Selector(workload), Pictures(workload, args.data)
    handler = FedAvgBaseServerHandler(
        model_selector=selector,
        model_name=Names.NETWORK,
        dataset=pictures,
        global_round=args.rounds,
        num_clients=workload.population,
        sample_ratio=workload.clients / workload.population,
        device="cpu",
        batch_size=workload.batch,
        seed=workload.seed,
    )
    trainer = Trainer(
        model_selector=selector,
        model_name=Names.NETWORK,
        dataset=pictures,
        device="cpu",
        num_clients=workload.population,
        epochs=1,
        batch_size=workload.batch,
        lr=workload.lr,
        seed=workload.seed,
        num_parallels=args.threads,
    )
    trainer.workload = workload
    outcome = Outcome(since_start(time.time()), [], [], count(selector.network))
    while not handler.if_stop():
        began = time.perf_counter()
        sampled = handler.sample_clients()
        broadcast: FedAvgDownlinkPackage = handler.downlink_package()
        trainer.local_process(broadcast, sampled)
        uploads = trainer.uplink_package()
        for upload in uploads:
            handler.load(upload)
        outcome.round_seconds.append(time.perf_counter() - began)
        outcome.loss.append(statistics.fmean((u.metadata or {})["loss"] for u in uploads))
    outcome.print(workload)


if __name__ == "__main__":
    main()
