"""Linear layers with rounded weights: 8 bits by torchao, 4 bits (nf4) by bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def is_rounded(layer: nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(layer, nn.Linear) and (_by_torchao(weight) or getattr(weight, "quant_state", None) is not None)


def _by_torchao(weight: Any) -> bool:
    return hasattr(weight, "qdata")


def read_back(layer: nn.Module) -> Tensor:
    """The weight of a rounded layer, (out, in), as plain numbers."""
    weight: Any = layer.weight
    if _by_torchao(weight):
        return weight.dequantize()  # type: ignore[no-any-return]
    return unpacked(weight.data, weight.quant_state)


def unpacked(packed: Tensor, state: Any) -> Tensor:
    """Numbers of 4 bits in float32, in the shape of ``state`` (QLoRA, Dettmers et al. 2023, section 3): two codes in a
    byte, the first in its upper half, and the largest absolute value of every block. bitsandbytes 0.50.2 reads them
    wrongly on a CPU in rows of 32, 80 or 96 numbers, among others, and compiles C++ for rows of odd lengths."""
    code, block = state.code.float(), state.blocksize
    pairs = torch.stack([code.repeat_interleave(16), code.repeat(16)], dim=-1)  # what every byte stands for
    # As one number of 8 bytes a pair is copied twice as fast.
    numbers = pairs.view(torch.int64)[:, 0].index_select(0, packed.reshape(-1).int()).view(torch.float32)
    count = state.shape.numel()
    if len(numbers) % block:
        numbers = functional.pad(numbers, (0, -len(numbers) % block))
    return numbers.reshape(-1, block).mul_(state.absmax[:, None]).reshape(-1)[:count].reshape(state.shape)


def use_frozen(module: nn.Module) -> None:
    """Replace the forward of the rounded layers of a frozen module.

    torchao's own keeps the weight in float32 until the backward pass, so a step would hold the whole model in full
    size. bitsandbytes' own packs weights anew in place on some processors, in a call whose input needs no gradient;
    later calls give their input none, and say nothing.
    """
    for layer in module.modules():
        if is_rounded(layer):
            layer.forward = _Frozen(layer)


class _Frozen:
    """The forward of a frozen layer, which keeps nothing for the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = _FrozenLinear.apply(x, self.layer)  # type: ignore[no-untyped-call]
        return result


class _FrozenLinear(torch.autograd.Function):
    """``x W^T + b`` with a gradient for x only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.layer = layer
        weight = layer.weight if _by_torchao(layer.weight) else read_back(layer).to(x.dtype)
        return functional.linear(x, weight, layer.bias)  # torchao multiplies by the rounded weight itself

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ read_back(ctx.layer).to(grad.dtype), None
