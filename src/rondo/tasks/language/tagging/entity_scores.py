"""Precision, recall and F1 of whole entities, as ``seqeval`` and CoNLL's script count them: an entity is found if its
first word, its last word and its type are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.nn import functional

from rondo.tasks.language.tagging.tags import OUTSIDE, entities_of, types_of
from rondo.tasks.language.tagging.windows import IGNORED, NO_TOKEN
from rondo.tasks.task import Batch, Scores, Tally, wide

METRICS = ("f1", "precision", "recall")


def read(names: Sequence[str], places: Sequence[int], predicted: Sequence[int]) -> list[str]:
    """The predicted tag of each word. A word without a token goes with the word before.

    ``names``: of the classes.
    ``places``: of the words' tokens.
    ``predicted``: the class at each place.
    """
    tags: list[str] = []
    for place in places:
        before = tags[-1] if tags else OUTSIDE
        goes_on = OUTSIDE if before == OUTSIDE else f"I-{before[2:]}"
        tags.append(goes_on if place == NO_TOKEN else names[predicted[place]])
    return tags


def tag_losses(output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
    """The cross-entropies of a window's words at their first tokens, as :meth:`rondo.tasks.task.Task.loss` gives them;
    output (rows, tokens, classes). Raises ValueError for an output of another shape."""
    tags = targets["tags"]
    if output.dim() != 3 or output.shape[:2] != tags.shape:
        raise ValueError(f"the network's output is {tuple(output.shape)}, and should be {(*tags.shape, 'classes')}")
    losses = functional.cross_entropy(wide(output).transpose(1, 2), tags, ignore_index=IGNORED, reduction="none")
    return losses.sum(1), (tags != IGNORED).sum(1)


class EntityTally(Tally):
    """A tally over whole rows, whose windows may come in any order. ``per_type``: whether
    each type has its scores too."""

    def __init__(self, names: Sequence[str], *, per_type: bool) -> None:
        self.names, self.per_type = names, per_type
        self.windows: dict[int, tuple[bool, list[str], list[str]]] = {}
        """Whether each window is a row's first, and the true and the predicted tags of its words."""
        self.loss, self.targets = 0.0, 0

    def add(self, output: Tensor, targets: Batch) -> None:
        losses, counts = tag_losses(output, targets)
        self.loss += float(losses.sum())
        self.targets += int(counts.sum())
        names = ("window", "begins", "words", "places", "classes")
        columns = (output.argmax(-1).tolist(), *(targets[name].tolist() for name in names))
        for predicted, number, begins, count, places, classes in zip(*columns, strict=True):
            true = [self.names[c] for c in classes[:count]]
            self.windows[number] = bool(begins), true, read(self.names, places[:count], predicted)

    def scores(self) -> Scores:
        """Shares; one without entities to count is None. ``accuracy`` is of the words' tags."""
        rows = list(self._rows())
        true, found = (
            {(n, *e) for n, row in enumerate(rows) for e in entities_of(row[side], "IOB1")} for side in (0, 1)
        )
        words = [pair for row in rows for pair in zip(*row, strict=True)]
        scores = _scores(true, found)
        scores["accuracy"] = sum(a == b for a, b in words) / len(words) if words else None
        scores["loss"] = self.loss / self.targets if self.targets else None
        for kind in types_of(self.names) if self.per_type else ():
            of_type = ({e for e in entities if e[3] == kind} for entities in (true, found))
            scores |= {title(metric, kind): value for metric, value in _scores(*of_type).items()}
        return {**scores, "entities": len(true), "examples": len(rows)}

    def fewest(self) -> dict[str, int]:
        """Those of all entities: by the rows with any. Those of the types: by the smallest of them."""
        kinds = [{entity[2] for entity in entities_of(true, "IOB1")} for true, _ in self._rows()]
        rows = Counter(kind for of_row in kinds for kind in of_row)
        by_type = [title(metric, kind) for kind in types_of(self.names) for metric in METRICS] if self.per_type else []
        least = min(rows.values(), default=len(kinds))
        return {**dict.fromkeys(METRICS, sum(map(bool, kinds)) or len(kinds)), **dict.fromkeys(by_type, least)}

    def _rows(self) -> Iterator[tuple[list[str], list[str]]]:
        row: tuple[list[str], list[str]] | None = None
        for number in sorted(self.windows):
            begins, *sides = self.windows[number]
            if begins and row is not None:
                yield row
            row = ([], []) if begins or row is None else row
            for side, tags in zip(row, sides, strict=True):
                side += tags
        if row is not None:
            yield row


def title(metric: str, kind: str) -> str:
    """The name of a metric of one type."""
    return f"{metric} of {kind}"


def _scores(true: set[tuple[int, int, int, str]], found: set[tuple[int, int, int, str]]) -> Scores:
    right, total = len(true & found), len(true) + len(found)
    if not total:
        return dict.fromkeys(METRICS)
    shares = [right / len(entities) if entities else 0.0 for entities in (found, true)]
    return dict(zip(METRICS, (2 * right / total, *shares), strict=True))
