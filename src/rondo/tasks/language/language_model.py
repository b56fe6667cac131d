"""The base class of tasks that train a model to predict tokens: prompts, the loss on target tokens, and scores."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.nn import functional

from rondo.config.inputs import cell_text
from rondo.errors import ConfigError
from rondo.tasks.language.output_layer import OutputLayer
from rondo.tasks.language.text import TextTask, ending
from rondo.tasks.row_checks import Row, RowProblem, UnusableRows, is_missing
from rondo.tasks.task import AnswerEnd, Batch, Predictor, Scores, Shortcut, Tally, wide

IGNORED = -100  # torch's index for targets without a loss


class LanguageModel(TextTask):
    """A task whose targets are tokens.

    ``tokenizer``: the model's.
    ``prompt``: columns joined by ``separator``, or by a blank line without one; empty ones are left out.
    ``response``: the response column.
    ``max_length``: most tokens that the model reads of a row.
    """

    primary = "loss"
    unfit: ClassVar[Mapping[Shortcut, str]] = {}
    ahead: ClassVar[int]
    """Places from a token to the one that its output predicts: 1 for a model that reads its own targets, 0 where the
    inputs are shifted already."""
    messages: str | None = None
    """The column of conversations, if the task reads any."""

    def __init__(
        self, tokenizer: Any, prompt: Sequence[str], response: str | None, max_length: int, separator: str | None
    ) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.ending = ending(tokenizer)
        """Special tokens that the tokenizer puts behind every text."""
        self.prompt, self.response = tuple(prompt), response or ""
        self.between = "\n\n" if separator is None else separator
        self.output: OutputLayer | None = None
        """The model's output layer, if the network leaves it to :meth:`loss` and :meth:`tally`."""

    def _joined(self, row: Row) -> str:
        """The texts of the columns of the prompt."""
        cells = (cell_text(row[c]) for c in self.prompt if not is_missing(row[c]))
        return self.between.join(text for text in cells if text.strip())

    @property
    def end_ids(self) -> list[int]:
        """The tokens behind an answer that no chat template ends."""
        return self.ending if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]

    @property
    def answer_end(self) -> AnswerEnd:
        """The first of :attr:`end_ids`."""
        return AnswerEnd(tuple(self.end_ids[:1]))

    @abstractmethod
    def prompt_ids(self, row: Row) -> list[int]:
        """Token ids for a model to answer. Those of a decoder, which its answer follows, are not cut. Raises
        :class:`ValueError` if a row's conversation is none that can be answered."""

    @abstractmethod
    def prompt_and_answer(self, example: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of the prompt in ``example``, and of its answer."""

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """The ``response`` to each row's prompt."""
        prompts, problems = [], []
        for number, row in enumerate(rows):
            try:
                prompts.append(self.prompt_ids(row))
            except ConfigError:
                raise
            except ValueError as reason:
                problems.append(RowProblem(number, self.messages or "", str(reason)))
        if problems:
            raise UnusableRows(problems)
        return [{"response": text} for text in self._said(model.generated(prompts))]

    def shown(self, example: Any) -> tuple[str, str]:
        prompt, answer = self._texts(self.prompt_and_answer(example))
        return prompt, answer

    def answered(self, examples: Sequence[Any], model: Predictor) -> list[str]:
        """The texts that the model generates after the prompts."""
        return self._said(model.generated([self.prompt_and_answer(example)[0] for example in examples]))

    def _said(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """The texts of generated answers, without what ended them."""
        end = self.answer_end
        texts = self._texts([ids[:-1] if len(ids) > 0 and ids[-1] in end.tokens else ids for ids in answers])
        return [t.rstrip().removesuffix(end.text.strip()).rstrip() for t in texts] if end.text else texts

    def _texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    def with_output(self, layer: OutputLayer) -> Self:
        task = copy.copy(self)
        task.output = layer
        return task

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the target tokens.

        ``logits``: (rows, tokens, vocabulary), or states (rows, tokens, width) if :attr:`output` is set.
        ``targets``: ``labels`` (rows, tokens), ignored where there is no loss, and ``places``, the tokens, counted over
        all rows, whose output has a loss.
        """
        labels = targets["labels"][:, self.ahead :]
        counts = (labels != IGNORED).sum(1)
        if self.output is not None:
            places = targets["places"]
            expected = targets["labels"].flatten()[places + self.ahead]
            target_losses = self.output.losses(logits.flatten(0, 1)[places], expected)
            token_losses = target_losses.new_zeros(targets["labels"].numel()).scatter(0, places, target_losses)
            return token_losses.view(targets["labels"].shape).sum(1), counts
        predicting = logits[:, : logits.shape[1] - self.ahead]
        token_losses = functional.cross_entropy(
            wide(predicting).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        return token_losses.sum(1), counts

    def tally(self) -> _Tally:
        """An empty tally of loss per target token, perplexity, and accuracy of the next token."""
        return _Tally(self.output, self.ahead)


class _Tally(Tally):
    def __init__(self, output: OutputLayer | None, ahead: int) -> None:
        self.output, self.ahead = output, ahead
        self.loss = 0.0
        self.hits = self.tokens = self.examples = 0

    def add(self, logits: Tensor, batch: Batch) -> None:
        places = batch["places"]
        outputs, labels = logits.flatten(0, 1)[places], batch["labels"].flatten()[places + self.ahead]
        self.tokens += len(places)
        self.examples += len(batch["labels"])
        if self.output is None:
            self._count(outputs, labels)
            return
        for part in self.output.parts(outputs):
            self._count(self.output.layer(outputs[part]), labels[part])

    def _count(self, logits: Tensor, labels: Tensor) -> None:
        self.loss += float(functional.cross_entropy(logits.float(), labels, reduction="sum"))
        self.hits += int((logits.argmax(-1) == labels).sum())

    def scores(self) -> Scores:
        if self.tokens == 0:
            return {"loss": None, "perplexity": None, "accuracy": None, "tokens": 0, "examples": self.examples}
        loss = self.loss / self.tokens
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else None,
            "accuracy": self.hits / self.tokens,
            "tokens": self.tokens,
            "examples": self.examples,
        }
