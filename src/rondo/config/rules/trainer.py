"""Checks of ``train.trainer``, and of the options that it excludes. Imports no torch."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator

from rondo import algorithms, own_code
from rondo.config.inputs import LINEAR
from rondo.config.packages import missing
from rondo.config.schema import RunConfig
from rondo.errors import Problem

READY_MADE = ("transformers", "sft", "dpo")
"""Trainers of :mod:`rondo.engine.trainers`."""


def place_of(name: str) -> str:
    """The function that ``train.trainer`` names, as ``package.module:name``."""
    return f"rondo.engine.trainers:{name}" if name in READY_MADE else name


def trainer_checks(config: RunConfig) -> Iterator[Problem]:
    """Yield the faults of ``train.trainer`` and of keys that do not go with it."""
    name, train = config.train.trainer, config.train
    if name is None:
        return
    if name not in READY_MADE and not own_code.is_name(name):
        near = difflib.get_close_matches(name, READY_MADE, n=1) or READY_MADE
        message = f"{name!r} is unknown: name a function as package.module:function, or take {near[0]!r}"
        yield Problem("train.trainer", message)
    if name in ("sft", "dpo"):
        yield from _trl_checks(config, name)
    faults, evaluation, model = config.faults, config.evaluation, config.model
    clients, of_rank = config.clients, "train.trainer gets an adapter of the run's rank"
    method, own_steps = config.algorithm.name, "Rondo does not see the steps of train.trainer"
    for path, there, reason in (
        ("algorithm.name", _not_plain(method), f"clients of {method} minimise more than the plain loss"),
        ("model.name", model.name == LINEAR, "train.trainer gets a PEFT model, and this network is none"),
        ("model.quantization", model.quantization is not None, "train.trainer is not tried on rounded weights"),
        (
            "train.what",
            config.whole_tensors is not None,
            "train.trainer gets a PEFT model, whose factors are trained ([adapter])",
        ),
        ("train.micro_batch", train.micro_batch is not None, "train.trainer decides on its forward passes"),
        ("train.checkpointing", train.checkpointing, "train.trainer decides on its forward passes"),
        ("clients.ranks", clients.ranks is not None, of_rank),
        ("clients.bytes_budget", clients.bytes_budget is not None, of_rank),
        ("simulation.engine", config.simulation.engine == "ray", "train.trainer is not tried at workers of Ray"),
        ("faults.out_of_memory", bool(faults.out_of_memory), own_steps),
        ("faults.nonfinite_loss", bool(faults.nonfinite_loss), own_steps),
        ("evaluation.local_only", evaluation.local_only, "its clients would train by Rondo's own trainer"),
        ("evaluation.fine_tune_epochs", bool(evaluation.fine_tune_epochs), "it would be by Rondo's own trainer"),
    ):
        if there:
            yield Problem(path, f"{reason}: change it, or remove train.trainer")


def _trl_checks(config: RunConfig, name: str) -> Iterator[Problem]:
    """Yield the faults of TRL's trainers, which take language models alone."""
    if importlib.util.find_spec("trl") is None:
        yield Problem("train.trainer", f"{name!r} {missing('trl')}")
    if name == "dpo" and (config.algorithm.name == "federa" or config.adapter.init_lora_weights == "pissa"):
        message = "the reference is the base, and factors that start from its weights are taken out of it: take another"
        yield Problem("train.trainer", f"{message} start, or 'sft'")
    if config.task.kind != "causal-lm":
        yield Problem("train.trainer", f"{name!r} trains causal-lm alone: set task.kind, or take 'transformers'")


def _not_plain(method: str) -> bool:
    """Whether a method of the table minimises more than the loss. One's own shows it in its first round."""
    return method in algorithms.TABLE and not algorithms.entry(method).plain_loss
