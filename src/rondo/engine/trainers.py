"""Ready-made trainers for ``train.trainer``, and what each such function gets.

A trainer is a function of one :class:`LocalTraining`. It trains the model in place, as it likes, and returns nothing or
the mean loss of its steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from rondo.config.schema import TrainConfig
from rondo.engine.client.optimizer import optimizer
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

    settings, task, augmenting = local.settings, local.task, torch.Generator().manual_seed(local.seed)

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
        arguments = library.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=settings.batch_size,
            num_train_epochs=local.epochs or 1,
            max_steps=-1 if local.steps is None else local.steps,
            lr_scheduler_type="constant",
            max_grad_norm=settings.max_grad_norm,
            seed=local.seed,
            use_cpu=local.model.device.type == "cpu",
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = (OfTask if collator is None else library.Trainer)(
            model=local.model,
            args=arguments,
            data_collator=collated if collator is None else collator,
            train_dataset=list(local.examples if collator is None else local.rows),
            optimizers=(_optimizer(local), None),
        )
        trainer.remove_callback(library.PrinterCallback)
        return float(trainer.train().training_loss)


def _optimizer(local: LocalTraining) -> torch.optim.Optimizer:
    """The optimizer of Rondo's own trainer."""
    trained = {name: p for name, p in local.model.named_parameters() if p.requires_grad}
    return optimizer(local.settings, trained, local.lr, is_up=lambda name: ".lora_B." in name)
