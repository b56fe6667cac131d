"""Sequence to sequence: an encoder reads the prompt, and a decoder learns to write the response."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.language.language_model import IGNORED, LanguageModel
from rondo.tasks.language.text import TRIAL_TEXTS, TextExample, TokenStore, pad
from rondo.tasks.row_checks import Row
from rondo.tasks.task import Batch, Shortcut


@dataclass(frozen=True)
class PairExample(TextExample):
    """The ids of one row. ``target`` holds those to write, with the end token."""

    target: tuple[int, ...]

    @property
    def cost(self) -> int:
        return len(self.ids) + len(self.target)


class PairStore(TokenStore):
    """All examples of a run, in flat arrays."""

    def __getitem__(self, number: int) -> PairExample:
        row = super().__getitem__(number)
        assert isinstance(row.target, tuple)
        return PairExample(row.ids, row.target)

    def cost(self, number: int) -> int:
        return super().cost(number) + self._target_ends[number + 1] - self._target_ends[number]

    def account(self) -> dict[str, int]:
        """Tokens are those of both texts."""
        known = super().account()
        return {**known, "tokens": known["tokens"] + len(self._targets)}


REMEDY = "name another model, or mend its config.json"


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
    unfit: ClassVar[Mapping[Shortcut, str]] = {
        "prefix": "an encoder's states and a decoder's would have to be kept for every row",
        "packing": "a decoder attends from one sequence to another, which are not laid out together",
    }

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
        """The decoder's start: T5's, or that of :meth:`for_model`."""

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        prompt = [config.prompt] if isinstance(config.prompt, str) else list(config.prompt or ())
        length = config.max_length if config.max_target_length is None else config.max_target_length
        return cls(tokenizer, prompt, config.response, config.max_length, length, separator=config.separator)

    def for_model(self, module: Any) -> Self:
        """With the start of the model's decoder. Raises :class:`ConfigError` where it has none that Rondo knows."""
        task = copy.copy(self)
        task.start = decoder_start(module, self.tokenizer)
        return task

    def encode(self, rows: Sequence[Row]) -> list[PairExample]:
        """Prompts are cut to ``max_length`` tokens and responses to ``max_target_length``, special tokens included."""
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
        """The tokens for the encoder, cut to ``max_length`` as those that it was trained on."""
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
        return example.ids, example.target

    def opening(self, example: PairExample, size: int) -> PairExample:
        return PairExample(example.ids[:size], example.target[:size])

    def trial_batch(self) -> tuple[Batch, Tensor]:
        """Short texts, each answered by itself."""
        texts = [tuple(ids) for ids in self.tokenizer(list(TRIAL_TEXTS))["input_ids"]]
        inputs, targets = self.collate([PairExample(ids, ids) for ids in texts])
        return inputs, targets["labels"] != IGNORED

    def lengths(self, example: PairExample) -> tuple[int, ...]:
        return len(example.ids), len(example.target)

    def collate(self, examples: Sequence[PairExample]) -> tuple[Batch, Batch]:
        """The decoder reads the targets one place later, and needs no mask: padding comes behind all that has a loss.

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
        return PairStore()


def decoder_start(module: Any, tokenizer: Any) -> DecoderStart:
    """The start of a model's decoder, by its configuration. ``module`` may be on the meta device. Raises
    :class:`ConfigError` if it has none, or shifts labels in another way."""
    config = module.config
    first, padding = getattr(config, "decoder_start_token_id", None), config.pad_token_id
    if first is None:
        message = f"{config.model_type} names no first token of its decoder (decoder_start_token_id): {REMEDY}"
        raise ConfigError.at("model.name", message)
    start = DecoderStart(int(first), int(tokenizer.pad_token_id if padding is None else padding))
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        labels = sample_labels(tokenizer)
        shifted_by_model = module.prepare_decoder_input_ids_from_labels(labels=labels)
        if not torch.equal(shifted_by_model, shifted(labels, start)):
            reason = "begins each row with a token of the row's own and not with decoder_start_token_id"
            raise ConfigError.at("model.name", f"the decoder of {config.model_type} {reason}: {REMEDY}")
    return start


def shifted(labels: Tensor, start: DecoderStart) -> Tensor:
    """``labels`` (rows, tokens), without a loss where they are negative, one place later."""
    ids = torch.cat((torch.full_like(labels[:, :1], start.first), labels[:, :-1]), 1)
    return ids.masked_fill(ids < 0, start.padding)


def sample_labels(tokenizer: Any) -> Tensor:
    """The targets of one row, which ends with the end token as those of a task do."""
    end, special = tokenizer.eos_token_id, set(tokenizer.all_special_ids)
    ids = list(islice((n for n in range(len(tokenizer)) if n not in special), 7))
    return torch.tensor([[*ids, *([] if end is None else [end])]])
