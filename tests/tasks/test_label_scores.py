"""Rows that may have several labels: loss and scores against transformers and scikit-learn, and predictions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics

import tiny
from rondo.config import ConfigError, load
from rondo.tasks.label_scores import best_threshold
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.make import make
from rondo.tasks.row_checks import RowLabels

NAMES = ("cough", "fever", "rash")
READS = RowLabels(("signs",), several=True)


def task(**evaluation: Any) -> Any:
    config = load({"task": {"text": "t", "label": "signs", "multi_label": True}, "evaluation": evaluation})
    return make(config, tiny.tokenizer(), NAMES)


def drawn(rows: int, labels: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, labels, generator=draw).mul(2).round(decimals=1)  # with ties
    return logits, (torch.rand(rows, labels, generator=draw) < 0.3).float()


def scores(logits: torch.Tensor, true: torch.Tensor, **evaluation: Any) -> dict[str, Any]:
    tally = task(**evaluation).tally()
    for start in range(0, len(logits), 7):
        tally.add(logits[start : start + 7], {"labels": true[start : start + 7]})
    return dict(tally.scores())


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_scikit_learns(seed: int, threshold: float) -> None:
    logits, true = drawn(40, seed=seed)
    found = scores(logits, true, threshold=threshold, per_class=True)
    probabilities = logits.sigmoid().numpy()
    predicted = probabilities >= threshold
    expected = {
        "f1_micro": metrics.f1_score(true, predicted, average="micro"),
        "f1_macro": metrics.f1_score(true, predicted, average="macro"),
        "accuracy": metrics.accuracy_score(true, predicted),
        "auc": metrics.roc_auc_score(true, probabilities, average="macro"),
        "loss": np.mean([metrics.log_loss(true[:, i], probabilities[:, i].astype(float)) for i in range(3)]),
    }
    for i, name in enumerate(NAMES):
        expected[f"f1 of {name}"] = metrics.f1_score(true[:, i], predicted[:, i])
        expected[f"auc of {name}"] = metrics.roc_auc_score(true[:, i], probabilities[:, i])
    assert found.pop("examples") == 40
    assert found == pytest.approx(expected, rel=1e-6)


def test_labels_without_a_score_are_left_out_of_the_means() -> None:
    """As scikit-learn has it with ``zero_division=nan``."""
    logits, true = torch.tensor([[2.0, -2.0, 1.0], [-1.0, -2.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = scores(logits, true, per_class=True)
    assert (found["f1 of fever"], found["auc of fever"], found["auc of rash"]) == (None, None, None)
    assert found["f1_macro"] == metrics.f1_score(true, logits > 0, average="macro", zero_division=np.nan)
    assert found["auc"] == found["auc of cough"] == 1.0


def test_scores_of_no_rows_are_none() -> None:
    found = dict(task().tally().scores())
    assert found == {"f1_micro": None, "f1_macro": None, "accuracy": None, "auc": None, "loss": None, "examples": 0}


def test_rows_without_labels_that_get_none_are_right_and_have_no_f1() -> None:
    found = scores(torch.full((4, 3), -5.0), torch.zeros(4, 3))
    assert (found["accuracy"], found["f1_micro"], found["auc"]) == (1.0, None, None)


def test_overflown_logits_have_no_area() -> None:
    found = scores(torch.tensor([[math.inf, 1.0, 1.0], [0.0, 0.0, 0.0]]), torch.eye(2, 3))
    assert found["auc"] == 0.0, "of the second label alone: the third one has no row"


def test_loss_of_a_row_is_transformers() -> None:
    """``BCEWithLogitsLoss`` of each row alone, which a private step clips."""
    logits, true = drawn(6)
    losses, counts = task().loss(logits, {"labels": true})
    expected = [torch.nn.BCEWithLogitsLoss()(logits[i], true[i]) for i in range(6)]
    assert torch.allclose(losses, torch.stack(expected))
    assert counts.tolist() == [1] * 6


def test_rows_become_targets_of_0_and_1() -> None:
    rows = [{"t": "w1", "signs": ["rash", "cough"]}, {"t": "w2 w3", "signs": []}]
    made = task()
    assert made.collate(made.encode(rows))[1]["labels"].tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    store = made.store()
    numbers = store.add(made.encode(rows))
    assert [store[n] for n in numbers] == made.encode(rows)
    assert made.unlabelled(rows)[0].target == ()


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_by_label_score_as_scikit_learn_does(seed: int) -> None:
    logits, true = drawn(60, seed=seed)
    given = {"cough": 0.2, "rash": 0.8}
    found = scores(logits, true, threshold=given, per_class=True)
    predicted = (logits.sigmoid().double() >= torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).numpy()
    each = metrics.f1_score(true.numpy(), predicted, average=None)
    assert [found[f"f1 of {name}"] for name in NAMES] == pytest.approx(each, abs=1e-12)
    assert found["f1_micro"] == pytest.approx(metrics.f1_score(true.numpy(), predicted, average="micro"), abs=1e-12)
    named = [{NAMES[i] for i in range(3) if row[i]} for row in predicted]
    assert [set(row["labels"]) for row in task(threshold=given).predicted(logits)] == named


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_has_a_higher_f1_than_the_chosen_one(seed: int) -> None:
    logits, true = drawn(60, seed=seed)
    for chances, positive in zip(logits.sigmoid().double().T, true.T > 0, strict=True):
        found = best_threshold(chances, positive)
        precision, recall, _ = metrics.precision_recall_curve(positive.numpy(), chances.numpy())
        highest = np.nanmax(2 * precision * recall / np.where(precision + recall > 0, precision + recall, np.nan))
        assert metrics.f1_score(positive.numpy(), (chances >= found).numpy()) == pytest.approx(highest, abs=1e-12)
        assert float((chances - found).abs().min()) > 1e-6, "rounding moves no row over it"


def test_threshold_of_a_label_without_rows_or_with_all_stays_within_bounds() -> None:
    chances = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    assert best_threshold(chances, torch.zeros(3, dtype=torch.bool)) == 0.5
    assert best_threshold(chances, torch.ones(3, dtype=torch.bool)) == 0.125
    assert best_threshold(chances, chances == 1) == 0.5


def test_predictions_are_the_labels_from_the_threshold_on() -> None:
    logits = torch.tensor([[3.0, 0.0, -3.0], [-1.0, -1.0, -1.0]])
    first, second = task().predicted(logits)
    assert first["labels"] == ["cough", "fever"]
    assert first["probabilities"] == pytest.approx({"cough": 0.952574, "fever": 0.5, "rash": 0.047426}, abs=1e-6)
    assert second["labels"] == []
    assert task(threshold=0.9).predicted(logits)[0]["labels"] == ["cough"]


def test_the_first_score_and_the_titles() -> None:
    assert (task().primary, task().higher_is_better) == ("f1_micro", True)
    assert task().titles == {"f1_micro": "micro f1", "f1_macro": "macro f1"}
    assert task(threshold=0.3).titles["f1_macro"] == "macro f1 at 0.3"
    assert task(per_class=True).titles["auc of rash"] == "auc of rash"


@pytest.mark.parametrize(
    ("labels", "section", "message"),
    [
        ({}, {"evaluation": {"threshold": 0.4}}, "evaluation.threshold: a row has a single label"),
        ({"multi_label": True}, {"evaluation": {"threshold": {"rush": 0.4}}}, "no class 'rush'; did you mean 'rash'"),
        ({}, {"task": {"metric": "f1_micro"}}, "task.metric: a row has a single label, so take accuracy, f1,"),
        ({"multi_label": True}, {"evaluation": {"positive": "rash"}}, "evaluation.positive: a row may have several"),
        ({"multi_label": True}, {"evaluation": {"f1": "macro"}}, "evaluation.f1: a row may have several labels"),
        (
            {"multi_label": True},
            {"task": {"metric": "matthews"}},
            "task.metric: a row may have several labels, so take",
        ),
    ],
)
def test_scores_of_the_other_kind_of_labels_are_refused(labels: Any, section: Any, message: str) -> None:
    keys = {"text": "t", "label": "signs", **labels, **section.get("task", {})}
    config = load({**section, "task": keys})
    with pytest.raises(ConfigError) as error:
        make(config, tiny.tokenizer(), NAMES)
    assert message in str(error.value)


def test_numbers_follow_the_order_of_the_labels() -> None:
    made = SequenceClassification(tiny.tokenizer(), ["t"], READS, ("rash", "cough"), 8)
    assert made.numbers({"signs": ["cough", "rash", "cough"]}) == (1, 0)
