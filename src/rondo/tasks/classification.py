"""Sequence classification of one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rondo.model import Batch
from rondo.tasks.task import Example, Row, Scores, pad, wide


class SequenceClassification:
    """``columns``: one or two text columns; ``labels``: the label names, in the order of the classes."""

    task_type: Literal["SEQ_CLS", "CAUSAL_LM"] = "SEQ_CLS"
    primary = "accuracy"
    higher_is_better = True

    def __init__(
        self, tokenizer: Any, columns: Sequence[str], label: str, labels: Sequence[str], max_length: int
    ) -> None:
        self.tokenizer, self.columns, self.label, self.max_length = tokenizer, tuple(columns), label, max_length
        self.labels = tuple(labels)
        self._index = {name: i for i, name in enumerate(labels)}

    def encode(self, rows: Sequence[Row]) -> list[Example]:
        """See :meth:`rondo.tasks.Task.encode`. A text longer than ``max_length`` tokens is cut."""
        if not rows:
            return []
        texts = [[row[c] for row in rows] for c in self.columns]
        coded = self.tokenizer(*texts, truncation=True, max_length=self.max_length)
        segments = coded.get("token_type_ids") or [None] * len(rows)
        return [
            Example(tuple(ids), self._index[str(row[self.label])], tuple(seg) if seg is not None else None)
            for ids, seg, row in zip(coded["input_ids"], segments, rows, strict=True)
        ]

    def collate(self, examples: Sequence[Example]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.Task.collate`; the target is ``labels`` (rows,)."""
        inputs = {
            "input_ids": pad([e.ids for e in examples], self.tokenizer.pad_token_id),
            "attention_mask": pad([[1] * e.length for e in examples], 0),
        }
        if examples[0].segments is not None:
            inputs["token_type_ids"] = pad([e.segments or () for e in examples], 0)
        return inputs, {"labels": torch.tensor([e.target for e in examples])}

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """See :meth:`rondo.tasks.Task.loss`: cross-entropy, one target a row; logits (rows, classes)."""
        each = functional.cross_entropy(wide(logits), targets["labels"], reduction="none")
        return each, torch.ones_like(targets["labels"])

    def tally(self) -> _Tally:
        """An empty tally: accuracy, F1 (binary, or macro over the classes seen), Matthews correlation, loss."""
        return _Tally(len(self.labels))


class _Tally:
    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.true: list[int] = []
        self.predicted: list[int] = []
        self.loss = 0.0

    def add(self, logits: Tensor, batch: Batch) -> None:
        labels = batch["labels"]
        self.loss += float(functional.cross_entropy(logits.float(), labels, reduction="sum"))
        self.true += labels.tolist()
        self.predicted += logits.argmax(-1).tolist()

    def scores(self) -> Scores:
        count = len(self.true)
        if count == 0:
            return {"accuracy": None, "f1": None, "matthews": None, "loss": None, "examples": 0}
        from sklearn import metrics  # a second to import, and not needed before the first scores

        average = "binary" if self.classes == 2 else "macro"
        # Correlation and F1 say nothing where there is only one class; scikit-learn would return 0.
        varied = len(set(self.true)) > 1
        f1 = float(metrics.f1_score(self.true, self.predicted, average=average, zero_division=0)) if varied else None
        return {
            "accuracy": float(metrics.accuracy_score(self.true, self.predicted)),
            "f1": f1,
            "matthews": float(metrics.matthews_corrcoef(self.true, self.predicted)) if varied else None,
            "loss": self.loss / count,
            "examples": count,
        }
