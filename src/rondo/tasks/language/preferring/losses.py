"""Losses of pairs, by TRL's names, and their scores. Tensors of answers have the chosen and the rejected one side by
side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rondo.tasks.task import Batch, Scores, Tally

LossType: TypeAlias = Literal["sigmoid", "hinge", "ipo", "robust", "sigmoid_norm"]


def apart(answers: Tensor) -> tuple[Tensor, Tensor]:
    """The values of the chosen and of the rejected answers, (pairs,) each; ``answers`` (2 * pairs,)."""
    chosen, rejected = answers.reshape(-1, 2).unbind(1)
    return chosen, rejected


def pair_losses(kind: LossType, ratios: Tensor, tokens: Tensor, beta: float, smoothing: float) -> Tensor:
    """The loss of each pair, (pairs,).

    ``ratios``: log-probability of each answer, less that of the reference, (2 * pairs,).
    ``tokens``: of each answer, (2 * pairs,).
    ``beta``: weight of the reference; for "ipo" the paper's tau.
    ``smoothing``: for "robust" the probability that a pair is the wrong way round.

    Source: TRL 1.16, ``DPOTrainer._compute_loss``. DPO (Rafailov et al. 2023), equation 7; "hinge": SLiC (Zhao et al.
    2023); "ipo": Azar et al. (2023), equation 17, with the mean over tokens; "robust": Chowdhury et al. (2024);
    "sigmoid_norm": Tulu 3 (Lambert et al. 2024), equation 6.
    """
    chosen, rejected = apart(ratios)
    mean_chosen, mean_rejected = apart(ratios / tokens.clamp_min(1))
    logits = beta * (chosen - rejected)
    if kind == "hinge":
        return torch.relu(1 - logits)
    if kind == "ipo":
        return (mean_chosen - mean_rejected - 1 / (2 * beta)).square()
    if kind == "robust":
        wrong = smoothing * logsigmoid(-logits)
        return (wrong - (1 - smoothing) * logsigmoid(logits)) / (1 - 2 * smoothing)
    return -logsigmoid(beta * (mean_chosen - mean_rejected) if kind == "sigmoid_norm" else logits)


def per_row(losses: Tensor) -> tuple[Tensor, Tensor]:
    """``losses`` (pairs,) and the number of targets as the rows of the network have them, (2 * pairs,): a pair's loss
    and its one target stand at its chosen answer."""
    zero = torch.zeros_like(losses)
    return torch.stack((losses, zero), 1).flatten(), torch.stack((zero + 1, zero), 1).flatten()


class PairTally(Tally):
    """Scores of pairs.

    ``judged``: gives the reward of each answer, (2 * pairs,), and the loss of each pair, (pairs,), for the network's
    output and the targets.
    """

    def __init__(self, judged: Callable[[Tensor, Batch], tuple[Tensor, Tensor]]) -> None:
        self._judged, self._right, self._count = judged, 0, 0
        self._margin = self._loss = 0.0

    def add(self, output: Tensor, targets: Batch) -> None:
        rewards, losses = self._judged(output, targets)
        chosen, rejected = apart(rewards)
        self._right += int((chosen > rejected).sum())
        self._margin += float((chosen - rejected).double().sum())
        self._loss += float(losses.double().sum())
        self._count += len(losses)

    def scores(self) -> Scores:
        """``accuracy``: the share of pairs whose chosen answer has the larger reward. ``margin``: the mean difference
        of the two."""
        sums = {"accuracy": self._right, "margin": self._margin, "loss": self._loss}
        count = self._count
        return {**{name: total / count if count else None for name, total in sums.items()}, "examples": count}
