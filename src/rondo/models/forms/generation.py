"""Generation by transformers' ``generate``: batches of prompts, padded on the left where the architecture copes with
it, with a cache of keys and values. An encoder's prompts are padded on the right, as in training. All text that
Rondo generates comes from here.

Not every architecture copes with padding beside a prompt (positions that count from the row's start, states that run
over all tokens). It is therefore tried on the prompts themselves before the first batch: the logits after a padded
prompt must be those of the prompt alone. Where they are not, prompts of one length go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.process import seeded
from rondo.tasks.row_checks import from_zero
from rondo.tasks.task import AnswerEnd, batches


@dataclass(frozen=True)
class RowLimits:
    """Limits of rows in tokens."""

    read: int
    """The most tokens of a row; 0 for pictures."""
    written: int | None = None
    """The most tokens that a decoder writes; None where tokens that are written count among those of the row."""

    def fault(self, tokens: int, new: int, prompt: str) -> str | None:
        """The reason why ``new`` tokens cannot follow a prompt of ``tokens`` tokens, and the remedy; None if they can.
        ``prompt``: words for the prompt."""
        if self.written is None:
            message = f"{new} after {prompt}, and the model takes {self.read}: lower it, or shorten the prompt"
            return None if tokens + new <= self.read else message
        if tokens > self.read:
            return f"an answer to {prompt}, and the model reads {self.read}: shorten the prompt"
        return None if new <= self.written else f"{new}, and the model writes {self.written} tokens: lower it"


def row_limits(module: Any, tokenizer: Any) -> RowLimits:
    """The limits of a transformers model: as many tokens as the tokenizer allows and the model has positions for. The
    tokenizer has no say where positions are relative."""
    config = module.config
    if not config.is_encoder_decoder:
        return RowLimits(_read(module, config, int(tokenizer.model_max_length)))
    relative = getattr(config, "relative_attention_num_buckets", None) is not None
    allowed = _UNLIMITED if relative else int(tokenizer.model_max_length)
    encoder, decoder = (getattr(part, "config", config) for part in (module.get_encoder(), module.get_decoder()))
    read = min(_read(module, encoder, allowed), _positions(encoder, "max_encoder_position_embeddings"))
    if (window := getattr(encoder, "attention_window", None)) is not None:
        longest = max(window) if isinstance(window, list) else window
        read -= read % longest  # LED pads to whole windows
    written = min(_positions(decoder, name) for name in ("max_decoder_position_embeddings", "max_position_embeddings"))
    return RowLimits(read, min(allowed, written))


_UNLIMITED = 10**9


def _positions(config: Any, name: str) -> int:
    positions = getattr(config, name, None)
    return int(positions) if positions is not None and positions > 0 else _UNLIMITED  # XLNet says -1 for no limit


def _read(module: Any, config: Any, allowed: int) -> int:
    limits = [allowed, _positions(config, "max_position_embeddings")]
    for path, layer in module.named_modules():
        if path.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            # RoBERTa and its kin count positions from the padding token's id on. Only some tokenizers know it.
            limits.append(layer.num_embeddings - layer.padding_idx - 1)
    if getattr(config, "attention_type", None) == "block_sparse":
        # In longer rows BigBird's blocks depend on the length that the batch is padded to.
        limits.append((5 + 2 * config.num_random_blocks) * config.block_size)
    return min(limits)


def rotary_turn(config: Any) -> int | None:
    """The tokens of a row beyond which a model's rotary embedding is another one for the whole call, as LongRoPE's is
    (Phi-3 with 128k tokens); transformers changes it in place. None where it never is."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer = [p for p in parameters.values() if isinstance(p, dict)] or [parameters]
    if not any(p.get("rope_type", p.get("type")) == "longrope" for p in by_layer):
        return None
    original = [p.get("original_max_position_embeddings") for p in by_layer]
    original += [
        getattr(config, name, None) for name in ("original_max_position_embeddings", "max_position_embeddings")
    ]
    return next(int(n) for n in original if n is not None)


