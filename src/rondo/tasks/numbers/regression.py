"""Regression of one number on the numbers of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.tasks.number_scores import number_predictions
from rondo.tasks.row_checks import Row, RowProblem, number_problem
from rondo.tasks.task import Batch, Scores, Tally, Task


@dataclass(frozen=True)
class Numbers:
    """One row. Its cost is 1."""

    features: tuple[float, ...]
    target: float
    cost: int = 1


class Regression(Task):
    """Regression by squared error, scored by R2. Numbers are taken as they are.

    ``features``: the columns to predict from.
    ``target``: the column to predict.
    """

    primary = "r2"
    higher_is_better = True
    least_squares: ClassVar[str | None] = "y"

    def __init__(self, features: Sequence[str], target: str) -> None:
        self.features, self.target = tuple(features), target

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        return cls(config.features or (), config.target or "")

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        columns = [*(config.features or ()), *([config.target] if config.target is not None else [])]
        for column in columns:
            if (problem := number_problem(row, number, column)) is not None:
                return problem
        return None

    def encode(self, rows: Sequence[Row]) -> list[Numbers]:
        pairs = zip(self.unlabelled(rows), rows, strict=True)
        return [replace(example, target=float(row[self.target])) for example, row in pairs]

    def unlabelled(self, rows: Sequence[Row]) -> list[Numbers]:
        """Examples of rows whose target is not read; each has the target 0."""
        return [Numbers(tuple(float(row[c]) for c in self.features), 0.0) for row in rows]

    def collate(self, examples: Sequence[Numbers]) -> tuple[Batch, Batch]:
        """``x`` (rows, features), and the target ``y`` (rows,)."""
        x = torch.tensor([e.features for e in examples], dtype=self.precision)
        return {"x": x}, {"y": torch.tensor([e.target for e in examples], dtype=self.precision)}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Squared error, one target per row; output (rows,) or (rows, 1)."""
        y = targets["y"]
        return (output.reshape(y.shape) - y).square(), torch.ones_like(y)

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        return number_predictions(output)

    def tally(self) -> _Tally:
        return _Tally()


class _Tally(Tally):
    def __init__(self) -> None:
        self.targets: list[Tensor] = []
        self.errors: list[Tensor] = []

    def add(self, output: Tensor, targets: Batch) -> None:
        y = targets["y"].double().cpu()
        self.targets.append(y)
        self.errors.append(output.double().cpu().reshape(y.shape) - y)

    def scores(self) -> Scores:
        if not self.targets:
            return {"r2": None, "rmse": None, "mae": None, "examples": 0}
        y, errors = torch.cat(self.targets), torch.cat(self.errors)
        variance, squared = float((y - y.mean()).square().mean()), float(errors.square().mean())
        scores = {
            "r2": 1 - squared / variance if variance > 0 else None,  # undefined if all targets are one number
            "rmse": math.sqrt(squared),
            "mae": float(errors.abs().mean()),
        }
        return {name: v if v is None or math.isfinite(v) else None for name, v in scores.items()} | {"examples": len(y)}
