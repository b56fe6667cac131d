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
    "train.weight_decay": (0.0, "not stated"),
    "train.max_grad_norm": (1.0, "not stated"),
    "adapter.lora_dropout": (0.0, "not stated"),
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
    subset, columns, _ = GLUE[name]  # the papers report accuracy, also of MRPC and QQP
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
    if name == "mnli":
        keys["data.more_tests"] = {"mismatched": "validation_mismatched"}
    return keys


def _rolora_glue(
    name: str, clients: int, layers: range, types: list[str], tables: str, others: str = '"fedit" and "ffa-lora"'
) -> Setting:
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
    row = f"{name}, RoBERTa-Large, {clients} clients, rank 4: {tables}."
    if clients > 3:
        row += f" Rounds are Table 5's {rounds} times 3 / {clients}: the paper lets them fall with the clients."
    epochs = "train.local_epochs is as printed; 20 passes over the rows in a round may be meant as steps."
    source = (_ROLORA, row, f"Its other methods are algorithm.name = {others} (LoRA in the paper is fedit).", epochs)
    length = {"task.max_length": (keys.pop("task.max_length"), "not stated")}
    return Setting(source, keys, {**_NOT_STATED, **length, **_HEAD})


_HEAD = {"model.head": ("shared", "not stated; it decides results more than aggregation does")}
_BOTH = ["query", "value"]
_P2 = {"sst2": range(18, 24), "qnli": range(15, 24), "mnli": range(15, 24), "qqp": range(15, 24), "rte": range(16, 24)}
"""The layers of Table 6, which are the second set of Table 9."""


_TABLE_1 = '"fedit", "ffa-lora", "flexlora" and "flora"'


def _rolora_rows() -> dict[str, Setting]:
    """Table 1 with three numbers of clients, Table 9's other sets of layers, and Figure 11's budgets (Table 10)."""
    rows = {}
    for name, layers in _P2.items():
        others = '"fedit", "ffa-lora" and "flexlora"' if name in ("sst2", "rte") else _TABLE_1
        for clients in (3, 20, 50):
            row = _rolora_glue(name, clients, layers, _BOTH, "Tables 1, 5 and 6", others)
            rows[f"rolora/{name}" if clients == 3 else f"rolora/{name}-{clients}"] = row
        for number, start in ((1, 21), (3, 0 if name == "sst2" else 12)):
            types = ["value"] if (name, number) == ("sst2", 1) else _BOTH
            sets = f"Tables 5 and 9, layer set P{number}"
            rows[f"rolora/{name}-p{number}"] = _rolora_glue(name, 3, range(start, 24), types, sets)
        if name != "sst2":
            for budget, start in (("187kb", 18), ("250kb", 16)):
                own = range(21 if start == 18 else 20, 24)
                tables = f"Tables 5 and 10, Figure 11, {'187.5' if start == 18 else '250'} KB up a round; LoRA (fedit) "
                tables += f"has the budget with adapter.layers_to_transform = {list(own)}"
                rows[f"rolora/{name}-{budget}"] = _rolora_glue(name, 3, range(start, 24), _BOTH, tables)
    return rows


_LENGTH = {"task.max_length": (512, "not stated")}
_EMPTY_OUTPUTS = {"data.bad_rows": ("drop", "some rows have no output")}
_RANK = {"adapter.r": (8, "not stated")}


def _rolora_language(
    what: str, data: Keys, layers: range, rounds: int, rank: int, tables: str, unknown: Mapping[str, tuple[Any, str]]
) -> Setting:
    keys = {
        "rounds": rounds,
        "algorithm.name": "rolora",
        "model.name": "meta-llama/Llama-2-7b-hf",
        "adapter.r": rank,
        "adapter.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "adapter.layers_to_transform": list(layers),
        **data,
        "data.test_split": "",
        "data.validation_fraction": 0.0,
        "partition.kind": "iid",
        "partition.clients": 50,
        "clients.weighting": "uniform",
        "train.batch_size": 1,
        "train.local_epochs": 30,
    }
    epochs = "train.local_epochs is as printed; 30 passes over the rows in a round may be meant as steps."
    others = 'Its other methods are algorithm.name = "fedit" (LoRA in the paper) and "ffa-lora".'
    return Setting((_ROLORA, f"{what}: {tables}.", others, epochs), keys, {**_NOT_STATED, **unknown, **_LENGTH})


_COMMONSENSE = {
    "task.kind": "causal-lm",
    "task.prompt": ["instruction", "input"],
    "task.response": "output",
}
_COMMONSENSE_DATA = {
    "data.source": (
        "commonsense_170k.jsonl",
        "the file of LLM-Adapters (Hu et al. 2023); the paper merges the training sets of eight tasks and deals them "
        "evenly",
    )
}
_INSTRUCTIONS = {"task.kind": "causal-lm", "task.prompt": ["instruction", "input"], "task.response": "output"}


# FLoRG

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
        **_HEAD,
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

# FedLoRU

