"""The precision of the frozen layers on this machine, and the library that multiplies.

``exact`` is float32 throughout. ``fast`` is bfloat16 for the frozen layers and the activations between them where the
hardware is faster in it, otherwise the same as ``exact``. Adapters, head, loss and optimizer stay in float32. Where
whole tensors are trained, they stay in float32 and only products are in bfloat16 (torch's autocast), in networks that
gain from it. The choice depends on the processor, the torch build and the network only, never on a timing, so the same
machine gives the same bits. It is written to the manifest.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.models.kernels.attention import Attention, use
from rondo.models.kernels.private_torch import Convolution, has_mkl, has_onednn, holders, multiplies_bf16, onednn_linear
from rondo.models.kernels.rounded import use_frozen

_FASTER = {"amx_bf16", "bf16"}  # x86 and ARM names
_FASTER_BUT_FOR_INTEL = "avx512_bf16"  # there 0.5 times (docs/dev/log/precision.md, "bfloat16 without AMX")


@dataclass(frozen=True)
class Kernels:
    """Arithmetic of the frozen layers."""

    dtype: torch.dtype
    """Type of the frozen layers."""
    linear: Literal["torch", "onednn"]
    """Library that multiplies."""
    attention: Attention
    reason: str | None = None
    """Reason why ``fast`` is not faster than ``exact``; None if it is, or if ``exact`` was asked for."""

    def record(self) -> dict[str, Any]:
        name = str(self.dtype).removeprefix("torch.")
        return {"dtype": name, "linear": self.linear, "attention": self.attention, "reason": self.reason}


def choose(precision: Literal["exact", "fast"], device: torch.device, *, quantized: bool = False) -> Kernels:
    cpu = device.type == "cpu"
    # MKL, by which torch multiplies, favours its maker's processors: 5 to 25 % faster than oneDNN there in float32,
    # elsewhere up to twice as slow (docs/dev/log/decisions.md, "Threads and linear layers").
    by_onednn = cpu and has_onednn() and not (has_mkl() and _is_intel())
    plain = Kernels(torch.float32, "onednn" if by_onednn else "torch", "torch" if cpu else "torch, mask unread")
    if precision == "exact":
        return plain
    if quantized:
        return Kernels(plain.dtype, plain.linear, plain.attention, "the base is quantised; it is used as it is")
    if not (faster_bf16() if cpu else _cuda_bf16()):
        return Kernels(plain.dtype, plain.linear, plain.attention, "bfloat16 is no faster here")
    # On a CPU in bfloat16, the backward pass of torch's fused attention is several times slower than plain products.
    return Kernels(torch.bfloat16, plain.linear, "written out" if cpu else plain.attention)


def products(precision: Literal["exact", "fast"], device: torch.device, module: nn.Module) -> torch.dtype:
    """The type that a network trained whole multiplies in. With ``fast``, where bfloat16 is faster, it is bfloat16
    for networks with convolutions or wide linear layers; conversions cost narrow ones more than they gain
    (docs/dev/log/precision.md, "whole networks"). Else it is float32."""
    faster = faster_bf16() if device.type == "cpu" else _cuda_bf16()
    gains = any(
        isinstance(layer, Convolution)
        or (isinstance(layer, nn.Linear) and min(layer.in_features, layer.out_features) >= _WIDE)
        for layer in module.modules()
    )
    return torch.bfloat16 if precision == "fast" and faster and gains else torch.float32


_WIDE = 256
"""Inputs and outputs of a linear layer that is faster in bfloat16, conversions included."""


def faster_bf16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32. Only Linux tells; elsewhere the answer is
    False."""
    flags = _processor("flags", "Features")
    return bool(flags & _FASTER) or (_FASTER_BUT_FOR_INTEL in flags and not _is_intel())


def _cuda_bf16() -> bool:
    """Whether the current accelerator multiplies bfloat16 itself; torch's own word counts emulation too."""
    native: bool = torch.cuda.is_bf16_supported(including_emulation=False)
    return native


def _is_intel() -> bool:
    return "GenuineIntel" in _processor("vendor_id")