_TRIED_TOKENS = 4
"""New tokens that padding is tried with: with the second, the cache is read."""
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-2}
"""Largest difference between logits computed in two ways, relative to the largest logit."""


@dataclass(frozen=True)
class Generation:
    """Settings of generation. Without ``temperature`` it is greedy, and the answers are the same each time."""

    max_new_tokens: int
    batch_size: int
    temperature: float | None = None
    """Draw tokens at this temperature in place of taking the likeliest."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that have this probability together."""
    seed: int = 0
    """Seed of the draws. A row's draws depend on the rows in its batch."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer. They may be in it."""
    option: str = "evaluation.max_new_tokens"
    """The key or option that says ``max_new_tokens``, for messages."""
    place: Callable[[int], str] = from_zero
    """The place of a prompt's row by its number, for messages."""


def answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], how: Generation, end: AnswerEnd
) -> list[list[int]]:
    """Token ids of the answer to every prompt (ids), in their order, up to the token that ended it.

    ``model``: a language model of transformers, or stock PEFT around one. Its own settings of generation, which may
    sample or penalise repetitions, are ignored, except a decoder's first tokens and the tokens that it never says. Its
    end tokens and what the task teaches as the ``end`` end an answer.
    """
    ends, texts = end_ids(model.generation_config.eos_token_id, end), (*how.stop, *filter(None, [end.text]))
    result: list[list[int]] = [[]] * len(prompts)
    with torch.no_grad(), _configured(model, tokenizer, how, ends), seeded(how.seed, model.device):
        together = _copes_with_padding(model, tokenizer, prompts, how)
        for numbers in batches(list(map(len, prompts)), how.batch_size, one_cost=not together):
            ids, mask = _padded([prompts[i] for i in numbers], tokenizer.pad_token_id, model)
            start = _start(model, ids)
            stopping = [_Stop(tokenizer, texts, start)] if texts else None
            made = model.generate(input_ids=ids, attention_mask=mask, stopping_criteria=stopping)
            made = made[:, start:].tolist()
            for i, row in zip(numbers, made, strict=True):
                result[i] = row[: next((n + 1 for n, token in enumerate(row) if token in ends), len(row))]
    return result


