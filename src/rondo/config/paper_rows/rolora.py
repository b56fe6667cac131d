"""Rows of RoLoRA: Tables 1 to 3, 5, 6, 9 to 14 and Figure 11."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rondo.config.paper_rows.data_sets import EMPTY_OUTPUTS, HEAD, INSTRUCTIONS, glue
from rondo.config.paper_rows.setting import Keys, Setting

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
        **glue(name),
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
    return Setting(source, keys, {**_NOT_STATED, **length, **HEAD})


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

_EIGHT = 'scored on the test sets of eight tasks (task.kind = "multiple-choice" scores such rows)'

ROLORA: dict[str, Setting] = {
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
        {**INSTRUCTIONS, "data.source": "sahil2801/CodeAlpaca-20k"},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14",
        _RANK,
    ),
    "rolora/alpaca": _rolora_language(
        "Alpaca, scored by MMLU (rondo evaluate RUN_DIR --lm-eval mmlu), 50 clients",
        {**INSTRUCTIONS, "data.source": "tatsu-lab/alpaca"},
        range(24, 32),
        100,
        8,
        "Tables 13 and 14",
        {**_RANK, **EMPTY_OUTPUTS},
    ),
}
