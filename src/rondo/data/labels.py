"""The classes of a run, from the labels of its rows. A column that holds something else is refused."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rondo.config.schema import RunConfig
from rondo.data.files.placed import places_of
from rondo.data.files.tables import ClassName
from rondo.data.sources import Source
from rondo.errors import ConfigError, first_of
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import Row, RowLabels, value_name

_FEW = 12
"""So many labels are taken for classes, whatever they look like: half points from 0 to 5, or one row of each."""
MOST = 1000
"""Largest number of classes."""


def find_labels(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Label names from all training rows, in the order of the data set that numbers them (its ``ClassLabel``). Others
    are in numeric order, then in alphabetical order. A label that only the test set has is reported as a bad row.

    Raises :class:`ConfigError` if no row has the label column, or if the column has no classes: fewer than 2 labels or
    more than 1000, numbers to predict, or names of rows.
    """
    named = config.task.named_labels
    if named is not None and task_class(config.task.kind).classes:
        return tuple(named)
    return label_names(config, source, least=2)


def label_names(config: RunConfig, source: Source, least: int = 0) -> tuple[str, ...]:
    """The labels of a part of a run's rows; none for a task without classes. Raises :class:`ConfigError` as
    :func:`find_labels` does, for fewer than ``least`` labels too."""
    cls = task_class(config.task.kind)
    if not cls.classes:
        return ()
    if isinstance(config.task.label, list):
        return tuple(config.task.label)
    if (names := cls.label_names(config.task, _rows(source))) is not None:
        return names
    places, count, unusable, numbers = _labels(config, source)
    if len(places) < least:
        only_label = "".join(f", {name!r}" for name in places)
        fault = f"{len(places)} distinct labels{only_label}; classification needs two: name another{unusable}"
    else:
        fault = _fault(places, count) if places else ""
    if fault:
        raise ConfigError.at("task.label", f"column {config.task.label or ''!r} has {fault}")
    return in_order(places, numbers)


def in_order(names: Collection[str], numbers: Mapping[str, int] = MappingProxyType({})) -> tuple[str, ...]:
    """Label names in the order of the classes: by ``numbers`` if each has one, else numbers in numeric order, then
    other names in alphabetical order."""
    if names and all(name in numbers for name in names):
        return tuple(sorted(names, key=numbers.__getitem__))
    return tuple(sorted(names, key=_order))


