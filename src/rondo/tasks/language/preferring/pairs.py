"""Rows of two answers to a prompt, of which one is better: read in the forms that TRL reads, and as examples."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Self, TypeAlias

from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.tasks.language import conversation
from rondo.tasks.language.conversation import Turn
from rondo.tasks.language.preferring.losses import PairTally
from rondo.tasks.language.text import TextExample, TextTask, TokenStore, text_ids
from rondo.tasks.row_checks import Row, RowProblem, as_list, is_missing, text_problem
from rondo.tasks.task import Batch, Store

Said: TypeAlias = str | list[Turn]
"""A text, or turns of a conversation."""


@dataclass(frozen=True)
class Pair:
    """A row: the prompt with the chosen answer, and with the rejected one."""

    chosen: TextExample
    rejected: TextExample

    @property
    def sides(self) -> tuple[TextExample, TextExample]:
        return self.chosen, self.rejected

    @property
    def cost(self) -> int:
        return self.chosen.cost + self.rejected.cost

    @property
    def digest(self) -> bytes:
        parts = [part for side in self.sides for part in (side.ids, side.target) if isinstance(part, tuple)]
        numbers = array("q", [number for part in parts for number in (len(part), *part)])
        return hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()


class PreferenceStore(Store):
    """All pairs of a run, in flat arrays (:class:`rondo.tasks.language.text.TokenStore`)."""

    def __init__(self) -> None:
        self._sides, self._count, self._cut = TokenStore(), 0, 0

    def add(self, examples: Iterable[Pair]) -> range:
        first = self._count
        for pair in examples:
            self._sides.add(pair.sides)
            self._count += 1
            self._cut += any(side.lost for side in pair.sides)
        return range(first, self._count)

    def __getitem__(self, number: int) -> Pair:
        return Pair(self._sides[2 * number], self._sides[2 * number + 1])

    def cost(self, number: int) -> int:
        return self._sides.cost(2 * number) + self._sides.cost(2 * number + 1)

    def account(self) -> dict[str, int]:
        """Tokens are those of both answers, each with its prompt."""
        return {**self._sides.account(), "rows": self._count, "rows_cut": self._cut}

    def sha256(self) -> str:
        return self._sides.sha256()


class Unreadable(ValueError):
    """The value in ``column`` cannot be read; the message says why."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True)
class Answers:
    """A row as it is said: the prompt, and both answers with the prompt before them."""

    prompt: Said
    chosen: Said
    rejected: Said

    def ids(self, tokenizer: Any, today: str | None) -> tuple[int, list[int], list[int]]:
        """The number of tokens before the answers, and the token ids of both answers with the prompt before them
        (:func:`said_ids`). An answer begins at the first token that the prompt alone does not have.

        Source: TRL 1.16, ``DPOTrainer._prepare_dataset``.
        """
        chosen, rejected = (said_ids(tokenizer, said, today) for said in (self.chosen, self.rejected))
        if isinstance(self.prompt, str):
            prompt: list[int] = tokenizer(self.prompt, verbose=False)["input_ids"]
        else:
            text = conversation.rendered(tokenizer, self.prompt, today, tokenize=False, add_generation_prompt=True)
            prompt = text_ids(tokenizer, text)
        return min(_common(prompt, chosen), _common(prompt, rejected)), chosen, rejected


