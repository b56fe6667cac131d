"""Checkpoints that do not fit their model, models that do not fit the task, and what is said of them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor, nn

import rondo
import tiny
from rondo.config.task_kinds import TABLE, Kind
from rondo.errors import ConfigError
from rondo.models.loading.pretrained import (
    Pretrained,
    key_mapping,
    load_config,
    load_pretrained,
    load_structure,
    load_tokenizer,
    loading,
)
from small_runs import reviews, save_tiny_bert, settings, write_rows

CLASSIFIER, LANGUAGE = TABLE["sequence-classification"], TABLE["causal-lm"]

Tensors = dict[str, Tensor]


def load(kind: Kind, folder: str, **options: Any) -> Pretrained:
    config = load_config(kind, folder, labels=("no", "yes"))
    load_structure(kind, config)
    with loading("it", "its weights"):
        return load_pretrained(kind, folder, config, load_tokenizer(folder), seed=1, **options)


def refused(kind: Kind, folder: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(kind, folder, **options)
    return str(caught.value)


def changed(folder: str, change: Callable[[Tensors], Tensors]) -> str:
    """Rewrite the weights in ``folder``."""
    path = Path(folder, "model.safetensors")
    safetensors.torch.save_file(change(safetensors.torch.load_file(path)), path, metadata={"format": "pt"})
    return folder


def without(*starts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if not n.startswith(starts)}


def config_of(folder: str, **keys: Any) -> str:
    """Change keys of ``config.json`` in ``folder``."""
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> str:
    return tiny.saved(tmp_path, tiny.bert(labels=2), tiny.tokenizer())


@pytest.fixture
def gpt2(tmp_path: Path) -> str:
    return tiny.saved(tmp_path, tiny.gpt2_lm(), tiny.tokenizer("gpt"))


# Tensors that the checkpoint lacks


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("bert.encoder.layer.1.", "lacks 16 of the model's tensors, which would be random: bert.encoder.layer.1; "),
        ("bert.encoder.layer.1.output.dense.bias", "random: bert.encoder.layer.1.output.dense.bias; "),
        ("bert.embeddings.LayerNorm", ": bert.embeddings.LayerNorm; "),
        ("bert.encoder", ": bert.encoder; "),
        ("bert.", ": bert.embeddings, bert.encoder; "),
    ],
)
def test_checkpoint_without_a_part_of_the_body_is_refused(bert: str, lost: str, named: str) -> None:
    message = refused(CLASSIFIER, changed(bert, without(lost)))
    assert "model.name: the checkpoint lacks" in message
    assert named in message
    assert "name a complete one, or mend its config.json" in message


@pytest.mark.parametrize("lost", ["classifier.", "bert.pooler.", "classifier.bias"])
def test_checkpoint_without_head_is_loaded(bert: str, lost: str) -> None:
    loaded = load(CLASSIFIER, changed(bert, without(lost)))
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if lost == "bert.pooler." else set()
    assert set(loaded.head) == {"classifier.weight", "classifier.bias"} | pooler


def test_language_model_without_its_layers_is_refused(gpt2: str) -> None:
    message = refused(LANGUAGE, changed(gpt2, without("transformer.h.0.", "transformer.ln_f")))
    assert ": transformer.h.0, transformer.ln_f; " in message


def test_tied_output_layer_is_not_missing(gpt2: str) -> None:
    names = safetensors.torch.load_file(Path(gpt2, "model.safetensors"))
    assert "lm_head.weight" not in names
    assert load(LANGUAGE, gpt2).unused == []


def test_untied_output_layer_is_missing(gpt2: str) -> None:
    assert ": lm_head; " in refused(LANGUAGE, config_of(gpt2, tie_word_embeddings=False))


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))], ids=repr)
def test_shortage_of_memory_is_told_as_one(error: Exception) -> None:
    """The files are as they should be, so they need not be saved anew."""
    with pytest.raises(ConfigError) as caught, loading("it", "its weights"):
        raise error
    (problem,) = caught.value.problems
    reason = str(error) or "MemoryError"
    assert problem.message == (
        f"'it' does not fit into the memory: {reason}; give it more memory, or name a smaller model"
    )


# Tensors of another size


def test_tensors_of_another_size_are_refused(bert: str) -> None:
    message = refused(CLASSIFIER, config_of(bert, intermediate_size=40))
    assert "bert.encoder.layer.0.intermediate.dense.bias is 48 in the checkpoint and 40 by its config.json" in message
    assert "(6 tensors differ): mend config.json" in message


@pytest.mark.parametrize(
    ("sizes", "others"),
    [({"type_vocab_size": 5}, ""), ({"type_vocab_size": 5, "max_position_embeddings": 40}, " (2 tensors differ)")],
)
def test_number_of_tensors_of_another_size(sizes: dict[str, int], others: str, bert: str) -> None:
    assert f" by its config.json{others}: mend config.json" in refused(CLASSIFIER, config_of(bert, **sizes))


def test_model_that_writes_texts_of_sounds_is_refused() -> None:
    """transformers counts it among its encoders with decoders."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Qwen2AudioConfig(text_config={**small, "model_type": "qwen2", "vocab_size": 160})
    with pytest.raises(ConfigError, match="qwen2_audio has no encoder and decoder of texts: name one such as T5"):
        load_structure(TABLE["seq2seq-lm"], config)


