"""Rows and a model that a program gives a run: the same run as from files, and objects that stay as they were."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import datasets
import pandas
import peft
import pytest
import torch
import transformers
from torch import nn
from typer.testing import CliRunner

import rondo
import tiny
from outcomes import adapter, problems
from rondo.cli.app import app
from rondo.config import ConfigError
from rondo.runs import launch
from small_runs import reviews, save_tiny_bert, save_tiny_gpt2, settings, stopped, write_rows
from watched import noted

pytestmark = pytest.mark.usefixtures("no_pictures")

TRAIN, TEST = reviews(36), reviews(12, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two classes in bert/, a language model in gpt2/, and rows."""
    path = tmp_path_factory.mktemp("given")
    save_tiny_bert(path / "bert")
    save_tiny_gpt2(path / "gpt2")
    write_rows(path / "train.csv", TRAIN)
    write_rows(path / "test.csv", TEST)
    return path


@pytest.fixture
def model(folder: Path) -> Any:
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder / "bert")


@pytest.fixture
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder / "bert")


def assert_same_result(one: rondo.RunResult, other: rondo.RunResult) -> None:
    assert adapter(one.run_dir) == adapter(other.run_dir)
    assert one.metrics == other.metrics


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    data = {"source": str(folder / "train.csv"), "test_source": str(folder / "test.csv")}
    run_dir = tmp_path_factory.mktemp("files") / "run"
    return rondo.run(settings(folder / "bert", data=data), run_dir=run_dir, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, pandas.DataFrame, datasets.Dataset.from_list])
def test_tables_give_the_run_of_files(folder: Path, of_files: rondo.RunResult, tmp_path: Path, kind: Any) -> None:
    config = settings(folder / "bert")
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu", train=kind(TRAIN), test=kind(TEST))
    assert_same_result(result, of_files)
    written = tomllib.loads((result.run_dir / "config.toml").read_text())
    assert (written["data"]["source"], written["data"]["test_source"]) == ("given in Python",) * 2


def test_given_rows_take_the_place_of_named_ones(folder: Path, of_files: rondo.RunResult, tmp_path: Path) -> None:
    config = settings(folder / "bert", data={"source": "no/such.csv", "test_source": str(folder / "test.csv")})
    assert_same_result(rondo.run(config, run_dir=tmp_path / "run", device="cpu", train=TRAIN), of_files)


def test_faulty_row_is_named_before_training(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\[36\], column 'text': expected text, got 5"):
        rondo.run(settings(folder / "bert"), run_dir=tmp_path / "run", train=[*TRAIN, {"text": 5, "label": "pos"}])
    with pytest.raises(ConfigError, match="train: expected one split"):
        rondo.run(settings(folder / "bert"), run_dir=tmp_path / "run", train=5)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_run_of_given_rows_resumes_with_the_same_rows(folder: Path, of_files: rondo.RunResult, tmp_path: Path) -> None:
    stopped(settings(folder / "bert"), tmp_path / "run", train=TRAIN, test=TEST)
    found = problems(lambda: rondo.resume(tmp_path / "run"))
    assert found.keys() == {"data.source", "data.test_source"}
    assert "rondo.resume(RUN_DIR, train=...)" in found["data.source"]
    assert "to score or predict other rows, name them with data" in found["data.source"]
    output = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert output.exit_code == 2
    assert "data.source: it was given in Python" in output.stderr
    with pytest.raises(ConfigError, match=r"partition\.examples_sha256"):
        rondo.resume(tmp_path / "run", train=TRAIN[::-1], test=TEST)
    assert_same_result(rondo.resume(tmp_path / "run", train=pandas.DataFrame(TRAIN), test=TEST), of_files)


def test_run_of_files_resumes_without_given_rows(folder: Path, tmp_path: Path) -> None:
    stopped(settings(folder / "bert", data={"source": str(folder / "train.csv")}), tmp_path / "run")
    assert "leave this argument out" in problems(lambda: rondo.resume(tmp_path / "run", train=TRAIN))["train"]


# --- a model --------------------------------------------------------------------------------------------------------


def state(model: Any) -> dict[str, Any]:
    """Everything about a model that a run might change."""
    layers = dict(model.named_modules())
    return {
        "layers": {name: id(layer) for name, layer in layers.items()},
        "attributes": {name: sorted(layer.__dict__) for name, layer in layers.items()},
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in layers.values()),
        "training": {name: layer.training for name, layer in layers.items()},
        "tensors": {n: (id(p), p.data_ptr(), p.dtype, p.requires_grad) for n, p in model.named_parameters()},
        "config": model.config.to_dict(),
    }


