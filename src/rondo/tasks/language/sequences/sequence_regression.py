"""Regression of one number on one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.tasks.language.sequences.sequence import SequenceTask
from rondo.tasks.language.stores.token_store import TextExample, TokenStore
from rondo.tasks.logits import wide
from rondo.tasks.number_scores import NumberTally, number_predictions
from rondo.tasks.row_checks import Row, RowProblem, number_problem
from rondo.tasks.task import Batch


class SequenceRegression(SequenceTask):
    """Regression of a number on texts by squared error, scored by Pearson's correlation. Numbers are taken as they are.

    ``columns``: one or two text columns.
    ``target``: the column to predict.
    """

    primary = "pearson"
    higher_is_better = True

    def __init__(self, tokenizer: Any, columns: Sequence[str], target: str, max_length: int) -> None:
        super().__init__(tokenizer, columns, max_length)
        self.target = target

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """See :meth:`rondo.tasks.task.Task.of`."""
        columns = [config.text] if isinstance(config.text, str) else list(config.text or ())
        return cls(tokenizer, columns, config.target or "", config.max_length)

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        """See :meth:`rondo.tasks.task.Task.problem`."""
        return number_problem(row, number, config.target) if config.target is not None else None

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """See :meth:`rondo.tasks.task.Task.encode`. Texts longer than ``max_length`` tokens are cut."""
        pairs = zip(self.unlabelled(rows), rows, strict=True)
        return [replace(example, target=float(row[self.target])) for example, row in pairs]

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.task.Task.collate`; the target is ``y`` (rows,)."""
        return self.inputs(examples), {"y": torch.tensor([e.target for e in examples], dtype=self.precision)}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """See :meth:`rondo.tasks.task.Task.loss`: squared error, one target per row; output (rows,) or (rows, 1)."""
        y = targets["y"]
        return (wide(output).reshape(y.shape) - y).square(), torch.ones_like(y)

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        """See :meth:`rondo.tasks.task.Task.predicted`: ``prediction``; output (rows,) or (rows, 1)."""
        return number_predictions(output)

    def tally(self) -> NumberTally:
        """See :meth:`rondo.tasks.task.Task.tally`."""
        return NumberTally()

    def store(self) -> TokenStore:
        """See :meth:`rondo.tasks.task.Task.store`."""
        return TokenStore(targets="d")
