"""Runs of rows with several labels: the same in every form; learned, scored, predicted, exported, resumed."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from sklearn.metrics import f1_score

import rondo
from outcomes import adapter
from rondo.errors import ConfigError
from rondo.results.adapt import adapt
from rondo.runs.watching.result import RunResult
from small_runs import LABELLED, opinions, save_tiny_bert, settings, stopped, write_rows

Invoke = Callable[..., tuple[int, str]]
TRAIN = {"lr": 0.02, "local_epochs": 10, "precision": "exact"}


def config(folder: Path, form: str = "list", **changes: Any) -> dict[str, Any]:
    suffix = "jsonl" if form == "list" else "csv"
    data = {
        "source": str(write_rows(folder / f"{form}.{suffix}", opinions(60))),
        "test_source": str(write_rows(folder / f"{form}-test.{suffix}", opinions(30, seed=1))),
    }
    made = {"task": {"label": None, **LABELLED[form]}, "data": data, "train": TRAIN}
    return settings(folder / "bert", **made, adapter={"target_modules": "all-linear", "r": 4}, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels")
    save_tiny_bert(path / "bert")
    return path


@pytest.fixture(scope="module")
def finished(folder: Path) -> RunResult:
    """A finished run on lists; do not write into its directory."""
    return rondo.run(config(folder), run_dir=folder / "run", device="cpu")


def test_labels_are_learned(finished: RunResult) -> None:
    before, after = (scores["global"] for scores in (finished.summary["before"], finished.metrics))
    assert after["f1_micro"] > 0.6 > before["f1_micro"]
    assert after["loss"] < before["loss"] - 0.15
    assert finished.summary["primary"] == "f1_micro"


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize("form", ["joined", "columns"])
def test_every_form_gives_the_same_bits(form: str, finished: RunResult, folder: Path, tmp_path: Path) -> None:
    result = rondo.run(config(folder, form), run_dir=tmp_path / "run", device="cpu")
    assert adapter(result.run_dir) == adapter(finished.run_dir)
    assert result.metrics == finished.metrics


@pytest.mark.slow
def test_resumed_run_has_the_same_bits(finished: RunResult, folder: Path, tmp_path: Path) -> None:
    stopped(config(folder), tmp_path / "run")
    resumed = rondo.resume(tmp_path / "run")
    assert adapter(resumed.run_dir) == adapter(finished.run_dir)


def test_stock_pipeline_gives_the_probability_of_each_label(finished: RunResult, tmp_path: Path) -> None:
    rondo.export(finished.run_dir, tmp_path / "merged", merged=True)
    texts = [row["text"] for row in opinions(5, seed=2)]
    classify = transformers.pipeline("text-classification", str(tmp_path / "merged"), top_k=None)
    assert classify.model.config.problem_type == "multi_label_classification"
    expected = [{answer["label"]: answer["score"] for answer in answers} for answers in classify(texts)]
    for path in (finished.run_dir, tmp_path / "merged"):
        found = rondo.predict(path, [{"text": text} for text in texts], device="cpu")
        assert [p["probabilities"] for p in found] == [pytest.approx(scores, abs=1e-5) for scores in expected]
        assert [p["labels"] for p in found] == [[n for n in sorted(s) if s[n] >= 0.5] for s in expected]


def test_lines_of_the_card_give_the_same(finished: RunResult, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = finished.run_dir / "adapter"
    card = (adapter / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("```")[0].replace('folder = "."', f"folder = {str(adapter)!r}")
    names: dict[str, Any] = {}
    monkeypatch.chdir(folder)  # the card names the base model without its path
    exec(code, names)
    text = opinions(1, seed=2)[0]["text"]
    (answers,) = names["model"]([text], top_k=None)
    (expected,) = rondo.predict(adapter, [{"text": text}], device="cpu")
    assert {a["label"]: a["score"] for a in answers} == pytest.approx(expected["probabilities"], abs=1e-5)


def test_thresholds_are_chosen_for_an_export(finished: RunResult, folder: Path, invoke: Invoke) -> None:
    rows = opinions(60, seed=2)
    held_out = write_rows(Path("held_out.jsonl"), rows)
    code, said = invoke("export", str(finished.run_dir), "--to", "chosen", "--thresholds", str(held_out))
    assert code == 0, said
    thresholds = tomllib.loads(Path("chosen", "rondo.toml").read_text())["evaluation"]["threshold"]
    chances = [row["probabilities"] for row in rondo.predict("chosen", held_out, device="cpu")]
    assert thresholds.keys() == chances[0].keys()
    for name, threshold in thresholds.items():
        true = [name in row[LABELLED["list"]["label"]] for row in rows]
        each = {cut: f1_score(true, [c[name] >= cut for c in chances]) for cut in (0.1, 0.3, 0.5, 0.7, threshold)}
        assert each[threshold] == max(each.values())
    scores = [rondo.evaluate(path, data=held_out, device="cpu")["test"] for path in ("chosen", finished.run_dir)]
    assert scores[0]["f1_macro"] > scores[1]["f1_macro"]
    assert "`evaluation.threshold` of `rondo.toml`" in Path("chosen", "README.md").read_text()


@pytest.mark.slow
def test_thresholds_are_not_chosen_on_private_rows(folder: Path, tmp_path: Path) -> None:
    private = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-5}
    clients = {"sampling": "full", "weighting": "uniform"}
    changed = config(folder, privacy=private, clients=clients, rounds=1)
    changed["task"] |= {"multi_label": True, "labels": ["neg", "plot", "pos"]}
    rondo.run(changed, run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match=r"--thresholds: .* the run protects these: name public rows"):
        rondo.export(tmp_path / "run", tmp_path / "to", thresholds=changed["data"]["source"])
    assert not (tmp_path / "to").exists()
    rondo.export(tmp_path / "run", tmp_path / "to", thresholds=changed["data"]["test_source"])


def test_predictions_in_a_csv_file_are_read_as_labels(finished: RunResult, folder: Path, invoke: Invoke) -> None:
    given = [{"text": row["text"]} for row in opinions(9, seed=2)]
    write_rows(Path("new.csv"), given)
    code, output = invoke("predict", finished.run_dir, "--data", "new.csv", "--to", "found.csv")
    assert code == 0, output
    with open("found.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(json.loads(rows[1]["probabilities"])) == ["neg", "plot", "pos"]
    scored = [{"text": row["text"], "labels": found["labels"]} for row, found in zip(given, rows, strict=True)]
    assert rondo.evaluate(finished.run_dir, data=scored, device="cpu")["test"]["accuracy"] == 1.0


def test_labels_are_counted(finished: RunResult, folder: Path, invoke: Invoke) -> None:
    partition = json.loads((finished.run_dir / "partition.json").read_text())
    counts = [client["labels"] for client in partition["clients"].values()]
    expected = {name: sum(row[name] for row in opinions(60)) for name in ("neg", "plot", "pos")}
    assert {name: sum(of[name] for of in counts) for name in expected} == expected
    assert "training rows have no label: they are learned as having none" in partition["warnings"][0]
    write_rows(Path("rows.csv"), opinions(12))
    Path("run.toml").write_text(
        'rounds = 1\n[task]\ntext = "text"\nlabel = ["neg", "plot", "pos"]\nmax_length = 32\n[partition]\nclients = 2\n'
        f'[data]\nsource = "rows.csv"\n[model]\nname = "{folder}/bert"\n',
        encoding="utf-8",
    )
    code, output = invoke("data", "run.toml")
    assert code == 0, output
    table = [line.split() for line in output.splitlines()]
    sums = [str(sum(row[name] for row in opinions(12))) for name in expected]
    assert table[1][-3:] == sorted(expected, key=lambda name: -sum(row[name] for row in opinions(12)))
    assert sorted(next(line for line in table if line[0] == "all")[-3:]) == sorted(sums)


@pytest.mark.slow
def test_new_client_adapts_its_head(folder: Path, tmp_path: Path) -> None:
    run = rondo.run(config(folder, rounds=1, model={"head": "local"}), run_dir=tmp_path / "run", device="cpu")
    found = adapt(run.run_dir, opinions(30, seed=3), shots=[8], epochs=1, device="cpu")
    assert found.shots[0].adapted["f1_micro"] is not None


def test_pictures_with_several_labels(tmp_path: Path) -> None:
    """A vision transformer, whose export says that each label has a probability of its own."""
    vit = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1,
    )  # fmt: skip
    transformers.ViTModel(vit, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    draw = np.random.default_rng(0)
    rows = [
        {"image": draw.integers(0, 255, (8, 8, 1), dtype=np.uint8), "tags": [n for n in "abc" if draw.random() < 0.5]}
        for _ in range(24)
    ]
    settings: dict[str, Any] = {
        "rounds": 1,
        "algorithm": {"name": "fedit"},
        "adapter": {"r": 2},
        "model": {"name": str(tmp_path / "vit")},
        "task": {"kind": "image-classification", "label": "tags"},
        "partition": {"kind": "iid", "clients": 2},
        "train": {"lr": 0.01, "batch_size": 8, "precision": "exact"},
    }
    run = rondo.run(settings, train=rows, test=rows[:8], run_dir=tmp_path / "run", device="cpu")
    assert run.metrics["global"]["f1_micro"] is not None
    assert rondo.export(run.run_dir, tmp_path / "out", merged=True, verify=True).verification.passed  # type: ignore[union-attr]
    known = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (known.problem_type, known.id2label) == ("multi_label_classification", {0: "a", 1: "b", 2: "c"})
    found = rondo.predict(run.run_dir, [{"image": rows[0]["image"]}], device="cpu")
    assert list(found[0]["probabilities"]) == ["a", "b", "c"]
    assert (run.run_dir / "partition-samples.png").stat().st_size > 0
