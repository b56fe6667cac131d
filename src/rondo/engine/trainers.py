"""Ready-made trainers for ``train.trainer``, and what each such function gets.

A trainer is a function of one :class:`LocalTraining`. It trains the model in place, as it likes, and returns nothing or
the mean loss of its steps.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from rondo.config.schema import TrainConfig
from rondo.engine.client.optimizer import optimizer
from rondo.errors import ConfigError
from rondo.models.networks.call import output_of
from rondo.tasks.row_checks import Row
from rondo.tasks.task import Example, Task


@dataclass(frozen=True)
class LocalTraining:
    """One client's local training, for a function of the user's own.

    >>> def train(local):  # [train] trainer = "my_module:train"
    ...     trained = [p for p in local.model.parameters() if p.requires_grad]
    ...     optimizer = torch.optim.SGD(trained, lr=local.lr)
    ...     for _ in range(local.epochs or 1):
    ...         batch = local.tokenizer([row["text"] for row in local.rows], padding=True, return_tensors="pt")
    ...         labels = torch.tensor([local.labels.index(row["label"]) for row in local.rows])
    ...         local.model(**batch, labels=labels).loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    """

    client: str
    """The client's id."""
    model: Any
    """PEFT's model with the broadcast loaded, on the run's device. What is trained has ``requires_grad``."""
    rows: Sequence[Row]
    """The client's training rows, as the file has them; pictures are arrays of pixels."""
    epochs: int | None
    """Passes over the rows; None where ``steps`` says how long to train."""
    steps: int | None
    lr: float
    """The learning rate of this round; that of B is ``settings.lr_ratio`` times it."""
    seed: int
    """Below 2**31. The generators of Python, NumPy and torch are seeded with it already."""
    settings: TrainConfig
    """The run's section ``[train]``."""
    tokenizer: Any
    """The model's; None if it has none."""
    labels: Sequence[str]
    """The class names in the order of the model's outputs; empty for a task without classes."""
    task: Task
    """The run's task, whose ``collate`` and ``loss`` take the ``examples``."""
    examples: Sequence[Example]
    """The rows as Rondo's own trainer takes them."""


Collator: TypeAlias = Callable[[list[Any]], Mapping[str, Any]]


