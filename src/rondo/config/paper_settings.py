"""Rows of the papers: the values that they state, and those that they leave open. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Keys = Mapping[str, Any]
"""Values by their place in a configuration, such as ``train.lr``."""


@dataclass(frozen=True)
class Setting:
    """One row of a paper.

    ``source``: the paper, then the row and its tables, then remarks.
    ``keys``: the values that the paper states, and those that its data set and model need.
    ``open``: the values that it does not state, with a reason or a remark for each.
    """

    source: tuple[str, ...]
    keys: Keys
    open: Mapping[str, tuple[Any, str]]


# RoLoRA

_ROLORA = "RoLoRA: Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA (NeurIPS 2025)"
_GRID = "the paper takes the best of 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2 and 1e-1 for each data set and method"
_NOT_STATED = {
    "adapter.lora_alpha": (16, "not stated"),
    "train.optimizer": ("sgd", "not stated; FederatedScope-LLM's default"),
    "train.lr": (2e-2, _GRID),
}

GLUE: dict[str, tuple[str, list[str], str | None]] = {
    "cola": ("cola", ["sentence"], "matthews"),
    "sst2": ("sst2", ["sentence"], None),
    "mrpc": ("mrpc", ["sentence1", "sentence2"], "f1"),
    "qqp": ("qqp", ["question1", "question2"], "f1"),
    "stsb": ("stsb", ["sentence1", "sentence2"], None),
    "mnli": ("mnli", ["premise", "hypothesis"], None),
    "qnli": ("qnli", ["question", "sentence"], None),
    "rte": ("rte", ["sentence1", "sentence2"], None),
    "wnli": ("wnli", ["sentence1", "sentence2"], None),
}
"""Subset, columns of the text, and the metric to go by if it is not the task's own, by name."""


def _glue(name: str) -> dict[str, Any]:
    subset, columns, metric = GLUE[name]
    keys: dict[str, Any] = {
        "task.kind": "sequence-regression" if name == "stsb" else "sequence-classification",
        "task.text": columns if len(columns) > 1 else columns[0],
        "task.max_length": 128,
        "data.source": "nyu-mll/glue",
        "data.subset": subset,
        "data.test_split": "validation_matched" if name == "mnli" else "validation",
        "data.validation_fraction": 0.0,
    }
    keys["task.target" if name == "stsb" else "task.label"] = "label"
    if metric is not None:
        keys["task.metric"] = metric
    if name == "mnli":
        keys["data.more_tests"] = {"mismatched": "validation_mismatched"}
    return keys


def _rolora_glue(name: str, clients: int, layers: range, types: list[str], tables: str) -> Setting:
    rounds, batch_size = 200 if name == "rte" else 500, 64 if name == "sst2" else 32
    keys = {
        "rounds": max(1, round(rounds * 3 / clients)),
        "algorithm.name": "rolora",
        "model.name": "FacebookAI/roberta-large",
        "adapter.r": 4,
        "adapter.target_modules": types,
        "adapter.layers_to_transform": list(layers),
        **_glue(name),
        "partition.kind": "iid",
        "partition.clients": clients,
        "clients.weighting": "uniform",
        "train.batch_size": batch_size,
        "train.local_epochs": 20,
    }
    row = f"{name}, RoBERTa-Large, {clients} clients, rank 4: {tables}. Rounds fall with the clients"
    others = '"fedit" (LoRA in the paper), "ffa-lora", "flexlora" and "flora"'
    length = {"task.max_length": (keys.pop("task.max_length"), "not stated")}
    source = (_ROLORA, f"{row}.", f"Its other methods are algorithm.name = {others}.")
    return Setting(source, keys, {**_NOT_STATED, **length})


_BOTH = ["query", "value"]
_P2 = {"sst2": range(18, 24), "qnli": range(15, 24), "mnli": range(15, 24), "qqp": range(15, 24), "rte": range(16, 24)}
"""The layers of Table 6, which are the second set of Table 9."""


