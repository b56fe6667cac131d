"""The folder that a run hands over: its model card, its files and their modes, and how stock libraries load it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from huggingface_hub import ModelCard

import rondo
from outcomes import verified
from rondo.config.schema import RunConfig
from rondo.runs.card import Facts, card
from rondo.runs.watching.result import RunResult
from small_runs import Rows, files, reviews, save_tiny_bert, save_tiny_gpt2, settings, write_rows

ADAPTER = {
    "README.md", "adapter_config.json", "adapter_model.safetensors", "rondo.json", "rondo.toml", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip
MERGED = {"README.md", "config.json", "model.safetensors", "rondo.toml", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module", autouse=True)
def masked() -> Iterator[None]:
    """Most machines' mask of modes."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def three_classes(count: int, seed: int = 0) -> Rows:
    """Reviews with a class more than the tiny model's own head has."""
    return [{**row, "label": ("neg", "pos", "it's `so`|<so>")[i % 3]} for i, row in enumerate(reviews(count, seed))]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run; do not write into its directory."""
    folder = tmp_path_factory.mktemp("classifier")
    rows = [{**row, "who": f"secret {i % 3}"} for i, row in enumerate(three_classes(48))]
    source = files(folder, rows, three_classes(12, seed=1))
    partition = {"kind": "natural", "column": "who", "clients": None}
    config = settings(save_tiny_bert(folder / "bert"), data=source, partition=partition)
    return rondo.run(config, run_dir=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run of a language model."""
    folder = tmp_path_factory.mktemp("language")
    task = {"kind": "causal-lm", "text": None, "label": None, "prompt": "first", "response": "second"}
    config = settings(
        save_tiny_gpt2(folder / "gpt2"),
        data={"source": str(write_rows(folder / "train.csv", reviews(24)))},
        task=task,
        adapter={"target_modules": ["c_attn"]},
        rounds=1,
    )
    return rondo.run(config, run_dir=folder / "run", device="cpu")


def header(card: ModelCard) -> dict[str, Any]:
    content: dict[str, Any] = card.data.to_dict()
    return content


def code(card: ModelCard) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", card.text, re.S)
    return str(block)


def executed(card: ModelCard, folder: Path, base: Path | None = None) -> Any:
    """The pipeline that the lines of the card make in ``folder``. ``base``: the folder of the base model, which the
    card names without its path."""
    names: dict[str, Any] = {}
    lines = code(card) if base is None else code(card).replace(f'base = "{base.name}"', f"base = {str(base)!r}")
    with contextlib.chdir(folder):
        exec(lines, names)
    return names["model"]


# --- the card ------------------------------------------------------------------------------------------------------


def test_card_of_a_simulation_does_not_say_that_rows_stayed(classifier: RunResult) -> None:
    text = ModelCard.load(classifier.run_dir / "adapter" / "README.md").text
    assert "# LoRA adapter of a simulated federated run" in text
    assert "It is a simulation: one machine had the rows of all clients" in text
    assert "stayed at their clients" not in text


def test_card_has_the_header_of_pefts(classifier: RunResult, tmp_path: Path) -> None:
    common = {"library_name": "peft", "pipeline_tag": "text-classification"}
    tags = ["federated-learning", "lora", "transformers"]
    for name in ("adapter", "adapter-best"):
        found = header(ModelCard.load(classifier.run_dir / name / "README.md"))
        assert found == {**common, "tags": tags}  # a folder's path is no name
    rondo.export(classifier.run_dir, tmp_path / "out", base_name="someone/bert")
    found = header(ModelCard.load(tmp_path / "out" / "README.md"))
    assert found == {**common, "base_model": "someone/bert", "tags": ["base_model:adapter:someone/bert", *tags]}
    assert (
        json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == "someone/bert"
    )


def test_no_path_of_this_machine_is_handed_over(classifier: RunResult, tmp_path: Path) -> None:
    """Only the configuration names them, as its page says."""
    rondo.export(classifier.run_dir, tmp_path / "adapter")
    rondo.export(classifier.run_dir, tmp_path / "merged", merged=True)
    place = str(classifier.run_dir.parent).encode()
    for folder in (classifier.run_dir / "adapter", tmp_path / "adapter", tmp_path / "merged"):
        assert [p.name for p in folder.iterdir() if place in p.read_bytes()] == ["rondo.toml"]
        assert "- base model: `bert`, a folder of the party that trained it\n" in (folder / "README.md").read_text()


