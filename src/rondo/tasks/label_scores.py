"""Loss, predictions and scores of rows that may have several labels: each label is a yes or no of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.number_scores import ranks
from rondo.tasks.task import Batch, Scores, Tally, wide

THRESHOLD = 0.5
"""The probability from which on a row is said to have a label."""


def label_targets(numbers: Sequence[Sequence[int]], labels: int) -> Tensor:
    """The labels of rows, given by their numbers, as float32 of 0 and 1: (rows, labels)."""
    targets = torch.zeros(len(numbers), labels)
    for row, of_row in zip(targets, numbers, strict=True):
        row[list(of_row)] = 1.0
    return targets


def label_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over labels of each row's binary cross-entropy, as transformers has it; both are (rows, labels)."""
    logits = wide(logits)
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none").mean(-1)


def label_predictions(logits: Tensor, thresholds: Mapping[str, float]) -> list[dict[str, Any]]:
    """``labels``, those whose probability is their threshold or more, and the ``probabilities`` of all by name. Logits
    are (rows, labels)."""
    rows = (dict(zip(thresholds, row, strict=True)) for row in logits.float().sigmoid().tolist())
    return [{"labels": [n for n, p in row.items() if p >= thresholds[n]], "probabilities": row} for row in rows]


class LabelTally(Tally):
    """A tally of F1 (over all pairs of a row and a label, "micro", and as the mean over
    labels, "macro"), the share of rows with all labels right, the mean area under the ROC curve and the loss. Logits
    and the target ``labels`` are (rows, labels). Labels that neither occur nor are predicted have no F1, and those that
    all rows have, or none, no area; means leave them out. The labels ``named``, all or none, have their scores each.
    ``thresholds``: by label, in the order of the logits."""

    def __init__(self, thresholds: Mapping[str, float], named: Sequence[str] = ()) -> None:
        self.thresholds, self.named = thresholds, named
        self.logits, self.true = [torch.zeros(0, len(thresholds))], [torch.zeros(0, len(thresholds))]

    def add(self, logits: Tensor, batch: Batch) -> None:
        self.logits.append(logits.detach().float().cpu())
        self.true.append(batch["labels"].detach().cpu())

    def scores(self) -> Scores:
        logits, targets = torch.cat(self.logits), torch.cat(self.true)
        thresholds = torch.tensor([*self.thresholds.values()], dtype=torch.float64)
        true, predicted = targets > 0, logits.sigmoid().double() >= thresholds
        right, either = (true & predicted).sum(0).tolist(), (true.sum(0) + predicted.sum(0)).tolist()
        each = [2 * r / e if e else None for r, e in zip(right, either, strict=True)]
        areas = [area(column, of_label) for column, of_label in zip(logits.T.double(), true.T, strict=True)]
        count = len(true)
        return {
            "f1_micro": 2 * sum(right) / sum(either) if any(either) else None,
            "f1_macro": _mean(each),
            "accuracy": float((true == predicted).all(1).double().mean()) if count else None,
            "auc": _mean(areas),
            "loss": float(label_losses(logits, targets).double().mean()) if count else None,
            **{f"f1 of {name}": value for name, value in zip(self.named, each, strict=False)},
            **{f"auc of {name}": value for name, value in zip(self.named, areas, strict=False)},
            "examples": count,
        }

    def fewest(self) -> dict[str, int]:
        """Those over all labels: by the rows with any. Those by label: by the rarest that a row has, or lacks."""
        true = torch.cat(self.true) > 0
        having, labelled = true.sum(0), int(true.any(1).sum())
        counts = [n for n in (*having.tolist(), *(len(true) - having).tolist()) if n]
        by_label = ["f1_macro", "auc", *(f"{metric} of {name}" for name in self.named for metric in ("f1", "auc"))]
        return {"f1_micro": labelled or len(true), **dict.fromkeys(by_label, min(counts, default=0))}


class Thresholds(LabelTally):
    """A tally whose scores are the :func:`best_threshold` of each label, by its name."""

    def scores(self) -> Scores:
        chances, true = torch.cat(self.logits).sigmoid().double(), torch.cat(self.true) > 0
        columns = zip(self.thresholds, chances.T, true.T, strict=True)
        return {name: best_threshold(of_label, positive) for name, of_label, positive in columns}


def best_threshold(chances: Tensor, positive: Tensor) -> float:
    """The threshold between 0 and 1 whose F1 on rows is the highest, and of several the one nearest to 0.5. It lies
    halfway between two ``chances`` (rows,) of the label, so that rounding moves no row; ``positive`` (rows,) says which
    rows have the label."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    values: Tensor = torch.unique(torch.cat([chances, ends]))
    tried = torch.cat([(values[1:] + values[:-1]) / 2, ends.mean(0, keepdim=True)])
    found, right = (len(x) - torch.searchsorted(x, tried) for x in (c.sort()[0] for c in (chances, chances[positive])))
    f1 = 2 * right / (found + positive.sum()).clamp_min(1)
    return float(max(zip(f1.tolist(), (-(tried - 0.5).abs()).tolist(), tried.tolist(), strict=True))[-1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def area(scores: Tensor, positive: Tensor) -> float | None:
    """The area under the ROC curve: the share of pairs of a row that is ``positive`` (rows,) and another in which the
    first has the higher of the ``scores`` (rows,); equal ones count half. None if there are no pairs, or a score is not
    finite.

    Source: Mann and Whitney, 1947.
    """
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others or not scores.isfinite().all():
        return None
    return (float(ranks(scores)[positive].sum()) - count * (count + 1) / 2) / (count * others)