_FEDLORU = (
    "FedLoRU: Communication-Efficient Federated Low-Rank Update Algorithm and its Connection to Implicit Regularization"
)
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
        "data.max_train_rows": 50000 if name == "fashion-mnist" else 40000,
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
        "train.batch_size": 32,
        "train.local_epochs": 5,
    }
    tables = "Table 6" if clients == 200 else "Table 5" if name != "cifar100" else "Tables 5 and 6"
    row = f"{name}, {clients} clients, half of them in a round: section 5.1 and appendix D.2; {tables}."
    aside = "10,000 training rows are left aside, as the paper's validation set; its test set is the test split."
    restarts = 'The paper\'s two ways to start the factors anew are algorithm.restart = "random" and "momentum".'
    depth = "as in F.4" if name == "cifar100" else "ResNet-10 or ResNet-18, not stated for each data set"
    unknown = {
        "model.name": (model, depth),
        "train.schedule": (
            "cosine",
            "the paper's falls to a rate of 0.001 in 50 or all rounds, this one to zero in all",
        ),
        "adapter.rank_pattern": (
            {"layer1.*": 64},
            "the paper has rank 128 there too; a rank above the 64 channels of a layer is refused here",
        ),
        "rounds": (200, "not stated"),
        "algorithm.tau": (40, "the paper takes the best of 20, 30, ..., 80"),
        "train.lr": (0.1, "the paper takes the best of 0.3, 0.2, 0.1, 0.05 and 0.01"),
        "adapter.lora_alpha": (64, "alpha / r is 1/2, which the paper states for mFedLoRU"),
        "adapter.from_scratch": (
            True,
            "as in the official code: no frozen weight, and both factors random; the paper says that B starts at zero",
        ),
    }
    return Setting((_FEDLORU, row, aside, restarts), keys, unknown)


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
        "model.name": (
            "meta-llama/Llama-2-7b-hf",
            "there is no public LLaMA2 of 3B parameters, and 0.124 % of trained parameters (D.2) are this model's",
        ),
        "data.validation_fraction": (
            0.04,
            "for the test loss; the paper tests on 2,000 rows, and trains on 48,000 (5.1) or 50,000 (D.1)",
        ),
        **_EMPTY_OUTPUTS,
        "train.weight_decay": (0.0, "not stated"),
        "train.max_grad_norm": (1.0, "not stated"),
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
        "evaluation.clients_every": 1,
        "train.local_epochs": 1,
    }
    scores = "Clients are scored in every round: the paper's figure is the mean over the last ten."
    aside = "the paper trains on all of a client's rows, and scores on rows of its classes in the test set"
    unknown = {"data.validation_fraction": (0.2, f"rows that a client is scored on; {aside}")}
    return Setting((_FEDREP, f"{row}: Table 1, section 5.2 and appendix A.2.", scores), keys, unknown)


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


_EIGHT = 'scored on the test sets of eight tasks (task.kind = "multiple-choice" scores such rows)'

SETTINGS: dict[str, Setting] = {
    **_rolora_rows(),
    "rolora/commonsense-rank2": _rolora_language(
        f"commonsense reasoning, {_EIGHT}, 50 clients, rank 2",
        _COMMONSENSE,
        range(26, 32),
        10,
        2,
        "Tables 11 and 12",
        _COMMONSENSE_DATA,
    ),
    "rolora/commonsense": _rolora_language(
        f"commonsense reasoning, {_EIGHT}, 50 clients, rank 8",
        _COMMONSENSE,
        range(26, 32),
        10,
        8,
        "Tables 3 and 11",
        _COMMONSENSE_DATA,
    ),
    "rolora/code-alpaca": _rolora_language(
        "CodeAlpaca, scored by HumanEval (rondo evaluate RUN_DIR --humaneval FILE), 50 clients",
        {**_INSTRUCTIONS, "data.source": "sahil2801/CodeAlpaca-20k"},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14",
        _RANK,
    ),
    "rolora/alpaca": _rolora_language(
        "Alpaca, scored by MMLU (rondo evaluate RUN_DIR --lm-eval mmlu), 50 clients",
        {**_INSTRUCTIONS, "data.source": "tatsu-lab/alpaca"},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14",
        {**_RANK, **_EMPTY_OUTPUTS},
    ),
    **{
        f"florg/{name}": _florg(name, _glue(name), _DIRICHLET)
        for name in ("mrpc", "qqp", "mnli", "qnli", "wnli", "rte")
    },
    "florg/squad": _florg("SQuAD v1.1", _SQUAD, {"partition.kind": "iid"}),
    **{
        f"fedloru/{name}{'' if clients == 20 else f'-{clients}'}": _fedloru_images(name, clients)
        for name in _IMAGES
        for clients in ((20, 100, 200) if name == "cifar100" else (20, 100))
    },
    "fedloru/alpaca": _FEDLORU_ALPACA,
    "fedrep/cifar10": _fedrep(_cifar(2), "CIFAR-10, 100 clients with 2 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-5": _fedrep(_cifar(5), "CIFAR-10, 100 clients with 5 classes each", 100, 100, 10, 1),
    "fedrep/cifar10-1000": _fedrep(_cifar(2), "CIFAR-10, 1000 clients with 2 classes each", 1000, 100, 10, 5),
    "fedrep/cifar100": _fedrep(
        _cifar(20, hundred=True), "CIFAR-100, 100 clients with 20 classes each", 100, 100, 10, 5
    ),
}
