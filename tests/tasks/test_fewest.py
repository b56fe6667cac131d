"""The rows that decide a metric, where they are fewer than all that are scored."""

from __future__ import annotations

import torch

from rondo.tasks.class_scores import ClassTally
from rondo.tasks.label_scores import LabelTally
from rondo.tasks.language.embedding.retrieval import EmbeddingTally
from rondo.tasks.language.tagging.entity_scores import EntityTally
from rondo.tasks.language.tagging.tags import classes_of


def test_smallest_class_decides_scores_by_class() -> None:
    tally = ClassTally(3, None, named=("a", "b", "c"))
    tally.add(torch.randn(9, 3), {"labels": torch.tensor([0] * 6 + [2] * 3)})
    assert tally.fewest() == dict.fromkeys(("f1", "matthews", "auc", "f1 of a", "f1 of b", "f1 of c"), 3)


def test_rarest_label_that_a_row_has_or_lacks_decides_scores_by_label() -> None:
    by_label = ("f1_macro", "auc", "f1 of a", "auc of a", "f1 of b", "auc of b")
    for of_b, fewest in ((4, 3), (8, 2), (10, 3), (0, 3)):
        tally = LabelTally({"a": 0.5, "b": 0.5}, ("a", "b"))
        true = torch.zeros(10, 2)
        true[:3, 0] = true[:of_b, 1] = 1
        tally.add(torch.randn(10, 2), {"labels": true})
        assert tally.fewest() == {"f1_micro": max(3, of_b), **dict.fromkeys(by_label, fewest)}


def test_rows_with_entities_decide_scores_of_entities() -> None:
    tally = EntityTally(classes_of(("LOC", "PER")), per_type=True)
    outside, place, person = ["O", "O"], ["B-LOC", "O"], ["B-LOC", "B-PER"]
    for rows, all_, by_type in (
        ([outside] * 5, 5, 5),
        ([outside] * 5 + [place] * 3, 3, 3),
        ([outside] * 5 + [place] * 3 + [person], 4, 1),
    ):
        tally.windows = {n: (True, row, outside) for n, row in enumerate(rows)}
        fewest = tally.fewest()
        assert {fewest[name] for name in ("f1", "precision", "recall")} == {all_}
        assert {value for name, value in fewest.items() if " of " in name} == {by_type}
        assert len(fewest) == 9


def test_rows_with_a_score_decide_the_correlation() -> None:
    tally = EmbeddingTally("cls")
    tally.rows, tally.rated = {n: {} for n in range(9)}, {0: 0.5, 1: 0.7}
    assert tally.fewest() == {"recall_at_1": 7, "recall_at_10": 7, "mrr": 7, "spearman": 2}
