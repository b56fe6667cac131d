"""Runs of token classification: learned, scored, predicted, exported; the same whatever shares the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from seqeval.metrics import f1_score, precision_score, recall_score

import rondo
from outcomes import verified
from rondo.runs.watching.result import RunResult
from rondo.tasks.language.tagging.tags import tags_of
from small_runs import files, settings, write_rows
from tagged_rows import CLASSES, TASK, tagged, with_spans


def config(model: Path, **changes: Any) -> dict[str, Any]:
    train = {"lr": 0.02, "local_epochs": 10, "precision": "exact", **changes.pop("train", {})}
    return settings(model, **{"task": TASK, "train": train, "rounds": 5, **changes})


@pytest.fixture(scope="module")
def finished(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run; do not write into its directory."""
    folder = tmp_path_factory.mktemp("finished")
    data = files(folder, tagged(60), tagged(20, seed=1), "parquet", "jsonl")
    evaluation = {"generate": 2, "per_class": True}
    return rondo.run(config(bert, data=data, evaluation=evaluation), run_dir=folder / "run", device="cpu")


def test_entities_are_learned(finished: RunResult) -> None:
    before, after = finished.summary["before"]["global"], finished.summary["after"]["global"]
    assert finished.summary["primary"] == "f1"
    names = ["f1", "precision", "recall", "accuracy", "loss"]
    types = [f"{metric} of {kind}" for kind in ("BAD", "GOOD") for metric in names[:3]]
    assert list(after) == [*names, *types, "entities", "examples"]
    assert after["examples"] == 20
    assert before["f1"] < 0.3
    assert after["f1"] > 0.9
    assert finished.metrics["clients"]["f1"]["mean"] > 0.8


def predicted_tags(result: RunResult, rows: list[dict[str, Any]]) -> list[list[str]]:
    bare = [{"tokens": row["tokens"]} for row in rows]
    made = rondo.predict(result.run_dir, bare, device="cpu")
    spans = [[(s["start"], s["end"], s["label"]) for s in row["spans"]] for row in made]
    return [tags_of(found, len(row["tokens"])) for found, row in zip(spans, rows, strict=True)]


def test_scores_are_those_of_seqeval(bert: Path, tmp_path: Path) -> None:
    """Of a model that is wrong often, on rows of several windows."""
    made = config(bert, rounds=1, train={"local_epochs": 1})
    result = rondo.run(made, train=tagged(24), run_dir=tmp_path / "run", device="cpu")
    rows = tagged(40, seed=2, longest=60)
    scores = rondo.evaluate(result.run_dir, data=rows, device="cpu")["test"]
    true, found = [row["tags"] for row in rows], predicted_tags(result, rows)
    expected = (f1_score(true, found), precision_score(true, found), recall_score(true, found))
    assert (scores["f1"], scores["precision"], scores["recall"]) == pytest.approx(expected, abs=1e-12)
    assert 0.02 < scores["f1"] < 0.98


def test_account_counts_entities_rows_and_windows(finished: RunResult) -> None:
    partition = json.loads((finished.run_dir / "partition.json").read_text())
    words = sum(len(row["tokens"]) for row in tagged(60))
    assert partition["rows_used"] == 60
    assert (partition["text"]["rows"], partition["text"]["words"]) == (60, words)
    assert partition["text"]["words_without_token"] == partition["text"]["tokens_lost"] == 0
    clients = partition["clients"].values()
    assert sum(c["train"] + c["validation"] for c in clients) == partition["text"]["windows"] > 80
    starts = [tag for row in tagged(60) for tag in row["tags"] if tag.startswith("B-")]
    for kind in ("BAD", "GOOD"):
        assert sum(c["labels"][kind] for c in clients) == starts.count(f"B-{kind}")


def test_samples_show_entities(finished: RunResult) -> None:
    sample = finished.summary["samples"][0]
    first = tagged(20, seed=1)[0]
    assert sample["prompt"].split() == first["tokens"][: len(sample["prompt"].split())]
    assert sample["expected"].split(": ")[0] in ("GOOD", "BAD")
    assert sample["after"] == sample["expected"] != sample["before"]


