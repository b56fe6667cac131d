"""Weights rounded by torchao, and the check that this processor multiplies by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rondo.errors import ConfigError

_ROWS = 5
_ALLOWED = 0.01
"""Difference of a layer's output from the product with its weights read back, relative to its norm. Rounding leaves
1e-6 where products are in float32, 0.003 in bfloat16; wrong weights leave as much as the output is large."""


def int8(keep: list[str] | None) -> Any:
    """The configuration of weight-only int8 for transformers; ``keep`` are modules that stay as they are."""
    import transformers
    from torchao.quantization import Int8WeightOnlyConfig

    return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=keep)


@torch.no_grad()
def check_products(module: nn.Module) -> None:
    """Compare the output of quantised layers of ``module``, one of each shape, with the product of the weights that
    they give when they are read back: which kernel multiplies depends on the processor, the shape and the packages that
    are installed. Raises :class:`ConfigError` where no layer is quantised, or one gives another product."""
    shapes: dict[tuple[int, int], tuple[str, nn.Linear]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and hasattr(layer.weight, "qdata"):
            shapes.setdefault((layer.out_features, layer.in_features), (path, layer))
    if not shapes:
        message = f"{module.config.model_type} has no layer that int8 is made for (nn.Linear): remove it"  # type: ignore[union-attr]
        raise ConfigError.at("model.quantization", message)
    for path, layer in shapes.values():
        weight: Any = layer.weight
        x = torch.randn(_ROWS, layer.in_features, generator=torch.Generator().manual_seed(0)).to(weight.device)
        product = functional.linear(x, weight.dequantize().float(), layer.bias)
        difference = float((layer(x) - product).norm())
        if not difference <= _ALLOWED * float(product.norm()):
            message = f"on this processor {path} gives another output than its weights do: remove it"
            raise ConfigError.at("model.quantization", message)
