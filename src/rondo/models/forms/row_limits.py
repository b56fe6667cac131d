"""Token limits of a model: how many it reads of a row, and how many it can write after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
