"""The clients of a run: encodes their rows, splits them into training and validation, and reports on both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rondo.algorithm import Client, Round
from rondo.config.checks import least_clients
from rondo.config.schema import RunConfig
from rondo.data.client_rows import Dealt, TestRows
from rondo.data.files.tables import Rows
from rondo.data.members import Member, Members, Stored
from rondo.data.partition.deal import NOBODY, histogram
from rondo.data.remarks import mixed_pixels, remarks, trained_on
from rondo.data.units import Parting, persons_of, units_of, with_examples
from rondo.errors import ConfigError
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import RowLabels
from rondo.tasks.task import Example, Store, Task

if TYPE_CHECKING:
    import torch

_ROWS_A_CALL = 2000
_Name = TypeVar("_Name", str, str | None)


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
    """All clients of a run and its test set."""

    members: Mapping[str, Member]
    """All clients, sorted by id."""
    test: tuple[Example, ...]
    """The common test set; the rows of all clients, where these have their own."""
    report: Mapping[str, Any]
    """An account of the rows, for ``partition.json``."""
    more_tests: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    """More test sets by name."""
    tested_at_clients: bool = False
    """Whether clients have test examples of their own."""
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """The training rows of each client as they were read, where ``train.trainer`` takes them."""

    @property
    def tests(self) -> Mapping[str, tuple[Example, ...]]:
        """All test sets by name, the common one, as ``"test"``, first."""
        return {"test": self.test, **self.more_tests}

    def own_rows(self, member: Member) -> Sequence[Example]:
        """The examples that a client's model is scored on: its test examples where clients have such, else its
        validation examples."""
        return member.test if self.tested_at_clients else member.validation

    @property
    def clients(self) -> Sequence[Client]:
        return _Clients(self.members)

    def with_ranks(self, ranks: Mapping[str, int]) -> Population:
        """The same rows, each client with its own rank."""
        assert isinstance(self.members, Members)
        members = self.members.with_ranks(ranks)
        clients = {name: {**entry, "rank": ranks[name]} for name, entry in self.report["clients"].items()}
        return replace(self, members=members, report={**self.report, "clients": clients})

    def warned(self, text: str) -> Population:
        """The same rows, with ``text`` among the report's warnings."""
        return replace(self, report={**self.report, "warnings": [*self.report.get("warnings", ()), text]})

    def costliest(self, client: str) -> int:
        """The cost of a client's costliest training example."""
        train = self.members[client].train
        return train.costliest if isinstance(train, Stored) else max((e.cost for e in train), default=0)

    def sample(self, count: int) -> tuple[Example, ...]:
        """Up to ``count`` training examples of the first clients, to try a model on."""
        examples: list[Example] = []
        for member in self.members.values():
            examples += member.train[: count - len(examples)]
            if len(examples) == count:
                break
        return tuple(examples)


def build(
    config: RunConfig, dealt: Dealt, task: Task, classes: Sequence[str] = (), parting: Parting | None = None
) -> Population:
    """Encode the rows of every client and split them.

    ``classes``: the label names, for the report.
    ``parting``: splits them in place of the run's seed.

    Raises :class:`ConfigError` if no client, or fewer than the configuration needs, has examples left.
    """
    store = task.store()
    members, empty_clients, held_back, used, left_out = Members(store), [], 0, 0, 0
    too_small, trained, rows = dict(dealt.too_small), trained_on(config, dealt), dict[str, Rows]()
    for name, by_row in _encoded(store, task, dealt.rows):
        used += len(by_row)
        left_out += len(dealt.rows[name]) - len(by_row)
        if len(by_row) >= config.data.min_examples:
            train, held, units = _parts(name, dealt.rows[name], by_row, config, task, store, parting)
            if train or parting is not None:
                members.add(name, train, held, units, _rows_to_tell(config, by_row, train))
                rows |= _for_a_trainer(config, task, name, dealt.rows[name], by_row, train)
            else:
                held_back += 1
                empty_clients.append(name)
        elif by_row:
            too_small[name] = len(by_row)
        else:
            empty_clients.append(name)
    _check_enough(config, task, len(members), held_back, left_out)
    test, own_tests, test_report = _test_set(config, task, dealt.test, "test set", parting)
    more = {name: _test_set(config, task, rows, f"test set {name!r}")[::2] for name, rows in dealt.more_tests.items()}
    said, tested_at_clients = remarks(config, dealt, trained, task.marks), dealt.test.owners is not None
    members = members.with_tests(own_tests) if tested_at_clients else members
    report = {
        "rows": dealt.loaded,
        "rows_used": used,
        "rows_bad": dealt.bad,
        "rows_not_sampled": dealt.unsampled,
        "rows_without_client": dealt.undealt,
        "rows_without_target": left_out,
        "rows_moved": dealt.moved,
        **_sampled_by(config, tested_at_clients),
        "text": store.account(),
        **{f"test_{key}": value for key, value in test_report.items()},
        "test_rows_trained_on": trained[""],
        "more_tests": {name: {**report, "rows_trained_on": trained[name]} for name, (_, report) in more.items()},
        "clients_not_sampled": dealt.clients_unsampled,
        "clients_too_small": too_small,
        "clients_without_examples": empty_clients,
        "examples_sha256": store.sha256(),
        "clients_sha256": _owners(members),
        "classes": list(classes),
        "clients": {n: _counts(config, m, dealt.rows[n], tested_at_clients) for n, m in members.items()},
        "warnings": [*said, *mixed_pixels(store.account(), test_report["text"], bool(test))],
    }
    return Population(members, test, report, {n: r for n, (r, _) in more.items()}, tested_at_clients, rows)


