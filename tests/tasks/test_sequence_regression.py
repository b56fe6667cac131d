"""Regression of texts: scores equal scipy's, targets that are no numbers are refused, and a number is learned, scored,
predicted and exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from scipy import stats

import rondo
from choice_rows import save_tiny_llama
from outcomes import problems, verified
from rondo.config import load
from rondo.config.inputs import TaskConfig
from rondo.runs.watching.result import RunResult
from rondo.tasks.language.sequences import SequenceRegression
from rondo.tasks.language.text import TextExample
from rondo.tasks.number_scores import NumberTally
from small_runs import files, reviews, save_tiny_bert, settings

KEYS = TaskConfig(kind="sequence-regression", text="text", target="score")
TASK = {"kind": "sequence-regression", "text": ["first", "second"], "label": None, "target": "score"}


def rated(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of halves of a review, with a number that its words decide; as text in every other row."""
    rows = [{**row, "score": 1.5 if row["label"] == "pos" else -0.25} for row in reviews(count, seed)]
    return [{**row, "score": str(row["score"])} if i % 2 else row for i, row in enumerate(rows)]


def tallied(output: torch.Tensor, y: torch.Tensor) -> dict[str, float | None]:
    tally = NumberTally()
    for part in (slice(0, 3), slice(3, None)):
        tally.add(output[part], {"y": y[part]})
    return tally.scores()


@pytest.mark.parametrize("levels", [4, 1000])
def test_scores_equal_scipys(levels: int) -> None:
    """With few levels nearly all ranks are tied."""
    draw = torch.Generator().manual_seed(levels)
    y = torch.randint(levels, (200,), generator=draw) / 8
    output = (y.double() + torch.randint(levels, (200,), generator=draw) / 4).float()[:, None]
    scores = tallied(output, y)
    assert list(scores) == ["pearson", "spearman", "mse", "examples"]
    assert scores["pearson"] == pytest.approx(stats.pearsonr(output.double()[:, 0], y.double())[0], rel=1e-12)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(output[:, 0], y)[0], rel=1e-12)
    assert scores["mse"] == pytest.approx(float(((output[:, 0] - y).double() ** 2).mean()), rel=1e-6)
    assert scores["examples"] == 200


def test_correlation_far_from_zero() -> None:
    """A large mean does not take the digits of the differences."""
    y = torch.arange(50.0) + 1e6
    assert tallied((-y)[:, None], y)["pearson"] == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize(
    ("output", "y"),
    [([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0] * 3), ([1.0, float("nan"), 2.0], [1.0, 2.0, 3.0])],
)
def test_undefined_correlations_are_none(output: list[float], y: list[float]) -> None:
    scores = tallied(torch.tensor(output), torch.tensor(y))
    assert scores["pearson"] is None
    assert scores["spearman"] is None


def test_empty_tally_has_no_score() -> None:
    assert NumberTally().scores() == {"pearson": None, "spearman": None, "mse": None, "examples": 0}


@pytest.mark.parametrize("value", ["", "two", None, "nan", float("inf"), [1.0], True])
def test_target_that_is_no_number_is_refused(value: Any) -> None:
    problem = SequenceRegression.problem(KEYS, {"text": "good", "score": value}, 3)
    assert str(problem).startswith("row 3 (counted from 0), column 'score': expected a finite number, got ")


