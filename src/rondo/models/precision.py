"""How the frozen layers are computed on this machine: their precision, and the library that multiplies.

``exact`` is float32 throughout. ``fast`` is bfloat16 for the frozen layers and what flows between them, where the
hardware multiplies bfloat16 natively, else the same as ``exact``; adapters, head, loss and optimizer stay in float32.
What was chosen depends on the processor and the torch build alone, never on a timing, so that the same machine gives
the same bits; it is written into the manifest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.models.attention import Attention, use

_NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")  # x86 and ARM names


@dataclass(frozen=True)
class Kernels:
    """What was chosen: the frozen layers' ``dtype``, who multiplies (``linear``), how attention is computed, and why
    ``fast`` is not faster than ``exact`` where it is not."""

    dtype: torch.dtype
    linear: Literal["torch", "onednn"]
    attention: Attention
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        name = str(self.dtype).removeprefix("torch.")
        return {"dtype": name, "linear": self.linear, "attention": self.attention, "reason": self.reason}


def choose(precision: Literal["exact", "fast"], device: torch.device, *, quantized: bool = False) -> Kernels:
    """The kernels for ``precision`` on ``device``."""
    cpu = device.type == "cpu"
    # Where MKL is slow (it prefers one maker's processors), oneDNN's float32 is up to twice as fast; see
    # docs/log/decisions.md, "Threads and linear layers".
    plain = Kernels(
        torch.float32, "onednn" if cpu and has_onednn() else "torch", "torch" if cpu else "torch, mask unread"
    )
    if precision == "exact":
        return plain
    if quantized:
        return Kernels(plain.dtype, plain.linear, plain.attention, "the base is quantised; it is used as it is")
    if not (native_bf16() if cpu else torch.cuda.is_bf16_supported()):
        return Kernels(plain.dtype, plain.linear, plain.attention, "no native bfloat16 here")
    # On a CPU torch's fused attention is several times slower in bfloat16, backward, than the products written out.
    return Kernels(torch.bfloat16, plain.linear, "written out" if cpu else plain.attention)


def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 itself (Linux; elsewhere no)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return bool(set(flags.split()) & set(_NATIVE_BF16))


def has_onednn() -> bool:
    """Whether torch was built with oneDNN's linear layer."""
    return bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def apply(module: nn.Module, kernels: Kernels) -> None:
    """Make a frozen module use ``kernels``: cast it, and replace the forward of its plain linear layers. Layers that
    are quantised or that carry trained tensors of their own are left alone."""
    if kernels.dtype is not torch.float32:
        module.to(kernels.dtype)
    use(module, kernels.attention)
    if kernels.linear == "onednn":
        _bound_caches()
        for layer in module.modules():
            if type(layer) is nn.Linear and type(layer._parameters.get("weight")) is nn.Parameter:
                layer.forward = _OneDnn(layer)  # type: ignore[method-assign, assignment]


def _bound_caches() -> None:
    """For every shape of a product half a megabyte is kept, by oneDNN and by torch's layer over it, of a thousand
    shapes unless told otherwise; and where rows are ragged every step has shapes of its own, which never come again
    (pytorch/pytorch#27971). Both read this at their first product, so a process that made one before keeps its own."""
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_SHAPES_KEPT))


_SHAPES_KEPT = 64
"""More than a step has; a transformer's layers share some ten."""


class _OneDnn:
    """The forward of a frozen linear layer by oneDNN: in float32 for the product, in bfloat16 for the bias, which torch
    adds in a pass of its own. Anything else goes to torch."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if x.dtype is not weight.dtype or x.dtype not in (torch.float32, torch.bfloat16) or x.device.type != "cpu":
            return functional.linear(x, weight, bias)
        result: Tensor = _FrozenLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result


class _FrozenLinear(torch.autograd.Function):
    """``x W^T + b`` with a gradient for x only; W's transpose is read in place, not copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return torch.ops.mkldnn._linear_pointwise(grad.contiguous(), weight.t(), None, "none", [], ""), None, None
