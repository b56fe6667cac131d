"""Remarks on rows for their owner, before training: single classes, names that look alike, test
rows that are trained on."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rondo.config.inputs import cell_text
from rondo.config.schema import RunConfig
from rondo.data.client_rows import Dealt
from rondo.data.files.tables import Rows
from rondo.data.labels import joined
from rondo.data.partition.deal import NOBODY
from rondo.errors import first_of
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import Row, RowLabels, columns, value_name, value_problem


def trained_on(config: RunConfig, dealt: Dealt) -> dict[str, int]:
    """The number of rows of each test set whose inputs a client has too, by the test set's name; ``""`` for the first.
    Their scores say how well rows are remembered."""
    names = [name for _, name, _ in columns(config.task)]
    tests = {"": dealt.test.rows, **{name: test.rows for name, test in dealt.more_tests.items()}}
    if not any(tests.values()):
        return dict.fromkeys(tests, 0)
    known = {_digest(row, names) for rows in dealt.rows.values() for row in rows}
    return {name: sum(_digest(row, names) in known for row in rows) for name, rows in tests.items()}


def remarks(config: RunConfig, dealt: Dealt, trained: Mapping[str, int], marks: Sequence[str] = ()) -> Iterator[str]:
    """Yield the sentences. ``trained``: as of :func:`trained_on`. ``marks``: of the task."""
    reads = RowLabels.of(config.task)
    label = config.task.label if isinstance(config.task.label, str) and not reads.several else None
    owner = config.partition.column if config.partition.kind == "natural" else None
    training = [row for rows in dealt.rows.values() for row in rows]
    if label is not None:
        yield from _single_class(training, label, "training", "nothing else can be learned from them")
        consequence = "their scores say nothing of the other classes, and predicting it always would be right"
        yield from _single_class(dealt.test.rows, label, "test", consequence)
        counts = Counter(value_name(row[label]) for row in training)
        yield from _written_otherwise((row[label] for row in training), "labels")
        yield from _alike(counts, "labels", "classes")
        if single := [name for name, count in counts.items() if count == 1 and len(counts) > 1]:
            yield f"{'label' if len(single) == 1 else 'labels'} with a single training row: {first_of(single)}"
        if setting := joined(counts):
            yield f"labels look like several in one, and each combination is a class: to split them, set {setting}"
    if reads.several:
        yield from _of_several(reads, training)
    yield from task_class(config.task.kind).remarks(config.task, training)
    if owner is not None:
        yield from _written_otherwise((row[owner] for row in training), "clients")
    if owner is not None or config.data.clients_from is not None:
        yield from _alike(dealt.rows, "names of clients", "clients")
    for person in dict.fromkeys(filter(None, (config.guarantee.group, config.data.hold_out_by))):
        yield from _written_otherwise((row[person] for row in training), "persons")
        yield from _alike(Counter(value_name(row[person]) for row in training), "names of persons", "persons")
        yield from _on_both_sides(person, training, dealt)
    if config.data.hold_out_by is None and ":" not in config.task.kind:  # nobody knows what a task of one's own reads
        for name in _person_columns(config, training):
            yield from _held_apart(name, training, dealt, config.data.validation_fraction)
    tested = (dealt.test.rows, *(test.rows for test in dealt.more_tests.values()))
    yield from typed_marks(config, [*training, *itertools.chain(*tested)], marks)
    if dealt.test.owners is not None:
        yield from _of_clients(dealt, dealt.test.owners, label)
    tests = {"": dealt.test, **dealt.more_tests}
    for name, count in trained.items():
        if count:
            rows = f"rows of the test set {name!r}" if name else "test rows"
            fate = "are training rows too: their scores say how well rows are remembered"
            yield f"{count} of {len(tests[name].rows)} {rows} {fate}"


def _on_both_sides(person: str, training: Rows, dealt: Dealt) -> Iterator[str]:
    """A sentence for each test set with persons that training rows have too. ``person``: their column."""
    known = {value_name(row[person]) for row in training}
    for name, test in {"": dealt.test, **dealt.more_tests}.items():
        there = {value_name(row[person]) for row in test.rows if value_problem(row, 0, person) is None}
        if both := len(there & known):
            rows = f"the test set {name!r}" if name else "the test set"
            fate = "have training rows too: scores say how well they are remembered, and not how new ones would fare"
            yield f"{both} of {len(there)} values of {person!r} in {rows} {fate}"


_PERSONS = 20
"""Fewest values of a column of persons; fewer are taken for a category."""
_PERSON = re.compile(
    r"patient|person|subject|user|speaker|author|customer|student|participant|household|(^|_)id$", re.I
)


def _person_columns(config: RunConfig, training: Rows) -> list[str]:
    """The columns that may tell whose rows are alike: short names, or numbers under the name of an identifier, that
    nothing reads and that repeat."""
    values = config.task.model_dump().values()
    read = {
        name for value in values for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)
    }
    read |= {str(config.partition.column), str(config.guarantee.group)}
    found = []
    for name in sorted({*training[0]} - read) if training else ():
        cells = [str(row.get(name)) for row in training]
        short = all(isinstance(row.get(name), str | int) for row in training) and max(map(len, cells)) <= 64
        names = bool(_PERSON.search(name)) or not all(cell.replace(".", "").isdecimal() for cell in cells)
        if short and names and _PERSONS <= len(set(cells)) <= len(cells) / 1.2:
            found.append(name)
    return found


def _held_apart(person: str, training: Rows, dealt: Dealt, fraction: float) -> Iterator[str]:
    """Sentences about a column that may be of persons: who is in test rows too, and who may be held back in part."""
    yield from _on_both_sides(person, training, dealt)
    if fraction:
        count = len({value_name(row[person]) for row in training})
        fate = f"{person!r} has {count} values in {len(training)} rows, and rows are held back one by one"
        yield f"{fate}: if each is a person, data.hold_out_by = {person!r} keeps a person's rows together"


def _of_several(reads: RowLabels, training: Rows) -> Iterator[str]:
    """Sentences about training rows that may have several labels."""
    names = [reads.names(row) for row in training]
    if without := names.count(()):
        yield f"{without} of {len(training)} training rows have no label: they are learned as having none"
    counts = Counter(name for of_row in names for name in of_row)
    if always := [name for name, count in counts.items() if count == len(training)]:
        yield f"labels of all training rows, which cannot be learned: {first_of(sorted(always))}"
    if len(reads.columns) == 1:
        yield from _written_otherwise((cell for row in training for cell in reads.cells(row)), "labels")
        yield from _alike(counts, "labels", "labels")
    elif never := [name for name in reads.columns if name not in counts]:
        yield f"labels of no training row, which cannot be learned: {first_of(never)}"


def typed_marks(config: RunConfig, rows: Iterable[Row], marks: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if inputs hold the tokenizer's ``marks`` (:attr:`rondo.tasks.task.Task.marks`)."""
    if not marks:
        return
    pattern, names = re.compile("|".join(map(re.escape, marks))), [name for _, name, _ in columns(config.task)]
    found: set[str] = set()
    count = 0
    for row in rows:
        typed = {mark for name in names for text in _texts(row.get(name)) for mark in pattern.findall(text)}
        found |= typed
        count += bool(typed)
    if count:
        fate = "the tokenizer reads them as control tokens, such as the end of a turn, and not as text"
        shown = first_of(list(map(repr, sorted(found))))
        yield f"{count} rows have marks of the tokenizer in their texts, {shown}: {fate}"


