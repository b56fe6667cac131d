"""Norms with a backward pass of their own: output and gradient, and which layers are such norms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from rondo.models.kernels.precision import use_frozen_norms

WIDTH = 24
NORMS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: LlamaRMSNorm(WIDTH, 1e-5),
    "Qwen3": lambda: Qwen3RMSNorm(WIDTH, 1e-6),
    "T5": lambda: T5LayerNorm(WIDTH, 1e-6),
    "torch": lambda: nn.RMSNorm(WIDTH, 1e-5),
}


def frozen(layer: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The layer with weights like a trained norm's."""
    for parameter in layer.parameters():
        parameter.data = 1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    return layer.to(dtype).requires_grad_(False)


def replaced(layer: nn.Module) -> bool:
    use_frozen_norms(layer)
    return "forward" in vars(layer)


def output_and_gradient(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    upper = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y)
    return y.detach(), torch.autograd.grad(y, x, upper)[0]


@pytest.mark.parametrize("size", [1e-4, 1.0, 50.0])
@pytest.mark.parametrize("name", NORMS)
def test_is_the_formula(name: str, size: float) -> None:
    layer = frozen(NORMS[name]())
    eps = getattr(layer, "variance_epsilon", None) or layer.eps
    x = size * torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    weight = layer.weight.double()
    expected = output_and_gradient(lambda x: weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt(), x.double())
    assert replaced(layer)
    for found, right in zip(output_and_gradient(layer, x), expected, strict=True):
        assert float((found - right).abs().max()) <= 2e-6 * float(right.abs().max())


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_bfloat16_rounds_as_the_layer_itself_does(name: str) -> None:
    layer = frozen(NORMS[name](), torch.bfloat16)
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    y, gradient = output_and_gradient(layer, x)
    assert replaced(layer)
    found = output_and_gradient(layer, x)
    assert torch.equal(found[0], y)
    assert found[1].dtype is torch.bfloat16
    assert float((found[1] - gradient).float().norm()) <= 2**-8 * float(gradient.float().norm())


def test_input_of_another_type_goes_to_the_layer_itself() -> None:
    layer = frozen(NORMS["Llama"](), torch.bfloat16)
    x = torch.randn(2, WIDTH)
    expected = layer(x)
    assert replaced(layer)
    assert torch.equal(layer(x), expected)
    assert layer(x).dtype is expected.dtype


def test_an_input_is_never_changed() -> None:
    layer = frozen(NORMS["Llama"]())
    assert replaced(layer)
    x = torch.randn(2, WIDTH, requires_grad=True)
    upper = torch.randn(2, WIDTH)
    kept, above = x.detach().clone(), upper.clone()
    layer(x).backward(upper)
    assert torch.equal(x, kept)
    assert torch.equal(upper, above)


class _Centred(nn.Module):
    """Looks as such a norm does, and takes the mean away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * nn.functional.layer_norm(x, (WIDTH,), eps=self.eps)


class _OtherEps(LlamaRMSNorm):
    """Computes with another eps than it names."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 10 * self.variance_epsilon).rsqrt()


class _Gated(LlamaRMSNorm):
    """Mamba 2's and its kin's: without a gate it is the formula."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states if gate is None else hidden_states * gate)


class _AlwaysGated(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        return super().forward(hidden_states * gate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gemma3RMSNorm(WIDTH, 1e-6),
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.LayerNorm(WIDTH, bias=False),
        lambda: nn.RMSNorm((4, WIDTH), 1e-5),
        lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
        lambda: nn.BatchNorm1d(WIDTH),
        lambda: nn.Linear(WIDTH, WIDTH),
        _Centred,
        lambda: _OtherEps(WIDTH, 1e-5),
        lambda: _Gated(WIDTH, 1e-5),
        lambda: _AlwaysGated(WIDTH, 1e-5),
    ],
    ids=[
        *["1 + w", "LayerNorm", "without bias", "two axes", "no weight", "batch", "linear", "centred", "other eps"],
        *["gated", "always gated"],
    ],
)
def test_other_layers_keep_their_forward(make: Callable[[], nn.Module]) -> None:
    assert not replaced(frozen(make()).eval())