@pytest.mark.slow
def test_predictions_of_texts_count_characters(bert: Path, tmp_path: Path) -> None:
    task = {**TASK, **dict.fromkeys(("tokens", "tags")), "text": "text", "spans": "spans"}
    rows = list(map(with_spans, tagged(60)))
    result = rondo.run(config(bert, task=task), train=rows, run_dir=tmp_path / "run", device="cpu")
    asked = list(map(with_spans, tagged(10, seed=3)))
    made = rondo.predict(result.run_dir, [{"text": row["text"]} for row in asked], device="cpu")
    for row, prediction in zip(asked, made, strict=True):
        for span in prediction["spans"]:
            assert list(span) == ["start", "end", "label", "text", "score"]
            assert row["text"][span["start"] : span["end"]] == span["text"]
            assert 0 < span["score"] <= 1
    found = [[{k: s[k] for k in ("start", "end", "label")} for s in p["spans"]] for p in made]
    assert sum(f == row["spans"] for f, row in zip(found, asked, strict=True)) > 7


def test_stock_pipeline_loads_the_export(finished: RunResult, bert: Path, tmp_path: Path) -> None:
    """The adapter by PEFT's own class, and the merged model; both give the spans of ``rondo predict``."""
    for merged in (False, True):
        verified(finished.run_dir, tmp_path / str(merged), merged=merged, base_name=str(bert))
    labels = dict(enumerate(json.loads((tmp_path / "False" / "labels.json").read_text())))
    assert list(labels.values()) == CLASSES
    loaded = peft.AutoPeftModelForTokenClassification.from_pretrained(
        str(tmp_path / "False"), id2label=labels, ignore_mismatched_sizes=True
    )
    coder = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "True"))
    adapted = transformers.pipeline("token-classification", loaded, tokenizer=coder, aggregation_strategy="first")
    whole = transformers.pipeline("token-classification", str(tmp_path / "True"), aggregation_strategy="first")
    assert list(whole.model.config.id2label.values()) == CLASSES
    row = tagged(1, seed=5, longest=8)[0]
    text, (predicted,) = " ".join(row["tokens"]), rondo.predict(finished.run_dir, [row], device="cpu")
    expected = [(s["label"], s["text"]) for s in predicted["spans"]]
    for pipeline in (adapted, whole):
        assert [(s["entity_group"], text[s["start"] : s["end"]]) for s in pipeline(text)] == expected
    card = (tmp_path / "True" / "README.md").read_text()
    assert 'pipeline("token-classification", ".")' in card
    assert "pipeline_tag: token-classification" in card


