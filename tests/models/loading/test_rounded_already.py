"""Checkpoints whose weights are rounded already: told by their configuration, before weights are read."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig

from rondo.models.loading.checks import rounded_already

NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def problems(content: Any, bits: Any) -> list[str]:
    known = LlamaConfig()
    if content is not None:
        known.quantization_config = content
    return [f"{problem.path}: {problem.message}" for problem in rounded_already(known, bits)]


@pytest.mark.parametrize("bits", [None, "int8"])
def test_nf4_is_named_with_the_key_to_set(bits: Any) -> None:
    (text,) = problems(NF4, bits)
    assert text.startswith("model.quantization: the checkpoint's weights are in nf4 (bitsandbytes): set it to 'nf4'")


def test_nf4_is_taken_as_nf4() -> None:
    assert problems(NF4, "nf4") == problems(None, None) == problems(None, "int8") == []


@pytest.mark.parametrize(
    ("content", "how"),
    [
        ({**NF4, "bnb_4bit_quant_type": "fp4"}, "bitsandbytes (another form than nf4)"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes (another form than nf4)"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({}, "None"),
    ],
)
@pytest.mark.parametrize("bits", [None, "nf4"])
def test_other_kinds_are_refused_by_their_names(content: Any, how: str, bits: Any) -> None:
    (text,) = problems(content, bits)
    assert text.startswith(f"model.name: its weights are rounded by {how}, ")
    assert "name the model that they were made of, and round that by model.quantization" in text
