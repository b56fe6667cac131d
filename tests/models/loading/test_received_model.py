"""Models that somebody else wrote: nothing in their files runs, and other files give another identity."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rondo.config.task_kinds import TABLE
from rondo.errors import ConfigError
from rondo.models.loading import given
from rondo.models.loading.pretrained import fingerprint, identity, load_config, load_pretrained, load_tokenizer
from rondo.runs import runner
from small_runs import reviews, save_tiny_bert, settings, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_bert(tmp_path / "bert")


def changed(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("part", ["config", "tokenizer"])
def test_code_beside_a_model_does_not_run(folder: Path, tmp_path: Path, part: str, known: bool) -> None:
    """What transformers knows runs without the code; a model of another kind is refused."""
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    if part == "config":
        auto_map = {"AutoConfig": "evil.C", "AutoModelForSequenceClassification": "evil.M"}
        changed(folder / "config.json", auto_map=auto_map, **({} if known else {"model_type": "evil"}))
    else:
        cls = {} if known else {"tokenizer_class": "EvilTokenizer"}
        changed(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}, **cls)
    config = settings(folder, data={"source": str(write_rows(tmp_path / "rows.csv", reviews(12)))}, rounds=1)
    with contextlib.nullcontext() if known or part == "tokenizer" else pytest.raises(ConfigError, match=r"model\.name"):
        runner.run(config, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "marker").exists()


def identified(folder: Path) -> dict[str, Any]:
    kind = TABLE["sequence-classification"]
    tokenizer = load_tokenizer(str(folder))
    config = load_config(kind, str(folder), labels=("a", "b"))
    module = load_pretrained(kind, str(folder), config, tokenizer, seed=0).module
    return identity(module, tokenizer)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda f: changed(f / "config.json", hidden_act="relu"), "model_config"),
        (lambda f: changed(f / "config.json", num_attention_heads=4), "model_config"),
        (lambda f: changed(f / "config.json", layer_norm_eps=1e-3), "model_config"),
        (lambda f: save_other_weights(f), "model_sha256"),
        (
            lambda f: edited(f / "tokenizer.json", ('"good": 4', '"great": 4'), ('"great": 5', '"good": 5')),
            "tokenizer_sha256",
        ),
        (
            lambda f: edited(f / "tokenizer.json", ('"normalizer": null', '"normalizer": {"type": "Lowercase"}')),
            "tokenizer_sha256",
        ),
        (lambda f: changed(f / "tokenizer_config.json", chat_template="{{ messages }}"), "tokenizer_sha256"),
    ],
    ids=["activation", "heads", "epsilon", "weights", "vocabulary", "normalizer", "template"],
)
def test_identity_changes_with_what_the_output_depends_on(
    folder: Path, change: Callable[[Path], None], key: str
) -> None:
    before = identified(folder)
    change(folder)
    after = identified(folder)
    assert {k for k in before if before[k] != after[k]} == {key}


def edited(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text)


def save_other_weights(folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig.from_pretrained(folder)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def test_identity_is_of_content_not_of_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    assert identified(folder) == identified(tmp_path / "moved")
    content = identified(folder)
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_classes_that_a_model_has_learned_in_another_order_are_told(folder: Path, tmp_path: Path) -> None:
    """Its head would answer for the other class."""
    changed(folder / "config.json", id2label={"0": "POS", "1": "NEG"}, label2id={"POS": 0, "NEG": 1})
    config = settings(folder, data={"source": str(write_rows(tmp_path / "rows.csv", reviews(12)))}, rounds=1)
    with pytest.raises(ConfigError, match=r'task\.labels: the model has learned these classes .* \["pos", "neg"\]'):
        runner.run(config, run_dir=tmp_path / "run", device="cpu")
    chosen = {**config, "task": {**config["task"], "labels": ["pos", "neg"]}}
    runner.run(chosen, run_dir=tmp_path / "run", device="cpu")
    changed(folder / "config.json", id2label={"0": "NEG", "1": "POS"}, label2id={"POS": 1, "NEG": 0})
    runner.run(config, run_dir=tmp_path / "other", device="cpu")


def test_identity_covers_buffers(folder: Path) -> None:
    """A batch normalisation's statistics are no parameters, and the output depends on them."""
    import torch
    from torch import nn

    module = nn.BatchNorm1d(3)
    before = fingerprint(module)
    assert module.running_mean is not None
    module.running_mean += torch.tensor([0.0, 0.5, 0.0])
    assert fingerprint(module) != before


@pytest.mark.parametrize("known", [None, 7])
def test_given_model_pads_with_the_tokenizers_token(folder: Path, known: int | None) -> None:
    """A decoder that classifies reads the last word that is no padding. The caller's model stays as it was."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = given.copied_tokenizer(transformers.AutoTokenizer.from_pretrained(folder))
    model.config.pad_token_id = known
    copied = given.copied(TABLE["sequence-classification"], model, tokenizer, ("a", "b"))
    assert copied.module.config.pad_token_id == tokenizer.pad_token_id != known
    assert model.config.pad_token_id == known