def _texts(value: Any) -> Iterator[str]:
    """The texts in a cell, also those in a list or an object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _of_clients(dealt: Dealt, owners: Sequence[str | None], label: str | None) -> Iterator[str]:
    """Sentences about the test rows of each client. ``owners``: the client of each test row."""
    if count := owners.count(NOBODY):
        yield f"{count} test rows are of classes that no client trains on, so they are in the common test set alone"
    having = {owner for owner in owners if owner is not NOBODY}
    if strangers := sorted(having - dealt.rows.keys()):
        count = sum(owner in strangers for owner in owners)
        fate = "are of clients that do not train, so they are in the common test set alone"
        yield f"{count} test rows {fate}: {first_of(strangers)}"
    if without := sorted(dealt.rows.keys() - having):
        yield f"clients without test rows, which are not scored: {first_of(without)}"
    if label is not None:
        classes: dict[str, set[str]] = {}
        for owner, row in zip(owners, dealt.test.rows, strict=True):
            if owner is not NOBODY:
                classes.setdefault(owner, set()).add(value_name(row[label]))
        if single := sorted(o for o, names in classes.items() if len(names) == 1 and o in dealt.rows):
            undefined = "where f1, matthews and auc are undefined"
            yield f"clients with test rows of a single class, {undefined}: {first_of(single)}"


def mixed_pixels(training: Mapping[str, float], test: Mapping[str, float], tested: bool) -> Iterator[str]:
    """Yield a sentence where some pictures are normalised already and others are not. ``training``, ``test``: accounts
    of their stores; ``tested``: whether there are test rows."""
    accounts = [training, test] if tested else [training]
    normalised = [a.get("lowest", 0) < 0 or a.get("highest", 1) > 1 for a in accounts]
    bytes_among = any(n and a["pictures_of_bytes"] for n, a in zip(normalised, accounts, strict=True))
    if bytes_among or len(set(normalised)) > 1:
        yield "some pictures are normalised already (floats beyond 0 to 1) and others are not: give all in one form"


def _single_class(rows: Rows, label: str, kind: str, consequence: str) -> Iterator[str]:
    labels = {value_name(row[label]) for row in rows}
    if len(labels) == 1:
        yield f"all {len(rows)} {kind} rows are of class {labels.pop()!r}: {consequence}"


def _written_otherwise(values: Iterable[Any], what: str) -> Iterator[str]:
    """Names whose cells have blanks, a Unicode form or a spelling of a number that are not read."""
    written = {text for text in map(cell_text, set(values)) if value_name(text) != text}
    if written:
        shown = first_of([f"{text!r} as {value_name(text)!r}" for text in sorted(written)])
        yield f"{what} are read without blanks at their ends and in one form of Unicode and numbers: {shown}"


def _alike(names: Iterable[str], what: str, kind: str) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    for group in groups.values():
        if len(group) > 1:
            yield f"{what} that differ by case only are {len(group)} {kind}: {first_of(list(map(repr, sorted(group))))}"


def _digest(row: Row, names: Sequence[str]) -> bytes:
    """A digest of a row's inputs; of all its columns for a task of one's own, which has none of known names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in names or sorted(row):
        value: Any = row.get(name)
        digest.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.digest()
