"""Checks of a loaded model: that a causal model and a decoder see no token that they are to predict, and that this
processor multiplies by rounded weights correctly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from rondo.errors import ConfigError, Problem
from rondo.models.kernels.rounded import is_rounded, read_back, unpacked
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


_ROWS = 5
_ALLOWED = 0.01
"""Difference of a layer's output from the product with its weights read back, relative to its norm. Rounding leaves
1e-6 where products are in float32, 0.003 in bfloat16; wrong weights leave as much as the output is large."""
_ALLOWED_BY_4_BITS = 0.15
"""Norm of what rounding to nf4 changes in normally distributed weights, relative to theirs, which is 0.09."""


def rounding(bits: Literal["int8", "nf4"], keep: list[str] | None) -> Any:
    """The configuration of weight-only rounding for transformers; ``keep`` are modules that stay as they are, and None
    are those that transformers keeps of such a model."""
    import transformers

    if bits == "nf4":
        return transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.float32,
            llm_int8_skip_modules=keep,
        )
    from torchao.quantization import Int8WeightOnlyConfig

    return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=keep)


def rounded_already(known: Any, bits: Literal["int8", "nf4"] | None) -> Iterator[Problem]:
    """Yield the problem of a checkpoint whose weights are rounded, and not as ``bits`` says. ``known``: the model's
    configuration."""
    stated = getattr(known, "quantization_config", None)
    if stated is None:
        return
    content = stated if isinstance(stated, Mapping) else stated.to_dict()
    method = str(content.get("quant_method"))
    if method == "bitsandbytes" and content.get("load_in_4bit") and content.get("bnb_4bit_quant_type") == "nf4":
        if bits != "nf4":
            message = "the checkpoint's weights are in nf4 (bitsandbytes): set it to 'nf4', or name the model that "
            yield Problem("model.quantization", message + "they were made of")
        return
    how = {"bitsandbytes": "bitsandbytes (another form than nf4)"}.get(method, method)
    message = f"its weights are rounded by {how}, which adapters are not trained on here: name the model that they "
    yield Problem("model.name", message + "were made of, and round that by model.quantization = 'int8' or 'nf4'")


@torch.no_grad()
def check_rounding(module: nn.Module, bits: Literal["int8", "nf4"]) -> None:
    """Try the arithmetic of the rounded layers of ``module``, one of each shape: which kernel rounds or multiplies
    depends on the processor, the shape and the packages that are installed. Raises :class:`ConfigError` where no layer
    is rounded, or one gives wrong numbers."""
    shapes: dict[tuple[int, int], tuple[str, nn.Linear]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and is_rounded(layer):
            shapes.setdefault((layer.out_features, layer.in_features), (path, layer))
    if not shapes:
        message = f"{module.config.model_type} has no layer that {bits} is made for (nn.Linear): remove it"  # type: ignore[union-attr]
        raise ConfigError.at("model.quantization", message)
    for path, layer in shapes.values():
        if not (_rounds_well(layer) if bits == "nf4" else _multiplies_well(layer)):
            message = f"on this processor {path} gives another output than its weights do: remove it"
            raise ConfigError.at("model.quantization", message)


def _multiplies_well(layer: nn.Linear) -> bool:
    """Whether the layer's output is the product with its weights read back."""
    weight = read_back(layer).float()
    x = torch.randn(_ROWS, layer.in_features, generator=torch.Generator().manual_seed(0)).to(weight.device)
    product = functional.linear(x, weight, layer.bias)
    return float((layer(x) - product).norm()) <= _ALLOWED * float(product.norm())


def _rounds_well(layer: nn.Linear) -> bool:
    """Whether weights of the layer's shape, rounded to 4 bits and read back, are what they were."""
    from bitsandbytes.functional import quantize_4bit

    weight: Any = layer.weight
    shape = layer.out_features, layer.in_features
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(weight.device)
    packed, state = quantize_4bit(drawn, blocksize=weight.quant_state.blocksize, quant_type="nf4")
    return float((unpacked(packed, state) - drawn).norm()) <= _ALLOWED_BY_4_BITS * float(drawn.norm())
