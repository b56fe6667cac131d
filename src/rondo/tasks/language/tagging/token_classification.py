"""Token classification: entities in a text, such as names, drugs and dates (NER)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.language.tagging.entity_scores import EntityTally, read, tag_losses
from rondo.tasks.language.tagging.tags import OUTSIDE, classes_of, entities_of, scheme_of, tags_of, types_of
from rondo.tasks.language.tagging.windows import IGNORED, NO_TOKEN, Window, WindowStore, windows
from rondo.tasks.language.tagging.words import Columns, Words
from rondo.tasks.language.text import TextTask, inputs_of, pad
from rondo.tasks.row_checks import Row, RowProblem
from rondo.tasks.task import Batch, Predictor, batches, wide


class TokenClassification(TextTask):
    """Token classification, scored by the F1 of whole entities.

    The classes are the tags of IOB2, whatever the scheme of the rows. A word's tag is learned and predicted at its
    first token. An example is a window; windows of a long row overlap by ``stride`` tokens, and each word counts in one
    of them.

    ``columns``: of the rows.
    ``classes``: the names of the tags, in the order of the model's outputs.
    """

    primary = "f1"
    higher_is_better = True
    classes: ClassVar[bool] = True
    per_class = False
    """Whether each type has its scores too."""

    def __init__(self, tokenizer: Any, columns: Columns, names: Sequence[str], max_length: int, stride: int) -> None:
        self.tokenizer, self.columns, self.names = tokenizer, columns, tuple(names)
        self.max_length, self.stride = max_length, stride
        self._index = {name: number for number, name in enumerate(names)}

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """Raises :class:`ConfigError` for a tokenizer that does not tell which characters a token stands for, and for
        rows without entities."""
        if not getattr(tokenizer, "is_fast", False):
            message = "its tokenizer does not tell a token's characters (no fast tokenizer), by which a word's tokens "
            message += "are found: name a model with a fast one (tokenizer.json)"
            raise ConfigError.at("model.name", message)
        columns = Columns.of(config)
        if len(labels) == 1:
            message = f"column {columns.target!r} has no entity in any row: name another"
            raise ConfigError.at("task.tags" if config.tags else "task.spans", message)
        stride = config.max_length // 4 if config.stride is None else config.stride
        return cls(tokenizer, columns, labels, config.max_length, stride)

    def scored_by(self, *, per_class: bool) -> Self:
        task = copy.copy(self)
        task.per_class = per_class
        return task

    @classmethod
    def settled(cls, config: TaskConfig, rows: Iterable[Row]) -> TaskConfig:
        """The scheme of the tags of all rows. Raises :class:`ConfigError` for numbers without names."""
        if config.tags is None or config.scheme is not None:
            return config
        columns, tags = Columns.of(config), dict[str, None]()
        for row in rows:
            tags |= dict.fromkeys(_tags(columns, row))
        return config.model_copy(update={"scheme": scheme_of(tags) if tags else None})

    @classmethod
    def label_names(cls, config: TaskConfig, rows: Iterable[Row]) -> tuple[str, ...]:
        """All tags of IOB2 for the types in ``rows``."""
        return classes_of(cls.counted(config, rows))

    @classmethod
    def counted(cls, config: TaskConfig, rows: Iterable[Row]) -> list[str]:
        """The type of each entity."""
        columns, types = Columns.of(config), list[str]()
        for row in rows:
            with suppress(ValueError, KeyError):  # a bad row, which is reported with its reason
                types += [kind for _, _, kind in columns.entities(row, columns.words(row))]
        return types

    @classmethod
    def remarks(cls, config: TaskConfig, rows: Iterable[Row]) -> Iterator[str]:
        """The number of spans that begin or end within a word."""
        columns, count, within = Columns.of(config), 0, 0
        for row in rows if config.spans is not None else ():
            spans = columns.spans_of(row)
            words = columns.words(row)
            starts, ends = (set(places) for places in zip(*words.ranges, strict=True))
            count += len(spans)
            within += sum(start not in starts or end not in ends for start, end, _ in spans)
        if within:
            yield f"{within} of {count} spans begin or end within a word: they are learned and found as whole words"

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        columns = Columns.of(config)
        try:
            words = columns.words(row)
        except ValueError as reason:
            return RowProblem(number, columns.tokens or "", str(reason))
        if not columns.target:
            return None
        try:
            entities = columns.entities(row, words)
        except ValueError as reason:
            return RowProblem(number, columns.target, f"{reason}{_read_as(config)}")
        if config.labels is not None:
            known = types_of(config.labels)
            if strangers := [kind for _, _, kind in entities if kind not in known]:
                message = f"unknown type {strangers[0]!r:.60}; known: {', '.join(known[:20])}"
                return RowProblem(number, columns.target, message)
        return None

    def encode(self, rows: Sequence[Row]) -> list[Window]:
        """A row gives one window or more, side by side. A row of which no word has a token is left out."""
        words = [self.columns.words(row) for row in rows]
        examples: list[Window] = []
        for row, of_row, parts in zip(rows, words, self._windows(words), strict=True):
            tags = tags_of(self.columns.entities(row, of_row), len(of_row.ranges))
            classes = iter([self._index[tag] for tag in tags])
            examples += [replace(w, target=(w.begins, *_pairs(w.places, classes))) for w in parts]
        return examples

    def unlabelled(self, rows: Sequence[Row]) -> list[Window]:
        return [window for parts in self._windows([self.columns.words(row) for row in rows]) for window in parts]

    def _windows(self, rows: Sequence[Words]) -> list[list[Window]]:
        return windows(self.tokenizer, rows, self.max_length, self.stride)

    def row_sizes(self, examples: Sequence[Window]) -> list[int]:
        starts = [place for place, window in enumerate(examples) if window.begins]
        return [end - start for start, end in pairwise([*starts, len(examples)])]

    def scored(self, examples: Sequence[Any]) -> list[Window]:
        return [replace(window, number=number) for number, window in enumerate(examples)]

    def collate(self, examples: Sequence[Window]) -> tuple[Batch, Batch]:
        """Targets:

        ``tags``: the class at each token, (rows, tokens), :data:`IGNORED` except at a word's first one.
        ``window``, ``begins``, ``words``: a window's number, whether it begins a row, and its number of words, (rows,).
        ``places``, ``classes``: place and class of each word, (rows, words).
        """
        inputs = inputs_of(examples, self.tokenizer.pad_token_id)
        tags = torch.full(inputs["input_ids"].shape, IGNORED)
        for row, window in enumerate(examples):
            for place, number in zip(window.places, window.classes, strict=True):
                if place != NO_TOKEN:
                    tags[row, place] = number
        targets = {
            "tags": tags,
            "window": torch.tensor([w.number for w in examples]),
            "begins": torch.tensor([w.begins for w in examples]),
            "words": torch.tensor([len(w.places) for w in examples]),
            "places": pad([w.places for w in examples], NO_TOKEN),
            "classes": pad([w.classes for w in examples], 0),
        }
        return inputs, targets

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy, one target per word at its first token; output (rows, tokens, classes)."""
        return tag_losses(output, targets)

    def tally(self) -> EntityTally:
        return EntityTally(self.names, per_type=self.per_class)

    def store(self) -> WindowStore:
        return WindowStore()

    def predictions(self, rows: Sequence[Row], model: Predictor) -> list[dict[str, Any]]:
        """The ``spans`` of each row: ``start``, ``end``, ``label``, ``text`` and ``score``, the mean of its words'
        probabilities. Start and end count characters of a text, or tokens of a list, from 0; the end is behind the
        last one."""
        words = [self.columns.words(row) for row in rows]
        parts = self._windows(words)
        found = iter(self._read([window for of_row in parts for window in of_row], model))
        return [
            {"spans": self._spans(of_row, [word for _ in own for word in next(found)])}
            for of_row, own in zip(words, parts, strict=True)
        ]

    def _spans(self, words: Words, found: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
        spans = []
        for first, end, kind in entities_of([tag for tag, _ in found], "IOB1"):
            place = words.ranges[first][0], words.ranges[end - 1][1]
            start, stop = place if self.columns.tokens is None else (first, end)
            score = sum(p for _, p in found[first:end]) / (end - first)
            spans.append(
                {"start": start, "end": stop, "label": kind, "text": words.text[slice(*place)], "score": score}
            )
        return spans

    def _read(self, examples: Sequence[Window], model: Predictor) -> list[list[tuple[str, float]]]:
        """The tag of each word of a window and its probability. A word without a token has those of the word before, or
        1 where there is none."""
        result: list[list[tuple[str, float]]] = [[]] * len(examples)
        for batch in batches([window.cost for window in examples], model.batch_size):
            inputs, _ = self.collate([examples[i] for i in batch])
            largest = wide(model.output(inputs)).softmax(-1).max(-1)
            for i, classes, probabilities in zip(batch, largest.indices.tolist(), largest.values.tolist(), strict=True):
                places, shares = examples[i].places, list[float]()
                for place in places:
                    shares.append(probabilities[place] if place != NO_TOKEN else shares[-1] if shares else 1.0)
                result[i] = list(zip(read(self.names, places, classes), shares, strict=True))
        return result

    def shown(self, example: Window) -> tuple[str, str]:
        """The text of a window, and its entities."""
        text = self.tokenizer.decode(list(example.ids), skip_special_tokens=True)
        return text, self._listed(example, [self.names[number] for number in example.classes])

    def answered(self, examples: Sequence[Any], model: Predictor) -> list[str]:
        """The entities that the model finds in each window."""
        found = self._read(examples, model)
        return [self._listed(window, [tag for tag, _ in words]) for window, words in zip(examples, found, strict=True)]

    def _listed(self, window: Window, tags: Sequence[str]) -> str:
        """Entities in words: "PER: Ada Lovelace; LOC: London"."""
        ends = [*window.places, len(window.ids)]
        said = []
        for first, end, kind in entities_of(tags, "IOB1"):
            places = [place for place in ends[first:] if place != NO_TOKEN]
            stop = next(place for place in ends[end:] if place != NO_TOKEN)
            ids = [window.ids[place] for place in range(places[0], stop)]
            said.append(f"{kind}: {self.tokenizer.decode(ids, skip_special_tokens=True).strip()}")
        return "; ".join(said)


def _pairs(places: Sequence[int], classes: Iterator[int]) -> Iterator[int]:
    """Each place and the next class."""
    for place in places:
        yield from (place, next(classes))


def _tags(columns: Columns, row: Row) -> list[str]:
    """The tags of a row that is not bad; none of one without the column."""
    value: Any = row.get(columns.tags or "")
    value = value.tolist() if hasattr(value, "tolist") else value
    if columns.classes is None and isinstance(value, list) and any(isinstance(tag, int) for tag in value):
        message = f"column {columns.tags!r} has numbers: name the tags, in the order of the numbers, such as "
        raise ConfigError.at("task.labels", message + f"[{OUTSIDE!r}, 'B-PER', 'I-PER']")
    with suppress(ValueError, KeyError):
        return columns.names(row)
    return []


def _read_as(config: TaskConfig) -> str:
    """The scheme by which the tags were read, and the remedy if it is another."""
    if config.scheme is None:
        return ""
    other = ", such as 'IOB1'" if config.scheme == "IOB2" else ""
    return f"; the tags are read as {config.scheme}: mend the row, or set task.scheme{other}"
