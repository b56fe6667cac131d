"""Runs whose answers are places in a text are alike: personal heads, shortcuts, and what is predicted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import asked_rows
import rondo
import tagged_rows
from outcomes import verified, weights
from small_runs import settings, write_rows

KINDS: dict[str, tuple[dict[str, Any], Callable[..., Any], int]] = {
    "answers": (asked_rows.TASK, asked_rows.asked, 6),
    "entities": (tagged_rows.TASK, tagged_rows.tagged, 10),
}
"""The section ``task``, the rows and the epochs of a round."""


def config(kind: str, bert: Path, **changes: Any) -> dict[str, Any]:
    task, _, epochs = KINDS[kind]
    train = {"lr": 0.02, "local_epochs": epochs, "precision": "exact", **changes.pop("train", {})}
    return settings(bert, **{"task": task, "train": train, "rounds": 1, **changes})


@pytest.fixture(scope="module", params=KINDS)
def personal(request: pytest.FixtureRequest, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows of a kind and a run of a personal method with heads at the clients; do not write into its directory."""
    rows, run_dir = KINDS[request.param][1], tmp_path_factory.mktemp(request.param) / "run"
    given = config(request.param, bert, algorithm={"name": "fedsa-lora"}, model={"head": "local"})
    return rows, rondo.run(given, train=rows(24), run_dir=run_dir, device="cpu")


@pytest.mark.sweep(2)
def test_personal_head(personal: Any, tmp_path: Path) -> None:
    rows, result = personal
    assert result.metrics["personal"]["f1"]["clients"] == 3
    verified(result.run_dir, tmp_path / "out", client="client-1")
    adapted = rondo.adapt(result.run_dir, rows(20, seed=4), epochs=1, device="cpu")
    assert (adapted.primary, adapted.scored_rows, adapted.shots[0].rows) == ("f1", 4, 16)


def found(prediction: Any) -> tuple[Any, list[float]]:
    """The places of a prediction, and how probable they are."""
    if "spans" not in prediction:
        return prediction["answer"], [prediction["probability"]]
    return [{**span, "score": 0} for span in prediction["spans"]], [span["score"] for span in prediction["spans"]]


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_batch(personal: Any) -> None:
    rows, result = personal
    asked = rows(7, seed=3)
    for one, row in zip(rondo.predict(result.run_dir, asked, device="cpu"), asked, strict=True):
        (alone,) = rondo.predict(result.run_dir, [row], device="cpu")
        assert found(one)[0] == found(alone)[0]
        assert found(one)[1] == pytest.approx(found(alone)[1], rel=1e-4)


def test_predictions_are_written_as_csv(personal: Any, tmp_path: Path, invoke: Callable[..., tuple[int, str]]) -> None:
    rows, result = personal
    data, to = write_rows(tmp_path / "rows.jsonl", rows(3, seed=5)), tmp_path / "out.csv"
    code, output = invoke("predict", result.run_dir, "--data", data, "--to", to, "--device", "cpu")
    assert code == 0, output
    with to.open(newline="") as file:
        written = list(csv.DictReader(file))
    expected = rondo.predict(result.run_dir, rows(3, seed=5), device="cpu")
    if "spans" in expected[0]:
        assert [json.loads(row["spans"]) for row in written] == [one["spans"] for one in expected]
        assert [*json.loads(written[0]["spans"])[0]] == ["start", "end", "label", "text", "score"]
    else:
        assert [row["answer"] for row in written] == [one["answer"] for one in expected]
        assert list(written[0]) == ["answer", "probability", "answer_start"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [{"simulation": {"cohort": 1}}, {"adapter": {"layers_to_transform": [1]}}, {"evaluation": {"batch_size": 3}}],
    ids=["cohort", "prefix", "batch"],
)
def test_shortcuts_change_no_score(kind: str, bert: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    """Clients one by one; no hidden states kept; small batches. Ordinary runs share calls and skip what they can. By
    plain SGD: AdamW would make much of the last digit of a small gradient."""
    train, rows, results = {"optimizer": "sgd", "lr": 0.5, "local_epochs": 2}, KINDS[kind][1], []
    for off in (True, False):
        own = {**change, "simulation": {**change.get("simulation", {}), "reuse_prefix": False}} if off else {}
        given = config(kind, bert, train=train, **{**own, "adapter": change.get("adapter", {})})
        results.append(
            rondo.run(given, train=rows(24), test=rows(9, seed=1), run_dir=tmp_path / str(off), device="cpu")
        )
    torch.testing.assert_close(*(weights(r.run_dir) for r in results), rtol=1e-5, atol=1e-4)
    assert results[0].metrics["global"] == pytest.approx(results[1].metrics["global"], rel=1e-3)
