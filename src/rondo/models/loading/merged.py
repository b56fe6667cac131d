"""The base model with an adapter folded into its weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torch import nn

from rondo.models.loading.peft import stock_model


def untie(module: nn.Module) -> None:
    """Give every layer of ``module`` weights of its own. A file has a shared weight once, so that all layers but one
    would be random in a model that is loaded without ties."""
    seen: set[int] = set()
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if id(parameter) in seen:
                setattr(layer, name, nn.Parameter(parameter.detach().clone()))
            seen.add(id(parameter))


def merge_adapter(module: nn.Module, folder: str | Path) -> nn.Module:
    """``module``, whose weights change, with the adapter in ``folder`` folded in by PEFT: a plain transformers model.

    An output layer that is adapted and tied to the embeddings gets a weight of its own, because the embeddings have no
    adapter; any other stays tied, also where PEFT says otherwise (T5Gemma).
    """
    tied = getattr(module.config, "tie_word_embeddings", None)
    loaded: Any = stock_model(module, folder)
    base: Any = loaded.get_base_model()
    output: Any = None
    with contextlib.suppress(NotImplementedError):  # a model of pictures
        output = base.get_output_embeddings()
    if hasattr(output, "get_base_layer"):
        untie(base)
        tied = False
    result: Any = loaded.merge_and_unload()
    if tied is not None:
        result.config.tie_word_embeddings = tied
    return result  # type: ignore[no-any-return]