def test_loss_is_that_of_transformers(bert: Path) -> None:
    """On labels as its own script for this task makes them: a word's first token has the tag, the others -100."""
    from rondo.config.inputs import TaskConfig
    from rondo.tasks.language.tagging.token_classification import TokenClassification

    coder = transformers.AutoTokenizer.from_pretrained(str(bert))
    keys = TaskConfig(**{**TASK, "text": None, "max_length": 64})
    task = TokenClassification.of(keys, coder, CLASSES)
    rows = tagged(9)
    inputs, targets = task.collate(task.encode(rows))
    coded = coder([row["tokens"] for row in rows], is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full(coded["input_ids"].shape, -100)
    for i, row in enumerate(rows):
        before = None
        for place, word in enumerate(coded.word_ids(i)):
            if word is not None and word != before:
                labels[i, place] = CLASSES.index(row["tags"][word])
            before = word
    assert torch.equal(inputs["input_ids"], coded["input_ids"])
    assert torch.equal(targets["tags"], labels)
    config = transformers.AutoConfig.from_pretrained(str(bert), num_labels=5)
    model = transformers.AutoModelForTokenClassification.from_config(config).eval()
    with torch.no_grad():
        output = model(**inputs, labels=labels)
    losses, counts = task.loss(output.logits, targets)
    assert float(losses.sum() / counts.sum()) == pytest.approx(float(output.loss), rel=1e-6)


def test_spans_within_words_are_told(bert: Path, tmp_path: Path) -> None:
    """And words of which the tokenizer makes no token."""
    from rondo.report.rows import account

    rows = list(map(with_spans, tagged(12)))
    rows[0] = {"text": "the goodfilm was\u200b", "spans": [[4, 8, "GOOD"]], "who": "site 0"}
    task = {**TASK, **dict.fromkeys(("tokens", "tags")), "text": "text", "spans": "spans"}
    result = rondo.run(config(bert, task=task, rounds=1), train=rows, run_dir=tmp_path / "run", device="cpu")
    partition = json.loads((result.run_dir / "partition.json").read_text())
    said = "\n".join(account(partition))
    count = sum(len(row["spans"]) for row in rows)
    assert f"1 of {count} spans begin or end within a word: they are learned and found as whole words" in said


@pytest.mark.parametrize(
    ("task", "problems"),
    [
        ({}, {"task.tokens": "lists of words (or task.text and task.spans)", "task.tags": "lists of tags"}),
        ({"text": "text"}, {"task.spans": "name the column with the spans"}),
        (
            {"text": "t", "spans": "s", "tags": "g", "scheme": "IO"},
            {"task.tags": "take its", "task.scheme": "take its"},
        ),
        ({"text": ["a", "b"], "spans": "s"}, {"task.text": "takes one text column"}),
        (
            {"tokens": "a", "tags": "b", "max_length": 7},
            {"task.max_length": "7 leave no room for words: raise it to 8"},
        ),
        ({"tokens": "a", "tags": "b", "stride": 65}, {"task.stride": "above half of task.max_length"}),
        (
            {"tokens": "a", "tags": "b", "labels": ["PER", "LOC"]},
            {"task.labels": 'name all tags of IOB2: ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]'},
        ),
        ({"tokens": "a", "tags": "b", "labels": ["O", "B-PER"]}, {"task.labels": '["O", "B-PER", "I-PER"]'}),
        ({"tokens": "a", "tags": "b", "labels": CLASSES}, {}),
        ({"tokens": "a", "tags": "b", "label": "c"}, {"task.label": "only kind = "}),
    ],
)
def test_keys_are_checked(task: dict[str, Any], problems: dict[str, str]) -> None:
    from rondo.config.inputs import TaskConfig
    from rondo.config.task_kinds import check

    whole = TaskConfig(kind="token-classification", **task).model_dump()
    found = {problem.path: problem.message for problem in check(whole, own_data=True)}
    assert list(found) == list(problems)
    assert [path for path, message in problems.items() if message not in found[path]] == []


@pytest.mark.slow
def test_windows_change_no_word(bert: Path, tmp_path: Path) -> None:
    """Every word of long rows is scored once, whatever the windows."""
    rows, counts = tagged(12, longest=60), []
    for size, stride in ((64, 0), (16, 0), (16, 7), (9, 4)):
        task = {**TASK, "max_length": size, "stride": stride}
        result = rondo.run(
            config(bert, task=task, rounds=1), train=rows, run_dir=tmp_path / f"{size}-{stride}", device="cpu"
        )
        counts.append(json.loads((result.run_dir / "partition.json").read_text())["text"])
    assert {c["words"] for c in counts} == {sum(len(row["tokens"]) for row in rows)}
    assert [c["windows"] for c in counts] == sorted(c["windows"] for c in counts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": ["O", "I-GOOD", "O", "O"]}, r"'I-GOOD' of word 2 follows 'O': an entity begins with 'B-GOOD'; the "),
        ({"tags": ["O"] * 3}, r"column 'tags': 3 tags of 4 tokens"),
        ({"tags": ["O", "X", "O", "O"]}, r"'X' of word 2 is not a tag of IOB2"),
        ({"tokens": ["the", "", "a", "film"]}, r"column 'tokens': token 2 should be a text, and is ''"),
        ({"tokens": "the film"}, r"column 'tokens': expected a list of tokens, got the text 'the film'"),
    ],
)
def test_bad_row_names_its_place_and_reason(bert: Path, tmp_path: Path, change: Any, message: str) -> None:
    rows = tagged(12)
    rows[5] = {"tokens": ["the", "good", "a", "film"], "tags": ["O"] * 4, "who": "site 1", **change}
    with pytest.raises(rondo.ConfigError, match=message) as error:
        rondo.run(config(bert), train=rows, run_dir=tmp_path / "run", device="cpu")
    assert "train[5], column" in str(error.value)