def test_store_keeps_numbers() -> None:
    store = SequenceRegression(None, ("text",), "score", 8).store()
    examples = [TextExample((1, 2), 0.1), TextExample((3,), -2.5, lost=2)]
    store.add(examples)
    assert [store[i] for i in range(2)] == [TextExample((1, 2), 0.1), TextExample((3,), -2.5)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run; do not write into its directory."""
    folder = tmp_path_factory.mktemp("finished")
    data = files(folder, rated(72), rated(16, seed=1), "jsonl", "csv")
    train = {"lr": 0.02, "local_epochs": 6, "precision": "exact"}
    config = settings(save_tiny_bert(folder / "bert"), task=TASK, data=data, train=train, rounds=3)
    return rondo.run(config, run_dir=folder / "run", device="cpu")


def test_number_is_learned(finished: RunResult) -> None:
    """The checkpoint's own head has two outputs."""
    before, after = finished.summary["before"]["global"], finished.summary["after"]["global"]
    assert finished.summary["primary"] == "pearson"
    assert after["pearson"] > 0.7
    assert after["mse"] < before["mse"] / 2


def test_predictions_agree_with_the_scores(finished: RunResult, tmp_path: Path) -> None:
    rows = rated(30, seed=2)
    bare = [{k: v for k, v in row.items() if k != "score"} for row in rows]
    predicted = [p["prediction"] for p in rondo.predict(finished.run_dir, bare, device="cpu")]
    scores = rondo.evaluate(finished.run_dir, data=rows, device="cpu")["test"]
    assert scores["pearson"] == pytest.approx(stats.pearsonr(predicted, [float(r["score"]) for r in rows])[0], abs=1e-5)


def test_result_loads_in_stock_libraries(finished: RunResult, tmp_path: Path) -> None:
    for merged in (False, True):
        base = load(finished.run_dir / "config.toml").model.name
        verified(finished.run_dir, tmp_path / str(merged), merged=merged, base_name=base)
    loaded = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        str(tmp_path / "False"), num_labels=1, ignore_mismatched_sizes=True
    )
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "True"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "True"))
    batch = tokenizer("good film", "a plot", return_tensors="pt")
    assert whole(**batch).logits.shape == (1, 1)
    assert torch.allclose(loaded.eval()(**batch).logits, whole(**batch).logits, atol=1e-4)
    card = (tmp_path / "False" / "README.md").read_text()
    assert 'from_pretrained(folder, num_labels=1, problem_type="regression", ignore_mismatched_sizes=True)' in card
    (predicted,) = rondo.predict(finished.run_dir, [{"first": "good film", "second": "a plot"}])
    shown = transformers.pipeline("text-classification", str(tmp_path / "True"))(
        {"text": "good film", "text_pair": "a plot"}
    )
    assert shown["score"] == pytest.approx(predicted["prediction"], abs=1e-4)  # not squeezed into 0 to 1


@pytest.mark.parametrize("known", [None, 0])
def test_decoder_reads_the_last_word_whatever_its_configuration_pads_with(known: int | None, tmp_path: Path) -> None:
    """Early checkpoints of Llama say 0, and their tokenizers have no padding token."""
    folder = save_tiny_llama(tmp_path / "llama")
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "pad_token_id": known}))
    adapter = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    config = settings(folder, task=TASK, rounds=1, adapter=adapter, train={"precision": "exact", "lr": 0.02})
    result = rondo.run(config, train=rated(24), test=rated(8, 1), run_dir=tmp_path / "run", device="cpu")
    rows = [{"first": "good", "second": "film"}, {"first": "good " * 9, "second": "bad " * 9}]
    together, alone = rondo.predict(result.run_dir, rows), [rondo.predict(result.run_dir, [row])[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one["prediction"] == pytest.approx(other["prediction"], abs=1e-5)
    again = rondo.evaluate(result.run_dir, data=rated(8, 1))["test"]
    assert again["mse"] == pytest.approx(result.metrics["global"]["mse"], rel=1e-5)
    card = (result.run_dir / "adapter" / "README.md").read_text()
    assert re.search(r"problem_type=.regression., ignore_mismatched_sizes=True(, pad_token_id=[0-9]+)?\)", card)


def test_personal_head(finished: RunResult, tmp_path: Path) -> None:
    config = settings(Path("unused"), task=TASK, model={"name": rondo_model(finished), "head": "local"}, rounds=1)
    config["algorithm"] = {"name": "fedsa-lora"}
    result = rondo.run(config, train=rated(48), run_dir=tmp_path / "run", device="cpu")
    assert result.metrics["personal"]["pearson"]["clients"] == 3
    assert rondo.export(result.run_dir, tmp_path / "out", client="client-1", verify=True).verification.passed


def rondo_model(finished: RunResult) -> str:
    return str(Path(finished.run_dir).parent / "bert")


def test_dirichlet_is_refused(finished: RunResult, tmp_path: Path) -> None:
    config = settings(Path(rondo_model(finished)), task=TASK, partition={"kind": "dirichlet", "alpha": 1.0})
    with pytest.raises(rondo.ConfigError, match="deals by label, and this task has none"):
        rondo.run(config, train=rated(48), run_dir=tmp_path / "run", device="cpu")


def test_columns_are_needed(finished: RunResult, tmp_path: Path) -> None:
    task = {"kind": "sequence-regression", "text": None, "label": "score"}
    config = settings(Path(rondo_model(finished)), task=task)
    found = problems(lambda: rondo.run(config, train=rated(9), run_dir=tmp_path / "run"))
    assert found.keys() == {"task.label", "task.text", "task.target"}
