"""Whether a model can learn to predict the next token: no token may change the logits of an earlier one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rondo.errors import ConfigError

_REMEDY = "name a causal model such as GPT-2 or Llama, or set task.kind = 'sequence-classification'"


def check_architecture(config: Any, module: nn.Module) -> None:
    """Check what shows without weights. ``config`` is transformers' configuration as it was saved, ``module`` may be on
    the meta device. Raises :class:`ConfigError`."""
    if getattr(config, "is_encoder_decoder", False):
        message = f"{config.model_type} has an encoder, whose output its decoder needs to predict a token"
        raise ConfigError.at("model.name", f"{message}: name a causal model, or set task.kind = 'seq2seq-lm'")
    flags = [m.is_causal for m in module.modules() if isinstance(getattr(m, "is_causal", None), bool)]
    if getattr(config, "is_decoder", None) is False and flags and not any(flags):
        raise ConfigError.at("model.name", _both_ways(config))


@torch.no_grad()
def check_logits(module: nn.Module) -> None:
    """Compare the logits of two rows that differ in their last token only. Raises :class:`ConfigError` if the logits
    before it differ by more than rounding."""
    count = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    ids = torch.arange(8, device=next(module.parameters()).device).repeat(2, 1)
    ids[1, -1] += 1
    logits = module(input_ids=ids % count, attention_mask=torch.ones_like(ids)).logits[:, :-1]
    if (logits[0] - logits[1]).abs().max() > 1e-4 * logits.abs().max():
        raise ConfigError.at("model.name", _both_ways(module.config))


def _both_ways(config: Any) -> str:
    reason = "every token sees the tokens after it, so the next token is no secret to learn"
    return f"{config.model_type} reads in both directions: {reason}; {_REMEDY}"
