"""Scores of a classifier, shared by all tasks with classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.logits import wide
from rondo.tasks.number_scores import ranks
from rondo.tasks.task import Batch, Scores


def class_losses(logits: Tensor, targets: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits (rows, classes), one target per row, as :meth:`rondo.tasks.task.Task.loss` gives it.
    Raises ValueError for logits of another shape."""
    wanted = (len(targets["labels"]), classes)
    if logits.shape != wanted:
        raise ValueError(f"the network's output is {tuple(logits.shape)}, and rows and classes are {wanted}")
    losses = functional.cross_entropy(wide(logits), targets["labels"], reduction="none")
    return losses, torch.ones_like(targets["labels"])


def class_predictions(logits: Tensor, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The likeliest of ``labels`` and its ``probability`` for each row of logits (rows, classes), as
    :meth:`rondo.tasks.task.Task.predicted` gives it."""
    largest = logits.float().softmax(-1).max(-1)
    pairs = zip(largest.indices.tolist(), largest.values.tolist(), strict=True)
    return [{"label": labels[label], "probability": probability} for label, probability in pairs]


class ClassTally:
    """A :class:`rondo.tasks.task.Tally` of accuracy, F1 (binary, or macro over the classes seen), Matthews correlation,
    the area under the ROC curve and loss. Logits are (rows, ``classes``) and the target is ``labels`` (rows,)."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.true: list[int] = []
        self.predicted: list[int] = []
        self.logits: list[Tensor] = []
        self.loss = 0.0

    def add(self, logits: Tensor, batch: Batch) -> None:
        """See :class:`rondo.tasks.task.Tally`."""
        labels = batch["labels"]
        self.loss += float(functional.cross_entropy(logits.float(), labels, reduction="sum"))
        self.true += labels.tolist()
        self.predicted += logits.argmax(-1).tolist()
        self.logits.append(logits.detach().float().cpu())

    def scores(self) -> Scores:
        """See :class:`rondo.tasks.task.Tally`."""
        count = len(self.true)
        if count == 0:
            return {"accuracy": None, "f1": None, "matthews": None, "auc": None, "loss": None, "examples": 0}
        # counts[t, p]: examples of class t predicted as class p.
        pairs = torch.tensor(self.true) * self.classes + torch.tensor(self.predicted)
        counts = torch.bincount(pairs, minlength=self.classes**2).view(self.classes, -1).double()
        # F1, correlation and area mean nothing if only one class occurs.
        varied = len(set(self.true)) > 1
        return {
            "accuracy": float(counts.trace()) / count,
            "f1": _f1(counts) if varied else None,
            "matthews": _matthews(counts) if varied else None,
            "auc": auc(torch.cat(self.logits), torch.tensor(self.true)),
            "loss": self.loss / count,
            "examples": count,
        }


def _f1(counts: Tensor) -> float:
    """F1 of the second of two classes; with more classes, the mean over all that occur or were predicted."""
    occurrences = counts.sum(0) + counts.sum(1)
    f1 = 2 * counts.diag()[occurrences > 0] / occurrences[occurrences > 0]
    return float(f1[-1] if len(counts) == 2 else f1.mean())


def auc(logits: Tensor, true: Tensor) -> float | None:
    """The area under the ROC curve of logits (rows, classes) and classes ``true`` (rows,): the mean over the classes
    that occur of each against all others, which of two classes is the area of either. It is the share of pairs of a row
    of the class and another row in which the first has the higher probability; equal ones count half. None if a single
    class occurs, or a logit is not finite.

    Source: Mann and Whitney, 1947; the mean over classes is "macro, one versus rest" of scikit-learn.
    """
    if not logits.isfinite().all():
        return None
    probabilities, areas = logits.double().softmax(-1), []
    for label in sorted(set(true.tolist())):
        positive = true == label
        count, others = int(positive.sum()), int((~positive).sum())
        if others:
            above = float(ranks(probabilities[:, label])[positive].sum()) - count * (count + 1) / 2
            areas.append(above / (count * others))
    return sum(areas) / len(areas) if areas else None


def _matthews(counts: Tensor) -> float:
    """Matthews correlation for any number of classes (Gorodkin, 2004); 0 if all predictions are one class."""
    total, true, predicted = counts.sum(), counts.sum(1), counts.sum(0)
    shared = counts.trace() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(shared / spread.sqrt()) if spread > 0 else 0.0