def _rolora_rows() -> dict[str, Setting]:
    """Table 1 with three numbers of clients, Table 9's other sets of layers, and Figure 11's budgets (Table 10)."""
    rows = {}
    for name, layers in _P2.items():
        for clients in (3, 20, 50):
            row = _rolora_glue(name, clients, layers, _BOTH, "Tables 1, 5 and 6")
            rows[f"rolora/{name}" if clients == 3 else f"rolora/{name}-{clients}"] = row
        for number, start in ((1, 21), (3, 0 if name == "sst2" else 12)):
            types = ["value"] if (name, number) == ("sst2", 1) else _BOTH
            sets = f"Tables 5 and 9, layer set P{number}"
            rows[f"rolora/{name}-p{number}"] = _rolora_glue(name, 3, range(start, 24), types, sets)
        if name != "sst2":
            for budget, start in (("187kb", 18), ("250kb", 16)):
                tables = f"Tables 5 and 10, Figure 11, {budget} up ({'21' if start == 18 else '20'}..23 for LoRA)"
                rows[f"rolora/{name}-{budget}"] = _rolora_glue(name, 3, range(start, 24), _BOTH, tables)
    return rows


def _rolora_language(what: str, data: Keys, layers: range, rounds: int, rank: int, tables: str) -> Setting:
    keys = {
        "rounds": rounds,
        "algorithm.name": "rolora",
        "model.name": "meta-llama/Llama-2-7b-hf",
        "adapter.r": rank,
        "adapter.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "adapter.layers_to_transform": list(layers),
        **data,
        "partition.kind": "iid",
        "partition.clients": 50,
        "clients.weighting": "uniform",
        "train.batch_size": 1,
        "train.local_epochs": 30,
    }
    more = {"task.max_length": (512, "not stated")}
    return Setting((_ROLORA, f"{what}: {tables}"), keys, {**_NOT_STATED, **more})


_COMMONSENSE = {
    "task.kind": "causal-lm",
    "task.prompt": ["instruction", "input"],
    "task.response": "output",
    "data.source": "commonsense_170k.jsonl",
    "data.test_split": "",
}
_INSTRUCTIONS = {"task.kind": "causal-lm", "task.prompt": ["instruction", "input"], "task.response": "output"}


# FLoRG

_FLORG = "FLoRG: Federated Low-Rank Gram-matrix aggregation"


