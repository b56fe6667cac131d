"""Rows of texts that belong together, as examples, and the vector of a text: its states pooled."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from rondo.tasks.language.text import TextExample, TokenStore
from rondo.tasks.task import Batch, Store, wide

NO_SCORE = 2.0
"""The score of a row without one; a cosine is at most 1."""
ANCHOR, POSITIVE = 0, 1
"""Places of texts in a row. All after these are negatives."""


@dataclass(frozen=True, kw_only=True)
class Passage(TextExample):
    """A text of a row in a batch, as the network reads it. Its target is the row's score."""

    row: int
    """The number of its row in the batch of its client."""
    place: int
    """Its place in the row."""
    name: int
    """A number that equal texts of the batch share."""


@dataclass(frozen=True)
class TextGroup:
    """A row: anchor, positive and negatives. The target of each text is the row's score, or :data:`NO_SCORE`."""

    texts: tuple[TextExample, ...]

    @property
    def cost(self) -> int:
        return len(self.texts) * max(text.cost for text in self.texts)

    def opening(self, size: int) -> TextGroup:
        return TextGroup(tuple(_cut(text, size) for text in self.texts))


def _cut(text: TextExample, size: int) -> TextExample:
    return replace(text, ids=text.ids[:size], segments=text.segments and text.segments[:size])


def opening(example: TextGroup | Passage, size: int) -> TextGroup | TextExample:
    """``example`` with at most the first ``size`` tokens of each text."""
    return example.opening(size) if isinstance(example, TextGroup) else _cut(example, size)


def passages(examples: Sequence[TextGroup | Passage]) -> list[Passage]:
    """The texts of a client's batch of rows. Passages stay as they are."""
    names: dict[tuple[int, ...], int] = {}
    result = []
    for row, example in enumerate(examples):
        if isinstance(example, Passage):
            result.append(example)
            continue
        for place, text in enumerate(example.texts):
            name = names.setdefault(text.ids, len(names))
            known = (text.ids, text.target, text.segments)
            result.append(Passage(*known, row=row, place=place, name=name))
    return result


class TextGroupStore(Store):
    """All examples of a run, in flat arrays (:class:`rondo.tasks.language.text.TokenStore`)."""

    def __init__(self) -> None:
        self._texts, self._ends, self._rows_cut = TokenStore("d"), array("q", [0]), 0

    def add(self, examples: Iterable[TextGroup]) -> range:
        first = len(self._ends) - 1
        for pair in examples:
            self._ends.append(self._texts.add(pair.texts).stop)
            self._rows_cut += any(text.lost for text in pair.texts)
        return range(first, len(self._ends) - 1)

    def __getitem__(self, number: int) -> TextGroup:
        return TextGroup(tuple(self._texts[i] for i in range(self._ends[number], self._ends[number + 1])))

    def account(self) -> dict[str, int]:
        return {**self._texts.account(), "rows": len(self._ends) - 1, "rows_cut": self._rows_cut}

    def sha256(self) -> str:
        return hashlib.sha256(self._texts.sha256().encode() + self._ends.tobytes()).hexdigest()


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """The vector of each text, (texts, width), as sentence-transformers' ``Pooling`` makes it.

    ``states``: of the tokens, (texts, tokens, width); raises ValueError for another shape.
    ``mask``: 1 at tokens and 0 at padding behind them, (texts, tokens).
    """
    if states.dim() != 3 or states.shape[:2] != mask.shape:
        raise ValueError(f"the network's output is {tuple(states.shape)}, and should be {(*mask.shape, 'width')}")
    states = wide(states)
    if pooling == "cls":
        return states[:, 0]
    if pooling == "lasttoken":
        return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
    real = mask[..., None]
    if pooling == "max":
        return states.masked_fill(real == 0, -torch.inf).amax(1)
    return (states * real).sum(1) / real.sum(1)


def similarity_losses(vectors: Tensor, targets: Batch, scale: float) -> tuple[Tensor, Tensor]:
    """Losses and numbers of targets of passages, (passages,) each, which are at the anchors.

    ``vectors``: (passages, width)

    A row without a score is told from the rows of its client's batch: the cross-entropy of its positive among all
    positives and negatives there, by ``scale`` times the cosine. A text that equals its positive is not among them.
    A row with a score has the squared error of its cosine, and no part in other rows.

    Source: sentence-transformers' ``MultipleNegativesRankingLoss`` (Henderson et al. 2017) and
    ``CosineSimilarityLoss`` (Reimers and Gurevych 2019).
    """
    unit = functional.normalize(vectors, dim=-1)
    row, place, name = (targets[key].tolist() for key in ("row", "place", "name"))
    scores = targets["score"].tolist()
    losses, counts = vectors.new_zeros(len(row)), vectors.new_zeros(len(row))
    begins = [i for i in range(len(row)) if row[i] == 0 and place[i] == ANCHOR]
    for start, end in zip(begins, [*begins, len(row)][1:], strict=True):
        whole = [i for i in range(start, end - 1) if place[i] == ANCHOR and place[i + 1] == POSITIVE]
        rated = [i for i in whole if scores[i] != NO_SCORE]
        asked = [i for i in whole if scores[i] == NO_SCORE]
        counts[whole] = 1.0
        if rated:
            cosines = (unit[rated] * unit[[i + 1 for i in rated]]).sum(-1)
            losses[rated] = (cosines - vectors.new_tensor([scores[i] for i in rated])).square()
        if asked:
            others = [i for i in range(start, end) if place[i] > POSITIVE and scores[i] == NO_SCORE]
            known = [i + 1 for i in asked] + others
            same = [[name[c] == name[a + 1] and c != a + 1 for c in known] for a in asked]
            cosines = scale * (unit[asked] @ unit[known].mT)
            cosines = cosines.masked_fill(torch.tensor(same, device=vectors.device), -torch.inf)
            right = torch.arange(len(asked), device=vectors.device)
            losses[asked] = functional.cross_entropy(cosines, right, reduction="none")
    return losses, counts
