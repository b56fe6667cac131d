"""Runs of multiple choice: scores, predictions and generated answers, against a plain loop over stock libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from typer.testing import CliRunner

import rondo
from choice_rows import COLOURS, COMMONSENSE, TEMPLATE, commonsense, questions, save_tiny_llama
from outcomes import problems, verified
from rondo.cli.app import app
from small_runs import files, settings, write_rows

TEST = questions(17, seed=1)


def config(model: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    data = files(folder, questions(30), TEST, "jsonl")
    task = {"kind": "multiple-choice", "text": None, "label": None, "prompt": "question", "choices": "choices"}
    base: dict[str, Any] = {
        "data": data,
        "task": {**task, "answer": "answer", "max_length": 80},
        "adapter": {"r": 8, "target_modules": "all-linear"},
        "train": {"lr": 0.02, "local_epochs": 10, "precision": "exact"},
        "evaluation": {"generate": 5, "max_new_tokens": 12, "batch_size": 7},
    }
    return settings(model, **{k: {**base.get(k, {}), **changes.get(k, {})} for k in base | changes})


def finished(folder: Path, template: str | None = None, **changes: Any) -> rondo.RunResult:
    model = save_tiny_llama(folder / "llama", template)
    return rondo.run(config(model, folder, **changes), run_dir=folder / "run", device="cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    return finished(tmp_path_factory.mktemp("plain"))


class Stock:
    """The adapter by stock PEFT; choices are scored one by one, without padding."""

    def __init__(self, folder: Path) -> None:
        base = transformers.AutoModelForCausalLM.from_pretrained(folder.parents[1] / "llama")
        self.model = peft.PeftModel.from_pretrained(base, str(folder)).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def likelihood(self, context: str, choice: str) -> float:
        """The log-probability of ``choice``, divided into tokens as lm-eval's ``_encode_pair`` does."""
        bare = context.rstrip()
        whole = self.tokenizer(context + choice)["input_ids"]
        start = len(self.tokenizer(bare)["input_ids"])
        log_p = self.model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
        return sum(float(log_p[i - 1, whole[i]]) for i in range(start, len(whole)))


def expected(stock: Stock, contexts: list[str], said: list[list[str]]) -> dict[str, Any]:
    """Accuracy by likelihood and per byte, and the likelihoods themselves."""
    found = [[stock.likelihood(c, choice) for choice in s] for c, s in zip(contexts, said, strict=True)]
    right = ["ABCD".index(row["answer"]) for row in TEST]
    per_byte = [[v / len(c.encode()) for v, c in zip(f, s, strict=True)] for f, s in zip(found, said, strict=True)]
    shares = [
        sum(max(range(len(v)), key=v.__getitem__) == r for v, r in zip(values, right, strict=True)) / len(right)
        for values in (found, per_byte)
    ]
    return {"accuracy_likelihood": shares[0], "accuracy_normalised": shares[1], "found": found}


def check_against_stock(result: rondo.RunResult, contexts: list[str], said: list[list[str]]) -> None:
    right = expected(Stock(result.run_dir / "adapter"), contexts, said)
    scores = rondo.evaluate(result.run_dir, device="cpu")["test"]
    alone = rondo.evaluate(result.run_dir / "adapter", device="cpu")["test"]
    for key in ("accuracy_likelihood", "accuracy_normalised"):
        assert scores[key] == alone[key] == result.metrics["global"][key] == right[key]
    assert scores["examples"] == len(TEST)
    made = rondo.predict(result.run_dir, [{**row, "answer": None} for row in TEST], device="cpu")
    for prediction, row, values in zip(made, TEST, right["found"], strict=True):
        p = torch.tensor(values, dtype=torch.float64).softmax(-1)
        assert prediction["choice"] == row["choices"][int(p.argmax())]
        assert prediction["probability"] == pytest.approx(float(p.max()), abs=1e-5)


@pytest.mark.slow
def test_scores_are_those_of_a_plain_loop(plain: rondo.RunResult) -> None:
    check_against_stock(plain, [f"{r['question']}\n" for r in TEST], [r["choices"] for r in TEST])
    assert plain.summary["primary"] == "accuracy_likelihood"
    scores = plain.metrics["global"]
    assert scores["accuracy_likelihood"] != scores["accuracy_normalised"]
    assert scores["accuracy_likelihood"] > plain.summary["before"]["global"]["accuracy_likelihood"]