def _rows_to_tell(config: RunConfig, by_row: Sequence[range], train: Sequence[int]) -> int | None:
    """The number of training rows where rows are protected, else None. It is public, and a number of windows would tell
    how long a row is."""
    chosen = set(train)
    return sum(not chosen.isdisjoint(own) for own in by_row) if config.guarantee.of_rows else None


def _for_a_trainer(
    config: RunConfig, task: Task, name: str, rows: Rows, by_row: Sequence[range], train: Sequence[int]
) -> dict[str, Rows]:
    """The training rows of the client ``name``, by it, if ``train.trainer`` takes them."""
    if config.train.trainer is None:
        return {}
    chosen, used = set(train), with_examples(task, rows, by_row)
    return {name: [row for row, own in zip(used, by_row, strict=True) if not chosen.isdisjoint(own)]}


def _sampled_by(config: RunConfig, tested: bool) -> dict[str, list[str | None]]:
    """The columns of which samples of the training rows, and of the test rows, keep the shares."""
    by_label = config.task.label_columns
    by_owner = [config.partition.column] if config.partition.kind == "natural" else []
    by_client = ["client"] if tested and not config.partition.deal_tests else []  # these are dealt later
    by_client_or_owner = ["client"] if config.data.clients_from is not None else by_owner
    return {"sampled_by": [*by_label, *by_client_or_owner], "test_sampled_by": [*by_label, *by_client]}


def _check_enough(config: RunConfig, task: Task, count: int, held_back: int, left_out: int) -> None:
    """Raise :class:`ConfigError` if ``count`` clients are too few. ``held_back``: the number of others, whose rows are
    all for validation. ``left_out``: the number of rows without a target."""
    needed = least_clients(config.clients)
    if count < needed <= count + held_back:
        message = f"it holds back all rows of {held_back} clients, so {count} are left and {needed} are needed"
        raise ConfigError.at("data.validation_fraction", f"{message}: lower it")
    if count < needed:
        raise nothing_left(config, task, left_out, f", so {count} clients have examples and {needed} are needed")


def _counts(config: RunConfig, member: Member, rows: Rows, tested: bool) -> dict[str, Any]:
    """A client's account for ``partition.json``. ``tested``: whether clients have test examples of their own."""
    of_test = {"test": len(member.test)} if tested else {}
    counts = {"train": member.client.num_examples, "validation": len(member.validation), **of_test}
    return {**counts, "labels": _labels(config, rows)}


def _test_set(
    config: RunConfig, task: Task, test: TestRows, name: str, parting: Parting | None = None
) -> tuple[tuple[Example, ...], dict[str, Sequence[Example]], dict[str, Any]]:
    """The examples of a test set, those of each client where they have their own, and its account for
    ``partition.json``. Raises :class:`ConfigError` if it has rows and no example."""
    store, used = task.store(), 0
    examples: list[Example] = []
    by_client: dict[str, Sequence[Example]] = {}
    rows = _grouped(test)
    for client, by_row in _encoded(store, task, rows):
        used += len(by_row)
        numbers = [number for of_row in by_row for number in of_row]
        if parting is not None and client is not NOBODY:
            kept, contents = with_examples(task, rows[client], by_row), _contents(task, store, by_row)
            numbers = parting(client, kept, contents, None).numbers(by_row)[1]
        own = Stored(store, numbers)
        examples += own
        if client is not NOBODY:
            by_client[client] = own
    if test.rows and not used:
        raise nothing_left(config, task, len(test.rows), f", and they are the whole {name}")
    return (
        tuple(examples),
        by_client,
        {
            "rows": test.loaded,
            "rows_used": used,
            "rows_bad": test.bad,
            "rows_not_sampled": test.unsampled,
            "rows_without_target": len(test.rows) - used,
            "text": store.account(),
            "examples_sha256": store.sha256(),
            "labels": _labels(config, test.rows),
        },
    )


def _grouped(test: TestRows) -> dict[str | None, Rows]:
    """The rows of a test set by client, sorted by id; under :data:`NOBODY` those that no client has."""
    if test.owners is None:
        return {NOBODY: test.rows}
    nobodys = [NOBODY] if NOBODY in test.owners else []
    groups: dict[str | None, Rows] = {o: [] for o in [*sorted({o for o in test.owners if o is not NOBODY}), *nobodys]}
    for owner, row in zip(test.owners, test.rows, strict=True):
        groups[owner].append(row)
    return groups


