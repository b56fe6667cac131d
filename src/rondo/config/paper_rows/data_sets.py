"""Data sets that several papers have, as keys of a configuration, and what no paper says of them."""

from __future__ import annotations

from typing import Any

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


def glue(name: str) -> dict[str, Any]:
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


IMAGES: dict[str, tuple[str, str, str, str]] = {
    "fashion-mnist": ("zalando-datasets/fashion_mnist", "image", "label", "builtin:resnet10"),
    "cifar10": ("uoft-cs/cifar10", "img", "label", "builtin:resnet10"),
    "cifar100": ("uoft-cs/cifar100", "img", "fine_label", "builtin:resnet18"),
}
"""Name on the hub, columns of the picture and of the label, and network, by name."""

INSTRUCTIONS = {"task.kind": "causal-lm", "task.prompt": ["instruction", "input"], "task.response": "output"}
EMPTY_OUTPUTS = {"data.bad_rows": ("drop", "some rows have no output")}
HEAD = {"model.head": ("shared", "not stated; it decides results more than aggregation does")}
