"""Rounded weights: the options for transformers, and a check that this processor multiplies by them correctly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from rondo.errors import ConfigError, Problem
from rondo.models.kernels.rounded import is_rounded, read_back, unpacked

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
            message = (
                "the checkpoint's weights are in nf4 (bitsandbytes): set it to 'nf4', or name the model that they "
            )
            yield Problem("model.quantization", message + "were made of")
        return
    how = {"bitsandbytes": "bitsandbytes (another form than nf4)"}.get(method, method)
    message = (
        f"its weights are rounded by {how}, which adapters are not trained on here: name the model that they were "
    )
    yield Problem("model.name", message + "made of, and round that by model.quantization = 'int8' or 'nf4'")


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
