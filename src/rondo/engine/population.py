"""The clients of a run: their rows tokenised, split into training and validation, and a report of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.algorithm import Client, Round
from rondo.config import ConfigError, Problem, RunConfig
from rondo.data.loading import Rows, Source
from rondo.data.partition import deal
from rondo.tasks import Example, Row, Task, value_problem
from rondo.tasks.store import ExampleStore, Stored

_ROWS_A_CALL = 2000


@dataclass(frozen=True, slots=True)
class Member:
    """A client and its examples. ``validation`` is never trained on."""

    client: Client
    train: Sequence[Example]
    validation: Sequence[Example]


@dataclass(frozen=True)
class Population:
    """All clients, sorted by id, the common test set, and what was done to the rows (for ``partition.json``)."""

    members: dict[str, Member]
    test: tuple[Example, ...]
    report: dict[str, Any]

    @property
    def clients(self) -> list[Client]:
        return [m.client for m in self.members.values()]

    def longest(self, client: str) -> int:
        """Tokens of a client's longest training example."""
        train = self.members[client].train
        return train.longest if isinstance(train, Stored) else max((e.length for e in train), default=0)

    def sample(self, count: int) -> tuple[Example, ...]:
        """Up to ``count`` training examples of the first client, for trying a model out."""
        first = next(iter(self.members.values()), None)
        return tuple(first.train[:count]) if first is not None else ()


def build(config: RunConfig, source: Source, task: Task, label: str | None, classes: Sequence[str] = ()) -> Population:
    """Check, deal, tokenise and split the rows. ``label``: the label column, if the task has one.

    Raises :class:`ConfigError` where rows are bad (or all of them are dropped) or no client has enough examples.
    """
    whole = Round(0, config.rounds, config.seed, 0)
    owner = config.partition.column if config.partition.kind == "natural" and source.clients is None else None
    check = _Checker(config, task, owner)
    if source.clients is not None:
        kept = {c: check.usable(rows, f"{c}, ") for c, rows in source.clients.items()}
        loaded, dealt_dropped = sum(map(len, source.clients.values())), 0
    else:
        assert source.train is not None
        loaded = len(source.train)
        rows = check.usable(source.train, "")
        labels = [str(r[label]) for r in rows] if label is not None else None
        ids = [str(r[owner]) for r in rows] if owner is not None else None
        dealt = deal(config.partition, labels, ids, len(rows), whole.generator("partition"))
        kept = {c: [rows[i] for i in numbers] for c, numbers in dealt.rows.items()}
        dealt_dropped = dealt.dropped
    bad = check.dropped
    test = _Checker(config, task, None)
    test_rows = test.usable(source.test or [], "test ")
    small = {c: len(r) for c, r in kept.items() if len(r) < config.data.min_examples}
    members, cut = {}, 0
    store = ExampleStore()
    for name, numbers in _encoded(store, task, {n: kept[n] for n in sorted(kept.keys() - small.keys())}):
        cut += len(kept[name]) - len(numbers)
        members[name] = _member(name, store, numbers, config, whole)
    without = sorted(m.client.id for m in members.values() if not m.train)
    members = {n: m for n, m in members.items() if m.train}
    if not members:
        words = f"no client has data.min_examples = {config.data.min_examples} usable examples"
        raise ConfigError([Problem("partition", words)])
    report = {
        "rows": loaded,
        "rows_bad": bad,
        "rows_without_client": dealt_dropped,
        "rows_cut": cut,
        "test_rows": len(test_rows),
        "test_rows_bad": test.dropped,
        "clients_too_small": small,
        "clients_without_examples": without,
        "classes": list(classes),
        "clients": {
            n: {
                "train": len(m.train),
                "validation": len(m.validation),
                "labels": dict(sorted(Counter(str(r[label]) for r in kept[n]).items())) if label is not None else None,
            }
            for n, m in members.items()
        },
    }
    return Population(members, tuple(task.encode(test_rows)), report)


class _Checker:
    """Sorts out rows that cannot be used. ``owner``: the column that says whose a row is, if rows are dealt by it."""

    def __init__(self, config: RunConfig, task: Task, owner: str | None) -> None:
        self.config, self.task, self.owner = config, task, owner
        self.dropped = 0

    def usable(self, rows: Sequence[Row], where: str) -> Rows:
        """The usable rows. The others are counted in ``dropped``, or all reported in a :class:`ConfigError`."""
        if rows:
            self._columns(rows[0])
        kept, problems = [], []
        for number, row in enumerate(rows):
            problem = self.task.check(row, number)
            if problem is None and self.owner is not None:
                problem = value_problem(row, number, self.owner)
            if problem is None:
                kept.append(dict(row))
            else:
                problems.append(f"{where}{problem}")
        if problems and (self.config.data.bad_rows == "error" or not kept):
            shown = [Problem("data", text) for text in problems[:5]]
            if len(problems) > 5:
                shown.append(Problem("data", f"and {len(problems) - 5} more rows like these"))
            if kept:
                shown.append(Problem("data.bad_rows", "mend the rows, or leave them out with data.bad_rows = 'drop'"))
            raise ConfigError(shown)
        self.dropped += len(problems)
        return kept

    def _columns(self, first: Row) -> None:
        """A column that does not exist is one fault of the configuration, not one of every row."""
        task = self.config.task
        named = [("task.label", task.label), ("task.response", task.response), ("partition.column", self.owner)]
        for key, value in (("task.text", task.text), ("task.prompt", task.prompt)):
            named += [(key, column) for column in ([value] if isinstance(value, str) else value or ())]
        there = ", ".join(map(str, first))
        missing = [
            Problem(k, f"no column {c!r}; there are: {there}") for k, c in named if c is not None and c not in first
        ]
        if missing:
            raise ConfigError(missing)


def _encoded(store: ExampleStore, task: Task, rows: Mapping[str, Rows]) -> Iterator[tuple[str, range]]:
    """Every client's rows tokenised into ``store``, many clients a call: each call has a price of its own."""
    names = list(rows)
    while names:
        count, size = 0, 0
        while count < len(names) and (count == 0 or size + len(rows[names[count]]) <= _ROWS_A_CALL):
            size += len(rows[names[count]])
            count += 1
        chosen, names = names[:count], names[count:]
        numbers = store.add(task.encode([row for n in chosen for row in rows[n]]))
        if len(numbers) == size:
            start = numbers.start
            for name in chosen:
                yield name, range(start, start + len(rows[name]))
                start += len(rows[name])
        else:  # rows were left out, and the call does not tell whose
            for name in chosen:
                yield name, store.add(task.encode(rows[name]))


def _member(name: str, store: ExampleStore, numbers: range, config: RunConfig, whole: Round) -> Member:
    """Split one client's examples at random; at least one is left to train on."""
    import torch

    order = torch.randperm(len(numbers), generator=whole.generator("split", name)).tolist()
    held = max(0, min(round(len(numbers) * config.data.validation_fraction), len(numbers) - 1))
    validation = Stored(store, (numbers[i] for i in sorted(order[:held])))
    train = Stored(store, (numbers[i] for i in sorted(order[held:])))
    return Member(Client(name, len(train)), train, validation)