def transformers(local: LocalTraining, collator: Collator | None = None) -> float:
    """Train with transformers' ``Trainer`` and torch's optimizer. Returns the mean loss of the steps.

    ``collator``: makes of a list of ``local.rows`` the arguments of the model, labels included; the loss is then the
    model's own. Left out, batches and loss are those of the run's task.

    Of ``[train]`` it uses ``batch_size``, ``optimizer``, ``momentum``, ``weight_decay``, ``lr_ratio`` and
    ``max_grad_norm``. Unlike Rondo's own trainer it puts the base into training mode, so the base's dropout acts.

    >>> def train(local):  # [train] trainer = "my_module:train"
    ...     def collator(rows):
    ...         batch = local.tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    ...         return {**batch, "labels": torch.tensor([local.labels.index(row["label"]) for row in rows])}
    ...     return rondo.trainers.transformers(local, collator)
    """
    import transformers as library

    task, augmenting = local.task, torch.Generator().manual_seed(local.seed)

    class OfTask(library.Trainer):  # type: ignore[misc]
        """Its loss is the task's."""

        def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            sums, counts = task.loss(output_of(model, inputs["inputs"]), inputs["targets"])
            return sums.sum() / counts.sum()

    def collated(examples: list[Any]) -> Mapping[str, Any]:
        inputs, targets = task.collate(examples)
        inputs = task.augment(inputs, [len(examples)], [augmenting])
        return {"inputs": dict(inputs), "targets": dict(targets)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = library.TrainingArguments(**_arguments(local, folder), remove_unused_columns=False)
        trainer = (OfTask if collator is None else library.Trainer)(
            model=local.model,
            args=arguments,
            data_collator=collated if collator is None else collator,
            train_dataset=list(local.examples if collator is None else local.rows),
            optimizers=(_optimizer(local), None),
        )
        return _mean_loss(trainer)


def sft(local: LocalTraining, rows: Sequence[Row] | None = None, **options: Any) -> float:
    """Train with TRL's ``SFTTrainer`` (``pip install trl``). Returns the mean loss of the steps.

    ``rows``: rows with TRL's columns: ``messages``, ``prompt`` and ``completion``, or ``text``. Left out, the tokens
    and labels of a causal-lm run, so that templates and cuts are those of its scores.
    ``options``: keys of ``SFTConfig``, over those that follow from ``[train]`` as in :func:`transformers`.

    >>> def train(local):  # [train] trainer = "my_module:train"
    ...     rows = [{"prompt": row["question"], "completion": row["answer"]} for row in local.rows]
    ...     return rondo.trainers.sft(local, rows, max_length=512)
    """
    import trl

    if rows is None:
        encoded = [local.task.collate([example]) for example in local.examples]
        rows = [{"input_ids": x["input_ids"][0].tolist(), "labels": y["labels"][0].tolist()} for x, y in encoded]
        options = {"max_length": None, **options}
    return _by_trl(local, trl.SFTTrainer, trl.SFTConfig, rows, options)


def dpo(local: LocalTraining, rows: Sequence[Row] | None = None, **options: Any) -> float:
    """Train with TRL's ``DPOTrainer`` (``pip install trl``). Returns the mean loss of the steps. The reference is the
    model without its factors.

    ``rows``: rows with the columns ``prompt``, ``chosen`` and ``rejected``; left out, those of the file.
    ``options``: keys of ``DPOConfig`` such as ``beta``, over those that follow from ``[train]`` as in
    :func:`transformers`.

    Raises :class:`ConfigError` for rows without these columns.
    """
    import trl

    pairs = [{name: row.get(name) for name in ("prompt", "chosen", "rejected")} for row in rows or local.rows]
    lacking = sorted({name for pair in pairs for name, value in pair.items() if value is None})
    if lacking:
        message = f"'dpo' trains on the columns prompt, chosen and rejected, and rows lack {', '.join(lacking)}: "
        raise ConfigError.at("train.trainer", f"{message}rename them, or call rondo.trainers.dpo with rows of your own")
    return _by_trl(local, trl.DPOTrainer, trl.DPOConfig, pairs, options)


def _by_trl(local: LocalTraining, trainer: Any, config: Any, rows: Sequence[Row], options: Mapping[str, Any]) -> float:
    """Train with a trainer of TRL's, in float32, on a tokenizer of its own: TRL gives it a token of padding."""
    import datasets

    with tempfile.TemporaryDirectory() as folder:
        own = {"gradient_checkpointing": False, "bf16": False, **options}
        made = trainer(
            model=local.model,
            args=config(**{**_arguments(local, folder), **own}),
            train_dataset=datasets.Dataset.from_list([dict(row) for row in rows]),
            processing_class=copy.deepcopy(local.tokenizer),
            optimizers=(_optimizer(local), None),
        )
        with torch.no_grad():
            for name, parameter in local.model.named_parameters():
                if ".lora_B.ref." in name:  # TRL's reference is a copy of the factors, which begin each round anew
                    parameter.zero_()
        return _mean_loss(made)


def _arguments(local: LocalTraining, folder: str) -> dict[str, Any]:
    """Arguments of transformers' ``Trainer``, and of those derived from it, that follow from the run."""
    settings, processes = local.settings, int(os.environ.get("WORLD_SIZE", "1"))
    if settings.batch_size % processes:
        message = f"{settings.batch_size} rows cannot be dealt to {processes} processes: take a multiple"
        raise ConfigError.at("train.batch_size", message)
    return {
        "output_dir": folder,
        "per_device_train_batch_size": settings.batch_size // processes,
        "num_train_epochs": local.epochs or 1,
        "max_steps": -1 if local.steps is None else local.steps,
        "lr_scheduler_type": "constant",
        "max_grad_norm": settings.max_grad_norm,
        "seed": local.seed,
        "use_cpu": next(local.model.parameters()).device.type == "cpu",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _mean_loss(trainer: Any) -> float:
    """The mean loss of the steps of ``trainer``, which trains without printing."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return float(trainer.train().training_loss)


def _optimizer(local: LocalTraining) -> torch.optim.Optimizer:
    """The optimizer of Rondo's own trainer."""
    trained = {name: p for name, p in local.model.named_parameters() if p.requires_grad}
    return optimizer(local.settings, trained, local.lr, is_up=lambda name: ".lora_B." in name)
