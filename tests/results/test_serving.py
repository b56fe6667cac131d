"""Facts about exports on which docs/how-to/serve.md builds: what vLLM and llama.cpp ask of the files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import transformers

import rondo
from small_runs import POSITIONS, reviews, save_tokenizer, settings

LAYERS = 2


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of a small Llama."""
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        vocab_size=save_tokenizer(folder / "base", pairs=False), hidden_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=2, intermediate_size=48, max_position_embeddings=POSITIONS, bos_token_id=3, eos_token_id=3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "base")
    task = {"kind": "causal-lm", "text": None, "label": None, "prompt": "first", "response": "second"}
    adapter = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
    run = settings(folder / "base", task=task, adapter=adapter, rounds=1)
    return rondo.run(run, train=reviews(24), run_dir=folder / "run", device="cpu").run_dir


def gguf_name(name: str) -> str | None:
    """The GGUF name of a tensor of a Llama, by llama.cpp's package."""
    gguf = pytest.importorskip("gguf")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    return found


def test_every_merged_tensor_has_a_gguf_name(llama: Path, tmp_path: Path) -> None:
    rondo.export(llama, tmp_path / "out", merged=True, dtype="float16")
    tensors = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert [name for name in tensors if gguf_name(name) is None] == []
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float16"
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_every_factor_has_a_gguf_name(llama: Path, tmp_path: Path) -> None:
    """As convert_lora_to_gguf.py makes the base's name of a factor's."""
    rondo.export(llama, tmp_path / "out")
    names = list(safetensors.torch.load_file(tmp_path / "out" / "adapter_model.safetensors"))
    bases = {re.sub(r"\.lora_[AB]\.weight$", ".weight", name.replace("base_model.model.", "")) for name in names}
    assert len(names) == 2 * len(bases) == 2 * 3 * LAYERS
    assert [name for name in bases if gguf_name(name) is None] == []


def test_adapter_has_what_vllm_asks_for(llama: Path, tmp_path: Path) -> None:
    """One rank and alpha, no whole modules, factors by PEFT's names."""
    rondo.export(llama, tmp_path / "out", base_name="org/base")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["bias"]) == (2, 4, "none")
    assert not any(config.get(key) for key in ("modules_to_save", "use_dora", "rank_pattern", "alpha_pattern"))
    assert isinstance(config["target_modules"], list)
    names = list(safetensors.torch.load_file(tmp_path / "out" / "adapter_model.safetensors"))
    assert [n for n in names if not re.fullmatch(r"base_model\.model\.model\.layers\..*\.lora_[AB]\.weight", n)] == []
