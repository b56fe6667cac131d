"""Sequence to sequence: an encoder reads the prompt, and a decoder learns to write the response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rondo.config.inputs import TaskConfig
from rondo.tasks.language.language_model import IGNORED, LanguageModel
from rondo.tasks.language.pair_store import PairExample, PairStore
from rondo.tasks.language.text import pad
from rondo.tasks.row_checks import Row
from rondo.tasks.task import Batch


@dataclass(frozen=True)
class DecoderStart:
    """The model's tokens around a decoder's inputs, which are the targets one place later."""

    first: int
    """Id before the first target."""
    padding: int


class Seq2SeqLM(LanguageModel):
    """Sequence to sequence on ``prompt`` and ``response``.

    ``prompt``: columns joined by ``separator``, or by a blank line without one; empty ones are left out.
    ``response``: the response column. All its tokens, and the end token after it, have a loss.
    ``max_length``: most tokens of the prompt.
    ``max_target_length``: most tokens of the response.

    Both texts have the tokens that the tokenizer puts around them (``text_target`` for the response), also where they
    are cut, and the response ends with the end token.
    """

    ahead = 0

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[str],
        response: str | None,
        max_length: int,
        max_target_length: int,
        *,
        separator: str | None = None,
    ) -> None:
        super().__init__(tokenizer, prompt, response, max_length, separator)
        self.max_target_length = max_target_length
        self.start = DecoderStart(tokenizer.pad_token_id, tokenizer.pad_token_id)
        """The decoder's start. The model's outline sets the model's own."""

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """See :meth:`rondo.tasks.task.Task.of`."""
        prompt = [config.prompt] if isinstance(config.prompt, str) else list(config.prompt or ())
        length = config.max_length if config.max_target_length is None else config.max_target_length
        return cls(tokenizer, prompt, config.response, config.max_length, length, separator=config.separator)

    def encode(self, rows: Sequence[Row]) -> list[PairExample]:
        """See :meth:`rondo.tasks.task.Task.encode`. Prompts are cut to ``max_length`` tokens and responses to
        ``max_target_length``, special tokens included."""
        examples = []
        for row in rows:
            whole = self._whole_ids(row)
            ids = self._cut(row, whole)
            target, lost = self._target(row[self.response])
            if ids and target:
                examples.append(PairExample(tuple(ids), tuple(target), lost=len(whole) - len(ids) + lost))
        return examples

    def _target(self, text: str) -> tuple[list[int], int]:
        """The token ids of a response, and the number that it loses to ``max_target_length``."""
        end, room = self.tokenizer.eos_token_id, self.max_target_length
        whole: list[int] = self.tokenizer(text_target=text, verbose=False)["input_ids"]
        added = end is not None and whole[-1:] != [end]  # some tokenizers end no text
        if len(whole) + added > room:
            ids = self.tokenizer(text_target=text, truncation=True, max_length=room - added)["input_ids"]
        else:
            ids = whole
        return [*ids, end] if added else ids, len(whole) - len(ids)

    def prompt_ids(self, row: Row) -> list[int]:
        """See :meth:`rondo.tasks.language.language_model.LanguageModel.prompt_ids`: the tokens for the encoder, cut to
        ``max_length`` as those that it was trained on."""
        return self._cut(row, self._whole_ids(row))

    def _cut(self, row: Row, whole: list[int]) -> list[int]:
        """``whole``, the tokens of the row's prompt, as the tokenizer cuts them to ``max_length``."""
        if len(whole) <= self.max_length:
            return whole
        ids: list[int] = self.tokenizer(self._joined(row), truncation=True, max_length=self.max_length)["input_ids"]
        return ids

    def _whole_ids(self, row: Row) -> list[int]:
        ids: list[int] = self.tokenizer(self._joined(row), verbose=False)["input_ids"]
        return ids

    def prompt_and_answer(self, example: PairExample) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See :meth:`rondo.tasks.language.language_model.LanguageModel.prompt_and_answer`."""
        return example.ids, example.target

    def lengths(self, example: PairExample) -> tuple[int, ...]:
        """See :meth:`rondo.tasks.task.Task.lengths`: of the prompt and of the response."""
        return len(example.ids), len(example.target)

    def collate(self, examples: Sequence[PairExample]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.task.Task.collate`. The decoder reads the targets one place later, and needs no mask:
        padding comes behind all that has a loss.

        Targets:
        ``labels``: (rows, tokens of responses), padding ignored.
        ``places``: the tokens, counted over all rows, that have a loss.
        """
        labels = pad([e.target for e in examples], IGNORED)
        inputs = {
            "input_ids": pad([e.ids for e in examples], self.tokenizer.pad_token_id),
            "attention_mask": pad([[1] * len(e.ids) for e in examples], 0),
            "decoder_input_ids": pad([(self.start.first, *e.target[:-1]) for e in examples], self.start.padding),
        }
        return inputs, {"labels": labels, "places": (labels != IGNORED).flatten().nonzero().flatten()}

    def store(self) -> PairStore:
        """See :meth:`rondo.tasks.task.Task.store`."""
        return PairStore()
