"""Losses, predictions and scores of a classifier, shared by all tasks with classes."""

from __future__ import annotations

import copy
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError, Problem, visible
from rondo.tasks.label_scores import THRESHOLD, LabelTally, area, label_losses, label_predictions, label_targets
from rondo.tasks.row_checks import Row, RowLabels, as_list, is_missing
from rondo.tasks.task import Batch, Scores, Tally, Task, wide

_SHOWN = 24
"""Most characters of a class's name in the title of a score."""


class ClassTask(Task):
    """A task with classes, scored by accuracy; with rows of several labels, each of which is a yes or no of its own."""

    primary = "accuracy"
    higher_is_better = True
    classes: ClassVar[bool] = True
    labels: tuple[str, ...]
    """The label names, in the order of the classes."""
    label: RowLabels = RowLabels(())
    """Reads the labels of a row."""
    _index: Mapping[str, int]
    """The number of each of the labels."""
    positive: str | None = None
    """The class whose F1 ``f1`` is. None: the class 1 of 0 and 1, as in GLUE and scikit-learn, else the mean over all
    classes, since neither the alphabet nor the order of the rows says which of two is sought."""

    average: str | None = None
    """The mean over classes that ``f1`` is, "macro" or "weighted" by rows; None: see :attr:`positive`."""
    per_class: bool = False
    """Whether the F1 of each class is a score too, and with several labels the area of each."""
    threshold: float | Mapping[str, float] = THRESHOLD
    """The probability from which on a row has a label, where it may have several, for all labels or by their names; a
    label that is not named has :data:`THRESHOLD`."""

    @classmethod
    def settled(cls, config: TaskConfig, rows: Iterable[Row]) -> TaskConfig:
        """That a row may have several labels, if all rows with any have lists of them."""
        column = config.label if config.multi_label is None and isinstance(config.label, str) else None
        cells = [] if column is None else [row.get(column) for row in rows if not is_missing(row.get(column))]
        if cells and all(as_list(cell) is not None for cell in cells):
            return config.model_copy(update={"multi_label": True})
        return config

    def scored_by(
        self,
        positive: str | None,
        average: str | None,
        *,
        per_class: bool,
        threshold: float | Mapping[str, float] | None = None,
    ) -> Self:
        """This task with another :attr:`positive` class, :attr:`average`, :attr:`per_class` and :attr:`threshold`.
        Raises :class:`ConfigError` if there is no such class, and for values that its kind of labels does not use."""
        unused = {"positive": positive, "f1": average} if self.label.several else {"threshold": threshold}
        why = "may have several labels, which f1_micro, f1_macro and evaluation.per_class score"
        reason = why if self.label.several else "has a single label, and the likeliest is predicted"
        if problems := [Problem(f"evaluation.{key}", f"a row {reason}: remove it") for key in unused if unused[key]]:
            raise ConfigError(problems)
        by_label = threshold if isinstance(threshold, Mapping) else {}
        for key, name in [("positive", positive), *(("threshold", name) for name in by_label)]:
            if name is not None and name not in self.labels:
                near = difflib.get_close_matches(name, self.labels, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self.labels[:10])}"
                raise ConfigError.at(f"evaluation.{key}", f"no class {name!r}; {hint}")
        task = copy.copy(self)
        task.positive, task.average, task.per_class = positive, average, per_class
        task.threshold = THRESHOLD if threshold is None else threshold
        return task

    @property
    def titles(self) -> Mapping[str, str]:
        """The class or the classes whose F1 ``f1`` is."""
        each = {_f1_of(name): _f1_of(_short(name)) for name in self.labels} if self.per_class else {}
        if self.label.several:
            by_label = isinstance(self.threshold, Mapping)
            at = "" if self.threshold == THRESHOLD else " at own thresholds" if by_label else f" at {self.threshold:g}"
            areas = {f"auc of {name}": f"auc of {_short(name)}" for name in self.labels} if self.per_class else {}
            return {"f1_micro": f"micro f1{at}", "f1_macro": f"macro f1{at}", **each, **areas}
        place = self._positive
        if place is not None:
            return {"f1": f"f1 ({_short(self.labels[place])})", **each}
        classes = f" ({', '.join(map(_short, self.labels))})" if len(self.labels) == 2 else ""
        return {"f1": f"{self.average or 'macro'} f1{classes}", **each}

    @property
    def thresholds(self) -> dict[str, float]:
        """The probability from which on a row has a label, by label, in the order of the labels."""
        given = self.threshold
        return {n: given.get(n, THRESHOLD) if isinstance(given, Mapping) else given for n in self.labels}

    @property
    def _positive(self) -> int | None:
        name = self.positive
        if name is None and self.average is None and set(self.labels) == {"0", "1"}:
            name = "1"
        return None if name is None else self.labels.index(name)

    def numbers(self, row: Row) -> int | tuple[int, ...]:
        """The class of a row, or the classes where it may have several labels."""
        numbers = tuple(self._index[name] for name in self.label.names(row))
        return numbers if self.label.several else numbers[0]

    def targets(self, numbers: Sequence[Any]) -> Batch:
        """The target ``labels`` of rows with these :meth:`numbers`: (rows,), or (rows, classes) of 0 and 1."""
        return {"labels": label_targets(numbers, len(self.labels)) if self.label.several else torch.tensor(numbers)}

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy, or the mean of the labels' binary ones, one target per row; logits (rows, classes). Raises
        ValueError for logits of another shape."""
        wanted = (len(targets["labels"]), len(self.labels))
        if logits.shape != wanted:
            raise ValueError(f"the network's output is {tuple(logits.shape)}, and rows and classes are {wanted}")
        if self.label.several:
            losses = label_losses(logits, targets["labels"])
        else:
            losses = functional.cross_entropy(wide(logits), targets["labels"], reduction="none")
        return losses, torch.ones_like(losses, dtype=torch.int64)

    def predicted(self, logits: Tensor) -> list[dict[str, Any]]:
        """``label`` and its ``probability``, or ``labels`` and the ``probabilities`` of all; logits (rows, classes)."""
        if self.label.several:
            return label_predictions(logits, self.thresholds)
        largest = logits.float().softmax(-1).max(-1)
        pairs = zip(largest.indices.tolist(), largest.values.tolist(), strict=True)
        return [{"label": self.labels[label], "probability": probability} for label, probability in pairs]

    def tally(self) -> Tally:
        named = self.labels if self.per_class else ()
        if self.label.several:
            return LabelTally(self.thresholds, named)
        return ClassTally(len(self.labels), self._positive, weighted=self.average == "weighted", named=named)


def _f1_of(name: str) -> str:
    return f"f1 of {name}"


def _short(name: str) -> str:
    return visible(name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…")


class ClassTally(Tally):
    """A tally of accuracy, F1, Matthews correlation, the area under the ROC curve and loss.
    Logits are (rows, ``classes``) and the target is ``labels`` (rows,). F1 is that of class ``positive``; without one,
    the mean over the classes that occur or were predicted, ``weighted`` by their rows or not. The classes ``named``,
    all or none, have the score of each too."""

    def __init__(
        self, classes: int, positive: int | None, *, weighted: bool = False, named: Sequence[str] = ()
    ) -> None:
        self.classes, self.positive, self.weighted, self.named = classes, positive, weighted, named
        self.true: list[int] = []
        self.predicted: list[int] = []
        self.logits: list[Tensor] = []
        self.loss = 0.0

    def add(self, logits: Tensor, batch: Batch) -> None:
        labels = batch["labels"]
        self.loss += float(functional.cross_entropy(logits.float(), labels, reduction="sum"))
        self.true += labels.tolist()
        self.predicted += logits.argmax(-1).tolist()
        self.logits.append(logits.detach().float().cpu())

    def scores(self) -> Scores:
        count = len(self.true)
        if count == 0:
            none = dict.fromkeys(("accuracy", "f1", "matthews", "auc", "loss", *map(_f1_of, self.named)))
            return {**none, "examples": 0}
        # counts[t, p]: examples of class t predicted as class p.
        pairs = torch.tensor(self.true) * self.classes + torch.tensor(self.predicted)
        counts = torch.bincount(pairs, minlength=self.classes**2).view(self.classes, -1).double()
        # F1, correlation and area mean nothing if only one class occurs.
        varied = len(set(self.true)) > 1
        return {
            "accuracy": float(counts.trace()) / count,
            "f1": _f1(counts, self.positive, weighted=self.weighted) if varied else None,
            "matthews": _matthews(counts) if varied else None,
            "auc": auc(torch.cat(self.logits), torch.tensor(self.true)),
            "loss": self.loss / count,
            **{_f1_of(name): _f1(counts, place) if varied else None for place, name in enumerate(self.named)},
            "examples": count,
        }

    def fewest(self) -> dict[str, int]:
        by_class = ("f1", "matthews", "auc", *map(_f1_of, self.named))
        return dict.fromkeys(by_class, min(Counter(self.true).values(), default=0))


def _f1(counts: Tensor, positive: int | None, *, weighted: bool = False) -> float | None:
    """F1 of class ``positive``, None if it neither occurs nor was predicted; without one, the mean over all classes
    that occur or were predicted, ``weighted`` by their rows or not (scikit-learn's averages)."""
    occurrences = counts.sum(0) + counts.sum(1)
    if positive is not None:
        return float(2 * counts[positive, positive] / occurrences[positive]) if occurrences[positive] > 0 else None
    present = occurrences > 0
    each = 2 * counts.diag()[present] / occurrences[present]
    if weighted:
        rows = counts.sum(1)[present]
        return float((each * rows).sum() / rows.sum())
    return float(each.mean())


def auc(logits: Tensor, true: Tensor) -> float | None:
    """The area under the ROC curve of logits (rows, classes) and classes ``true`` (rows,): the mean over the classes
    that occur of each against all others, which of two classes is the area of either. It is the share of pairs of a row
    of the class and another row in which the first has the higher probability; equal ones count half. None if a single
    class occurs, or a logit is not finite.

    Source: Mann and Whitney, 1947; the mean over classes is "macro, one versus rest" of scikit-learn.
    """
    if not logits.isfinite().all():
        return None
    whole, areas = logits.double(), []
    for label in sorted(set(true.tolist())):
        # The log odds have the order of the probabilities, which are all 1 from a margin of 37 on.
        odds = whole[:, label] - torch.cat([whole[:, :label], whole[:, label + 1 :]], -1).logsumexp(-1)
        areas.append(area(odds, true == label))
    known = [value for value in areas if value is not None]
    return sum(known) / len(known) if known else None


def _matthews(counts: Tensor) -> float:
    """Matthews correlation for any number of classes (Gorodkin, 2004); 0 if all predictions are one class."""
    total, true, predicted = counts.sum(), counts.sum(1), counts.sum(0)
    shared = counts.trace() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(shared / spread.sqrt()) if spread > 0 else 0.0
