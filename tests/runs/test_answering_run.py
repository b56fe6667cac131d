"""Runs of question answering: learned, scored, predicted, exported; the same whatever shares the work."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import rondo
from asked_rows import TASK, asked
from outcomes import verified, weights
from rondo.runs.watching.result import RunResult
from small_runs import files, settings, write_rows
from tiny import saved, tokenizer


def config(model: Path, **changes: Any) -> dict[str, Any]:
    train = {"lr": 0.02, "local_epochs": 6, "precision": "exact", **changes.pop("train", {})}
    return settings(model, **{"task": TASK, "train": train, "rounds": 3, **changes})


PLAIN = {"optimizer": "sgd", "lr": 0.5, "local_epochs": 2}
"""Training by plain SGD: AdamW would make much of the last digit of a small gradient."""


@pytest.fixture(scope="module")
def finished(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run; do not write into its directory."""
    folder = tmp_path_factory.mktemp("finished")
    data = files(folder, asked(60), asked(20, seed=1), "parquet", "jsonl")
    return rondo.run(config(bert, data=data), run_dir=folder / "run", device="cpu")


def test_answers_are_learned(finished: RunResult) -> None:
    before, after = finished.summary["before"]["global"], finished.summary["after"]["global"]
    assert finished.summary["primary"] == "f1"
    assert list(after) == ["f1", "exact_match", "loss", "examples"]
    assert after["examples"] == 20
    assert before["exact_match"] < 0.3
    assert after["exact_match"] > 0.9
    assert finished.metrics["clients"]["f1"]["mean"] > 0.8


def test_account_counts_rows_and_windows(finished: RunResult) -> None:
    partition = json.loads((finished.run_dir / "partition.json").read_text())
    assert partition["rows_used"] == 60
    assert partition["rows_without_target"] == 0
    assert partition["text"]["windows"] > 80
    assert sum(c["train"] + c["validation"] for c in partition["clients"].values()) == partition["text"]["windows"]
    assert "60 at the clients, 20 in the test set" in (finished.run_dir / "adapter" / "README.md").read_text()


def test_predictions_agree_with_the_scores(finished: RunResult) -> None:
    rows = asked(30, seed=2)
    bare = [{"context": r["context"], "question": r["question"]} for r in rows]
    made = rondo.predict(finished.run_dir, bare, device="cpu")
    scores = rondo.evaluate(finished.run_dir, data=rows, device="cpu")["test"]
    right = [p["answer"] == r["answers"]["text"][0] for p, r in zip(made, rows, strict=True)]
    assert scores["exact_match"] == sum(right) / 30
    for p, r in zip(made, rows, strict=True):
        assert r["context"][p["answer_start"] :].startswith(p["answer"])
        assert 0 < p["probability"] <= 1


def test_result_loads_in_stock_libraries(finished: RunResult, bert: Path, tmp_path: Path) -> None:
    """Also with segment ids, which PEFT's own class for question answering would drop."""
    for merged in (False, True):
        verified(finished.run_dir, tmp_path / str(merged), merged=merged)
    auto = transformers.AutoModelForQuestionAnswering
    base = auto.from_pretrained(str(bert), num_labels=2, ignore_mismatched_sizes=True)
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "False")).eval()
    whole = auto.from_pretrained(str(tmp_path / "True"))
    coder = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "True"))
    batch = coder("was the film", "the plot was awful", return_tensors="pt")
    one, two = loaded(**batch), whole(**batch)
    assert torch.allclose(one.start_logits, two.start_logits, atol=1e-4)
    assert torch.allclose(one.end_logits, two.end_logits, atol=1e-4)
    card = (tmp_path / "False" / "README.md").read_text()
    assert "from_pretrained(" in card
    assert "pipeline(" not in card


def test_manifest_names_the_shortcuts(finished: RunResult) -> None:
    manifest = json.loads((finished.run_dir / "manifest.json").read_text())
    assert manifest["one_at_a_time"] is None
    assert manifest["first_token_only"]["reason"] == "the model reads more than the first token of its last layer"
    assert manifest["targets_only"]["reason"] == "only a language model has logits of a vocabulary"


@pytest.mark.slow
def test_unanswerable_questions(bert: Path, tmp_path: Path) -> None:
    task = {**TASK, "unanswerable": True}
    rows, test = asked(60, unanswerable=True), asked(21, seed=1, unanswerable=True)
    result = rondo.run(config(bert, task=task, rounds=7), train=rows, test=test, run_dir=tmp_path / "run", device="cpu")
    assert result.metrics["global"]["exact_match"] > 0.7
    made = rondo.predict(result.run_dir, test, device="cpu")
    empty = [p for p in made if p["answer"] == ""]
    assert 3 < len(empty) < 15
    assert [p for p in empty if p["answer_start"] is not None or not p["probability"] > 0] == []
    with pytest.raises(rondo.ConfigError, match=r"no answer; if questions may have none, set task\.unanswerable"):
        rondo.run(config(bert), train=rows, run_dir=tmp_path / "refused", device="cpu")


