"""Quantised layers are used only where their product is that of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, save
from family_runs import configured, opened
from torch import nn

from rondo.errors import ConfigError

pytest.importorskip("torchao")


def loaded(tmp_path: Path) -> Any:
    config = configured(save(FAMILIES["Llama"], "causal-lm", tmp_path), "causal-lm", ["q_proj"])
    config = config.model_copy(update={"model": config.model.model_copy(update={"quantization": "int8"})})
    return opened(config)[0]


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
