"""Losses and scores of embeddings, against formulas that are written anew in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rondo.tasks.language.embedding.pairs import NO_SCORE, TextGroup, passages, pooled, similarity_losses
from rondo.tasks.language.embedding.retrieval import EmbeddingTally
from rondo.tasks.language.text import TextExample

Text = tuple[int, ...]


def row(*texts: Text, score: float = NO_SCORE) -> TextGroup:
    return TextGroup(tuple(TextExample(text, score) for text in texts))


def targets(*groups: list[TextGroup]) -> dict[str, Tensor]:
    made = [text for group in groups for text in passages(group)]
    found: dict[str, Tensor] = {n: torch.tensor([getattr(t, n) for t in made]) for n in ("row", "place", "name")}
    return {**found, "score": torch.tensor([t.target for t in made], dtype=torch.float64)}


def drawn(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ranking_loss(anchors: Any, candidates: Any, scale: float) -> Any:
    """Multiple negatives ranking: row i's candidate is candidate i (Henderson et al. 2017, equation 5; by cosine)."""
    a, c = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (anchors, candidates))
    scores = scale * a @ c.T
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(a)), np.arange(len(a))]


def test_loss_of_pairs_and_triplets_is_the_papers() -> None:
    rows = [row((i, 1), (i, 2), (i, 3)) for i in range(6)]
    vectors = drawn(18)
    losses, counts = similarity_losses(vectors, targets(rows), 20.0)
    x = vectors.reshape(6, 3, 5).numpy()
    expected = ranking_loss(x[:, 0], np.concatenate([x[:, 1], x[:, 2]]), 20.0)
    assert np.abs(losses[::3].numpy() - expected).max() < 1e-12
    assert losses.reshape(6, 3)[:, 1:].abs().max() == 0
    assert counts.tolist() == [1.0, 0.0, 0.0] * 6


def test_loss_of_scored_pairs_is_the_squared_error_of_the_cosine() -> None:
    scores = [0.0, 0.5, 1.0, -0.25]
    vectors = drawn(8)
    losses, _ = similarity_losses(vectors, targets([row((i, 1), (i, 2), score=s) for i, s in enumerate(scores)]), 20.0)
    x = vectors.reshape(4, 2, 5).numpy()
    cosines = (x[:, 0] * x[:, 1]).sum(1) / np.linalg.norm(x, axis=2).prod(1)
    assert np.abs(losses[::2].numpy() - (cosines - scores) ** 2).max() < 1e-12


def test_other_clients_are_no_negatives() -> None:
    """Each client's losses in one call are, bit for bit, those that it has alone."""
    groups = [[row((i, k), (i, k + 1)) for i in range(size)] for k, size in enumerate((4, 1, 7))]
    vectors = drawn(24)
    together, _ = similarity_losses(vectors, targets(*groups), 20.0)
    parts = torch.split(vectors, [2 * len(group) for group in groups])
    alone = torch.cat([similarity_losses(v, targets(g), 20.0)[0] for v, g in zip(parts, groups, strict=True)])
    assert torch.equal(together, alone)
    mixed, _ = similarity_losses(vectors, targets([r for group in groups for r in group]), 20.0)
    assert (mixed[::2] > together[::2]).all()


def test_a_text_that_equals_the_positive_is_not_its_negative() -> None:
    rows = [row((1,), (9,)), row((2,), (9,)), row((3,), (8,))]
    vectors = drawn(6)
    vectors[3] = vectors[1]
    losses, _ = similarity_losses(vectors, targets(rows), 20.0)
    without, _ = similarity_losses(vectors[[0, 1, 4, 5]], targets([rows[0], rows[2]]), 20.0)
    assert float(losses[0]) == pytest.approx(float(without[0]), abs=1e-12)


def test_scored_pairs_have_no_part_in_the_loss_of_others() -> None:
    rows = [row((1,), (2,)), row((3,), (4,), score=0.5), row((5,), (6,))]
    vectors = drawn(6)
    losses, _ = similarity_losses(vectors, targets(rows), 20.0)
    without, _ = similarity_losses(vectors[[0, 1, 4, 5]], targets([rows[0], rows[2]]), 20.0)
    assert torch.equal(losses[[0, 4]], without[[0, 2]])


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_pooling_minds_no_padding(pooling: str) -> None:
    states = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    found = pooled(states, mask, pooling)[0]
    real = states[0, :2]
    expected = {"mean": real.mean(0), "cls": real[0], "max": real.max(0).values, "lasttoken": real[1]}
    assert float((found - expected[pooling]).abs().max()) < 1e-15


def scores_of(vectors: Tensor, rows: list[TextGroup]) -> dict[str, float | None]:
    tally = EmbeddingTally("cls")
    found = {**targets(rows), "mask": torch.ones(len(vectors), 1, dtype=torch.long)}
    for part in torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1)).split(4):
        tally.add(vectors[part][:, None], {name: t[part] for name, t in found.items()})
    return tally.scores()


def test_scores_of_retrieval() -> None:
    """Recall and reciprocal rank by sorting, and Spearman's correlation by scipy."""
    from scipy.stats import spearmanr

    count = 40
    rows = [row((i // 2, 1), (i, 2), (i, 3)) for i in range(count)]  # two positives for each anchor
    vectors = drawn(3 * count)
    for i in range(1, count, 2):
        vectors[3 * i] = vectors[3 * i - 3]  # equal texts have equal vectors
    vectors[1::3] += 1.2 * vectors[::3]
    scored = [row((i, 7), (i, 8), score=i / 20 - 1) for i in range(count)]
    more = drawn(2 * count, seed=1)
    found = scores_of(torch.cat([vectors, more]), rows + scored)
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).numpy().reshape(count, 3, 5)
    corpus = np.concatenate([unit[:, 1], unit[:, 2]])
    order = np.argsort(-(unit[::2, 0] @ corpus.T), axis=1)
    ranks = [sorted(list(o).index(p) + 1 for p in (2 * q, 2 * q + 1)) for q, o in enumerate(order)]
    assert found["recall_at_1"] == pytest.approx(np.mean([sum(r <= 1 for r in of) / 2 for of in ranks]), abs=1e-12)
    assert found["recall_at_10"] == pytest.approx(np.mean([sum(r <= 10 for r in of) / 2 for of in ranks]), abs=1e-12)
    assert found["mrr"] == pytest.approx(np.mean([1 / of[0] for of in ranks]), abs=1e-12)
    x = more.numpy().reshape(count, 2, 5)
    cosines = (x[:, 0] * x[:, 1]).sum(1) / np.linalg.norm(x, axis=2).prod(1)
    assert found["spearman"] == pytest.approx(spearmanr(cosines, np.arange(count)).statistic, abs=1e-12)
    assert found["examples"] == 2 * count


def test_vectors_that_are_all_the_same_find_nothing() -> None:
    found = scores_of(torch.ones(12, 5), [row((i, 1), (i, 2)) for i in range(6)])
    assert (found["recall_at_1"], found["mrr"]) == (0.0, pytest.approx(1 / 6))
