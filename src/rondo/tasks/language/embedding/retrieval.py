"""Scores of vectors: how often a text's own counterpart is the nearest, and how cosines follow scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.language.embedding.pairs import ANCHOR, NO_SCORE, POSITIVE, pooled
from rondo.tasks.number_scores import spearman
from rondo.tasks.task import Batch, Scores, Tally

METRICS = ("recall_at_1", "recall_at_10", "mrr")


class EmbeddingTally(Tally):
    """A tally over passages, which may come in any order.

    Every different anchor without a score asks for its positives among all positives and negatives of the test set,
    by cosine. Equal cosines count against it. Its own text is not among them, as in MTEB; otherwise the source is
    ``InformationRetrievalEvaluator`` of sentence-transformers. Rows with a score: ``EmbeddingSimilarityEvaluator``.

    ``pooling``: how states become a vector.
    """

    def __init__(self, pooling: str) -> None:
        self.pooling = pooling
        self.vectors: dict[int, Tensor] = {}
        """The vector of each text, of length 1, by its name."""
        self.rows: dict[int, dict[int, int]] = {}
        """The names of each row's texts by place."""
        self.rated: dict[int, float] = {}
        """The score of each row that has one."""

    def add(self, output: Tensor, targets: Batch) -> None:
        unit = functional.normalize(pooled(output, targets["mask"], self.pooling), dim=-1).cpu()
        columns = (targets[key].tolist() for key in ("row", "place", "name", "score"))
        for vector, row, place, name, score in zip(unit, *columns, strict=True):
            self.vectors[name] = vector
            self.rows.setdefault(row, {})[place] = name
            if score != NO_SCORE:
                self.rated[row] = score

    def scores(self) -> Scores:
        """Shares, and the mean of 1 over the rank of the first positive; one without rows to count is None."""
        wanted: dict[int, set[int]] = {}
        known: set[int] = set()
        for row, texts in self.rows.items():
            if row not in self.rated:
                wanted.setdefault(texts[ANCHOR], set()).add(texts[POSITIVE])
                known |= {name for place, name in texts.items() if place != ANCHOR}
        found = [(ranks, len(right)) for ranks, right in self._ranks(wanted, sorted(known))]
        result: Scores = dict.fromkeys(METRICS)
        if found:
            for most in (1, 10):
                shares = [int((ranks <= most).sum()) / count for ranks, count in found]
                result[f"recall_at_{most}"] = sum(shares) / len(shares)
            result["mrr"] = sum(1 / int(ranks[0]) for ranks, _ in found) / len(found)
        pairs = [(self.rows[row], score) for row, score in sorted(self.rated.items())]
        cosines = [float(self.vectors[t[ANCHOR]].double() @ self.vectors[t[POSITIVE]].double()) for t, _ in pairs]
        scores = [score for _, score in pairs]
        result["spearman"] = spearman(torch.tensor(cosines).double(), torch.tensor(scores).double()) if pairs else None
        return {**result, "examples": len(self.rows)}

    def fewest(self) -> dict[str, int]:
        rated = len(self.rated)
        return {**dict.fromkeys(METRICS, len(self.rows) - rated), "spearman": rated}

    def _ranks(self, wanted: dict[int, set[int]], known: list[int]) -> list[tuple[Tensor, set[int]]]:
        """The ranks of each anchor's positives, ascending, and their names."""
        if not wanted:
            return []
        table, result = torch.stack([self.vectors[name] for name in known]), []
        places = {name: i for i, name in enumerate(known)}
        for anchor, right in sorted(wanted.items()):
            cosines = table @ self.vectors[anchor]
            hits = [places[name] for name in sorted(right)]
            own = cosines[hits].sort(descending=True).values
            cosines[hits + ([places[anchor]] if anchor in places else [])] = -torch.inf
            ahead = (cosines[None] >= own[:, None]).sum(1)
            result.append((ahead + torch.arange(1, len(hits) + 1), right))
        return result
