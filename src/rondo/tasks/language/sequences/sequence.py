"""The base class of tasks on one text or a pair that a model reads as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.tasks.language.stores.token_store import TextExample
from rondo.tasks.language.text import TextTask, pad
from rondo.tasks.row_checks import Row
from rondo.tasks.task import Batch


class SequenceTask(TextTask):
    """A task on one text or a pair, with one target per row.

    ``columns``: one or two text columns.
    """

    def __init__(self, tokenizer: Any, columns: Sequence[str], max_length: int) -> None:
        self.tokenizer, self.columns, self.max_length = tokenizer, tuple(columns), max_length

    def unlabelled(self, rows: Sequence[Row]) -> list[TextExample]:
        """Examples of rows whose target is not read; each has the target 0. Texts longer than ``max_length`` tokens
        are cut."""
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

    def inputs(self, examples: Sequence[TextExample]) -> Batch:
        """The network's inputs, (rows, tokens) each."""
        inputs = {
            "input_ids": pad([e.ids for e in examples], self.tokenizer.pad_token_id),
            "attention_mask": pad([[1] * e.cost for e in examples], 0),
        }
        if examples[0].segments is not None:
            inputs["token_type_ids"] = pad([e.segments or () for e in examples], 0)
        return inputs
