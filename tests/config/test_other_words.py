"""Words of other trainers, answered by Rondo's key or by the reason why there is none."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import transformers

from rondo.config import load
from rondo.config.explain import unknown, unknown_key
from rondo.config.inputs import AdapterConfig
from rondo.config.rules.other_words import WORDS
from rondo.config.schema import FileConfig
from rondo.errors import ConfigError


@pytest.mark.parametrize("word", sorted(WORDS))
def test_keys_that_an_answer_names_exist(word: str) -> None:
    message = unknown_key(word.split(".") if "." in word else ["train", word], FileConfig)
    assert "known here" not in message
    named = re.findall(r"\b(?:train|task|model|data|adapter|evaluation|clients)\.[a-z_]+|\bseed(?=,)", message)
    assert named or "Rondo has none, because" in message
    assert [key for key in named if unknown(key.split(".")) is not None] == []


def test_word_of_another_trainer_is_answered_by_the_key() -> None:
    assert unknown_key(["num_train_epochs"], FileConfig).endswith("train.local_epochs in a round, and rounds")
    assert unknown_key(["adapter", "lora_r"], FileConfig).endswith("adapter.r")
    assert unknown_key(["adapter", "use_loraplus"], FileConfig).endswith("train.lr_ratio")


def test_mode_of_the_server_alone_is_another_word() -> None:
    assert unknown_key(["server", "mode"], FileConfig).endswith('clients.mode = "buffered"')
    assert "buffered" not in unknown_key(["partition", "mode"], FileConfig)


def test_every_key_of_transformers_trainer_is_taken_or_explained() -> None:
    theirs = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert len(theirs) > 100
    assert theirs - WORDS == set()


KEYS = Path(__file__).with_name("trainer_keys.txt").read_text(encoding="utf-8").split()
"""Keys of TRL 1.16.0 (SFTConfig, DPOConfig, RewardConfig, and its scripts' ModelConfig and ScriptArguments) and of
sentence-transformers 6.2.0, without those of transformers and those that ``[adapter]`` has."""


def test_every_key_of_trl_and_sentence_transformers_is_taken_or_explained() -> None:
    assert {*KEYS} - WORDS == set()


@pytest.mark.parametrize(
    ("library", "classes"),
    [
        ("trl", ["SFTConfig", "DPOConfig", "RewardConfig", "ModelConfig", "ScriptArguments"]),
        ("sentence_transformers", ["SentenceTransformerTrainingArguments"]),
    ],
)
def test_list_of_keys_is_that_of_the_library(library: str, classes: list[str]) -> None:
    module = pytest.importorskip(library)
    theirs = {field.name for name in classes for field in dataclasses.fields(getattr(module, name))}
    known = {
        field.name for field in dataclasses.fields(transformers.TrainingArguments)
    } | AdapterConfig.model_fields.keys()
    assert theirs - known <= {*KEYS}


def test_rounding_that_is_not_taken_has_a_reason() -> None:
    with pytest.raises(ConfigError, match=r"got 'AWQ'; AWQ is rounded beforehand.*: take 'nf4' or 'int8'"):
        load({"model": {"quantization": "AWQ"}}, check_paths=False)


def test_four_bits_are_nf4() -> None:
    with pytest.raises(ConfigError, match=r"model\.quantization: .* got 'int4'; did you mean 'nf4'\?"):
        load({"model": {"quantization": "int4"}}, check_paths=False)
