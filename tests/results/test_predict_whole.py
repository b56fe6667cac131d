"""Predictions and scores of models that were trained whole: of their runs, and of the folders that these write."""

from __future__ import annotations

import csv
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import rondo
from outcomes import verified
from rondo.cli.app import app
from rondo.errors import ConfigError
from small_runs import files, reviews, save_tiny_bert, settings


def pictures(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pictures of 6 x 6 pixels, brighter in the half that their label names."""
    g = np.random.default_rng(seed)
    made = []
    for i in range(count):
        pixels = g.integers(0, 120, (6, 6, 1), dtype=np.uint8)
        pixels[slice(3) if i % 2 else slice(3, 6)] += 100
        made.append({"image": pixels, "label": ("low", "high")[i % 2]})
    return made


def config(name: str = "builtin:mlp", algorithm: str = "fedavg", **sections: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "algorithm": {"name": algorithm},
        "task": {"kind": "image-classification", "image": "image", "label": "label"},
        "model": {"name": name},
        "partition": {"kind": "iid", "clients": 3},
        "train": {"what": "all", "optimizer": "sgd", "lr": 0.2, "batch_size": 8, "local_epochs": 2},
        "evaluation": {"diagnostics_every": 0},
        **sections,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    rondo.run(config(), train=pictures(60), test=pictures(20, 1), run_dir=run_dir, device="cpu")
    return run_dir


def agreement(predictions: list[dict[str, Any]], rows: list[dict[str, Any]]) -> float:
    return sum(p["label"] == r["label"] for p, r in zip(predictions, rows, strict=True)) / len(rows)


def test_run_and_export_agree_with_the_score(finished: Path, tmp_path: Path) -> None:
    rows = pictures(24, 2)
    rondo.export(finished, tmp_path / "out")
    bare = [{"image": r["image"]} for r in rows]
    made = rondo.predict(finished, bare)
    assert made == rondo.predict(tmp_path / "out", bare) == rondo.predict(finished / "adapter", bare)
    scores = rondo.evaluate(finished, data=rows)["test"]
    assert rondo.evaluate(tmp_path / "out", data=rows)["test"] == pytest.approx(scores)
    assert agreement(made, rows) == pytest.approx(scores["accuracy"])
    assert scores["accuracy"] > 0.6
    assert [p for p in made if not 0.5 <= p["probability"] <= 1] == []


def test_personal_model_is_exported_and_predicts(tmp_path: Path) -> None:
    rondo.run(config(algorithm="fedrep"), train=pictures(60), run_dir=tmp_path / "run", device="cpu")
    client = next(iter(json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]))
    rondo.export(tmp_path / "run", tmp_path / "own", client=client)
    rows = pictures(24, 2)
    theirs, newcomers = (agreement(rondo.predict(tmp_path / n, rows), rows) for n in ("own", "run"))
    assert theirs > newcomers
    assert theirs == pytest.approx(rondo.evaluate(tmp_path / "run", data=rows, client=client)["test"]["accuracy"])


@pytest.mark.slow
def test_factors_beside_whole_tensors_are_read_back(tmp_path: Path) -> None:
    sections = {"adapter": {"r": 2, "target_modules": r"layer\d\.0\.conv\d", "from_scratch": True}}
    settings = config("builtin:resnet10", "fedloru", **sections)
    settings["rounds"] = 1
    result = rondo.run(settings, train=pictures(24), test=pictures(8, 1), run_dir=tmp_path / "run", device="cpu")
    scores = rondo.evaluate(tmp_path / "run" / "adapter", data=pictures(8, 1))["test"]
    assert scores["loss"] == pytest.approx(result.metrics["global"]["loss"], rel=1e-4)
    assert agreement(rondo.predict(tmp_path / "run", pictures(8, 1)), pictures(8, 1)) == scores["accuracy"]


@pytest.mark.parametrize("name", ["builtin:mlp", "test_predict_whole:own"])
def test_factors_and_a_head_in_a_plain_network_are_read_back(name: str, tmp_path: Path) -> None:
    """A trained head is no parameter of the module any more."""
    sections = {"adapter": {"r": 4, "target_modules": "all-linear"}, "train": {"lr": 0.05, "local_steps": 10}}
    settings = config(name, "fedit", **sections)
    result = rondo.run(settings, train=pictures(60), test=pictures(20, 1), run_dir=tmp_path / "run", device="cpu")
    folder = tmp_path / "run" / "adapter"
    scores = rondo.evaluate(folder, data=pictures(20, 1), allow_code=True)["test"]
    assert scores["loss"] == pytest.approx(result.metrics["global"]["loss"], rel=1e-4)
    predicted = rondo.predict(folder, pictures(20, 1), allow_code=True)
    assert agreement(predicted, pictures(20, 1)) == scores["accuracy"] > 0.6
    state = load_file(folder / "model.safetensors")
    kept = {n: t for n, t in state.items() if n != "out.bias"}
    for damaged, reason in ((kept, "out.bias"), ({**state, "out.bias": torch.zeros(3)}, "out.bias")):
        save_file(damaged, folder / "model.safetensors")
        with pytest.raises(ConfigError, match=f"are not those of '{name}': .*{reason}"):
            rondo.predict(folder, pictures(2), allow_code=True)


def own(config: Any, task: Any) -> nn.Module:
    parts = {"flat": nn.Flatten(), "hidden": nn.Linear(36, 16), "act": nn.Tanh(), "out": nn.Linear(16, 2)}
    return nn.Sequential(OrderedDict(parts))


def test_code_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    settings = config("test_predict_whole:own")
    rondo.run(settings, train=pictures(40), run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="--allow-code"):
        rondo.predict(tmp_path / "run", pictures(4))
    assert len(rondo.predict(tmp_path / "run", pictures(4), allow_code=True)) == 4


def test_folder_of_another_network_is_refused(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rondo.export(finished, folder)
    text = (folder / "rondo.toml").read_text()
    (folder / "rondo.toml").write_text(text.replace("builtin:mlp", "builtin:relu"))
    with pytest.raises(ConfigError, match="model_sha256"):
        rondo.predict(folder, pictures(2))
    with pytest.raises(ConfigError, match="are not those of 'builtin:relu'"):
        rondo.predict(folder, pictures(2), allow_changed=True)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot be read"):
        rondo.predict(folder, pictures(2), allow_changed=True)


def test_numbers_are_predicted(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    rows = [{"a": float(a), "b": float(b), "y": float(2 * a - b)} for a, b in g.normal(size=(80, 2))]
    settings = config() | {"task": {"kind": "regression", "features": ["a", "b"], "target": "y"}}
    settings["train"] = {"optimizer": "sgd", "lr": 0.05, "batch_size": 8, "local_epochs": 4}
    result = rondo.run(settings, train=rows[:60], test=rows[60:], run_dir=tmp_path / "run", device="cpu")
    made = rondo.predict(tmp_path / "run", [{"a": r["a"], "b": r["b"]} for r in rows[60:]])
    errors = [p["prediction"] - r["y"] for p, r in zip(made, rows[60:], strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(result.metrics["global"]["rmse"], rel=1e-5)
    assert rondo.evaluate(tmp_path / "run" / "adapter", data=rows[60:])["test"]["r2"] > 0.8


@pytest.mark.sweep(2)
@pytest.mark.parametrize("whole", [True, False], ids=["trained whole", "merged"])
def test_folder_of_transformers_predicts(whole: bool, tmp_path: Path) -> None:
    changes = {"train": {"lr": 0.01, "what": "all"}} if whole else {"train": {"lr": 0.05, "local_epochs": 6}}
    settings_ = settings(save_tiny_bert(tmp_path / "bert"), data={}, **changes)
    if whole:
        settings_ = {k: v for k, v in settings_.items() if k != "adapter"} | {"algorithm": {"name": "fedavg"}}
    rows = reviews(20, seed=2)
    rondo.run(settings_, train=reviews(48), test=rows, run_dir=tmp_path / "run", device="cpu")
    rondo.export(tmp_path / "run", tmp_path / "out", merged=not whole)
    made = rondo.predict(tmp_path / "out", rows, device="cpu")
    scores = rondo.evaluate(tmp_path / "out", data=rows, device="cpu")["test"]
    assert agreement(made, rows) == pytest.approx(scores["accuracy"])
    of_run = rondo.predict(tmp_path / "run", rows, device="cpu")
    assert [p["label"] for p in made] == [p["label"] for p in of_run]
    assert [p["probability"] for p in made] == pytest.approx([p["probability"] for p in of_run], rel=1e-4)
    stock = transformers.pipeline("text-classification", str(tmp_path / "out"), device="cpu")
    assert [p["label"] for p in made] == [p["label"] for p in stock([r["text"] for r in rows])]


# --- pictures in files ---------------------------------------------------------------------------------------------


def write_pictures(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    for i, row in enumerate(rows):
        Image.fromarray(row["image"][:, :, 0]).save(folder / f"{i:02}.png")


def test_folder_of_pictures_becomes_a_csv(finished: Path, tmp_path: Path) -> None:
    rows = pictures(5, 3)
    write_pictures(tmp_path / "new", rows)
    to = tmp_path / "labels.csv"
    outcome = CliRunner().invoke(app, ["predict", str(finished), "--data", str(tmp_path / "new"), "--to", str(to)])
    assert outcome.exit_code == 0, outcome.output
    with to.open(newline="") as file:
        made = list(csv.DictReader(file))
    assert list(made[0]) == ["file", "label", "probability"]
    assert [m["file"] for m in made] == [f"{i:02}.png" for i in range(5)]
    assert [m["label"] for m in made] == [p["label"] for p in rondo.predict(finished, rows)]


def test_folders_of_classes_are_named_in_the_predictions(finished: Path, tmp_path: Path) -> None:
    for label in ("high", "low"):
        write_pictures(tmp_path / "new" / label, [r for r in pictures(4, 3) if r["label"] == label])
    made = rondo.predict(finished, tmp_path / "new")
    assert [m["file"] for m in made] == ["high/00.png", "high/01.png", "low/00.png", "low/01.png"]


@pytest.mark.parametrize("names", [("x",), ("arr_0",), ("x_test", "ids"), ("x", "y")])
def test_archive_of_pictures_needs_no_labels(names: tuple[str, ...], finished: Path, tmp_path: Path) -> None:
    rows = pictures(5, 3)
    arrays = {names[0]: np.stack([r["image"][:, :, 0] for r in rows])}
    arrays |= {name: np.array([r["label"] for r in rows]) for name in names[1:]}
    np.savez(tmp_path / "new.npz", **arrays)
    assert rondo.predict(finished, tmp_path / "new.npz") == rondo.predict(finished, rows)


def test_unreadable_pictures_are_named(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("no picture")
    with pytest.raises(ConfigError, match=r"new, row 1, column 'image': the picture cannot be decoded: new/notes\.txt"):
        rondo.predict(finished, tmp_path / "new")
    np.savez(tmp_path / "new.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(ConfigError, match="no pictures"):
        rondo.predict(finished, tmp_path / "new.npz")


def test_devices_agree(finished: Path) -> None:
    if torch.cuda.is_available():
        assert rondo.predict(finished, pictures(4), device="cuda")[0]["label"] in ("high", "low")


def test_head_and_factors_of_a_checkpoint_are_handed_over_whole(tmp_path: Path) -> None:
    data = files(tmp_path, reviews(24), reviews(12, seed=1))
    training = {"lr": 0.05, "what": "head", "precision": "exact"}
    model = save_tiny_bert(tmp_path / "bert")
    config = settings(model, data=data, train=training, adapter={"target_modules": ["query"]}, rounds=1)
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    scores = rondo.evaluate(result.run_dir / "adapter", device="cpu")["test"]
    assert scores["loss"] == pytest.approx(result.metrics["global"]["loss"], rel=1e-5)
    verified(result.run_dir, tmp_path / "out")
