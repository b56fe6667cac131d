"""Rows of FedRep: Table 1."""

from __future__ import annotations

from typing import Any

from rondo.config.paper_rows.data_sets import IMAGES
from rondo.config.paper_rows.setting import Keys, Setting

_FEDREP = "FedRep: Exploiting Shared Representations for Personalized Federated Learning (ICML 2021)"


def _fedrep(data: Keys, row: str, clients: int, rounds: int, batch_size: int, body_epochs: int) -> Setting:
    keys = {
        "rounds": rounds,
        "algorithm.name": "fedrep",
        "algorithm.head_epochs": 10,
        "algorithm.body_epochs": body_epochs,
        **data,
        "partition.clients": clients,
        "clients.per_round": max(1, clients // 10),
        "clients.weighting": "uniform",
        "train.what": "all",
        "train.optimizer": "sgd",
        "train.lr": 0.01,
        "train.momentum": 0.5,
        "train.max_grad_norm": 0,
        "train.batch_size": batch_size,
        "evaluation.clients_every": 1,
        "train.local_epochs": 1,
    }
    scores = "Clients are scored in every round: the paper's figure is the mean over the last ten."
    aside = "the paper trains on all of a client's rows, and scores on rows of its classes in the test set"
    unknown = {"data.validation_fraction": (0.2, f"rows that a client is scored on; {aside}")}
    return Setting((_FEDREP, f"{row}: Table 1, section 5.2 and appendix A.2.", scores), keys, unknown)


def _cifar(classes: int, *, hundred: bool = False) -> dict[str, Any]:
    name = "cifar100" if hundred else "cifar10"
    data, image, label, _ = IMAGES[name]
    return {
        "model.name": "builtin:cnn",
        "task.kind": "image-classification",
        "task.image": image,
        "task.label": label,
        "task.normalize": "half",
        "data.source": data,
        "data.test_split": "",
        "partition.kind": "classes",
        "partition.classes_per_client": classes,
        "partition.equal_sizes": True,
    }


FEDREP: dict[str, Setting] = {
    "fedrep/cifar10": _fedrep(_cifar(2), "CIFAR-10, 100 clients with 2 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-5": _fedrep(_cifar(5), "CIFAR-10, 100 clients with 5 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-1000": _fedrep(_cifar(2), "CIFAR-10, 1000 clients with 2 classes each", 1000, 100, 10, 5),
    "fedrep/cifar100": _fedrep(
        _cifar(20, hundred=True), "CIFAR-100, 100 clients with 20 classes each", 100, 100, 10, 5
    ),
}
