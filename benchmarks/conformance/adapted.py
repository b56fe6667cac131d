"""A model of one adapted layer in PEFT, as published code expects it, and its change of weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from oracles import Array, Draw
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

LAYER = "base_model.model.layers.0.q_proj"
A, B, W = f"{LAYER}.lora_A.default.weight", f"{LAYER}.lora_B.default.weight", f"{LAYER}.base_layer.weight"


class Block(nn.Module):
    """A layer of a language model: one projection."""

    def __init__(self, q_proj: nn.Module) -> None:
        super().__init__()
        self.q_proj = q_proj


class Net(nn.Module):
    """One layer, and the configuration that training loops read."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(layer)])
        self.config = SimpleNamespace(use_cache=False, model_type="net", tie_word_embeddings=False)

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        return SimpleNamespace(loss=self.layers[0].q_proj(input_ids).square().mean())

    def gradient_checkpointing_enable(self) -> None:
        """Nothing to save in one layer."""

    def enable_input_require_grads(self) -> None:
        """The factors need gradients, the rows do not."""


def adapted(d: Draw, *, conv1d: bool = False, adapter: dict[str, Tensor] | None = None) -> Any:
    """PEFT's model around a zero matrix, whose adapter has A = ``d.a0`` and B = 0, or the tensors of ``adapter``."""
    out, width = d.b[0].shape[0], d.a0.shape[1]
    layer = Conv1D(out, width) if conv1d else nn.Linear(width, out, bias=False)
    nn.init.zeros_(layer.weight)
    config = LoraConfig(r=d.rank, lora_alpha=d.alpha, target_modules=["q_proj"], fan_in_fan_out=conv1d)
    model = get_peft_model(Net(layer), config)
    model.load_state_dict({A: tensor(d.a0), B: torch.zeros(out, d.rank), **(adapter or {})}, strict=False)
    return model


def tensor(array: Array) -> Tensor:
    return torch.tensor(array, dtype=torch.float32)


def upload(d: Draw, client: int, a: str = A, b: str = B) -> dict[str, Tensor]:
    """A client's trained factors."""
    return {a: tensor(d.a[client]), b: tensor(d.b[client])}


def change(model: Any) -> Array:
    """What the model adds to its first weight, which was zero: (out, in)."""
    layer = model.get_submodule(LAYER)
    base = layer.base_layer.weight.T if isinstance(layer.base_layer, Conv1D) else layer.base_layer.weight
    delta = layer.get_delta_weight("default")
    return array(base + (delta.T if isinstance(layer.base_layer, Conv1D) else delta))


def array(t: Any) -> Array:
    return np.asarray(t.detach() if isinstance(t, Tensor) else t, dtype=np.float64)
