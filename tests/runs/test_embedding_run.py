"""Runs of embeddings: learned, scored, predicted, exported; the same whatever shares the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import rondo
from embedding_rows import TASK, pairs, rated, save_embedder
from outcomes import adapter, verified
from rondo.config import load
from rondo.runs.watching.result import RunResult
from small_runs import settings, write_rows


def config(model: Path, **changes: Any) -> dict[str, Any]:
    train = {"lr": 0.02, "local_epochs": 5, "batch_size": 8, "precision": "exact", **changes.pop("train", {})}
    return settings(model, **{"task": TASK, "train": train, "rounds": 3, **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embedder(tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run; do not write into its directory."""
    folder = tmp_path_factory.mktemp("finished")
    mixed = [*pairs(30, seed=1), *rated(30, seed=2)]
    files = {"source": pairs(90), "test_source": [{**row, "like": row.get("like")} for row in mixed]}
    data = {key: str(write_rows(folder / f"{key}.jsonl", rows)) for key, rows in files.items()}
    task = {**TASK, "negative": "not", "score": "like"}
    return rondo.run(config(model, task=task, data=data), run_dir=folder / "run", device="cpu")


def test_counterparts_are_found(finished: RunResult) -> None:
    before, after = finished.summary["before"]["global"], finished.summary["after"]["global"]
    assert finished.summary["primary"] == "spearman"
    assert list(after) == ["spearman", "recall_at_1", "recall_at_10", "mrr", "examples"]
    assert after["examples"] == 60
    assert after["recall_at_10"] > before["recall_at_10"] + 0.1  # six meanings share the texts, so no single one is due
    assert after["spearman"] > before["spearman"] + 0.15


def test_predictions_are_the_models_vectors(finished: RunResult, model: Path) -> None:
    """By transformers alone: the first token's state, of length 1, as the model's files say."""
    rows = pairs(9, seed=5)
    made = rondo.predict(finished.run_dir, [{"asked": row["asked"]} for row in rows], device="cpu")
    rondo.export(finished.run_dir, finished.run_dir.parent / "whole", merged=True)
    folder = str(finished.run_dir.parent / "whole")
    coder, stock = (auto.from_pretrained(folder) for auto in (transformers.AutoTokenizer, transformers.AutoModel))
    with torch.no_grad():
        states = stock(**coder([row["asked"] for row in rows], padding=True, return_tensors="pt")).last_hidden_state
    expected = torch.nn.functional.normalize(states[:, 0], dim=-1)
    assert np.abs(expected.numpy() - np.array([p["embedding"] for p in made])).max() < 1e-5