def _florg(name: str, data: Keys, partition: Keys) -> Setting:
    keys = {
        "algorithm.name": "florg",
        "model.name": "FacebookAI/roberta-large",
        "adapter.r": 4,
        "adapter.lora_alpha": 16,
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
    row = f"{name}, RoBERTa-large, 20 clients, rank 4: section 4.1 and appendix A.6; Tables 1 and 9"
    others = 'algorithm.name = "fedit", "federa", "ffa-lora", "fedsa-lora" and "fedex-lora"'
    rate = "the learning rate is the default of section 4.1; the paper takes the best of 5e-4, 1e-4, 5e-5 and 1e-5"
    modules = {"adapter.target_modules": (["query", "value"], "not stated"), "rounds": (50, "not stated")}
    return Setting((_FLORG, row, f"The tables' other methods are {others}; {rate}."), keys, modules)


_DIRICHLET = {"partition.kind": "dirichlet", "partition.alpha": 0.5}
_SQUAD = {
    "task.kind": "question-answering",
    "task.context": "context",
    "task.question": "question",
    "task.answers": "answers",
    "data.source": "rajpurkar/squad",
    "data.validation_fraction": 0.0,
}

# FedLoRU

_FEDLORU = "FedLoRU: Federated Low-Rank Updates"
_IMAGES: dict[str, tuple[str, str, str, str]] = {
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label", "builtin:resnet10"),
    "cifar10": ("uoft-cs/cifar10", "img", "label", "builtin:resnet10"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label", "builtin:resnet18"),
}


def _fedloru_images(name: str, clients: int) -> Setting:
    data, image, label, model = _IMAGES[name]
    keys = {
        "algorithm.name": "fedloru",
        "adapter.r": 128,
        "adapter.target_modules": r".*layer[1-4].*conv[12]",
        "task.kind": "image-classification",
        "task.image": image,
        "task.label": label,
        "task.normalize": name,
        "data.source": data,
        "data.test_split": "test",
        "data.validation_fraction": 0.0,
        "partition.kind": "iid",
        "partition.clients": clients,
        "clients.per_round": clients // 2,
        "clients.weighting": "uniform",
        "train.what": "all",
        "train.optimizer": "sgd",
        "train.momentum": 0.9,
        "train.max_grad_norm": 0,
        "train.schedule": "cosine",
        "train.batch_size": 32,
        "train.local_epochs": 5,
    }
    row = f"{name}, {clients} clients, half of them in a round: section 5.1 and appendix D.2; Tables 1 and 6"
    unknown = {
        "model.name": (model, "ResNet-10 or ResNet-18, not stated for each data set"),
        "rounds": (200, "not stated"),
        "algorithm.tau": (40, "the paper takes the best of 20, 30, ..., 80"),
        "train.lr": (0.1, "the paper takes the best of 0.3, 0.2, 0.1, 0.05 and 0.01"),
        "adapter.lora_alpha": (64, "alpha / r is 1/2, which the paper states for mFedLoRU"),
        "adapter.from_scratch": (True, "as in the official code"),
    }
    return Setting((_FEDLORU, row), keys, unknown)


_FEDLORU_ALPACA = Setting(
    (_FEDLORU, "Alpaca, LLaMA2-3B, 10 clients, half of them in a round: section 5.1, appendix D.2, Figure 4"),
    {
        "algorithm.name": "fedloru",
        "algorithm.tau": 15,
        "adapter.r": 8,
        "adapter.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        **_INSTRUCTIONS,
        "data.source": "tatsu-lab/alpaca",
        "data.test_split": "",
        "data.validation_fraction": 0.04,
        "partition.kind": "iid",
        "partition.clients": 10,
        "clients.per_round": 5,
        "clients.weighting": "uniform",
        "train.optimizer": "adamw",
        "train.lr": 3e-4,
        "train.batch_size": 16,
        "train.local_epochs": 1,
    },
    {
        "model.name": ("meta-llama/Llama-3.2-3B", "there is no public LLaMA2 of 3B parameters"),
        "rounds": (40, "not stated; Figure 4 shows 40"),
        "adapter.lora_alpha": (16, "not stated"),
        "task.max_length": (512, "not stated"),
    },
)

# FedRep

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
        "evaluation.clients_every": max(1, rounds // 10),
        "train.local_epochs": 1,
    }
    unknown = {"data.validation_fraction": (0.2, "the share of each client's rows that its accuracy is measured on")}
    return Setting((_FEDREP, f"{row}: Table 1, section 5.2 and appendix A.2"), keys, unknown)


def _cifar(classes: int, *, hundred: bool = False) -> dict[str, Any]:
    name = "cifar100" if hundred else "cifar10"
    data, image, label, _ = _IMAGES[name]
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


SETTINGS: dict[str, Setting] = {
    **_rolora_rows(),
    "rolora/commonsense-rank2": _rolora_language(
        "commonsense reasoning, 50 clients, rank 2", _COMMONSENSE, range(26, 32), 10, 2, "Tables 11 and 12"
    ),
    "rolora/commonsense": _rolora_language(
        "commonsense reasoning, 50 clients, rank 8", _COMMONSENSE, range(26, 32), 10, 8, "Tables 3 and 11"
    ),
    "rolora/code-alpaca": _rolora_language(
        "CodeAlpaca, scored by HumanEval, 50 clients",
        {**_INSTRUCTIONS, "data.source": "sahil2801/CodeAlpaca-20k", "data.test_split": ""},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14; the rank is not stated",
    ),
    "rolora/alpaca": _rolora_language(
        "Alpaca, scored by MMLU, 50 clients",
        {**_INSTRUCTIONS, "data.source": "tatsu-lab/alpaca", "data.test_split": ""},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14; the rank is not stated",
    ),
    **{
        f"florg/{name}": _florg(name, _glue(name), _DIRICHLET)
        for name in ("mrpc", "qqp", "mnli", "qnli", "wnli", "rte")
    },
    "florg/squad": _florg("SQuAD v1.1", _SQUAD, {"partition.kind": "iid"}),
    **{
        f"fedloru/{name}{'' if clients == 20 else f'-{clients}'}": _fedloru_images(name, clients)
        for name in _IMAGES
        for clients in (20, 100, 200)
    },
    "fedloru/alpaca": _FEDLORU_ALPACA,
    "fedrep/cifar10": _fedrep(_cifar(2), "CIFAR-10, 100 clients with 2 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-5": _fedrep(_cifar(5), "CIFAR-10, 100 clients with 5 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-1000": _fedrep(_cifar(2), "CIFAR-10, 1000 clients with 2 classes each", 1000, 100, 10, 5),
    "fedrep/cifar100": _fedrep(
        _cifar(20, hundred=True), "CIFAR-100, 100 clients with 20 classes each", 100, 100, 10, 5
    ),
}
