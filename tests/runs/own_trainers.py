"""Trainers of a user's own, as tests name them in ``train.trainer``."""

from __future__ import annotations

from typing import Any

import torch

SEEN: list[dict[str, Any]] = []
"""What :func:`looking` was given, call by call."""


def looking(local: Any) -> None:
    """One step of SGD on all rows, written as a user would write it."""
    trained = {n: p for n, p in local.model.named_parameters() if p.requires_grad}
    numbers = (local.epochs, local.steps, local.lr, local.seed, torch.initial_seed())
    SEEN.append({"client": local.client, "rows": local.rows, "numbers": numbers, "trained": sorted(trained)})
    batch = local.tokenizer([row["text"] for row in local.rows], padding=True, return_tensors="pt")
    labels = torch.tensor([local.labels.index(row["label"]) for row in local.rows])
    local.model.eval()
    local.model(**batch, labels=labels).loss.backward()
    torch.optim.SGD(trained.values(), lr=local.lr).step()


def drawing(local: Any) -> float:
    """It draws from torch's own generator."""
    for parameter in local.model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.01 * torch.randn(parameter.shape)
    return 0.5


def failing(local: Any) -> None:
    raise KeyError("score")


def wordy(local: Any) -> str:
    return "done"


def moving(local: Any) -> None:
    """It trains what is frozen."""
    weight = next(p for n, p in local.model.named_parameters() if n.endswith("base_layer.weight"))
    with torch.no_grad():
        weight.add_(1.0)


def casting(local: Any) -> None:
    local.model.to(torch.bfloat16)


def diverging(local: Any) -> None:
    for parameter in local.model.parameters():
        if parameter.requires_grad and local.client == "client-0":
            parameter.data.fill_(torch.nan)


def loraplus(local: Any) -> None:
    """One step by PEFT's optimizer of LoRA+ on the examples of a language model."""
    from peft.optimizers import create_loraplus_optimizer

    optimizer = create_loraplus_optimizer(
        local.model, torch.optim.SGD, lr=local.lr, loraplus_lr_ratio=local.settings.lr_ratio
    )
    inputs, targets = local.task.collate(local.examples)
    sums, counts = local.task.loss(local.model(**inputs).logits, targets)
    (sums.sum() / counts.sum()).backward()
    optimizer.step()
