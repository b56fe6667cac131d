"""Scores of predicted numbers by their correlation with the true ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rondo.tasks.task import Batch, Scores, Tally


def pearson(x: Tensor, y: Tensor) -> float | None:
    """Pearson's correlation of two vectors of float64; None if one of them has no two different numbers, or any that
    is not finite."""
    if len(x) == 0 or not bool((x.isfinite() & y.isfinite()).all()) or x.min() == x.max() or y.min() == y.max():
        return None
    x, y = (v - v.mean() for v in (x, y))
    value = float((x / x.norm()) @ (y / y.norm()))
    return max(-1.0, min(1.0, value)) if math.isfinite(value) else None


def spearman(x: Tensor, y: Tensor) -> float | None:
    """Spearman's correlation of two vectors of float64: Pearson's of their ranks. None as in :func:`pearson`."""
    return pearson(ranks(x), ranks(y)) if pearson(x, y) is not None else None


def ranks(x: Tensor) -> Tensor:
    """The rank of each number, from 1; equal ones share the mean of theirs."""
    _, place, counts = torch.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    mean: Tensor = last - (counts - 1) / 2
    return mean[place]


def number_predictions(output: Tensor) -> list[dict[str, Any]]:
    """The ``prediction`` for each row of the output (rows,) or (rows, 1), as
    :meth:`rondo.tasks.task.Task.predicted` gives it."""
    return [{"prediction": value} for value in output.float().flatten().tolist()]


class NumberTally(Tally):
    """A tally of Pearson's and Spearman's correlation and the mean squared error. The output
    is (rows,) or (rows, 1), and the target ``y`` (rows,)."""

    def __init__(self) -> None:
        self.true: list[Tensor] = []
        self.predicted: list[Tensor] = []

    def add(self, output: Tensor, targets: Batch) -> None:
        y = targets["y"].double().cpu()
        self.true.append(y)
        self.predicted.append(output.double().cpu().reshape(y.shape))

    def scores(self) -> Scores:
        if not self.true:
            return {"pearson": None, "spearman": None, "mse": None, "examples": 0}
        y, predicted = torch.cat(self.true), torch.cat(self.predicted)
        mse = float((predicted - y).square().mean())
        return {
            "pearson": pearson(predicted, y),
            "spearman": spearman(predicted, y),
            "mse": mse if math.isfinite(mse) else None,
            "examples": len(y),
        }