def test_card_tells_data_method_and_scores(classifier: RunResult) -> None:
    text = ModelCard.load(classifier.run_dir / "adapter" / "README.md").text
    before, after = (f"{classifier.summary[key]['global']['accuracy']:.4f}" for key in ("before", "after"))
    for line in (
        "- source: `train.csv`",
        "- rows: 48 at the clients, 12 in the test set",
        "- clients: 3, partition natural",
        "- 3 labels: `it's 'so'/(so)`, `neg`, `pos`",
        "- algorithm: `fedit`: FedAvg of LoRA: both factors trained, sent and averaged",
        "- paper: Zhang et al. 2023",
        "- rounds: 2 of 2",
        "- command: `rondo run rondo.toml`, with the configuration beside this card",
        f"| global model, test set: accuracy | {before} | {after} |",
        f"- Rondo {rondo.__version__}",
    ):
        assert f"\n{line}\n" in text
    assert "- PEFT " in text.partition("### Framework versions\n")[2]


def test_card_has_no_client_id_and_no_row(classifier: RunResult) -> None:
    text = (classifier.run_dir / "adapter" / "README.md").read_text()
    assert "secret" not in text
    assert [row for row in reviews(48) if row["text"] in text] == []


@pytest.mark.parametrize("unit", [None, "client", "example"])
def test_card_tells_no_row_that_is_protected_by_a_test_row_that_equals_it(unit: str | None) -> None:
    config = RunConfig.model_validate({"privacy": {"unit": unit, "adversary": "server"} if unit else {}})
    facts = Facts(config, "bert", None, ("neg", "pos"), "accuracy", {}, 40, 12, 3, 2, {})
    text = card(facts, "adapter", rounds=0, before={}, after={})
    assert ("of which 3 are training rows too" in text) is (unit is None)
    assert ("40 at the clients" in text) is (unit != "client")


def test_card_of_the_best_round_has_its_scores(classifier: RunResult) -> None:
    best = classifier.summary["best"]
    text = ModelCard.load(classifier.run_dir / "adapter-best" / "README.md").text
    assert f"- rounds: {best['rounds']} of 2\n" in text
    assert f"| {best['accuracy']:.4f} |" in text
    assert "chosen by its score" in text


def test_card_of_a_method_of_ones_own_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from rondo.algorithms.factors.fedit import FedIT\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Mine(FedIT):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = {"source": str(write_rows(tmp_path / "train.csv", reviews(24)))}
    config = settings(save_tiny_bert(tmp_path / "bert"), data=source, algorithm={"name": "mine:Mine"}, rounds=1)
    text = (rondo.run(config, run_dir=tmp_path / "run", device="cpu").run_dir / "adapter" / "README.md").read_text()
    assert "- algorithm: `mine:Mine`\n" in text
    assert "- paper" not in text


def test_card_of_a_model_given_in_python_says_so(tmp_path: Path) -> None:
    import transformers

    folder = save_tiny_bert(tmp_path / "bert")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model.config._name_or_path = model.name_or_path = ""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = settings(folder, rounds=1)
    del config["model"]
    given = {"train": reviews(24), "model": model, "tokenizer": tokenizer}
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu", **given)
    card = ModelCard.load(result.run_dir / "adapter" / "README.md")
    assert "base_model" not in header(card)
    for line in ("- source: `given in Python`", '- command: `rondo.run("rondo.toml", ...)` in Python, with the'):
        assert f"\n{line}" in card.text
    assert "The base model was given in Python" in card.text


def test_card_of_a_truncated_client_says_so(classifier: RunResult, tmp_path: Path) -> None:
    sets = ["algorithm.name=fedsa-lora", "rounds=1"]  # with a model per client
    run = rondo.run(classifier.run_dir / "config.toml", sets=sets, run_dir=tmp_path / "run", device="cpu")
    result = rondo.export(run.run_dir, tmp_path / "out", client="secret 1", rank=1)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "This is one client's own model" in text
    assert "secret" not in text
    assert f"Truncated to rank 1: {result.relative_error:.2%} of the change" in text