def test_language_model_of_another_size_is_refused(gpt2: str) -> None:
    message = refused(LANGUAGE, config_of(gpt2, n_positions=20))
    assert "transformer.wpe.weight is 48 x 32 in the checkpoint and 20 x 32 by its config.json: mend" in message


def test_head_of_another_size_is_replaced(tmp_path: Path) -> None:
    loaded = load(CLASSIFIER, tiny.saved(tmp_path, tiny.bert(labels=5), tiny.tokenizer()))
    assert loaded.module.classifier.weight.shape == (2, 32)


# Tensors that the model has no place for


def test_unused_parts_are_named(bert: str) -> None:
    def more(tensors: Tensors) -> Tensors:
        third = {n.replace(".layer.1.", ".layer.2."): t.clone() for n, t in tensors.items() if ".layer.1." in n}
        return {**tensors, **third, "cls.predictions.bias": torch.zeros(3), "cls.predictions.decoder": torch.zeros(3)}

    assert load(CLASSIFIER, changed(bert, more)).unused == ["bert.encoder.layer.2", "cls"]


def test_unused_parts_are_in_a_warning_and_in_the_manifest(tmp_path: Path) -> None:
    folder = changed(str(save_tiny_bert(tmp_path / "bert")), lambda tensors: {**tensors, "other": torch.zeros(3)})
    rows = write_rows(tmp_path / "rows.csv", reviews(12))
    config = settings(Path(folder), data={"source": str(rows), "test_split": ""}, rounds=1)
    with pytest.warns(UserWarning, match="model.name: parts of the checkpoint are not used: other; right for another"):
        result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert json.loads((result.run_dir / "manifest.json").read_text())["unused_weights"] == ["other"]


def test_output_layer_of_a_language_model_is_unused(tmp_path: Path) -> None:
    folder = tiny.saved(tmp_path, tiny.llama_lm(), tiny.tokenizer("llama"))
    assert load(CLASSIFIER, folder).unused == ["lm_head"]


# Models that cannot predict the next token