class _Stop:
    """Ends a row once a text is among its last tokens. transformers' own ``stop_strings`` knows byte pairs only."""

    def __init__(self, tokenizer: Any, texts: Sequence[str], start: int) -> None:
        self.tokenizer, self.texts, self.start = tokenizer, texts, start
        self.window = max(len(text.encode()) for text in texts) + 4  # no token is shorter than a byte

    def __call__(self, ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        tails = self.tokenizer.batch_decode(ids[:, self.start :][:, -self.window :])
        return torch.tensor([any(t in tail for t in self.texts) for tail in tails], device=ids.device)


def _padded(prompts: Sequence[Sequence[int]], pad: int | None, model: Any) -> tuple[Tensor, Tensor]:
    """The prompts as ids (rows, longest), padded on the left, or on the right for an encoder, and their mask."""
    longest, right = max(map(len, prompts)), _has_encoder(model)

    def full(values: Sequence[int], padding: int) -> list[int]:
        gap = [padding] * (longest - len(values))
        return [*values, *gap] if right else [*gap, *values]

    ids, mask = ([full(p, pad or 0) for p in prompts], [full([1] * len(p), 0) for p in prompts])
    return torch.tensor(ids, device=model.device), torch.tensor(mask, device=model.device)


def _has_encoder(model: Any) -> bool:
    return bool(model.config.is_encoder_decoder)


def _start(model: Any, ids: Tensor) -> int:
    """The place of the first new token in what is generated: behind the prompt, or behind a decoder's own start."""
    return 1 if _has_encoder(model) else ids.shape[1]


def _copes_with_padding(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], how: Generation) -> bool:
    """Whether the shortest prompt has the logits beside the longest that it has alone, over some greedy tokens."""
    by_length = sorted(prompts, key=len)
    if not by_length or how.batch_size == 1 or len(by_length[0]) == len(by_length[-1]):
        return True
    options = {
        "max_new_tokens": min(_TRIED_TOKENS, how.max_new_tokens),
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    alone = _first_row(model, *_padded(by_length[:1], tokenizer.pad_token_id, model), options)
    try:
        ids, mask = _padded([by_length[0], by_length[-1]], tokenizer.pad_token_id, model)
        padded = _first_row(model, ids, mask, options)
    except Exception as error:  # a model may raise anything on what it does not cope with
        if is_out_of_memory(error):
            raise
        return False
    allowed = _TOLERANCE.get(next(model.parameters()).dtype, 1e-4)
    for (token, logits), (padded_token, padded_logits) in zip(alone, padded, strict=False):
        if not float((logits - padded_logits).abs().max()) <= allowed * float(logits.abs().max()):
            return False
        if token != padded_token:  # a tie within rounding: from here on the texts differ
            break
    return True


def _first_row(model: Any, ids: Tensor, mask: Tensor, options: dict[str, Any]) -> list[tuple[int, Tensor]]:
    """The first row's new tokens, each with the logits that it was taken by."""
    made = model.generate(input_ids=ids, attention_mask=mask, **options)
    tokens = made.sequences[0, _start(model, ids) :].tolist()
    return list(zip(tokens, (step[0].float() for step in made.logits), strict=False))


def end_ids(known: int | Sequence[int] | None, end: AnswerEnd) -> list[int]:
    """The tokens that end an answer: those ``known`` to the model's own settings, and the ``end`` of training."""
    own = [known] if isinstance(known, int) else known or ()
    return sorted({*own, *end.tokens})


def end_notes(tokenizer: Any, known: Any, end: AnswerEnd, *, written: bool) -> Iterator[str]:
    """Sentences for whoever generates by other programs, on what ends an answer and is not ``known`` to the model's own
    settings. ``written``: whether its tokens are among the settings that are handed over."""
    ends = end_ids(known, end)
    if not written and (unknown := sorted(set(ends) - set(end_ids(known, AnswerEnd())))):
        names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(unknown)))
        yield (
            f"An answer ends with {names}, which the base model's own settings of generation do not name: give "
            f"`generate` `eos_token_id={ends}`, or answers run on."
        )
    if end.text:
        yield (
            f"An answer ends with the text {end.text!r}, which is not a token: give `generate` "
            f"`stop_strings=[{end.text!r}]` and the tokenizer, or answers run on."
        )


@contextmanager
def _configured(model: Any, tokenizer: Any, how: Generation, ends: Sequence[int]) -> Iterator[None]:
    """Within, the model generates in this way and not in its own."""
    from transformers import GenerationConfig

    settings, draws = model.generation_config, how.temperature is not None
    drawing = {"temperature": how.temperature, "top_p": how.top_p, "top_k": 0} if draws else {}
    # Around an encoder-decoder, PEFT generates by the base model's settings; around other models, by its own.
    holders = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]
    before = [holder.generation_config for holder in holders]
    chosen = GenerationConfig(
        max_new_tokens=how.max_new_tokens,
        do_sample=draws,
        use_cache=True,
        eos_token_id=list(ends) or None,
        pad_token_id=tokenizer.pad_token_id,
        **(_own_start(model, settings) if _has_encoder(model) else {}),
        **drawing,
    )
    for holder in holders:
        holder.generation_config = chosen
    try:
        yield
    finally:
        for holder, config in zip(holders, before, strict=True):
            holder.generation_config = config


def _own_start(model: Any, settings: Any) -> dict[str, Any]:
    """Tokens that a decoder was trained to begin with, and never to say (Marian's padding, which is also its start)."""
    kept = {name: getattr(settings, name, None) for name in ("forced_bos_token_id", "bad_words_ids")}
    return {"decoder_start_token_id": model.config.decoder_start_token_id, **kept}
