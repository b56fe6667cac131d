"""Predictions and scores for other rows, from a run or from its adapter alone, in any working directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

import rondo
from outcomes import problems, verified
from rondo.runs.watching.result import RunResult
from small_runs import (
    POSITIONS,
    files,
    reviews,
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_pythia,
    settings,
    stopped,
    write_rows,
)

TRAIN = {"lr": 0.05, "local_epochs": 6}


def classifier_run(model: Path, folder: Path, **changes: Any) -> RunResult:
    source = files(folder, reviews(48), reviews(12, seed=1))
    return rondo.run(settings(model, data=source, train=TRAIN, **changes), run_dir=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run of a classifier; do not write into its directory."""
    folder = tmp_path_factory.mktemp("finished")
    return classifier_run(save_tiny_bert(folder / "bert"), folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model whose own way to generate is not greedy."""
    folder = save_tiny_gpt2(tmp_path_factory.mktemp("gpt2"))
    own = transformers.GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0, eos_token_id=[3, 4])
    own.save_pretrained(folder)
    return folder


def language_run(model: Path, folder: Path, **task: Any) -> RunResult:
    keys = {"kind": "causal-lm", "text": None, "label": None, **task}
    rows = {"source": str(write_rows(folder / "train.csv", reviews(24)))}
    config = settings(model, data=rows, task=keys, adapter={"target_modules": ["c_attn"]}, train=TRAIN, rounds=1)
    return rondo.run(config, run_dir=folder / "run", device="cpu")


# --- classifiers ---------------------------------------------------------------------------------------------------


def test_labels_agree_with_the_score(finished: RunResult, tmp_path: Path) -> None:
    """In the order of the rows, which have different lengths and no label here."""
    rows = [{**r, "text": r["text"] * (1 + i % 3)} for i, r in enumerate(reviews(40, seed=2))]
    data = write_rows(tmp_path / "labelled.csv", rows)
    bare = write_rows(tmp_path / "bare.jsonl", [{"text": r["text"]} for r in rows])
    made = rondo.predict(finished.run_dir, bare, device="cpu")
    scores = rondo.evaluate(finished.run_dir, data=data, device="cpu")["test"]
    right = [p["label"] == r["label"] for p, r in zip(made, rows, strict=True)]
    assert sum(right) / len(rows) == scores["accuracy"]
    assert 0.6 < scores["accuracy"] < 1
    assert [p for p in made if not 0.5 <= p["probability"] <= 1] == []


@pytest.mark.slow
def test_labels_of_a_last_token_classifier_agree_with_the_score(tmp_path: Path) -> None:
    model = save_tiny_pythia(tmp_path / "pythia")
    result = classifier_run(model, tmp_path, adapter={"target_modules": ["query_key_value"]})
    rows = reviews(12, seed=1)
    made = rondo.predict(result.run_dir, tmp_path / "test.csv", device="cpu")
    right = [p["label"] == r["label"] for p, r in zip(made, rows, strict=True)]
    assert sum(right) / len(rows) == pytest.approx(result.metrics["global"]["accuracy"])


@pytest.mark.slow
def test_pairs_of_texts_are_predicted(tmp_path: Path) -> None:
    model = save_tiny_bert(tmp_path / "bert")
    result = classifier_run(model, tmp_path, task={"text": ["first", "second"]})
    made = rondo.predict(result.run_dir, tmp_path / "test.csv", device="cpu")
    right = [p["label"] == r["label"] for p, r in zip(made, reviews(12, seed=1), strict=True)]
    assert sum(right) / len(right) == pytest.approx(result.metrics["global"]["accuracy"])


@pytest.mark.parametrize(
    ("rows", "path", "words"),
    [
        ([{"sentence": "a film"}], "task.text", "no column 'text'; there are: sentence"),
        ([{"text": "a film"}, {"text": " "}], "--data", "rows.jsonl, line 2, column 'text': the text is empty"),
        ([{"text": " "}] * 9, "--data", "rows.jsonl, line 1, column 'text': the text is empty"),
    ],
)
def test_rows_that_cannot_be_predicted_are_named(
    finished: RunResult, tmp_path: Path, rows: list[dict[str, Any]], path: str, words: str
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", rows)
    assert words in problems(lambda: rondo.predict(finished.run_dir, data, device="cpu"))[path]


def test_predictions_without_an_adapter_are_refused(finished: RunResult, tmp_path: Path) -> None:
    data = finished.run_dir.parent / "test.csv"
    copy = tmp_path / "run"
    shutil.copytree(finished.run_dir, copy)
    (copy / "adapter" / "rondo.toml").unlink()
    assert "no rondo.toml" in problems(lambda: rondo.predict(copy / "adapter", data))["ADAPTER_DIR"]
    shutil.rmtree(copy / "adapter")
    assert "finish the run with rondo resume" in problems(lambda: rondo.predict(copy, data))["RUN_DIR"]
    assert "is not a run directory" in problems(lambda: rondo.predict(tmp_path, data))["RUN_DIR"]
    assert "'nowhere.csv' cannot be read" in problems(lambda: rondo.predict(finished.run_dir, "nowhere.csv"))["--data"]


def test_rows_in_memory_are_predicted_and_scored(finished: RunResult) -> None:
    rows = reviews(12, seed=1)
    data = finished.run_dir.parent / "test.csv"
    assert rondo.predict(finished.run_dir, rows, device="cpu") == rondo.predict(finished.run_dir, data, device="cpu")
    assert rondo.evaluate(finished.run_dir, data=rows, device="cpu") == {
        "test": pytest.approx(finished.metrics["global"]),
        "titles": {"f1": "macro f1 (neg, pos)"},
    }


def test_another_base_model_is_refused_or_allowed(finished: RunResult, tmp_path: Path) -> None:
    data = finished.run_dir.parent / "test.csv"
    shutil.copytree(finished.run_dir / "adapter", tmp_path / "adapter")
    shutil.copytree(finished.run_dir.parent / "bert", tmp_path / "other")
    weights = tmp_path / "other" / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    tensors["bert.embeddings.LayerNorm.weight"] *= 2
    safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
    config = tmp_path / "adapter" / "rondo.toml"
    config.write_text(config.read_text().replace(str(finished.run_dir.parent / "bert"), str(tmp_path / "other")))
    for use in (
        lambda **o: rondo.predict(tmp_path / "adapter", data, **o),
        lambda **o: rondo.evaluate(config.parent, **o),
    ):
        found = problems(use)
        assert set(found) == {"model_sha256", "--allow-changed"}
        assert use(allow_changed=True)


def test_prediction_imports_no_code_of_ones_own(finished: RunResult, tmp_path: Path) -> None:
    shutil.copytree(finished.run_dir / "adapter", tmp_path / "adapter")
    config = tmp_path / "adapter" / "rondo.toml"
    config.write_text(config.read_text().replace('name = "fedit"', 'name = "no_such_module:Mine"'))
    assert len(rondo.predict(tmp_path / "adapter", finished.run_dir.parent / "test.csv")) == 12
    assert "--allow-code" in problems(lambda: rondo.evaluate(tmp_path / "adapter"))


# --- language models -----------------------------------------------------------------------------------------------


@torch.no_grad()
def greedy(folder: Path, base: Path, prompt: str, count: int) -> str:
    """The likeliest token after the other, by stock PEFT and without its generation."""
    model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), str(folder)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    while len(ids) < start + count and ids[-1] not in (3, 4):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return str(tokenizer.decode(ids[start:], skip_special_tokens=True))


def test_responses_are_the_likeliest_tokens(gpt2: Path, tmp_path: Path) -> None:
    result = language_run(gpt2, tmp_path, prompt="first", response="second")
    prompts = ["the film", "was", "very a plot", "a", "the plot"]
    data = write_rows(tmp_path / "prompts.csv", [{"first": p} for p in prompts])
    made = rondo.predict(result.run_dir, data, device="cpu", max_new_tokens=7)
    expected = [greedy(result.run_dir / "adapter", gpt2, f"{p}\n", 7) for p in prompts]
    assert [m["response"] for m in made] == expected
    assert len(set(expected)) > 1


def test_plain_text_is_continued(gpt2: Path, tmp_path: Path) -> None:
    result = language_run(gpt2, tmp_path, text="text")
    (made,) = rondo.predict(result.run_dir, write_rows(tmp_path / "x.csv", [{"text": "the film"}]), max_new_tokens=5)
    assert made == {"response": greedy(result.run_dir / "adapter", gpt2, "the film", 5)}


def test_conversations_are_answered(gpt2: Path, tmp_path: Path) -> None:
    """By a chat template that a file gave and that the adapter folder keeps; a last answer in the data is not read."""
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['content'] + (' [SEP] ' if m['role'] == 'assistant' else ' [CLS] ') }}{% endfor %}"
    )
    user, assistant = ({"role": role, "content": "the film"} for role in ("user", "assistant"))
    rows = [{"chat": [user, {"role": "assistant", "content": "was good"}]}] * 12
    task = {"kind": "causal-lm", "text": None, "label": None, "messages": "chat", "chat_template": str(template)}
    source = {"source": str(write_rows(tmp_path / "chats.jsonl", rows))}
    config = settings(gpt2, data=source, task=task, adapter={"target_modules": ["c_attn"]}, train=TRAIN, rounds=1)
    folder = rondo.run(config, run_dir=tmp_path / "run", device="cpu").run_dir / "adapter"
    template.unlink()
    asked = [{"chat": [user]}, {"chat": [user, assistant]}, {"chat": [user, assistant, user]}]
    made = [m["response"] for m in rondo.predict(folder, asked, device="cpu", max_new_tokens=5)]
    first, second = "the film [CLS] ", "the film [CLS] the film [SEP] the film [CLS] "
    assert made == [greedy(folder, gpt2, text, 5) for text in (first, first, second)]
    for row, words in (
        ([assistant], "turn 0 is by assistant"),
        ([], "no turn is by the user"),
        ("a", "a list of turns"),
    ):
        found = problems(lambda row=row: rondo.predict(folder, [{"chat": [user]}, {"chat": row}]))
        assert found["--data"].startswith("data[1], column 'chat': ")
        assert words in found["--data"]


def test_response_beyond_the_models_positions_is_refused(gpt2: Path, tmp_path: Path) -> None:
    result = language_run(gpt2, tmp_path, text="text")
    data = write_rows(tmp_path / "x.csv", [{"text": "a"}, {"text": "the film " * 5}])
    for count, word in (
        (POSITIONS - 9, f"{POSITIONS - 9} after the 10 tokens of {data}, line 3"),
        (0, "must be at least 1"),
    ):
        found = problems(lambda count=count: rondo.predict(result.run_dir, data, max_new_tokens=count))
        assert word in found["--max-new-tokens"]
    assert len(rondo.predict(result.run_dir, data, max_new_tokens=POSITIONS - 10)) == 2


def test_language_model_is_scored_on_another_file(gpt2: Path, tmp_path: Path) -> None:
    result = language_run(gpt2, tmp_path, prompt="first", response="second")
    data = write_rows(tmp_path / "other.csv", reviews(10, seed=5))
    scores = rondo.evaluate(result.run_dir, data=data, device="cpu")["test"]
    assert scores["examples"] == 10
    assert rondo.evaluate(result.run_dir / "adapter", data=data, device="cpu")["test"] == pytest.approx(scores)


# --- scores on another file ----------------------------------------------------------------------------------------


def test_run_without_a_test_set_is_not_scored_as_nothing(gpt2: Path, tmp_path: Path) -> None:
    result = language_run(gpt2, tmp_path, text="text")
    assert "no test set: name a file" in problems(lambda: rondo.evaluate(result.run_dir))["--data"]


def test_scores_on_another_file_need_no_training_data(finished: RunResult, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(finished.run_dir.parent, folder)
    config = folder / "run" / "config.toml"
    for path in (config, folder / "run" / "adapter" / "rondo.toml"):
        path.write_text(path.read_text().replace("train.csv", "gone.csv").replace("test.csv", "lost.csv"))
    for path in (folder / "run", folder / "run" / "adapter"):
        scores = rondo.evaluate(path, data=folder / "test.csv", device="cpu")
        assert scores.pop("titles") == {"f1": "macro f1 (neg, pos)"}
        assert scores == {"test": pytest.approx(finished.metrics["global"])}
    scores = rondo.evaluate(folder / "run", data=folder / "test.csv", client="client-1", device="cpu")
    assert set(scores) == {"test", "titles", "note"}  # which says that it is the global model


def test_unknown_label_in_another_file_is_named(finished: RunResult, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "x.csv", [{"text": "a film", "label": "pos"}, {"text": "a film", "label": "odd"}])
    for path in (finished.run_dir, finished.run_dir / "adapter"):
        message = problems(lambda path=path: rondo.evaluate(path, data=data))["--data"]
        assert message == f"{data}, line 3, column 'label': unknown label 'odd'; known: neg, pos"


# --- working directories -------------------------------------------------------------------------------------------


@pytest.fixture
def relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A configuration of relative paths, in the working directory that they start from."""
    monkeypatch.chdir(tmp_path)
    save_tiny_bert(tmp_path / "bert")
    write_rows(tmp_path / "train.csv", reviews(24))
    write_rows(tmp_path / "test.csv", reviews(6, seed=1))
    return settings(Path("bert"), data={"source": "train.csv", "test_source": "./test.csv"})


@pytest.mark.slow
def test_results_are_used_from_any_working_directory(
    relative: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = rondo.run(relative, run_dir="run", device="cpu")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in ("../run", "../run/adapter"):
        assert rondo.evaluate(path, device="cpu")["test"] == pytest.approx(result.metrics["global"])
        assert len(rondo.predict(path, "../test.csv", device="cpu")) == 6
    verified("../run", "out")
    assert json.loads(Path("out/adapter_config.json").read_text())["base_model_name_or_path"] is None


@pytest.mark.slow
def test_run_is_resumed_from_any_working_directory(
    relative: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rondo.run(relative, run_dir="whole", device="cpu")
    stopped(relative, Path("run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rondo.resume("../run")
    for name in ("adapter_model.safetensors", "README.md", "rondo.toml", "adapter_config.json"):
        assert Path("../run/adapter", name).read_bytes() == (tmp_path / whole.run_dir / "adapter" / name).read_bytes()


@pytest.mark.slow
def test_comparison_of_relative_paths_finds_its_runs(relative: dict[str, Any]) -> None:
    relative["rounds"] = 1
    for _ in range(2):
        rondo.compare(["fedit"], relative, out="compared", device="cpu")
    assert [p.name for p in Path("compared").glob("fedit*")] == ["fedit-seed-0"]


def test_adapter_folder_works_without_its_run(finished: RunResult, tmp_path: Path) -> None:
    """Also where the run itself started from an adapter that is gone."""
    folder = finished.run_dir.parent
    shutil.copytree(finished.run_dir / "adapter", tmp_path / "first")
    source = {"source": str(folder / "train.csv"), "test_source": str(folder / "test.csv")}
    config = settings(folder / "bert", data=source, adapter={"start_from": str(tmp_path / "first")}, rounds=1)
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    shutil.move(tmp_path / "run" / "adapter", tmp_path / "alone")
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "run")
    scores = rondo.evaluate(tmp_path / "alone", device="cpu")["test"]
    assert scores == pytest.approx(result.metrics["global"])
    made = rondo.predict(tmp_path / "alone", folder / "test.csv", device="cpu")
    right = [p["label"] == r["label"] for p, r in zip(made, reviews(12, seed=1), strict=True)]
    assert sum(right) / len(right) == pytest.approx(scores["accuracy"])


@pytest.mark.slow
def test_result_of_factors_larger_than_a_layer_is_predicted_with(tmp_path: Path) -> None:
    """pFedLoRA's shared change has full rank, and a personal pair beside it."""
    result = classifier_run(save_tiny_bert(tmp_path / "bert"), tmp_path, algorithm={"name": "pfedlora"})
    rows = [{"text": row["text"]} for row in reviews(6, seed=1)]
    assert len(rondo.predict(result.run_dir, rows, device="cpu")) == 6
    scores = rondo.evaluate(result.run_dir / "adapter", device="cpu")["test"]
    assert scores["loss"] == pytest.approx(rondo.evaluate(result.run_dir, device="cpu")["test"]["loss"], rel=1e-4)
    assert rondo.export(result.run_dir, tmp_path / "out", verify=True).verification.passed


@pytest.mark.slow
def test_result_with_a_pooler_that_the_checkpoint_lacks_is_predicted_with(tmp_path: Path) -> None:
    """A BERT that was trained on masked words has none; the run's is in its head."""
    folder = save_tiny_bert(tmp_path / "bert")
    config = transformers.BertConfig.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    result = classifier_run(folder, tmp_path)
    rows = reviews(12, seed=1)
    predictions = rondo.predict(result.run_dir, [{"text": row["text"]} for row in rows], device="cpu")
    right = sum(p["label"] == row["label"] for p, row in zip(predictions, rows, strict=True))
    assert right / 12 == pytest.approx(rondo.evaluate(result.run_dir / "adapter", device="cpu")["test"]["accuracy"])
    again = settings(folder, adapter={"start_from": str(result.run_dir / "adapter")}, rounds=1)
    rondo.run(again, train=reviews(24), run_dir=tmp_path / "again", device="cpu")
