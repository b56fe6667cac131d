"""Limits of rows that a model's configuration holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import rondo
from choice_rows import save_tiny_llama
from rondo.models.forms.generation import rotary_turn, row_limits
from small_runs import reviews, settings


def phi3(original: int) -> Any:
    """LongRoPE as Phi-3's with 128k tokens has it."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return transformers.Phi3Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=320, max_position_embeddings=256, original_max_position_embeddings=original, pad_token_id=0,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("positions", "limit"), [({}, 128), ({"max_position_embeddings": 64}, 64), ({"max_position_embeddings": -1}, 128)]
)
def test_model_reads_as_many_tokens_as_it_has_positions(positions: dict[str, int], limit: int) -> None:
    """XLNet says -1 where it has no limit, and other models with relative positions say nothing."""
    module = torch.nn.Module()
    module.config = SimpleNamespace(is_encoder_decoder=False, **positions)
    assert row_limits(module, SimpleNamespace(model_max_length=128)).read == limit


def test_rotary_embedding_turns_with_longrope_alone() -> None:
    assert rotary_turn(phi3(64)) == 64
    for config in (transformers.LlamaConfig(), transformers.Gemma3TextConfig(), transformers.BertConfig()):
        assert rotary_turn(config) is None


def test_longer_rows_than_the_turn_are_refused(tmp_path: Path) -> None:
    """One client's long row would change what the others compute."""
    folder = save_tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    model = transformers.Phi3ForCausalLM(phi3(64))
    model.save_pretrained(folder)
    task = {"kind": "causal-lm", "text": "text", "label": None}
    config = settings(folder, task=task, adapter={"r": 2, "target_modules": ["qkv_proj"]}, rounds=1)
    config["task"]["max_length"] = 80
    with pytest.raises(rondo.ConfigError, match=r"task\.max_length: 80, but .* more than 64 tokens .* lower it to 64"):
        rondo.run(config, train=reviews(24), run_dir=tmp_path / "run")
    config["task"]["max_length"] = 64
    rondo.run(config, train=reviews(24), run_dir=tmp_path / "run", device="cpu")
