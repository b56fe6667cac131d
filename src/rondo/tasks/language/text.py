"""The base class of text tasks, the padding they share, and a store for hundreds of thousands of tokenised rows: ids
lie in flat arrays, 4 bytes each, and access makes objects."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rondo.tasks.task import Batch, Shortcut, Store, Task


@dataclass(frozen=True)
class TextExample:
    """One tokenised row."""

    ids: tuple[int, ...]
    """Input ids."""
    target: float | tuple[int, ...]
    """A class, a number to predict, or ids."""
    segments: tuple[int, ...] | None = None
    """Segment ids, if the tokenizer gives them."""
    lost: int = 0
    """Number of tokens cut away to fit ``task.max_length``. A store only counts them."""

    @property
    def cost(self) -> int:
        return len(self.ids)


class TokenStore(Store):
    """All examples of a run. Targets are all single or all sequences; all examples have segments, or none has.

    ``targets``: the array type of targets, "i" for classes and ids or "d" for numbers to predict.
    """

    def __init__(self, targets: Literal["i", "d"] = "i") -> None:
        self._ids, self._ends = array("i"), array("q", [0])
        self._targets, self._target_ends = array(targets), array("q", [0])
        self._segments = array("b")
        self._single = True
        self._cut_rows = self._lost_tokens = 0

    def add(self, examples: Iterable[TextExample]) -> range:
        first = len(self._ends) - 1
        for example in examples:
            self._ids.extend(example.ids)
            self._ends.append(len(self._ids))
            self._single = not isinstance(example.target, tuple)
            targets: Any = (example.target,) if self._single else example.target
            self._targets.extend(targets)
            self._target_ends.append(len(self._targets))
            self._segments.extend(example.segments or ())
            self._cut_rows += example.lost > 0
            self._lost_tokens += example.lost
        return range(first, len(self._ends) - 1)

    def __getitem__(self, number: int) -> TextExample:
        start, end = self._ends[number], self._ends[number + 1]
        target = tuple(self._targets[self._target_ends[number] : self._target_ends[number + 1]])
        segments = tuple(self._segments[start:end]) if self._segments else None
        return TextExample(tuple(self._ids[start:end]), target[0] if self._single else target, segments)

    def cost(self, number: int) -> int:
        return self._ends[number + 1] - self._ends[number]

    def account(self) -> dict[str, int]:
        rows = len(self._ends) - 1
        return {
            "rows": rows,
            "rows_cut": self._cut_rows,
            "tokens": len(self._ids) + self._lost_tokens,
            "tokens_lost": self._lost_tokens,
        }

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self._ids, self._ends, self._targets, self._target_ends, self._segments):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        return digest.hexdigest()


TRIAL_TEXTS = (
    "Turn on the lights in the kitchen.",
    "The film is a charming and often affecting journey.",
    "No weapons of mass destruction were found.",
    "What is the capital of France?",
    "It rains; it pours, and nobody minds.",
    "A",
)


_LEAST_MARK = 3
"""Fewest characters of a special token that is looked for in texts."""


class TextTask(Task):
    """A task on token ids. The cost of an example is its number of tokens."""

    tokenizer: Any
    """The model's."""
    padded: ClassVar[bool] = True
    cohort_cost: ClassVar[int | None] = 1024
    unfit: ClassVar[Mapping[Shortcut, str]] = {
        "packing": "only a language model's rows are tried",
        "targets_only": "only a language model has logits of a vocabulary",
    }

    @property
    def marks(self) -> Sequence[str]:
        """The tokenizer's special tokens, without that of unknown words, which some data sets write."""
        added = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        marks = {*added, *self.tokenizer.all_special_tokens} - {self.tokenizer.unk_token}
        return sorted(mark for mark in marks if len(mark.strip()) >= _LEAST_MARK)

    def trial_batch(self) -> tuple[Batch, Tensor | None]:
        """Short texts; outputs at padding mean nothing."""
        inputs = dict(self.tokenizer(list(TRIAL_TEXTS), padding=True, return_tensors="pt"))
        return inputs, inputs["attention_mask"].bool()

    def store(self) -> Store:
        return TokenStore()


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids as one int64 tensor (rows, longest), padded on the right with ``value``."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def inputs_of(examples: Sequence[Any], padding: int) -> dict[str, Tensor]:
    """A model's inputs, (rows, tokens) each, of examples with ``ids`` and ``segments``, if they have any."""
    inputs = {"input_ids": pad([e.ids for e in examples], padding)}
    inputs["attention_mask"] = pad([[1] * len(e.ids) for e in examples], 0)
    if examples[0].segments is not None:
        inputs["token_type_ids"] = pad([e.segments or () for e in examples], 0)
    return inputs


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of ``text`` alone, without special tokens around it."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def ending(tokenizer: Any) -> list[int]:
    """The special tokens that ``tokenizer`` puts behind every text: none, an end token, or a separator (BERT's)."""
    letter, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    starts = [i for i in range(len(whole) - len(letter) + 1) if whole[i : i + len(letter)] == letter]
    return list(whole[starts[-1] + len(letter) :]) if letter and starts else []


def without(ids: list[int], end: Sequence[int]) -> list[int]:
    """``ids`` without the tokens ``end`` at their end, if they are there."""
    return ids[: -len(end)] if end and ids[-len(end) :] == list(end) else ids