def merged(parts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The labels of several parts of a run's rows, each in its order, in one order that agrees with all, and else with
    :func:`in_order`, which counts alone where parts contradict each other."""
    before: dict[str, set[str]] = {}
    for names in parts:
        for place, name in enumerate(names):
            before.setdefault(name, set()).update(names[max(0, place - 1) : place])
    left, result = in_order(before), list[str]()
    while len(result) < len(before):
        following = next((n for n in left if n not in result and before[n] <= set(result)), None)
        if following is None:
            return left
        result.append(following)
    return tuple(result)


def disagreement(parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Everything by which the parts of a run have other labels than each other, as lines: the labels that only some of
    them have, and labels that look alike. ``parts``: the labels of each part by its name."""
    known = {part: set(labels) for part, labels in parts.items()}
    holders: dict[str, tuple[str, ...]] = {}
    for name in in_order(set().union(*known.values())):
        holders[name] = tuple(part for part, labels in known.items() if name in labels)
    partial = {name: parts_ for name, parts_ in holders.items() if len(parts_) < len(parts)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, of in partial.items():
        groups.setdefault(of, []).append(name)
    for of, names in groups.items():
        yield f"at {first_of(of, 20)} only: {first_of([repr(name) for name in names], 20)}"
    alike: dict[str, list[str]] = {}
    for name in holders:
        alike.setdefault("".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    for names in alike.values():
        for first, second in itertools.pairwise(names):
            if first in partial or second in partial:
                yield f"{first!r} and {second!r} differ only by {_difference(first, second)}"


def _difference(first: str, second: str) -> str:
    """The kind of difference between two labels that look alike."""
    if first.casefold() == second.casefold():
        return "case"
    if "".join(first.split()) == "".join(second.split()):
        return "blanks"
    if unicodedata.normalize("NFKC", first) == unicodedata.normalize("NFKC", second):
        return "their Unicode form"
    return "case, blanks or Unicode form"


def _labels(config: RunConfig, source: Source) -> tuple[dict[str, str], int, str, dict[str, int]]:
    """The place of the first row with each label, the number of rows with a label, the first row without one, and the
    numbers of labels in a data set that numbers its classes."""
    reads = RowLabels.of(config.task)
    column = next(iter(reads.columns), "")
    if not any(column in row for _, row in _placed(source)):
        existing = next((", ".join(map(str, row)) for _, row in _placed(source)), "none")
        raise ConfigError.at("task.label", f"no column {column!r}; there are: {existing}")
    places: dict[str, str] = {}  # of the first row with each label
    numbers: dict[str, int] = {}
    count, unusable = 0, ""
    for place, row in _placed(source):
        if (problem := reads.problem(row, 0)) is None:
            for cell in reads.cells(row):
                places.setdefault(value_name(cell), place)
                if isinstance(cell, ClassName):
                    numbers[value_name(cell)] = cell.place
            count += 1
        else:
            unusable = unusable or f"; {place}: {problem.reason}"
    return places, count, unusable, numbers


def _fault(places: Mapping[str, str], count: int) -> str:
    """The reason why the labels of ``count`` rows are no classes; empty if they may be. ``places``: the place of the
    first row with each."""

    def example(name: str) -> str:
        return f"{name!r} in {places[name]}"

    numbers = {name: number for name in places if (number := _number(name)) is not None}
    finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
    if len(numbers) == len(places) > len(finite) > 0:
        stranger = next(name for name in numbers if name not in finite)
        return f"{example(stranger)} among numbers; leave such cells empty, or give the classes names"
    fractions = [name for name, number in finite.items() if not number.is_integer()]
    if len(fractions) > _FEW:
        return (
            f"{len(fractions)} numbers with fractions as labels, such as {example(fractions[0])}: to predict numbers "
            "is regression: set task.kind = 'sequence-regression' for texts or 'regression' for numbers, or name a "
            "column of classes"
        )
    first, split = next(iter(places)), joined(places)
    split = split and f"if a row may have several labels, set {split}"
    if len(places) > max(_FEW, count / 2):
        return (
            f"{len(places)} distinct labels in {count} rows, such as {example(first)}, and a class needs two rows or "
            f"more in the mean; {split or 'name the column of classes'}"
        )
    if len(places) > MOST:
        remedy = split or "is it the label? Name another"
        return f"{len(places)} distinct labels, such as {example(first)}; {remedy}"
    return ""


_SEPARATORS = ";|,/+&"
"""Characters by which labels are joined in one cell."""


def joined(names: Collection[str]) -> str:
    """The setting that splits labels which look like several in one; empty if they do not look so."""
    if names and all(name.startswith("[") and name.endswith("]") for name in names):
        return "task.multi_label = true"
    separator = separator_in(names)
    return "" if separator is None else f"task.label_separator = {separator!r}"


def separator_in(names: Collection[str]) -> str | None:
    """The character that joins labels, as in ``a;b`` beside ``a`` and ``b;c``: what it joins occurs in other labels
    too. None if they do not look so."""
    for separator in _SEPARATORS:
        parts = [[part.strip() for part in name.split(separator) if part.strip()] for name in names]
        counts = Counter(part for of_name in parts for part in set(of_name))
        several = [of_name for of_name in parts if len(of_name) > 1]
        recurring = [of_name for of_name in several if all(counts[part] > 1 for part in of_name)]
        if recurring and 2 * len(recurring) >= len(several) and len(counts) < len(names):
            return separator
    return None


def _order(name: str) -> tuple[int, float, str]:
    number = _number(name)
    return (0, number, name) if number is not None and math.isfinite(number) else (1, 0.0, name)


def _number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def _rows(source: Source) -> Iterator[Row]:
    return (row for _, row in _placed(source))


def _placed(source: Source) -> Iterator[tuple[str, Row]]:
    """Every training row with its place: "tickets.csv, line 3", or "clients['north'][3]"."""
    for client, rows in [("", source.train or []), *(source.clients or {}).items()]:
        place = places_of(rows, f"{client}, " if client else "")
        yield from ((place(number), row) for number, row in enumerate(rows))