@pytest.mark.sweep(2)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_model_object_gives_the_run_of_its_folder_and_is_not_changed(
    folder: Path, of_files: rondo.RunResult, tmp_path: Path, model: Any, tokenizer: Any, precision: str
) -> None:
    model.train()
    model.bert.pooler.dense.weight.requires_grad_(False)
    before, values = state(model), {n: t.clone() for n, t in model.state_dict().items()}
    tokens = copy.deepcopy(tokenizer)
    config = settings(folder / "bert", data={"source": str(folder / "train.csv")}, train={"precision": precision})
    named = rondo.run(config, run_dir=tmp_path / "named", device="cpu")
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu", model=model, tokenizer=tokenizer)
    assert_same_result(result, named)
    assert state(model) == before
    torch.testing.assert_close(model.state_dict(), values, rtol=0, atol=0)
    assert (tokenizer.get_vocab(), tokenizer.special_tokens_map) == (tokens.get_vocab(), tokens.special_tokens_map)
    assert tomllib.loads((result.run_dir / "config.toml").read_text())["model"]["name"] == "given in Python"
    adapter = json.loads((result.run_dir / "adapter" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] is None  # its folder's path is this machine's


def test_frozen_weights_are_shared_with_the_object(folder: Path, tmp_path: Path, model: Any, tokenizer: Any) -> None:
    """A second copy of a large model might not fit."""
    config = settings(folder / "bert", train={"precision": "exact"})
    with noted(launch, "begin") as calls:
        rondo.run(config, run_dir=tmp_path / "run", device="cpu", train=TRAIN, model=model, tokenizer=tokenizer)
    ours = dict(calls[0].arguments[1].model.network.module.named_parameters())
    assert {n for n, p in model.named_parameters() if n not in ours} == {"classifier.weight", "classifier.bias"}
    assert [n for n, p in model.named_parameters() if n in ours and ours[n].data_ptr() != p.data_ptr()] == []


def test_language_model_object_in_bfloat16_without_a_name(folder: Path, tmp_path: Path) -> None:
    """Half precision is made float32, as where a model is loaded by name. The tokenizer has no padding token."""
    coder = tiny.tokenizer("gpt", pad=False)
    model = tiny.llama_lm().bfloat16()
    model.is_quantized = True  # as transformers says of a model from a GGUF file
    rows = [{"text": f"w{i} w{i + 1} w{i + 2}"} for i in range(12)]
    task = {"kind": "causal-lm", "label": None}
    config = settings(folder / "none", task=task, adapter={"target_modules": ["q_proj"]})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu", train=rows, model=model, tokenizer=coder)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert coder.pad_token is None
    adapter = json.loads((result.run_dir / "adapter" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] is None
    loaded = peft.PeftModel.from_pretrained(model, result.run_dir / "adapter")
    assert [name for name, p in loaded.named_parameters() if "lora_B" in name and p.any()], "no factor was loaded"


@pytest.mark.slow
def test_run_of_a_model_object_resumes_with_the_same_model(
    folder: Path, tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    config = settings(folder / "bert", data={"source": str(folder / "train.csv")})
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu", model=model, tokenizer=tokenizer)
    stopped(config, tmp_path / "run", model=model, tokenizer=tokenizer)
    for command in (["resume"], ["evaluate"], ["export", "--to", str(tmp_path / "out")]):
        output = CliRunner().invoke(app, [command[0], str(tmp_path / "run"), *command[1:]])
        assert output.exit_code == 2
        assert "model.name: it was given in Python" in output.stderr
        assert "peft.PeftModel.from_pretrained(model, FOLDER)" in output.stderr
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight[0, 0] += 1
    with pytest.raises(ConfigError, match="model_sha256"):
        rondo.resume(tmp_path / "run", model=other, tokenizer=tokenizer)
    assert_same_result(rondo.resume(tmp_path / "run", model=model, tokenizer=tokenizer), whole)


def refused(folder: Path, **given: Any) -> dict[str, str]:
    options = {"run_dir": folder / "never", "device": "cpu", "train": TRAIN, **given}
    found = problems(lambda: rondo.run(settings(folder / "bert"), **options))
    assert not (folder / "never").exists()
    return found


def test_unfit_objects_are_refused(folder: Path, model: Any, tokenizer: Any) -> None:
    both = {"model": model, "tokenizer": tokenizer}
    assert "give both" in refused(folder, model=model)["tokenizer"]
    assert "give both" in refused(folder, tokenizer=tokenizer)["tokenizer"]
    assert "got a Linear" in refused(folder, **{**both, "model": nn.Linear(2, 2)})["model"]
    assert "got a str" in refused(folder, **{**both, "tokenizer": "bert"})["tokenizer"]
    assert "give a BertForSequenceClassification" in refused(folder, **{**both, "model": model.bert})["model"]
    assert "it has 3 classes and the rows have 2" in refused(folder, **{**both, "model": tiny.bert(3)})["model"]
    lora = peft.LoraConfig(target_modules=["query"])
    wrapped = peft.get_peft_model(copy.deepcopy(model), lora)
    assert "merge_and_unload" in refused(folder, **{**both, "model": wrapped})["model"]
    assert "has adapters" in refused(folder, **{**both, "model": wrapped.base_model.model})["model"]
    adapted = copy.deepcopy(model)
    adapted.add_adapter(lora)
    assert "has adapters" in refused(folder, **{**both, "model": adapted})["model"]
    packed = copy.deepcopy(model)
    packed.bert.pooler.dense.weight = nn.Parameter(torch.zeros(32, 32, dtype=torch.int8), requires_grad=False)
    assert "it is quantised" in refused(folder, **{**both, "model": packed})["model"]
    assert "not in memory" in refused(folder, **{**both, "model": copy.deepcopy(model).to("meta")})["model"]
    with pytest.raises(ConfigError, match=r"model\.revision: a model object does not use it"):
        rondo.run(settings(folder / "bert", model={"revision": "main"}), train=TRAIN, device="cpu", **both)


@pytest.mark.slow
def test_rows_of_each_client_give_the_run_of_their_files(folder: Path, tmp_path: Path) -> None:
    rows = {"north": TRAIN[:20], "south": TRAIN[20:]}
    for name, of_client in rows.items():
        write_rows(tmp_path / "sites" / f"{name}.csv", of_client)
    config = settings(folder / "bert", data={"source": None, "clients_from": str(tmp_path / "sites/*.csv")})
    of_files = rondo.run(config, run_dir=tmp_path / "files", device="cpu")
    tables: dict[str, Any] = {"north": pandas.DataFrame(rows["north"]), "south": rows["south"]}
    config = settings(folder / "bert", data={"source": None})
    assert_same_result(rondo.run(config, run_dir=tmp_path / "tables", device="cpu", clients=tables), of_files)
    stopped(config, tmp_path / "run", clients=tables)
    assert "rondo.resume(RUN_DIR, clients=...)" in problems(lambda: rondo.resume(tmp_path / "run"))["data.clients_from"]
    assert_same_result(rondo.resume(tmp_path / "run", clients=tables), of_files)