def small(config_class: type, **sizes: Any) -> Any:
    common = {"vocab_size": tiny.VOCABULARY, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return config_class(**common, **sizes)


BODY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
HALVES = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


def bart(form: type) -> nn.Module:
    module: nn.Module = form(small(transformers.BartConfig, d_model=32, max_position_embeddings=48, **HALVES))
    return module


def encoder(form: type, config: type, **options: Any) -> nn.Module:
    module: nn.Module = form(small(config, **BODY, max_position_embeddings=48, **options))
    return module


ENCODERS: Mapping[str, Callable[[], nn.Module]] = {
    "bert": lambda: encoder(transformers.BertForMaskedLM, transformers.BertConfig),
    "roberta": lambda: encoder(transformers.RobertaForMaskedLM, transformers.RobertaConfig),
    "roformer": lambda: encoder(transformers.RoFormerForMaskedLM, transformers.RoFormerConfig),
    "rembert": lambda: encoder(transformers.RemBertForMaskedLM, transformers.RemBertConfig, input_embedding_size=32),
    "xlnet": lambda: transformers.XLNetLMHeadModel(
        small(transformers.XLNetConfig, d_model=32, n_layer=1, n_head=2, d_inner=48)
    ),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_as_a_language_model_is_refused(name: str, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        folder = tiny.saved(tmp_path, ENCODERS[name](), tiny.tokenizer())
    message = refused(LANGUAGE, folder)
    assert f"model.name: {name} reads in both directions" in message
    assert "name a causal model such as GPT-2 or Llama, or set task.kind = 'sequence-classification'" in message


def test_decoders_weights_are_found_by_its_class_for_answers(tmp_path: Path) -> None:
    """Its base model has another name there than in every checkpoint, with which transformers leaves it random."""
    saved = tiny.llama_lm()
    loaded = load(TABLE["question-answering"], tiny.saved(tmp_path, saved, tiny.tokenizer()))
    state = loaded.module.state_dict()
    for name, tensor in saved.model.state_dict().items():
        torch.testing.assert_close(state[f"transformer.{name}"], tensor, rtol=0, atol=0)
    assert loaded.head == ("qa_outputs.weight", "qa_outputs.bias")
    loaded.module.save_pretrained(tmp_path / "whole")  # type: ignore[operator]
    again = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "whole").state_dict()
    assert [name for name, tensor in state.items() if not torch.equal(again[name], tensor)] == []


def test_names_are_mapped_only_where_they_differ() -> None:
    answers = TABLE["question-answering"]
    assert key_mapping(answers, transformers.LlamaConfig()) == {r"^model\.": "transformer."}
    assert key_mapping(answers, transformers.OPTConfig()) is key_mapping(answers, transformers.BertConfig()) is None
    assert key_mapping(TABLE["sequence-classification"], transformers.LlamaConfig()) is None


def test_encoder_is_refused_without_its_weights(bert: str) -> None:
    with pytest.raises(ConfigError, match="reads in both directions"):
        load_structure(LANGUAGE, load_config(LANGUAGE, bert))


def test_encoder_saved_as_a_decoder_is_a_language_model(tmp_path: Path) -> None:
    module = encoder(transformers.BertLMHeadModel, transformers.BertConfig, is_decoder=True)
    assert load(LANGUAGE, tiny.saved(tmp_path, module, tiny.tokenizer())).head == ()


def test_encoder_decoder_as_a_language_model_is_refused(tmp_path: Path) -> None:
    folder = tiny.saved(tmp_path, bart(transformers.BartForConditionalGeneration), tiny.tokenizer())
    message = refused(LANGUAGE, folder)
    assert "model.name: bart has an encoder, whose output its decoder needs" in message


def test_decoder_saved_alone_is_a_language_model(tmp_path: Path) -> None:
    assert load(LANGUAGE, tiny.saved(tmp_path, bart(transformers.BartForCausalLM), tiny.tokenizer())).head == ()


@pytest.mark.parametrize(
    ("kind", "config", "named"),
    [
        (LANGUAGE, transformers.T5Config(), "AutoModelForCausalLM of t5"),
        (LANGUAGE, transformers.AlbertConfig(), "AutoModelForCausalLM of albert"),
        (CLASSIFIER, transformers.MambaConfig(), "AutoModelForSequenceClassification of mamba"),
    ],
    ids=["t5", "albert", "mamba"],
)
def test_form_that_transformers_lacks_is_named(kind: Kind, config: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"model.name: transformers has no {named}: name another"):
        load_structure(kind, config)


# Other libraries' warnings

FIRST_LOAD = """
import sys
from rondo.models.loading.pretrained import load_config, load_structure
from rondo.config.task_kinds import TABLE
kind = TABLE["sequence-classification"]
load_structure(kind, load_config(kind, sys.argv[1], labels=("no", "yes")))
print("torchao" in sys.modules)
"""


@pytest.mark.slow
def test_first_load_prints_nothing_of_other_libraries(bert: str) -> None:
    """With torchao installed, transformers imports it, and the import warns of kernels for other processors."""
    done = subprocess.run([sys.executable, "-c", FIRST_LOAD, bert], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
