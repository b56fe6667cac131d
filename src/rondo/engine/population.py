"""The clients of a run: their rows tokenised, split into training and validation, and a report of it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

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


class Members(Mapping[str, Member]):
    """Clients, sorted by id, whose examples are in a store. A member is made when it is asked for: between rounds a
    client costs its id and four bytes an example, so there may be a hundred thousand of them."""

    def __init__(self, store: ExampleStore) -> None:
        self._store = store
        self._names: list[str] = []
        self._numbers = array("I")
        # Of each client the ends of its training and of its validation examples in ``_numbers``.
        self._trained, self._ends = array("q"), array("q", [0])
        self._ranks: array[int] | None = None

    def add(self, name: str, train: Iterable[int], validation: Iterable[int]) -> None:
        """Another client, whose id comes after all others', with the numbers of its examples."""
        self._names.append(name)
        self._numbers.extend(train)
        self._trained.append(len(self._numbers))
        self._numbers.extend(validation)
        self._ends.append(len(self._numbers))

    def give_ranks(self, ranks: Sequence[int]) -> None:
        """Give each client, in the order of their ids, a rank of its own."""
        self._ranks = array("I", ranks)

    def __getitem__(self, name: str) -> Member:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            raise KeyError(name)
        start, middle, end = self._ends[place], self._trained[place], self._ends[place + 1]
        train, validation = self._numbers[start:middle], self._numbers[middle:end]
        client = Client(name, len(train), None if self._ranks is None else self._ranks[place])
        return Member(client, Stored(self._store, train), Stored(self._store, validation))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Clients(Sequence[Client]):
    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members, self._names = members, list(members)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Client: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Client]: ...
    def __getitem__(self, place: int | slice) -> Client | Sequence[Client]:
        if isinstance(place, slice):
            return [self._members[n].client for n in self._names[place]]
        return self._members[self._names[place]].client


@dataclass(frozen=True)
class Population:
    """All clients, sorted by id, the common test set, and what was done to the rows (for ``partition.json``)."""

    members: Mapping[str, Member]
    test: tuple[Example, ...]
    report: dict[str, Any]

    @property
    def clients(self) -> Sequence[Client]:
        return _Clients(self.members)

    def longest(self, client: str) -> int:
        """Tokens of a client's longest training example."""
        train = self.members[client].train
        return train.longest if isinstance(train, Stored) else max((e.length for e in train), default=0)

    def sample(self, count: int) -> tuple[Example, ...]:
        """Up to ``count`` training examples of the first client, for trying a model out."""
        first = next(iter(self.members.values()), None)
        return tuple(first.train[:count]) if first is not None else ()


def build(
    config: RunConfig,
    source: Source,
    task: Task,
    label: str | None,
    classes: Sequence[str] = (),
    ranks: Callable[[int], Sequence[int] | None] = lambda count: None,
) -> Population:
    """Check, deal, tokenise and split the rows. ``label``: the label column, if the task has one. ``ranks``: from the
    number of clients to the rank of each, in the order of their ids, if they have ranks of their own.

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
    store = ExampleStore()
    members, without, cut = Members(store), [], 0
    for name, numbers in _encoded(store, task, {n: kept[n] for n in sorted(kept.keys() - small.keys())}):
        cut += len(kept[name]) - len(numbers)
        if numbers:
            members.add(name, *_split(name, numbers, config, whole))
        else:
            without.append(name)
    if not members:
        words = f"no client has data.min_examples = {config.data.min_examples} usable examples"
        raise ConfigError([Problem("partition", words)])
    tested = ExampleStore()
    tests = [tested[i] for i in tested.add(task.encode(test_rows))]
    given = ranks(len(members))
    if given is not None:
        members.give_ranks(given)
    report = {
        "rows": loaded,
        "rows_bad": bad,
        "rows_without_client": dealt_dropped,
        "rows_cut": cut,
        "test_rows": len(test_rows),
        "test_rows_bad": test.dropped,
        "clients_too_small": small,
        "clients_without_examples": without,
        "examples_sha256": store.sha256(),
        "test_examples_sha256": tested.sha256(),
        "classes": list(classes),
        "clients": {
            n: {
                "train": len(m.train),
                "validation": len(m.validation),
                "labels": dict(sorted(Counter(str(r[label]) for r in kept[n]).items())) if label is not None else None,
                **({} if m.client.rank is None else {"rank": m.client.rank}),
            }
            for n, m in members.items()
        },
    }
    return Population(members, tuple(tests), report)


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


def _split(name: str, numbers: range, config: RunConfig, whole: Round) -> tuple[list[int], list[int]]:
    """One client's examples, split at random into those to train on, at least one, and those to validate on."""
    import torch

    order = torch.randperm(len(numbers), generator=whole.generator("split", name)).tolist()
    held = max(0, min(round(len(numbers) * config.data.validation_fraction), len(numbers) - 1))
    return sorted(numbers[i] for i in order[held:]), sorted(numbers[i] for i in order[:held])
