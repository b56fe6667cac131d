"""Sequence classification of one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.tasks.class_scores import ClassTally, class_losses
from rondo.tasks.row_checks import Row, value_name
from rondo.tasks.task import Batch
from rondo.tasks.text import TextTask, pad
from rondo.tasks.token_store import TextExample


class SequenceClassification(TextTask):
    """Sequence classification, scored by accuracy.

    ``columns``: one or two text columns.
    ``label``: the label column.
    ``labels``: the label names, in the order of the classes.
    """

    primary: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    classes: ClassVar[bool] = True

    def __init__(
        self, tokenizer: Any, columns: Sequence[str], label: str, labels: Sequence[str], max_length: int
    ) -> None:
        self.tokenizer, self.columns, self.label, self.max_length = tokenizer, tuple(columns), label, max_length
        self.labels = tuple(labels)
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

    def unlabelled(self, rows: Sequence[Row]) -> list[TextExample]:
        """Examples of rows whose label is not read; each has the target 0."""
        if not rows:
            return []
        texts = [[row[c] for row in rows] for c in self.columns]
        coded = self.tokenizer(*texts, truncation=True, max_length=self.max_length)
        segments = coded.get("token_type_ids") or [None] * len(rows)
        lost = self._lost(texts, coded["input_ids"])
        return [
            TextExample(tuple(ids), 0, tuple(seg) if seg is not None else None, lost_here)
            for ids, seg, lost_here in zip(coded["input_ids"], segments, lost, strict=True)
        ]

    def _lost(self, texts: Sequence[Sequence[str]], ids: Sequence[Sequence[int]]) -> list[int]:
        """The number of tokens that each row loses to ``max_length``."""
        lost = [0] * len(ids)
        full = [i for i, row_ids in enumerate(ids) if len(row_ids) >= self.max_length]
        if full:
            whole = self.tokenizer(*([column[i] for i in full] for column in texts), verbose=False)["input_ids"]
            for i, whole_ids in zip(full, whole, strict=True):
                lost[i] = len(whole_ids) - len(ids[i])
        return lost

    def collate(self, examples: Sequence[TextExample]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.task.Task.collate`; the target is ``labels`` (rows,)."""
        inputs = {
            "input_ids": pad([e.ids for e in examples], self.tokenizer.pad_token_id),
            "attention_mask": pad([[1] * e.cost for e in examples], 0),
        }
        if examples[0].segments is not None:
            inputs["token_type_ids"] = pad([e.segments or () for e in examples], 0)
        return inputs, {"labels": torch.tensor([e.target for e in examples])}

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """See :meth:`rondo.tasks.task.Task.loss`: cross-entropy, one target per row; logits (rows, classes)."""
        return class_losses(logits, targets, len(self.labels))

    def tally(self) -> ClassTally:
        """See :meth:`rondo.tasks.task.Task.tally`."""
        return ClassTally(len(self.labels))
