"""Rows of FLoRG: section 4.1 and appendix A.6, Tables 1, 9 and 10."""

from __future__ import annotations

from rondo.config.paper_rows.data_sets import HEAD, glue
from rondo.config.paper_rows.setting import Keys, Setting

_FLORG = "FLoRG: Federated Fine-tuning with Low-rank Gram Matrices and Procrustes Alignment"


def _florg(name: str, data: Keys, partition: Keys) -> Setting:
    keys = {
        "algorithm.name": "florg",
        "model.name": "FacebookAI/roberta-large",
        "adapter.r": 4,
        **data,
        "task.max_length": 128,
        **partition,
        "partition.clients": 20,
        "clients.weighting": "uniform",
        "train.optimizer": "adamw",
        "train.lr": 5e-5,
        "train.batch_size": 4,
        "train.local_epochs": 1,
    }
    number = 9 if name == "SQuAD v1.1" else 10 if name in ("mrpc", "qqp") else 1
    row = f"{name}, RoBERTa-large, 20 clients, rank 4: section 4.1 and appendix A.6; Table {number}."
    others = '"fedit", "federa" (with algorithm.aggregation = "product"), "ffa-lora", "fedsa-lora"'
    others += "" if number == 10 else ' and "fedex-lora"'
    rate = "the learning rate is the default of section 4.1; the paper takes the best of 5e-4, 1e-4, 5e-5 and 1e-5"
    unknown = {
        "adapter.target_modules": (["query", "value"], "not stated"),
        "rounds": (50, "not stated"),
        "adapter.lora_alpha": (16, "a 'scaling factor' of 16 in A.6, which may be alpha or alpha / r"),
        "algorithm.gram_init": ("gaussian", "the start of A is not stated"),
        "train.weight_decay": (0.0, "not stated"),
        "train.max_grad_norm": (1.0, "not stated"),
        "adapter.lora_dropout": (0.0, "not stated"),
        **HEAD,
    }
    return Setting((_FLORG, row, f"The table's other methods are algorithm.name = {others}; {rate}."), keys, unknown)


_DIRICHLET = {"partition.kind": "dirichlet", "partition.alpha": 0.5}
_SQUAD = {
    "task.kind": "question-answering",
    "task.context": "context",
    "task.question": "question",
    "task.answers": "answers",
    "data.source": "rajpurkar/squad",
    "data.validation_fraction": 0.0,
}

FLORG: dict[str, Setting] = {
    **{
        f"florg/{name}": _florg(name, glue(name), _DIRICHLET) for name in ("mrpc", "qqp", "mnli", "qnli", "wnli", "rte")
    },
    "florg/squad": _florg("SQuAD v1.1", _SQUAD, {"partition.kind": "iid"}),
}
