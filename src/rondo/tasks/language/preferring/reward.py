"""Reward models: a number for an answer, learned from pairs of which one is better (Bradley-Terry)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import takewhile
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rondo.config.inputs import TaskConfig
from rondo.tasks.language import conversation
from rondo.tasks.language.preferring.losses import apart, per_row
from rondo.tasks.language.preferring.pairs import Pair, PairColumns, PairTask, Unreadable, said_ids
from rondo.tasks.language.text import TextExample, TextTask, inputs_of
from rondo.tasks.row_checks import Row, RowProblem, UnusableRows
from rondo.tasks.task import Batch, Shortcut, wide


class Reward(PairTask):
    """A reward model, scored by the share of pairs whose chosen answer has the larger reward.

    ``columns``: of the rows.
    ``max_length``: most tokens of an answer and its prompt.
    ``today``: the date for a chat template that prints today's, as YYYY-MM-DD; left out, that of the clock.
    """

    unfit: ClassVar[Mapping[Shortcut, str]] = {
        **TextTask.unfit,
        "prefix": "states would have to be kept for two sequences of every row",
    }

    def __init__(self, tokenizer: Any, columns: PairColumns, max_length: int, *, today: str | None = None) -> None:
        self.tokenizer, self.columns, self.max_length = tokenizer, columns, max_length
        dated = conversation.tells_the_date(tokenizer)
        self.today = (today or date.today().isoformat()) if dated else None

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        return cls(tokenizer, PairColumns.of(config), config.max_length, today=config.today)

    def completed(self, config: TaskConfig) -> TaskConfig:
        """The date, if the chat template prints it."""
        return config if config.today is not None else config.model_copy(update={"today": self.today})

    def encode(self, rows: Sequence[Row]) -> list[Pair]:
        """A row is left out if one of its answers and the prompt have more than ``max_length`` tokens, as TRL does."""
        answers = (self.columns.read(row) for row in rows)
        sides = ([said_ids(self.tokenizer, s, self.today) for s in (a.chosen, a.rejected)] for a in answers)
        return [
            Pair(*(TextExample(tuple(ids), 0) for ids in both))
            for both in sides
            if max(map(len, both)) <= self.max_length
        ]

    def collate(self, examples: Sequence[Any]) -> tuple[Batch, Batch]:
        """Targets: ``better``, whether each answer is the chosen one, (2 * rows,)."""
        sides = [side for example in examples for side in self.sequences(example)]
        paired = len(sides) > len(examples)
        targets = {"better": torch.tensor((1, 0)).repeat(len(examples))} if paired else {}
        return inputs_of(sides, self.tokenizer.pad_token_id), targets

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Bradley-Terry, one target per pair; output (2 * rows, 1). Answers that are in no pair have no loss.

        Source: TRL 1.16, ``RewardTrainer.compute_loss``.
        """
        if "better" not in targets:
            return 0 * output.flatten(), torch.ones_like(output.flatten())
        return per_row(self.judged(output, targets)[1])

    def judged(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        rewards = wide(output).flatten()
        chosen, rejected = apart(rewards)
        return rewards, -logsigmoid(chosen - rejected)

    def unlabelled(self, rows: Sequence[Row]) -> list[TextExample]:
        """The chosen answers, cut to ``max_length`` tokens before the end tokens, whose states some models read. Raises
        :class:`UnusableRows`."""
        examples, problems = list[TextExample](), list[RowProblem]()
        for number, row in enumerate(rows):
            try:
                ids = said_ids(self.tokenizer, self.columns.whole(row, self.columns.chosen), self.today)
                end = [*takewhile(lambda token: token == self.tokenizer.eos_token_id, reversed(ids))]
                said = ids[: len(ids) - len(end)][: max(self.max_length - len(end), 0)]
                examples.append(TextExample(tuple([*said, *end][: self.max_length]), 0))
            except Unreadable as fault:
                problems.append(RowProblem(number, fault.column, str(fault)))
        if problems:
            raise UnusableRows(problems)
        return examples

    def predicted(self, output: Tensor) -> list[dict[str, Any]]:
        """The ``reward`` of each answer; output (rows, 1)."""
        return [{"reward": reward} for reward in wide(output).flatten().tolist()]