def test_unknown_type_in_the_test_rows(bert: Path, tmp_path: Path) -> None:
    test = [{"tokens": ["the", "film"], "tags": ["O", "B-DRUG"]}]
    with pytest.raises(rondo.ConfigError, match=r"unknown type 'DRUG'; known: BAD, GOOD"):
        rondo.run(config(bert), train=tagged(12), test=test, run_dir=tmp_path / "run", device="cpu")


def test_rows_without_entities_are_refused(bert: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["the", "film"], "tags": ["O", "O"]}] * 9
    with pytest.raises(rondo.ConfigError, match=r"task\.tags: column 'tags' has no entity in any row"):
        rondo.run(config(bert), train=rows, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.slow
def test_numbers_need_names(bert: Path, tmp_path: Path) -> None:
    rows = [{**row, "tags": [CLASSES.index(tag) for tag in row["tags"]]} for row in tagged(24)]
    with pytest.raises(rondo.ConfigError, match=r"task\.labels: column 'tags' has numbers: name the tags, in the"):
        rondo.run(config(bert), train=rows, run_dir=tmp_path / "run", device="cpu")
    digests = []
    for given, labels in ((rows, CLASSES), (tagged(24), None)):
        task = {**TASK, **({"labels": labels} if labels else {})}
        result = rondo.run(config(bert, task=task, rounds=1), train=given, run_dir=tmp_path / str(labels), device="cpu")
        digests.append(json.loads((result.run_dir / "partition.json").read_text())["examples_sha256"])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_every_form_of_file_gives_the_same_examples(bert: Path, tmp_path: Path) -> None:
    """Lists in Parquet, JSON lines and CSV; columns of CoNLL; texts with spans."""
    rows = tagged(24)
    plain = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    spans = [{**s, "spans": json.dumps(s["spans"])} for s in map(with_spans, rows)]
    texts = {**dict.fromkeys(("tokens", "tags")), "text": "text", "spans": "spans"}
    columns = ["\n".join(f"{t} _ {g}" for t, g in zip(r["tokens"], r["tags"], strict=True)) for r in rows]
    (tmp_path / "rows.conll").write_text("-DOCSTART- _ O\n\n" + "\n\n".join(columns) + "\n")
    files = {
        "parquet": (write_rows(tmp_path / "rows.parquet", rows), {}),
        "jsonl": (write_rows(tmp_path / "rows.jsonl", rows), {}),
        "csv": (write_rows(tmp_path / "rows.csv", plain), {}),
        "conll": (tmp_path / "rows.conll", {}),
        "spans": (write_rows(tmp_path / "spans.csv", spans), texts),
    }
    digests = {}
    for name, (file, keys) in files.items():
        given = config(bert, task={**TASK, **keys}, data={"source": str(file)}, rounds=1)
        result = rondo.run(given, run_dir=tmp_path / name, device="cpu")
        digests[name] = json.loads((result.run_dir / "partition.json").read_text())["examples_sha256"]
    assert len(set(digests.values())) == 1


@pytest.mark.slow
def test_slow_tokenizer_is_refused(bert: Path, tmp_path: Path) -> None:
    from rondo.config.inputs import TaskConfig
    from rondo.tasks.language.tagging.token_classification import TokenClassification

    coder = transformers.CanineTokenizer()
    with pytest.raises(rondo.ConfigError, match=r"model\.name: its tokenizer does not tell a token's characters"):
        TokenClassification.of(TaskConfig(**{**TASK, "text": None}), coder, CLASSES)