def _owners(members: Members) -> str:
    """SHA-256 of the clients' ids and their numbers of examples, in the order of the examples, and of the units of
    privacy that several share. With the digest of the examples themselves it says whose each one is."""
    digest = hashlib.sha256()
    for name, member in members.items():
        told = [name, len(member.train), len(member.validation), *([len(member.test)] if member.test else [])]
        if member.units is not None:
            told.append(list(member.units))
        digest.update(json.dumps(told).encode())
    return digest.hexdigest()


def _labels(config: RunConfig, rows: Rows) -> dict[str, int] | None:
    """Number of rows per label, of which a row may have several; None if the rows have none."""
    if (names := task_class(config.task.kind).counted(config.task, rows)) is not None:
        return histogram(names)
    reads = RowLabels.of(config.task)
    return histogram([name for row in rows for name in reads.names(row)]) if reads.columns else None


def nothing_left(config: RunConfig, task: Task, rows: int, consequence: str) -> ConfigError:
    """The error for ``rows`` of which the task makes no example. ``consequence``: what they are."""
    if not task.padded:
        return ConfigError.at("data", f"the task leaves {rows} rows out{consequence}: mend the rows")
    message = f"of {rows} rows nothing to learn is left within {config.task.max_length} tokens{consequence}: raise it"
    return ConfigError.at("task.max_length", message)


def _encoded(store: Store, task: Task, rows: Mapping[_Name, Rows]) -> Iterator[tuple[_Name, Sequence[range]]]:
    """Encode every client's rows into ``store``, many clients per call, since each call has a fixed cost. Yields each
    client's id and the numbers of its examples, row by row."""
    names = list(rows)
    while names:
        count, size = 0, 0
        while count < len(names) and (count == 0 or size + len(rows[names[count]]) <= _ROWS_A_CALL):
            size += len(rows[names[count]])
            count += 1
        batch, names = names[:count], names[count:]
        examples = task.encode([row for n in batch for row in rows[n]])
        sizes = task.row_sizes(examples)
        if len(sizes) == size:
            by_row = iter(_numbers(store.add(examples).start, sizes))
            for name in batch:
                yield name, list(islice(by_row, len(rows[name])))
        else:  # rows were left out, and the call does not say whose, so encode client by client
            for name in batch:
                examples = task.encode(rows[name])
                sizes = task.row_sizes(examples)
                yield name, list(_numbers(store.add(examples).start, sizes))


def _numbers(start: int, sizes: Iterable[int]) -> Iterator[range]:
    """The numbers of each row's examples, of which the first row's begin with ``start``."""
    for size in sizes:
        yield range(start, start + size)
        start += size


def _parts(
    name: str,
    rows: Rows,
    by_row: Sequence[range],
    config: RunConfig,
    task: Task,
    store: Store,
    parting: Parting | None,
) -> tuple[list[int], list[int], Sequence[int] | None]:
    """The numbers of a client's training and validation examples, and the units of the former."""
    column, run = config.data.hold_out_by, Round(0, config.rounds, config.seed, 0)
    if parting is not None and column is not None and config.data.validation_fraction:
        message = "this site holds back blocks of rows, which may divide a person: set data.validation_fraction to 0, "
        raise ConfigError.at("data.hold_out_by", message + "or training.repeats in its contract")
    if parting is not None:
        used, contents = with_examples(task, rows, by_row), _contents(task, store, by_row)
        return parting(name, used, contents, config.data.validation_fraction).numbers(by_row)
    persons = persons_of(config.guarantee.group, "privacy.group", task, rows, by_row)
    held = persons_of(column, "data.hold_out_by", task, rows, by_row)
    alone = config.guarantee.of_rows and config.data.validation_fraction > 0  # each row decides its part
    deciders = persons or (_contents(task, store, by_row) if alone else None) if held is None else held
    # The key of persons is that of all clients: one may have rows at several.
    generator = run.generator("split", *([name] if held is None else []))
    train, validation = _split(by_row, config.data.validation_fraction, generator, deciders)
    return train, validation, units_of(config, persons, by_row, train)


def _contents(task: Task, store: Store, by_row: Sequence[range]) -> list[str]:
    """The digest of each row's examples."""
    return [task.digest([store[number] for number in numbers]) for numbers in by_row]


def _split(
    by_row: Sequence[range], fraction: float, generator: torch.Generator, deciders: Sequence[str] | None = None
) -> tuple[list[int], list[int]]:
    """One client's examples, whose rows are split into training rows and validation rows: at random, with at least one
    training row.

    ``deciders``: the person or the content of each row, by whose digest alone its part is decided, so that one row more
    moves no other. There may then be no training row.
    """
    import torch

    if deciders is None:
        order = torch.randperm(len(by_row), generator=generator).tolist()
        validation_count = max(0, min(round(len(by_row) * fraction), len(by_row) - 1))
        training, validation = order[validation_count:], order[:validation_count]
    else:
        key, held = generator.initial_seed().to_bytes(8), list[bool]()
        for decider in deciders:
            digest = hashlib.blake2b(decider.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()
            held.append(int.from_bytes(digest) < fraction * 2**64)
        training, validation = ([i for i, back in enumerate(held) if back is part] for part in (False, True))
    return sorted(n for i in training for n in by_row[i]), sorted(n for i in validation for n in by_row[i])