def said_ids(tokenizer: Any, said: Said, today: str | None) -> list[int]:
    """The token ids of a text, which ends with the end token, or of a conversation as the chat template has it.
    ``today``: see :func:`rondo.tasks.language.conversation.rendered`."""
    if isinstance(said, str):
        end = tokenizer.eos_token or ""
        return list(tokenizer(said if said.endswith(end) else said + end, verbose=False)["input_ids"])
    conversation.must_have_template(tokenizer)
    return text_ids(tokenizer, conversation.rendered(tokenizer, said, today, tokenize=False))


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the beginning that both have."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class PairColumns:
    """The columns of a row."""

    prompt: str | None
    """None: ``prompt``, in rows that have it."""
    chosen: str
    rejected: str

    @classmethod
    def of(cls, config: TaskConfig) -> Self:
        prompt = config.prompt if isinstance(config.prompt, str) else None
        return cls(prompt, config.chosen or "chosen", config.rejected or "rejected")

    def asked(self, row: Row) -> Said | None:
        """The prompt in its column; None where the row has none. Raises :class:`Unreadable`."""
        column = self.prompt or "prompt"
        if self.prompt is None and is_missing(row.get(column)):
            return None
        if (turns := as_list(row.get(column))) is None and (fault := text_problem(row, 0, column)) is not None:
            raise Unreadable(column, fault.reason)
        text: str = row[column]
        return text if turns is None else turns

    def whole(self, row: Row, column: str) -> Said:
        """The answer in ``column`` with the prompt before it. A text of the prompt beside turns is their first one
        again (UltraFeedback). Raises :class:`Unreadable`."""
        prompt, turns = self.asked(row), as_list(row.get(column))
        if turns is None:
            if (fault := text_problem(row, 0, column)) is not None:
                raise Unreadable(column, fault.reason)
            if prompt is not None and not isinstance(prompt, str):
                raise Unreadable(column, "a text, and the prompt is turns of a conversation: give both in one form")
            return (prompt or "") + str(row[column])
        if not turns:
            raise Unreadable(column, "no turn")
        try:
            return conversation.turns([*(prompt if isinstance(prompt, list) else []), *turns])
        except ValueError as reason:
            raise Unreadable(column, str(reason)) from None

    def read(self, row: Row) -> Answers:
        """The row as it is said. Raises :class:`Unreadable`."""
        prompt, chosen, rejected = self.asked(row), self.whole(row, self.chosen), self.whole(row, self.rejected)
        if isinstance(chosen, str) != isinstance(rejected, str):
            raise Unreadable(self.rejected, f"a text or turns, and column {self.chosen!r} is the other: take one form")
        if chosen == rejected:
            raise Unreadable(self.rejected, f"the same as in column {self.chosen!r}, so neither answer is better")
        if prompt is not None and isinstance(prompt, str) == isinstance(chosen, str):
            return Answers(chosen[: len(prompt)], chosen, rejected)
        return Answers(chosen[: self._begin(chosen, rejected)], chosen, rejected)

    def _begin(self, chosen: Said, rejected: Said) -> int:
        """The length of the prompt that both answers begin with.

        Source: TRL 1.16, ``extract_prompt``. An answer that is the beginning of the other keeps its last part.
        """
        same = min(_common(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
        if isinstance(chosen, str) and chosen[:same].endswith(" "):
            same -= 1
        if not (chosen[:same].strip() if isinstance(chosen, str) else same):
            message = f"it and column {self.rejected!r} begin differently, so no prompt is in them: name task.prompt"
            raise Unreadable(self.chosen, message)
        return same


class PairTask(TextTask):
    """A task on pairs. A row is two sequences, the chosen answer first, and one target."""

    primary = "accuracy"
    higher_is_better = True
    columns: PairColumns

    @classmethod
    def with_columns(cls, config: TaskConfig, text: str | None, label: str | None) -> TaskConfig:
        columns = PairColumns.of(config)
        return config.model_copy(update={"chosen": columns.chosen, "rejected": columns.rejected})

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        try:
            PairColumns.of(config).read(row)
        except Unreadable as fault:
            return RowProblem(number, fault.column, str(fault))
        return None

    def sequences(self, example: Any) -> Sequence[TextExample]:
        return example.sides if isinstance(example, Pair) else (example,)

    def opening(self, example: Any, size: int) -> Any:
        if not isinstance(example, Pair):
            return super().opening(example, size)
        return Pair(self.opening(example.chosen, size - size // 2), self.opening(example.rejected, max(1, size // 2)))

    @abstractmethod
    def judged(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """The reward of each answer, (2 * pairs,), and the loss of each pair, (pairs,)."""

    def tally(self) -> PairTally:
        return PairTally(self.judged)

    def store(self) -> PreferenceStore:
        return PreferenceStore()