@pytest.mark.slow
def test_csv_has_answers_as_json(bert: Path, tmp_path: Path) -> None:
    """With the form of datasets in one column, or a text and its start in two; equal to the same rows in Parquet."""
    rows = asked(24)
    kinds = {
        "parquet": ({}, rows),
        "json": ({}, [{**r, "answers": json.dumps(r["answers"])} for r in rows]),
        "two": (
            {"answer_start": "start"},
            [{**r, "answers": r["answers"]["text"][0], "start": r["answers"]["answer_start"][0]} for r in rows],
        ),
    }
    results = []
    for name, (keys, given) in kinds.items():
        file = write_rows(tmp_path / (f"{name}.parquet" if name == "parquet" else f"{name}.csv"), given)
        task = {**TASK, **keys}
        data = {"source": str(file)}
        results.append(rondo.run(config(bert, task=task, data=data, rounds=1), run_dir=tmp_path / name, device="cpu"))
    digests = {json.loads((r.run_dir / "partition.json").read_text())["examples_sha256"] for r in results}
    assert len(digests) == 1


def test_bad_row_names_its_reason(bert: Path, tmp_path: Path) -> None:
    rows = asked(12)
    rows[5]["answers"]["answer_start"][0] += 1
    with pytest.raises(rondo.ConfigError, match=r"train\[5\], column 'answers': .* is not at character"):
        rondo.run(config(bert), train=rows, run_dir=tmp_path / "run", device="cpu")
    with pytest.raises(rondo.ConfigError, match=r"train\[2\], column 'context': the text is empty"):
        rondo.run(config(bert), train=[*rows[:2], {**rows[2], "context": " "}], run_dir=tmp_path / "run", device="cpu")


def test_windows_without_an_answer_are_told(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = asked(12)
    context = " ".join(["film"] * 45)
    rows[3] |= {"context": context, "answers": {"text": [context], "answer_start": [0]}}
    result = rondo.run(config(bert, rounds=1), train=rows, run_dir=tmp_path / "run", device="cpu")
    partition = json.loads((result.run_dir / "partition.json").read_text())
    assert partition["text"]["answers_beyond_windows"] == 1
    from rondo.report.rows import account

    assert "1 of 12 training rows have an answer that is whole in no window" in "\n".join(account(partition))


def test_dirichlet_is_refused(bert: Path, tmp_path: Path) -> None:
    given = config(bert, partition={"kind": "dirichlet", "alpha": 1.0})
    with pytest.raises(rondo.ConfigError, match="deals by label, and this task has none"):
        rondo.run(given, train=asked(12), run_dir=tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("task", "paths"),
    [
        ({"kind": "question-answering"}, ["task.context", "task.question", "task.answers"]),
        ({**TASK, "max_length": 16, "stride": 4}, ["task.max_length"]),
        ({**TASK, "stride": 17}, ["task.stride"]),
        ({"text": "a", "label": "b", "stride": 3, "unanswerable": True}, ["task.stride", "task.unanswerable"]),
    ],
)
def test_keys_are_checked(bert: Path, task: dict[str, Any], paths: list[str]) -> None:
    from rondo.config.task_kinds import check

    whole = rondo.config.schema.TaskConfig(**{k: v for k, v in task.items() if v is not None}).model_dump()
    assert [p.path for p in check(whole, own_data=True)] == paths


_SIZES = {"vocab_size": 40, "pad_token_id": 0}
_WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
FAMILIES = {
    "Roberta": ("bert", {**_SIZES, **_WIDE, "max_position_embeddings": 48}),
    "DistilBert": (
        "bert",
        {**_SIZES, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 48},
    ),
    "Llama": ("llama", {**_SIZES, **_WIDE, "num_key_value_heads": 2, "max_position_embeddings": 48}),
    "ModernBert": ("bert", {**_SIZES, **_WIDE, "max_position_embeddings": 48, "cls_token_id": 2, "sep_token_id": 3}),
}


@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.slow if f != "Llama" else ()) for f in FAMILIES])
def test_families(family: str, tmp_path: Path) -> None:
    """One round, equal for clients one by one and together, and the stock libraries' logits."""
    kind, options = FAMILIES[family]
    torch.manual_seed(0)
    known = getattr(transformers, f"{family}Config")(**options)
    model = getattr(transformers, f"{family}ForQuestionAnswering")(known)
    folder = saved(tmp_path / "model", model, tokenizer(kind))
    draw = random.Random(0)
    rows = []
    for _ in range(12):
        words = [f"w{draw.randrange(36)}" for _ in range(draw.randint(8, 40))]
        rows.append(
            {"context": " ".join(words), "question": "w1", "answers": {"text": [words[0]], "answer_start": [0]}}
        )
    runs = []
    for cohort in ("auto", 1):
        given = config(
            Path(folder), rounds=1, adapter={"target_modules": "all-linear"}, simulation={"cohort": cohort}, train=PLAIN
        )
        runs.append(rondo.run(given, train=rows, run_dir=tmp_path / str(cohort), device="cpu"))
    one, other = (weights(r.run_dir) for r in runs)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    assert [name for name in one if "lora" not in name], one.keys()
    verified(runs[0].run_dir, tmp_path / "out")


def test_model_without_spans_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rondo.ConfigError, match="question-answering"):
        rondo.run(config(Path("builtin:lstm")), train=asked(12), run_dir=tmp_path / "run", device="cpu")