@pytest.mark.slow
def test_scores_with_letters_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """From columns, of which a row's last ones may be empty."""
    columns = ["c0", "c1", "c2", "c3"]
    result = finished(tmp_path, task={"letters": True, "choices": columns}, evaluation={"generate": 0})
    contexts = []
    for row in TEST:
        listed = [f"{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=False)]
        contexts.append("\n".join([row["question"], *listed, "Answer:"]) + " ")
    check_against_stock(result, contexts, [list("ABCD")[: len(r["choices"])] for r in TEST])


@pytest.mark.slow
def test_scores_with_a_chat_template_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    result = finished(tmp_path, TEMPLATE, evaluation={"generate": 0})
    contexts = [f"<|user|>\n{r['question']}<|end|>\n<|assistant|>\n" for r in TEST]
    check_against_stock(result, contexts, [r["choices"] for r in TEST])


@pytest.mark.slow
def test_scores_of_llm_adapters_rows_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """Choices, answer and prompt are the rows' own columns; the choice stands in a sentence."""
    train = [row for name in COMMONSENSE for row in commonsense(name, 6)]
    test = commonsense("social_i_qa", 11, seed=1)
    keys = {"prompt": ["instruction", "input"], "choices": "instruction", "answer_text": "the correct answer is {}"}
    more = {"boolq": str(write_rows(tmp_path / "boolq.json", commonsense("boolq", 7, seed=1)))}
    data = {**files(tmp_path, train, test, "json"), "more_tests": more}
    task = {**keys, "max_length": 140}
    result = finished(tmp_path, task=task, data=data, train={"local_epochs": 2}, evaluation={"generate": 2})
    stock = Stock(result.run_dir / "adapter")
    hits = 0
    for row in test:
        said = [f"the correct answer is {choice}" for choice in COMMONSENSE["social_i_qa"]]
        values = [stock.likelihood(f"{row['instruction']}\n", text) for text in said]
        hits += COMMONSENSE["social_i_qa"][values.index(max(values))] == row["answer"]
    assert result.metrics["global"]["accuracy_likelihood"] == hits / len(test)
    assert result.metrics["more_tests"]["boolq"]["examples"] == 7
    made = rondo.predict(result.run_dir, [{**row, "output": None, "answer": None} for row in test], device="cpu")
    assert {prediction["choice"] for prediction in made} <= set(COMMONSENSE["social_i_qa"])


@pytest.mark.slow
def test_scores_do_not_depend_on_batches(plain: rondo.RunResult, tmp_path: Path) -> None:
    """Choices of one row are scored in several batches, as they are sorted by length."""
    for size in (1, 64):
        path = tmp_path / str(size)
        raw = config(plain.run_dir.parent / "llama", path, evaluation={"batch_size": size})
        result = rondo.run(raw, run_dir=path / "run", device="cpu")
        assert result.metrics["global"] == pytest.approx(plain.metrics["global"])


@torch.no_grad()
def generated(stock: Stock, prompt: str, count: int) -> str:
    ids = stock.tokenizer(prompt)["input_ids"]
    start = len(ids)
    while len(ids) < start + count and ids[-1] != 1:
        ids.append(int(stock.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return str(stock.tokenizer.decode(ids[start:], skip_special_tokens=True))


def named(text: str, choices: list[str]) -> str | None:
    places = {c: text.find(c) for c in choices if c in text}
    return min(places, key=places.__getitem__) if places else None


@pytest.mark.slow
def test_generated_answers_are_scored_by_the_first_choice_they_name(plain: rondo.RunResult) -> None:
    stock = Stock(plain.run_dir / "adapter")
    hits = []
    for row in TEST:
        text = generated(stock, row["question"], 12)
        hits.append(named(text, row["choices"]) == row["choices"]["ABCD".index(row["answer"])])
    for path in (plain.run_dir, plain.run_dir / "adapter"):
        scores = rondo.evaluate(path, generate=True, device="cpu")["test"]
        assert scores["accuracy_generation"] == sum(hits) / len(hits)
    assert 0 < sum(hits) < len(hits)


def test_summary_has_the_score_of_its_samples(plain: rondo.RunResult) -> None:
    chosen = [TEST[i * len(TEST) // 5] for i in range(5)]
    summary = plain.summary["generated"]
    assert summary["answers"] == 5
    for when in ("before", "after"):
        rights = [
            named(s[when], r["choices"]) == s["expected"].strip()
            for s, r in zip(plain.summary["samples"], chosen, strict=True)
        ]
        assert summary[when] == {"accuracy_generation": sum(rights) / 5}


def test_bad_rows_and_keys_are_named(plain: rondo.RunResult, tmp_path: Path) -> None:
    model = plain.run_dir.parent / "llama"
    raw = config(model, tmp_path)
    rows = [*questions(3), {**questions(1)[0], "answer": "Z"}, {**questions(1)[0], "choices": ["red"]}]
    found = problems(lambda: rondo.run({**raw, "data": {"source": str(write_rows(tmp_path / "x.jsonl", rows))}}))
    assert "row" in found["data"]
    keys = ("prompt", "choices", "answer")
    for key in keys:
        task = {k: v for k, v in raw["task"].items() if k != key}
        assert f"task.{key}" in problems(lambda task=task: rondo.run({**raw, "task": task}))
    found = problems(lambda: rondo.run({**raw, "task": {**raw["task"], "kind": "causal-lm", "response": "answer"}}))
    assert "only kind = 'multiple-choice' uses it" in found["task.choices"]
    long = {"question": "item 1 is red", "choices": ["red", "blue " * 90]}
    found = problems(lambda: rondo.predict(plain.run_dir, [TEST[0], long], device="cpu"))
    assert found["--data"].startswith("data[1], column 'choices': a choice does not fit")


@pytest.mark.slow
def test_commands_take_multiple_choice(plain: rondo.RunResult, tmp_path: Path) -> None:
    to, data = tmp_path / "out.csv", write_rows(tmp_path / "new.jsonl", [{**r, "answer": ""} for r in TEST[:3]])
    result = CliRunner().invoke(app, ["predict", str(plain.run_dir), "--data", str(data), "--to", str(to)])
    assert result.exit_code == 0, result.output
    assert to.read_text().splitlines()[0] == "choice,probability"
    result = CliRunner().invoke(app, ["evaluate", str(plain.run_dir), "--generate"])
    assert "accuracy_generation" in result.output


@pytest.mark.slow
def test_another_task_has_no_score_of_answers(plain: rondo.RunResult, tmp_path: Path) -> None:
    task = {"kind": "causal-lm", "text": "question", "max_length": 40}
    raw = {**config(plain.run_dir.parent / "llama", tmp_path), "task": task, "rounds": 1}
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    assert (
        "only multiple-choice scores" in problems(lambda: rondo.evaluate(result.run_dir, generate=True))["--generate"]
    )


def test_exported_adapter_is_verified(plain: rondo.RunResult, tmp_path: Path) -> None:
    verified(plain.run_dir, tmp_path / "out")
    assert set(COLOURS) >= {p["choice"] for p in rondo.predict(tmp_path / "out", TEST, device="cpu")}