def _processor(*names: str) -> set[str]:
    """The words of the first field of /proc/cpuinfo that begins with one of ``names``; empty off Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith(names)), "").split())


def apply(module: nn.Module, kernels: Kernels) -> None:
    """Make a frozen module use ``kernels``: cast it, and replace the forward of its plain and its rounded linear layers
    and of its norms. Layers with trained tensors keep their forward."""
    if kernels.dtype is not torch.float32:
        module.to(kernels.dtype)
    use(module, kernels.attention)
    use_frozen(module)
    use_frozen_norms(module)
    _bound_caches()  # torch multiplies bfloat16 by oneDNN
    if kernels.linear == "onednn":
        for layer in module.modules():
            if type(layer) is nn.Linear and type(holders(layer)[0].get("weight")) is nn.Parameter:
                layer.forward = _OneDnn(layer)  # type: ignore[method-assign, assignment]


def _bound_caches() -> None:
    """Limit how many shapes of a product are cached, unless the environment already does. oneDNN and torch's layer over
    it keep half a megabyte per shape, for a thousand shapes by default, and with ragged rows every step has new shapes
    that never come again (pytorch/pytorch#27971). Both read the limit at their first product, so a process that has
    already made one keeps its old limit."""
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_SHAPES_KEPT))


_SHAPES_KEPT = 64
"""More shapes than one step has: a transformer's layers share about ten."""


class _OneDnn:
    """The forward of a frozen linear layer by oneDNN. In float32 its product is faster; in bfloat16 it adds the bias
    within the product, where torch takes a pass of its own. Anything else goes to torch."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if x.dtype is not weight.dtype or not _by_onednn(x.dtype) or x.device.type != "cpu":
            return functional.linear(x, weight, bias)
        # Reshape outside: a model may not change in place (Longformer) a view that was made within the function.
        flat: Tensor = _FrozenLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
        return flat.reshape(*x.shape[:-1], len(weight))  # there may be no row (LongT5 with short texts)


def _by_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies ``dtype``: bfloat16 on some processors only."""
    has: bool = dtype is torch.float32 or (dtype is torch.bfloat16 and multiplies_bf16())
    return has


class _FrozenLinear(torch.autograd.Function):
    """``x W^T + b`` for x (rows, in), with a gradient for x only. W's transpose is read in place, not copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        result: Tensor = onednn_linear(x, weight, bias)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return onednn_linear(grad.contiguous(), weight.t(), None), None, None


_SCALES = (1e-3, 1.0, 100.0)
"""Sizes of the numbers on which a layer is compared with the formula; the smallest makes eps matter."""


def use_frozen_norms(module: nn.Module) -> None:
    """Replace the forward of the layers of a frozen module that are such norms: those with one weight and an eps whose
    output is that of the formula."""
    for layer in module.modules():
        eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
        if isinstance(eps, float) and _is_norm(layer, eps):
            layer.forward = _FrozenNorm(layer, eps)


@torch.no_grad()
def _is_norm(layer: nn.Module, eps: float) -> bool:
    weight = holders(layer)[0].get("weight")
    if type(weight) is not nn.Parameter or weight.dim() != 1 or len(layer.state_dict()) != 1:
        return False
    if len(inspect.signature(type(layer).forward).parameters) != 2:  # a gate beside x (Mamba 2's kin)
        return False
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(len(_SCALES), len(weight), generator=draw) * torch.tensor(_SCALES)[:, None]
    x = x.to(weight)
    actual, expected = layer(x), _Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    if not isinstance(actual, Tensor) or actual.dtype is not expected.dtype:
        return False
    return bool(((actual - expected).abs() <= 2 * torch.finfo(x.dtype).eps * expected.abs()).all())


class _FrozenNorm:
    """The forward of such a norm."""

    def __init__(self, layer: nn.Module, eps: float) -> None:
        self.layer, self.eps = layer, eps

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        if x.dtype is not weight.dtype:
            return type(self.layer).forward(self.layer, x)  # type: ignore[no-any-return]
        result: Tensor = _Norm.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return result


class _Norm(torch.autograd.Function):
    """The formula with a gradient for x only. Squares, sums and roots are in float32, as in transformers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        result: Tensor = (wide * inverse).to(x.dtype).mul_(weight)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        wide, scaled = x.float(), (grad * weight).float()
        along = (scaled * wide).sum(-1, keepdim=True).mul_(inverse.pow(3)).div_(-x.shape[-1])
        return scaled.mul_(inverse).addcmul_(wide, along).to(grad.dtype), None, None