# --- stock libraries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_stock_peft_loads_a_classifier_by_the_cards_lines(classifier: RunResult, tmp_path: Path, named: bool) -> None:
    """PEFT alone gives the base model the two labels of its own head, and fails."""
    folder, bert = tmp_path / "out", classifier.run_dir.parent / "bert"
    rondo.export(classifier.run_dir, folder, base_name=str(bert) if named else None)
    card = ModelCard.load(folder / "README.md")
    assert ("AutoPeft" in code(card)) == named
    model = executed(card, folder, bert)
    names = dict(enumerate(json.loads((folder / "labels.json").read_text())))
    assert model.model.config.id2label == names
    texts = [row["text"] for row in three_classes(12, seed=1)]
    predictions = rondo.predict(folder, classifier.run_dir.parent / "test.csv", device="cpu")
    for made, predicted in zip(model(texts), predictions, strict=True):
        assert made["label"] == predicted["label"]
        assert made["score"] == pytest.approx(predicted["probability"], abs=1e-5)


def test_autopeft_loads_a_language_model_by_the_cards_lines(language: RunResult, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rondo.export(language.run_dir, folder, base_name=str(language.run_dir.parent / "gpt2"))
    card = ModelCard.load(folder / "README.md")
    assert "AutoPeftModelForCausalLM.from_pretrained(folder)\n" in code(card)
    assert header(card)["pipeline_tag"] == "text-generation"
    model = executed(card, folder).model
    assert "lora" in " ".join(name for name, _ in model.named_parameters())


def test_merged_folder_is_a_pipeline_with_label_names(classifier: RunResult, tmp_path: Path) -> None:
    rondo.export(classifier.run_dir, tmp_path / "out", merged=True)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert header(card)["library_name"] == "transformers"
    made = executed(card, tmp_path / "out")([row["text"] for row in three_classes(12, seed=1)])
    predictions = rondo.predict(classifier.run_dir, classifier.run_dir.parent / "test.csv", device="cpu")
    assert [m["label"] for m in made] == [p["label"] for p in predictions]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_merged_weights_may_be_rounded(classifier: RunResult, tmp_path: Path, dtype: Any) -> None:
    made = verified(classifier.run_dir, tmp_path / "out", merged=True, dtype=dtype)
    assert made.verification.max_difference > 1e-5  # or nothing was rounded
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    weights = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert {str(t.dtype) for t in weights.values()} == {f"torch.{dtype}"}
    assert f"The weights are rounded to {dtype}" in (tmp_path / "out" / "README.md").read_text()


def test_adapter_is_not_rounded(classifier: RunResult, tmp_path: Path) -> None:
    with pytest.raises(rondo.ConfigError, match="--dtype: an adapter is kept in float32"):
        rondo.export(classifier.run_dir, tmp_path / "out", dtype="bfloat16")


def test_adapter_names_the_revision_of_its_base(tmp_path: Path) -> None:
    """AutoPeft would otherwise load another revision."""
    source = {"source": str(write_rows(tmp_path / "train.csv", reviews(24)))}
    model = {"name": str(save_tiny_bert(tmp_path / "bert")), "revision": "v1"}
    result = rondo.run(settings(tmp_path, data=source, model=model, rounds=1), run_dir=tmp_path / "run", device="cpu")
    assert json.loads((result.run_dir / "adapter" / "adapter_config.json").read_text())["revision"] == "v1"


# --- files ---------------------------------------------------------------------------------------------------------


def test_files_of_each_form_are_readable_by_others(classifier: RunResult, language: RunResult, tmp_path: Path) -> None:
    rondo.export(classifier.run_dir, tmp_path / "adapter")
    rondo.export(classifier.run_dir, tmp_path / "merged", merged=True)
    labelled = {*ADAPTER, "labels.json"}
    for folder, names in (
        (classifier.run_dir / "adapter", labelled),
        (classifier.run_dir / "adapter-best", labelled),
        (tmp_path / "adapter", labelled),
        (tmp_path / "merged", MERGED),
        (language.run_dir / "adapter", ADAPTER),
    ):
        assert {p.name for p in folder.iterdir()} == names
        assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o644}
