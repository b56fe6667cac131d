"""Sequence classification of one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from rondo.config.inputs import TaskConfig
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.language.sequences.sequence import SequenceTask
from rondo.tasks.language.stores.token_store import TextExample
from rondo.tasks.row_checks import Row, value_name
from rondo.tasks.task import Batch


class SequenceClassification(ClassTask, SequenceTask):
    """Sequence classification, scored by accuracy.

    ``columns``: one or two text columns.
    ``label``: the label column.
    ``labels``: the label names, in the order of the classes.
    """

    def __init__(
        self, tokenizer: Any, columns: Sequence[str], label: str, labels: Sequence[str], max_length: int
    ) -> None:
        super().__init__(tokenizer, columns, max_length)
        self.label, self.labels = label, tuple(labels)
        self._index = {name: i for i, name in enumerate(labels)}

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """See :meth:`rondo.tasks.task.Task.of`."""
        columns = [config.text] if isinstance(config.text, str) else list(config.text or ())
        return cls(tokenizer, columns, config.label or "", labels, config.max_length)

    def encode(self, rows: Sequence[Row]) -> list[TextExample]:
        """See :meth:`rondo.tasks.task.Task.encode`. Texts longer than ``max_length`` tokens are cut."""
        pairs = zip(self.unlabelled(rows), rows, strict=True)
        return [replace(example, target=self._index[value_name(row[self.label])]) for example, row in pairs]

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.task.Task.collate`; the target is ``labels`` (rows,)."""
        return self.inputs(examples), {"labels": torch.tensor([e.target for e in examples])}
