"""Tasks on one text or a pair that a model reads as one sequence: classification, and regression of one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.language.text import TextExample, TextTask, TokenStore, inputs_of
from rondo.tasks.number_scores import NumberTally, number_predictions
from rondo.tasks.row_checks import Row, RowLabels, RowProblem, number_problem
from rondo.tasks.task import Batch, wide


class SequenceTask(TextTask):
    """A task on one text or a pair, with one target per row.

    ``columns``: one or two text columns.
    """

    no_target: float | tuple[int, ...] = 0
    """The target of rows whose own is not read."""

    def __init__(self, tokenizer: Any, columns: Sequence[str], max_length: int) -> None:
        self.tokenizer, self.columns, self.max_length = tokenizer, tuple(columns), max_length

    def unlabelled(self, rows: Sequence[Row]) -> list[TextExample]:
        """Examples of rows whose target is not read. Texts longer than ``max_length`` tokens are cut."""
        if not rows:
            return []
        texts = [[row[c] for row in rows] for c in self.columns]
        coded = self.tokenizer(*texts, truncation=True, max_length=self.max_length)
        segments = coded.get("token_type_ids") or [None] * len(rows)
        lost = self._lost(texts, coded["input_ids"])
        return [
            TextExample(tuple(ids), self.no_target, tuple(seg) if seg is not None else None, lost_here)
            for ids, seg, lost_here in zip(coded["input_ids"], segments, lost, strict=True)
        ]

    def _lost(self, texts: Sequence[Sequence[str]], ids: Sequence[Sequence[int]]) -> list[int]:
        lost = [0] * len(ids)
        full = [i for i, row_ids in enumerate(ids) if len(row_ids) >= self.max_length]
        if full:
            whole = self.tokenizer(*([column[i] for i in full] for column in texts), verbose=False)["input_ids"]
            for i, whole_ids in zip(full, whole, strict=True):
                lost[i] = len(whole_ids) - len(ids[i])
        return lost

    def inputs(self, examples: Sequence[TextExample]) -> Batch:
        """The network's inputs, (rows, tokens) each."""
        return inputs_of(examples, self.tokenizer.pad_token_id)


class SequenceClassification(ClassTask, SequenceTask):
    """Sequence classification, scored by accuracy.

    ``columns``: one or two text columns.
    ``label``: the label column, or what reads the labels.
    ``labels``: the label names, in the order of the classes.
    """

    def __init__(
        self, tokenizer: Any, columns: Sequence[str], label: str | RowLabels, labels: Sequence[str], max_length: int
    ) -> None:
        super().__init__(tokenizer, columns, max_length)
        self.label, self.labels = RowLabels((label,)) if isinstance(label, str) else label, tuple(labels)
        self.no_target = () if self.label.several else 0
        self._index = {name: i for i, name in enumerate(labels)}

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        columns = [config.text] if isinstance(config.text, str) else list(config.text or ())
        return cls(tokenizer, columns, RowLabels.of(config), labels, config.max_length)

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """Texts longer than ``max_length`` tokens are cut."""
        pairs = zip(self.unlabelled(rows), rows, strict=True)
        return [replace(example, target=self.numbers(row)) for example, row in pairs]

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        return self.inputs(examples), self.targets([e.target for e in examples])


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
        columns = [config.text] if isinstance(config.text, str) else list(config.text or ())
        return cls(tokenizer, columns, config.target or "", config.max_length)

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        return number_problem(row, number, config.target) if config.target is not None else None

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """Texts longer than ``max_length`` tokens are cut."""
        pairs = zip(self.unlabelled(rows), rows, strict=True)
        return [replace(example, target=float(row[self.target])) for example, row in pairs]

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        return self.inputs(examples), {"y": torch.tensor([e.target for e in examples], dtype=self.precision)}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Squared error, one target per row; output (rows,) or (rows, 1)."""
        y = targets["y"]
        return (wide(output).reshape(y.shape) - y).square(), torch.ones_like(y)

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        """``prediction``; output (rows,) or (rows, 1)."""
        return number_predictions(output)

    def tally(self) -> NumberTally:
        return NumberTally()

    def store(self) -> TokenStore:
        return TokenStore(targets="d")
