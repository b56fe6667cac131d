"""Inputs of an encoder-decoder's decoder: the targets one place later, behind the model's own first token.

A model shifts its labels itself when it is given labels. Rondo gives it the shifted ids, because it computes the loss
outside of the model, so the two must be the same.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rondo.errors import ConfigError
from rondo.tasks.language.seq2seq_lm import DecoderStart

_REMEDY = "name another model, or mend its config.json"


def decoder_start(module: Any, tokenizer: Any) -> DecoderStart:
    """The start of a model's decoder, by its configuration. ``module`` may be on the meta device. Raises
    :class:`ConfigError` if it has none, or shifts labels in another way."""
    config = module.config
    first, padding = getattr(config, "decoder_start_token_id", None), config.pad_token_id
    if first is None:
        message = f"{config.model_type} names no first token of its decoder (decoder_start_token_id): {_REMEDY}"
        raise ConfigError.at("model.name", message)
    start = DecoderStart(int(first), int(tokenizer.pad_token_id if padding is None else padding))
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        labels = _labels(tokenizer)
        found = module.prepare_decoder_input_ids_from_labels(labels=labels)
        if not torch.equal(found, shifted(labels, start)):
            reason = "begins each row with a token of the row's own and not with decoder_start_token_id"
            raise ConfigError.at("model.name", f"the decoder of {config.model_type} {reason}: {_REMEDY}")
    return start


def shifted(labels: Tensor, start: DecoderStart) -> Tensor:
    """``labels`` (rows, tokens), without a loss where they are negative, one place later."""
    ids = torch.cat((torch.full_like(labels[:, :1], start.first), labels[:, :-1]), 1)
    return ids.masked_fill(ids < 0, start.padding)


@torch.no_grad()
def check_decoder(module: Any, tokenizer: Any) -> None:
    """Compare the logits that ``module``, with its weights, computes from labels and from the shifted labels, and those
    of two rows that differ in their last target alone; and its loss with the cross-entropy. Raises
    :class:`ConfigError` if they differ by more than rounding."""
    labels = _labels(tokenizer).to(module.device)
    ids = labels.clamp_min(0)
    start = decoder_start(module, tokenizer)
    inputs = shifted(labels, start)
    other = inputs.clone()
    other[:, -1] = (other[:, -1] + 1) % int(module.get_input_embeddings().num_embeddings)
    output = module(input_ids=ids, labels=labels)
    own = output.logits
    ours, changed = (module(input_ids=ids, decoder_input_ids=i).logits for i in (inputs, other))
    allowed = 1e-4 * float(own.abs().max())
    if not float((own - ours).abs().max()) <= allowed:
        message = f"{module.config.model_type} computes other logits from labels than from the tokens one place later"
        raise ConfigError.at("model.name", f"{message}: {_REMEDY}")
    if not float((ours - changed)[:, :-1].abs().max()) <= allowed:
        message = f"the decoder of {module.config.model_type} sees the tokens that it is to predict: {_REMEDY}"
        raise ConfigError.at("model.name", message)
    expected = functional.cross_entropy(own.flatten(0, 1).float(), labels.flatten())
    if not float((output.loss - expected).abs()) <= 1e-3 * float(expected):
        message = f"{module.config.model_type} has another loss than the cross-entropy of its targets (ProphetNet's)"
        raise ConfigError.at("model.name", f"{message}: name another model")


def _labels(tokenizer: Any) -> Tensor:
    """The targets of one row, which ends with the end token as those of a task do."""
    end, special = tokenizer.eos_token_id, set(tokenizer.all_special_ids)
    ids = list(islice((n for n in range(len(tokenizer)) if n not in special), 7))
    return torch.tensor([[*ids, *([] if end is None else [end])]])
