"""Inputs of an encoder-decoder's decoder: the targets one place later, behind the model's own first token.

A model shifts its labels itself when it is given labels. Rondo gives it the shifted ids, because it computes the loss
outside of the model, so the two must be the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from rondo.errors import ConfigError
from rondo.tasks.language.seq2seq_lm import REMEDY, decoder_start, sample_labels, shifted


@torch.no_grad()
def check_decoder(module: Any, tokenizer: Any) -> None:
    """Compare the logits that ``module``, with its weights, computes from labels and from the shifted labels, and those
    of two rows that differ in their last target alone; and its loss with the cross-entropy. Raises
    :class:`ConfigError` if they differ by more than rounding."""
    labels = sample_labels(tokenizer).to(module.device)
    ids = labels.clamp_min(0)
    start = decoder_start(module, tokenizer)
    inputs = shifted(labels, start)
    other = inputs.clone()
    other[:, -1] = (other[:, -1] + 1) % int(module.get_input_embeddings().num_embeddings)
    output = module(input_ids=ids, labels=labels)
    theirs = output.logits
    ours, changed = (module(input_ids=ids, decoder_input_ids=i).logits for i in (inputs, other))
    allowed = 1e-4 * float(theirs.abs().max())
    if not float((theirs - ours).abs().max()) <= allowed:
        message = f"{module.config.model_type} computes other logits from labels than from the tokens one place later"
        raise ConfigError.at("model.name", f"{message}: {REMEDY}")
    if not float((ours - changed)[:, :-1].abs().max()) <= allowed:
        message = f"the decoder of {module.config.model_type} sees the tokens that it is to predict: {REMEDY}"
        raise ConfigError.at("model.name", message)
    expected = functional.cross_entropy(theirs.flatten(0, 1).float(), labels.flatten())
    if not float((output.loss - expected).abs()) <= 1e-3 * float(expected):
        message = f"{module.config.model_type} has another loss than the cross-entropy of its targets (ProphetNet's)"
        raise ConfigError.at("model.name", f"{message}: name another model")
