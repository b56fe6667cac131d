"""Runs on rounded weights and on GGUF files, from a configuration to an exported adapter, and through a stop."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rondo
from outcomes import verified, weights
from records import timeless
from rondo.config import ConfigError, load
from rondo.engine.client.memory import activation_bytes
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.assembly import Assembly
from small_gguf import write_llama
from small_runs import copy_of, reviews, save_tiny_bert, save_tiny_gpt2, settings, stopped, write_rows

ROUNDED = {"int8": "torchao", "nf4": "bitsandbytes"}
"""What rounds the weights, by the format."""


def adapter(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


def same_result(one: rondo.RunResult, other: rondo.RunResult) -> bool:
    histories = [list(map(timeless, run.history)) for run in (one, other)]
    return histories[0] == histories[1] and adapter(one.run_dir / "adapter") == adapter(other.run_dir / "adapter")


# int8 and nf4


@pytest.fixture(scope="module", params=ROUNDED)
def classified(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run on a tiny BERT with rounded weights."""
    folder = tmp_path_factory.mktemp(request.param)
    rows = write_rows(folder / "rows.csv", reviews(36))
    data = {"source": str(rows), "test_source": copy_of(rows)}
    model = {"quantization": request.param}
    return settings(save_tiny_bert(folder / "bert"), model=model, data=data, train={"local_epochs": 1})


@pytest.fixture(scope="module")
def finished(classified: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    return rondo.run(classified, run_dir=tmp_path_factory.mktemp("finished") / "run")


def test_rounded_run_trains_and_its_adapter_verifies(finished: rondo.RunResult, tmp_path: Path) -> None:
    tensors = weights(finished.run_dir)
    assert {n: t for n, t in tensors.items() if "lora_B" in n and not t.any()} == {}
    verified(finished.run_dir, tmp_path / "out")
    assert adapter(tmp_path / "out") == adapter(finished.run_dir / "adapter")


def test_rounded_run_scores_the_same_when_reopened(finished: rondo.RunResult) -> None:
    expected = finished.metrics["global"]
    assert rondo.evaluate(finished.run_dir)["test"] == expected
    assert rondo.evaluate(finished.run_dir / "adapter")["test"] == expected


def test_rounded_run_resumes_to_the_same_bits(
    classified: dict[str, Any], finished: rondo.RunResult, tmp_path: Path
) -> None:
    assert same_result(rondo.resume(stopped(classified, tmp_path / "run")), finished)


def test_rounded_is_the_same_in_every_precision(
    classified: dict[str, Any], finished: rondo.RunResult, tmp_path: Path
) -> None:
    exact = {**classified, "train": {**classified["train"], "precision": "exact"}}
    assert same_result(rondo.run(exact, run_dir=tmp_path / "run"), finished)
    manifest = json.loads((finished.run_dir / "manifest.json").read_text())
    assert manifest["kernels"]["reason"] == "the base is quantised; it is used as it is"
    package = ROUNDED[classified["model"]["quantization"]]
    assert manifest["quantizer"] == f"{package} {importlib.metadata.version(package)}"


def test_rounded_weights_are_not_kept_by_a_step(classified: dict[str, Any]) -> None:
    """torchao alone would keep a float copy of every weight until the backward pass."""

    def kept(config: dict[str, Any]) -> float:
        ready: Assembly = assemble(load(config), "cpu")
        seen, _ = ready.scorer({}).newcomer(ready.first_state(), ready.round(0))
        return activation_bytes(ready.model.network, ready.task, seen, ready.population.sample(2))

    plain = {**classified, "model": {**classified["model"], "quantization": None}, "train": {"precision": "exact"}}
    assert kept(classified) == kept(plain)


def test_int8_of_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    """GPT-2's layers hold their weights transposed. bitsandbytes takes them, torchao does not."""
    rows = write_rows(tmp_path / "rows.csv", reviews(12))
    config = settings(
        save_tiny_gpt2(tmp_path / "gpt2"), model={"quantization": "int8"}, data={"source": str(rows)},
        adapter={"target_modules": ["c_attn"]},
        task={"kind": "causal-lm", "label": None},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"model.quantization: gpt2 has no layer that int8 is made for"):
        rondo.run(config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# GGUF

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_gguf(path: Path, layers: int = 2) -> Path:
    """Write a Llama of two layers, of which the file holds ``layers``, with letters as tokens."""
    tokens = ["<|endoftext|>", "Ġ", "go", *LETTERS]

    def vocabulary(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([3] + [1] * (len(tokens) - 1))
        writer.add_token_merges(["g o"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)

    return write_llama(path, tokens, vocabulary, context=64, width=32, heads=2, hidden=48, layers=layers)


@pytest.fixture
def spoken(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes a language model's configuration for a name."""
    rows = write_rows(tmp_path / "rows.csv", reviews(18))

    def config(name: str, **model: Any) -> dict[str, Any]:
        return settings(
            Path(), model={"name": name, **model}, data={"source": str(rows), "test_split": ""},
            task={"kind": "causal-lm", "label": None}, train={"local_epochs": None, "local_steps": 2},
            adapter={"target_modules": ["q_proj", "v_proj"]},
        )  # fmt: skip

    return config


@pytest.mark.slow
def test_gguf_file_as_name_runs_resumes_and_verifies(
    spoken: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    by_folder = rondo.run(spoken(str(tmp_path), gguf_file="tiny.gguf"), run_dir=tmp_path / "folder")
    resumed = rondo.resume(stopped(spoken("tiny.gguf"), tmp_path / "run"))
    assert same_result(resumed, by_folder)
    verified(resumed.run_dir, tmp_path / "out")
    rondo.export(resumed.run_dir, tmp_path / "named", base_name="org/base")
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("out", "named")]
    assert ["leave out `gguf_file`" in card for card in cards] == [False, True]


def test_gguf_file_without_a_layer_is_refused(spoken: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "short.gguf", layers=1)
    with pytest.raises(ConfigError, match=r"model.name: the checkpoint lacks 9 of .*: model.layers.1; name a complete"):
        rondo.run(spoken(str(path)), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
