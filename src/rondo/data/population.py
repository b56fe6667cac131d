"""The clients of a run: their rows tokenised, split into training and validation, and a report of it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from rondo.algorithm import Client, Round
from rondo.config.schema import RunConfig
from rondo.data.client_rows import Dealt
from rondo.data.partition import histogram
from rondo.data.sources import Rows
from rondo.data.stored import Stored
from rondo.errors import ConfigError
from rondo.tasks.task import Example, Store, Task

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

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: list[str] = []
        self._numbers = array("I")
        # Of each client the ends of its training and of its validation examples in ``_numbers``.
        self._trained, self._ends = array("q"), array("q", [0])
        self._ranks = array("I")

    def add(self, name: str, train: Iterable[int], validation: Iterable[int], rank: int | None = None) -> None:
        """Another client, whose id comes after all others', with the numbers of its examples and its own rank, if it
        has one (then all have)."""
        self._names.append(name)
        self._numbers.extend(train)
        self._trained.append(len(self._numbers))
        self._numbers.extend(validation)
        self._ends.append(len(self._numbers))
        if rank is not None:
            self._ranks.append(rank)

    def __getitem__(self, name: str) -> Member:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            raise KeyError(name)
        start, middle, end = self._ends[place], self._trained[place], self._ends[place + 1]
        train, validation = self._numbers[start:middle], self._numbers[middle:end]
        client = Client(name, len(train), self._ranks[place] if self._ranks else None)
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

    def costliest(self, client: str) -> int:
        """The cost of a client's costliest training example."""
        train = self.members[client].train
        return train.costliest if isinstance(train, Stored) else max((e.cost for e in train), default=0)

    def sample(self, count: int) -> tuple[Example, ...]:
        """Up to ``count`` training examples of the first clients, for trying a model out."""
        found: list[Example] = []
        for member in self.members.values():
            found += member.train[: count - len(found)]
            if len(found) == count:
                break
        return tuple(found)


def build(
    config: RunConfig,
    dealt: Dealt,
    task: Task,
    classes: Sequence[str] = (),
    ranks: Sequence[int] | None = None,
) -> Population:
    """Tokenise the rows of every client and split them. ``classes``: the label names, for the report; ``ranks``: of the
    clients in ``dealt``, in their order, where each has one of its own.

    Raises :class:`ConfigError` where no client, or fewer than the configuration needs, has examples left.
    """
    whole = Round(0, config.rounds, config.seed, 0)
    label = config.task.label
    store = task.store()
    members, without, cut = Members(store), [], 0
    own = dict(zip(dealt.rows, ranks, strict=True)) if ranks is not None else {}
    for name, numbers in _encoded(store, task, dealt.rows):
        cut += len(dealt.rows[name]) - len(numbers)
        if numbers:
            members.add(name, *_split(name, numbers, config, whole), own.get(name))
        else:
            without.append(name)
    least = max(config.clients.min_clients, config.clients.per_round or 1)
    if len(members) < least:
        words = f"of {cut} rows nothing to learn is left within {config.task.max_length} tokens, so {len(members)} "
        words += f"clients have examples and {least} are needed: raise it"
        raise ConfigError.at("task.max_length", words)
    tested = task.store()
    tests = [tested[i] for i in tested.add(task.encode(dealt.test))]
    report = {
        "rows": dealt.loaded,
        "rows_bad": dealt.bad,
        "rows_without_client": dealt.undealt,
        "rows_cut": cut,
        "test_rows": len(dealt.test),
        "test_rows_bad": dealt.test_bad,
        "clients_too_small": dict(dealt.too_small),
        "clients_without_examples": without,
        "examples_sha256": store.sha256(),
        "test_examples_sha256": tested.sha256(),
        "classes": list(classes),
        "clients": {
            n: {
                "train": len(m.train),
                "validation": len(m.validation),
                "labels": histogram([str(r[label]) for r in dealt.rows[n]]) if label is not None else None,
                **({} if m.client.rank is None else {"rank": m.client.rank}),
            }
            for n, m in members.items()
        },
    }
    return Population(members, tuple(tests), report)


def _encoded(store: Store, task: Task, rows: Mapping[str, Rows]) -> Iterator[tuple[str, range]]:
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
