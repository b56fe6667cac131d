"""Preference: a language model learns to prefer the better of two answers (DPO)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.params import on_device
from rondo.tasks.language import conversation
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.language_model import IGNORED
from rondo.tasks.language.preferring.losses import LossType, pair_losses, per_row
from rondo.tasks.language.preferring.pairs import Pair, PairColumns, PairTask
from rondo.tasks.language.text import TextExample
from rondo.tasks.row_checks import Row, as_list
from rondo.tasks.task import Batch, Shortcut


class Preference(PairTask, CausalLM):  # type: ignore[misc]
    """Direct preference optimisation on pairs of answers, scored by the share of pairs whose chosen answer has the
    larger reward.

    The reward of an answer is ``beta`` times its log-probability, less that of the reference: the model without its
    adapter, which computes each pair alone and once. Until it is there (:meth:`compared_with`), answers have the loss
    of a language model.

    ``columns``: of the rows.
    ``loss_type``, ``beta``, ``label_smoothing``: see :func:`rondo.tasks.language.preferring.losses.pair_losses`.
    """

    unfit: ClassVar[Mapping[Shortcut, str]] = {"prefix": "states would have to be kept for two sequences of every row"}

    def __init__(
        self,
        tokenizer: Any,
        columns: PairColumns,
        max_length: int,
        *,
        loss_type: LossType = "sigmoid",
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        today: str | None = None,
    ) -> None:
        prompt = columns.prompt or "prompt"
        super().__init__(tokenizer, None, (), None, max_length, messages=prompt, today=today)
        self.columns, self.loss_type, self.beta, self.label_smoothing = columns, loss_type, beta, label_smoothing
        self.reference: Reference | None = None

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        return cls(
            tokenizer,
            PairColumns.of(config),
            config.max_length,
            loss_type=config.loss_type or "sigmoid",
            beta=0.1 if config.beta is None else config.beta,
            label_smoothing=config.label_smoothing or 0.0,
            today=config.today,
        )

    def compared_with(self, reference: Callable[[Batch], Tensor]) -> Self:
        alone, task = copy.copy(self), copy.copy(self)
        alone.reference = None
        task.reference = Reference(alone, reference)
        return task

    def encode(self, rows: Sequence[Row]) -> list[Pair]:  # type: ignore[override]
        """Each answer and its prompt are cut to ``max_length`` tokens together. A row is left out if its prompt leaves
        no room, as TRL does."""
        pairs = []
        for row in rows:
            start, *sides = self.columns.read(row).ids(self.tokenizer, self.today)
            if min(self.max_length, *map(len, sides)) > max(start, 1):
                pairs.append(Pair(*(self._side(ids, start) for ids in sides)))
        return pairs

    def _side(self, whole: Sequence[int], start: int) -> TextExample:
        ids = tuple(whole[: self.max_length])
        return TextExample(ids, (IGNORED,) * start + ids[start:], lost=len(whole) - len(ids))

    def collate(self, examples: Sequence[Any]) -> tuple[Batch, Batch]:
        """Targets as those of a language model, and ``reference``: the log-probability of each answer by the reference,
        (2 * rows,). Answers that are in no pair have none."""
        inputs, targets = super().collate([side for example in examples for side in self.sequences(example)])
        pairs = [pair for pair in examples if isinstance(pair, Pair)]
        if self.reference is None or len(pairs) < len(examples):
            return inputs, targets
        known = [value for pair in pairs for value in self.reference.of(pair)]
        return inputs, {**targets, "reference": torch.tensor(known)}

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """One target per pair."""
        if "reference" not in targets:
            return super().loss(logits, targets)
        return per_row(self.judged(logits, targets)[1])

    def judged(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        sums, tokens = super().loss(output, targets)
        ratios = -sums - targets["reference"]
        losses = pair_losses(self.loss_type, ratios, tokens, self.beta, self.label_smoothing)
        return self.beta * ratios, losses

    def prompt_ids(self, row: Row) -> list[int]:
        asked, told = self.columns.asked(row), as_list(row.get(self.columns.chosen)) is not None
        said = self.columns.read(row).prompt if asked is None or (told and isinstance(asked, str)) else asked
        if isinstance(said, str):
            return self.begun(said)
        return conversation.prompt_ids(self.tokenizer, said, self.today)

    def prompt_and_answer(self, example: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the chosen answer."""
        return super().prompt_and_answer(example.chosen)


class Reference:
    """Log-probabilities of answers by a model that is not trained, computed once and kept. A pair is computed alone, so
    they do not depend on the rows beside it, nor on the order in which rows come."""

    def __init__(self, task: Preference, output: Callable[[Batch], Tensor]) -> None:
        self._task, self._output = task, output
        self._known: dict[bytes, tuple[float, float]] = {}

    def of(self, pair: Pair) -> tuple[float, float]:
        key = pair.digest
        if key not in self._known:
            inputs, targets = self._task.collate([pair])
            output = self._output(inputs)
            with torch.no_grad():
                chosen, rejected = (-self._task.loss(output, on_device(targets, output.device))[0]).tolist()
            self._known[key] = chosen, rejected
        return self._known[key]