def ranked(model: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those rows whose positive has a rank by more than rounding, and whose anchor is no answer: sentence-transformers
    finds a text itself, and MTEB does not."""
    answers = sorted({row[key] for row in rows for key in ("found", "not")})
    cosines = model.encode([row["asked"] for row in rows]) @ model.encode(answers).T
    own = [cosine[answers.index(row["found"])] for row, cosine in zip(rows, cosines, strict=True)]
    near = (np.abs(cosines - np.array(own)[:, None]) < 1e-5).sum(1)  # the positive itself is near
    return [row for row, n in zip(rows, near, strict=True) if n == 1 and row["asked"] not in answers]


@pytest.mark.slow
def test_sentence_transformers_loads_the_export(finished: RunResult, tmp_path: Path) -> None:
    """It gives the vectors of ``rondo predict``, the scores of ``rondo evaluate``, and the training loss."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator

    verified(finished.run_dir, tmp_path / "model", merged=True)
    loaded = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    rows, scored = pairs(40, seed=7), rated(40, seed=8)
    rows = ranked(loaded, rows)
    vectors = loaded.encode([row["asked"] for row in rows])
    ours = np.array([p["embedding"] for p in rondo.predict(finished.run_dir, rows, device="cpu")])
    assert np.abs(vectors - ours).max() < 1e-5
    texts = sorted({row[key] for row in rows for key in ("found", "not")})
    asked = sorted({row["asked"] for row in rows})
    right = {a: {r["found"] for r in rows if r["asked"] == a} for a in asked}
    retrieval = InformationRetrievalEvaluator(
        dict(zip(asked, asked, strict=True)), dict(zip(texts, texts, strict=True)), right,
        precision_recall_at_k=[1, 10], mrr_at_k=[len(texts)], accuracy_at_k=[1], ndcg_at_k=[1], map_at_k=[1],
    )  # fmt: skip
    theirs = retrieval(loaded)
    scores = rondo.evaluate(finished.run_dir, data=[{**row, "like": None} for row in rows], device="cpu")["test"]
    assert scores["recall_at_1"] == pytest.approx(theirs["cosine_recall@1"], abs=1e-6)
    assert scores["recall_at_10"] == pytest.approx(theirs["cosine_recall@10"], abs=1e-6)
    assert scores["mrr"] == pytest.approx(theirs[f"cosine_mrr@{len(texts)}"], abs=1e-6)
    columns = ([row[key] for row in scored] for key in ("asked", "found", "like"))
    similar = EmbeddingSimilarityEvaluator(*columns, main_similarity="cosine")(loaded)
    found = rondo.evaluate(finished.run_dir, data=scored, device="cpu")["test"]["spearman"]
    assert found == pytest.approx(similar["spearman_cosine"], abs=1e-3)


@pytest.mark.slow
def test_loss_is_that_of_sentence_transformers(finished: RunResult, tmp_path: Path) -> None:
    """Of a batch without texts that are the same, in float32."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from rondo.tasks.language.embedding.pairs import NO_SCORE, TextGroup, passages, similarity_losses
    from rondo.tasks.language.text import TextExample

    rondo.export(finished.run_dir, tmp_path / "model", merged=True)
    loaded = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    ranking = MultipleNegativesRankingLoss(loaded)
    vectors = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = ranking.compute_loss_from_embeddings(list(vectors.unbind(1)), None)
    rows = [TextGroup(tuple(TextExample((i, place), NO_SCORE) for place in range(3))) for i in range(8)]
    texts = passages(rows)
    targets = {name: torch.tensor([getattr(text, name) for text in texts]) for name in ("row", "place", "name")}
    targets["score"] = torch.full((24,), NO_SCORE, dtype=torch.float64)
    losses, counts = similarity_losses(vectors.reshape(24, 5), targets, 20.0)
    assert float(losses.sum() / counts.sum()) == pytest.approx(float(theirs), rel=1e-12)


def test_resumed_run_is_the_same(model: Path, tmp_path: Path) -> None:
    raw = config(model, train={"local_epochs": 1}, rounds=2)
    raw["data"] = {"source": str(write_rows(tmp_path / "rows.jsonl", pairs(30)))}
    whole = rondo.run(raw, run_dir=tmp_path / "whole", device="cpu")
    rondo.run({**raw, "rounds": 1}, run_dir=tmp_path / "part", device="cpu")
    resumed = rondo.resume(tmp_path / "part", sets=["rounds=2"], device="cpu")
    assert adapter(resumed.run_dir) == adapter(whole.run_dir)
    assert load(str(resumed.run_dir / "config.toml")).task.pooling == "cls"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {**TASK, "positive": None}}, r"task\.positive: name the column with the texts that belong"),
        ({"task": {**TASK, "metric": "spearman"}}, r"task\.metric: only rows with a score have it"),
        ({"train": {"micro_batch": 2}}, r"train\.micro_batch: the rows of a batch are each other's negatives"),
        ({"task": {**TASK, "label": "who"}}, r"task\.label: only kind = 'sequence-classification' and"),
        (
            {"privacy": {"unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-5, "adversary": "reader"}},
            r"privacy\.unit: a row's negatives are the other rows of a batch",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(model: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(rondo.ConfigError, match=message):
        rondo.run(config(model, **changes), train=pairs(9), device="cpu")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"like": 4.5}, r"column 'like': a score is a cosine, from -1 to 1, and this is 4\.5"),
        ({"like": "much"}, r"column 'like': expected a finite number, got 'much'"),
        ({"like": None, "not": ""}, r"column 'not': the text is empty"),
        ({"like": None, "found": 3}, r"column 'found': expected text, got 3"),
    ],
)
def test_bad_rows_are_named(model: Path, row: dict[str, Any], message: str, tmp_path: Path) -> None:
    raw = config(model, task={**TASK, "negative": "not", "score": "like"})
    with pytest.raises(rondo.ConfigError, match=message):
        rondo.run(raw, train=[*rated(8), {**rated(1)[0], **row}], run_dir=tmp_path / "run", device="cpu")


def test_models_with_other_parts_are_refused(tmp_path: Path) -> None:
    folder = save_embedder(tmp_path / "bert")
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(rondo.ConfigError, match=r"has the part Dense behind its pooling \(modules\.json\)"):
        rondo.run(config(folder), train=pairs(9), run_dir=tmp_path / "run", device="cpu")
    other = save_embedder(tmp_path / "other", "mean_sqrt_len_tokens")
    with pytest.raises(rondo.ConfigError, match=r"task\.pooling: its model pools by pooling_mode_mean_sqrt_len_tokens"):
        rondo.run(config(other), train=pairs(9), run_dir=tmp_path / "run", device="cpu")
