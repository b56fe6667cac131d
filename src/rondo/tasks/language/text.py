"""The base class of text tasks and the padding they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rondo.tasks.language.token_store import TokenStore
from rondo.tasks.task import Batch, Shortcut, Store, Task

TRIAL_TEXTS = (
    "Turn on the lights in the kitchen.",
    "The film is a charming and often affecting journey.",
    "No weapons of mass destruction were found.",
    "What is the capital of France?",
    "It rains; it pours, and nobody minds.",
    "A",
)


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
