"""Rounded weights: int8 layers are used only where their product is that of their weights, nf4's are read by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES, save
from family_runs import configured, opened
from torch import nn

import tiny
from rondo.errors import ConfigError
from rondo.models.kernels import rounded
from rondo.params import add_client_axis

pytest.importorskip("torchao")
pytest.importorskip("bitsandbytes")


def loaded(
    tmp_path: Path, bits: str = "int8", family: str = "Llama", adapted: str = "q_proj", *, use_dora: bool = False
) -> Any:
    config = configured(save(FAMILIES[family], "causal-lm", tmp_path), "causal-lm", [adapted])
    adapter = config.adapter.model_copy(update={"use_dora": use_dora})
    model = config.model.model_copy(update={"quantization": bits})
    return opened(config.model_copy(update={"model": model, "adapter": adapter}))[0]


def test_right_products_are_taken(tmp_path: Path) -> None:
    assert hasattr(loaded(tmp_path).network.module.model.layers[0].mlp.up_proj.weight, "qdata")


@pytest.mark.parametrize(
    "wrong", [lambda y: y.flip(-1), lambda y: y * 1.05, lambda y: y * torch.nan], ids=["order", "scale", "nan"]
)
def test_wrong_products_are_refused(wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a kernel that unpacks a weight in another order, or by another scale; here in layers of one shape."""
    right = nn.Linear.forward

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        y = right(self, x)
        return wrong(y) if self.out_features == 48 and hasattr(self.weight, "qdata") else y

    monkeypatch.setattr(nn.Linear, "forward", forward)
    with pytest.raises(
        ConfigError, match=r"model\.quantization: on this processor model\.layers\.0\.mlp\.\w+ gives an"
    ):
        loaded(tmp_path)


# 4 bits

NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""QLoRA (Dettmers et al. 2023), appendix E."""


def by_the_paper(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``weight`` rounded to nf4 in blocks of 64 and read back."""
    numbers = weight.astype(np.float32).reshape(-1)
    result = np.empty_like(numbers)
    for start in range(0, len(numbers), 64):
        block = numbers[start : start + 64]
        largest = np.abs(block).max()
        nearest = np.abs(block[:, None] / largest - NF4[None]).argmin(1)
        result[start : start + 64] = NF4[nearest] * largest
    return result.reshape(weight.shape)


@pytest.mark.parametrize("shape", [(1, 7), (3, 32), (8, 80), (33, 35), (5, 96), (64, 200), (48, 64), (192, 576)])
def test_4_bits_are_read_in_every_width(shape: tuple[int, int]) -> None:
    """In a third of these bitsandbytes itself reads others."""
    from bitsandbytes.functional import quantize_4bit

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
    np.testing.assert_allclose(rounded.unpacked(packed, state), by_the_paper(weight.numpy()), rtol=1e-6)


@pytest.mark.parametrize(("family", "adapted"), [("Llama", "q_proj"), ("GPT-2", "c_attn"), ("OPT", "q_proj")])
def test_4_bits_are_those_of_the_checkpoint(family: str, adapted: str, tmp_path: Path) -> None:
    """Every rounded layer has the checkpoint's weight, rounded; the output layer and all else are as they were."""
    model = loaded(tmp_path, "nf4", family, adapted)
    plain = dict(transformers.AutoModelForCausalLM.from_pretrained(model.name).named_modules())
    found = 0
    for path, layer in model.network.module.named_modules():
        if rounded.is_rounded(layer):
            weight = plain[path].weight.detach()
            weight = weight.T if type(plain[path]).__name__ == "Conv1D" else weight
            np.testing.assert_allclose(rounded.read_back(layer), by_the_paper(weight.numpy()), rtol=1e-6)
            found += 1
        elif isinstance(layer, nn.Linear | nn.Embedding | nn.LayerNorm):
            assert torch.equal(layer.weight, plain[path].weight)
    assert found >= 8


def test_magnitudes_start_at_the_rounded_rows(tmp_path: Path) -> None:
    """So the model starts as it is without them; clients in one call are each what it is alone."""
    network = loaded(tmp_path, "nf4", use_dora=True).network
    assert network.one_at_a_time is None
    for path in network.sites:
        weight = rounded.read_back(network.module.get_submodule(path))
        torch.testing.assert_close(network.initial[f"{path}.magnitude"], weight.norm(dim=1))
    batch = tiny.text_batch()
    start = network(add_client_axis(network.initial), {}, batch)
    torch.testing.assert_close(start, network.switched_off(batch), rtol=0, atol=1e-5)


def test_magnitudes_on_8_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PEFT merges 8-bit layers without their magnitudes"):
        loaded(tmp_path, use_dora=True)


@pytest.mark.parametrize("trains_first", [True, False])
def test_4_bits_have_gradients_after_scoring(trains_first: bool, tmp_path: Path) -> None:
    """bitsandbytes' own layer gives none to its input after a call without gradients, on some processors."""
    layer = loaded(tmp_path, "nf4").network.module.model.layers[0].mlp.down_proj.eval()
    weight = rounded.read_back(layer)
    x = torch.randn(3, layer.in_features, requires_grad=True)
    if not trains_first:
        with torch.no_grad():
            layer(x)
    y = layer(x)
    assert torch.equal(y, nn.functional.linear(x, weight))
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(gradient, 2 * y @ weight)
    assert torch.equal(rounded.read_back(layer), weight)


@pytest.mark.parametrize("wrong", [lambda w: w.flip(-1), lambda w: w * 1.3, lambda w: w * torch.nan])
def test_4_bits_that_are_read_wrongly_are_refused(wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = rounded.unpacked
    monkeypatch.setattr("rondo.models.loading.checks.unpacked", lambda packed, state: wrong(right(packed, state)))
    with pytest.raises(
        ConfigError, match=r"model\.quantization: on this processor model\.layers\.0\.\S+ gives another"
    ):
        loaded(tmp_path, "nf4")
