"""Checks rows and deals them to clients. All faults of the data are found here, before any model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rondo.algorithm import Round
from rondo.config import task_kinds as tasks
from rondo.config.checks import BUILTINS, client_checks, data_source, partition_kind
from rondo.config.inputs import PartitionConfig
from rondo.config.schema import RunConfig
from rondo.data.files.placed import PlacedRows, Places, places_of
from rondo.data.files.room import Room
from rondo.data.files.tables import Rows, Table, rows_of
from rondo.data.labels import joined
from rondo.data.named_columns import lacking
from rondo.data.partition.deal import deal, deal_tests, sample
from rondo.data.sources import Source, read_pictures, read_rows
from rondo.data.units import named_in
from rondo.errors import ConfigError, Problem
from rondo.tasks.make import task_class
from rondo.tasks.row_checks import Row, RowLabels, row_check, value_name, value_problem
from rondo.tasks.task import Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TestRows:
    """The usable rows of a test set, or a sample of them, and counts of everything left out."""

    rows: Rows
    loaded: int
    """Number of rows loaded."""
    bad: int
    """Number of rows that cannot be used."""
    unsampled: int
    """Number of usable rows beyond ``data.max_test_rows``."""
    owners: Sequence[str | None] | None = None
    """The client of each row, where clients have test rows of their own; :data:`rondo.data.partition.deal.NOBODY` where
    none has it."""


@dataclass(frozen=True)
class Dealt:
    """Usable rows, dealt to clients, and counts of everything left out."""

    rows: Mapping[str, Rows]
    """Usable rows of each client that has enough, sorted by client id."""
    test: TestRows
    """The test set."""
    more_tests: Mapping[str, TestRows]
    """More test sets by name."""
    loaded: int
    """Number of training rows loaded."""
    bad: int
    """Number of training rows that cannot be used."""
    unsampled: int
    """Number of usable training rows beyond ``data.max_train_rows``."""
    undealt: int
    """Number of sampled rows that no client got."""
    moved: int
    """Number of rows that a partition moved to clients with too few."""
    too_small: Mapping[str, int]
    """Number of rows of each client that has too few."""
    clients_unsampled: int
    """Number of clients by nature that ``partition.clients`` did not draw, or whose rows are all beyond
    ``data.max_train_rows``."""


def resolved(config: RunConfig, source: Source) -> RunConfig:
    """Fill in settings that the user left open and the data know: the kind of partition, and columns."""
    kind = partition_kind(config)
    owner = config.partition.column or (source.natural if kind == "natural" else None)
    partition = config.partition.model_copy(update={"kind": kind, "column": owner})
    config = config.model_copy(update={"partition": partition})
    tested_at_clients = config.partition.deal_tests or _own_tests(config, source)
    if "validation_fraction" not in config.data.model_fields_set and tested_at_clients:
        config = config.model_copy(update={"data": config.data.model_copy(update={"validation_fraction": 0.0})})
    cls = task_class(config.task.kind)
    task = cls.with_columns(config.task, source.text, source.label)
    rows = [row for part in (source.train or (), *(source.clients or {}).values()) for row in part]
    settled = cls.settled(task, rows)
    learned = [key for key, value in settled if value != getattr(task, key)]
    if learned and config.guarantee.noise_from is not None and data_source(config) not in BUILTINS:
        message = f"{getattr(settled, learned[0])} would follow from a client's rows, so it tells of a row: set it"
        raise ConfigError.at(f"task.{learned[0]}", message)
    return config.model_copy(update={"task": settled})


def _own_tests(config: RunConfig, source: Source) -> bool:
    """Whether test rows come with their clients: from files or tables of theirs, or by the column that names each row's
    client, where every test row has it and a client of the training rows is among them."""
    if source.test_clients is not None:
        return True
    column = config.partition.column
    if source.clients is not None or config.partition.kind != "natural" or column is None or not source.test:
        return False
    if any(value_problem(row, 0, column) is not None for row in source.test):
        return False
    names = {value_name(row[column]) for row in source.test}
    return any(value_name(row[column]) in names for row in source.train or () if value_problem(row, 0, column) is None)


def deal_rows(config: RunConfig, source: Source, labels: Sequence[str]) -> Dealt:
    """Check all rows and deal them.

    ``config``: the :func:`resolved` configuration.
    ``labels``: the known classes.

    Raises :class:`ConfigError` if rows are bad (or all of them are dropped), these rows do not allow the kind of
    partition, or fewer clients than the configuration needs have enough rows.
    """
    run, reads = Round(0, config.rounds, config.seed, 0), RowLabels.of(config.task)
    limit, natural = config.data.max_train_rows, config.partition.kind == "natural" and source.clients is None
    checker = _Checker(config, labels, config.partition.column if natural else None, sampled=limit is not None)
    rows, owners, everybody = _usable(checker, source)
    partition = config.partition if source.clients is None else PartitionConfig(kind="natural")
    if limit is not None and owners is not None and config.guarantee.of_rows:
        message = "a client's row would decide which of its others are left out: remove it, or give it fewer rows"
        raise ConfigError.at("data.max_train_rows", message)
    row_labels = reads.strata(rows)
    drawn = sample(limit, len(rows), row_labels, owners, run.generator("rows", "train"))
    chosen = checker.opened(rows, drawn)
    checker.refuse()
    useless = (everybody - set(owners or ())) | (set(_at(owners, drawn) or ()) - set(_at(owners, chosen) or ()))
    sampled_owners = _at(owners, chosen)
    by_class = None if reads.several else _at(row_labels, chosen)
    dealt = deal(partition, by_class, sampled_owners, len(chosen), run.generator("partition"))
    kept = {client: [rows[chosen[i]] for i in numbers] for client, numbers in dealt.rows.items()}
    test, more_tests = _test_sets(config, source, labels, everybody, run)
    too_small = dict.fromkeys(sorted(useless), 0)
    too_small |= {c: len(r) for c, r in kept.items() if len(r) < config.data.min_examples}
    large_enough = {c: kept[c] for c in sorted(kept.keys() - too_small.keys())}
    wanted = partition.clients if partition.kind == "natural" else None
    members = large_enough if wanted is None else _drawn(large_enough, wanted, config, run)
    if not members:
        message = f"no client has data.min_examples = {config.data.min_examples} usable rows; lower it, or deal the "
        raise ConfigError.at("partition", message + "rows to fewer clients")
    if problems := list(client_checks(config, len(members))):
        raise ConfigError(problems)
    if config.partition.deal_tests:
        reads = reads if labels and not reads.several else RowLabels(())
        trained = {client: reads.strata(rows) or [""] * len(rows) for client, rows in members.items()}
        tested = reads.strata(test.rows) or [""] * len(test.rows)
        persons = named_in(config.data.hold_out_by, "data.hold_out_by", test.rows)
        test = replace(test, owners=deal_tests(trained, tested, run.generator("partition", "tests"), persons))
    undrawn = [rows for client, rows in large_enough.items() if client not in members]
    return Dealt(
        rows=members,
        test=test,
        more_tests=more_tests,
        loaded=checker.loaded,
        bad=checker.dropped,
        unsampled=len(rows) - len(drawn),
        undealt=dealt.dropped + sum(map(len, undrawn)),
        moved=dealt.moved,
        too_small=too_small,
        clients_unsampled=len(set(owners or ()) - set(sampled_owners or ()) - useless) + len(undrawn),
    )


def _usable(checker: _Checker, source: Source) -> tuple[Rows, list[str] | None, set[str]]:
    """The usable training rows, the client of each where rows have one, and all clients that are named, with usable
    rows or without."""
    if source.clients is None:
        rows = checker.usable(source.train or [], "")
        owners, everybody = _names(rows, checker.owner), checker.named(source.train or [])
    else:
        usable = {c: checker.usable(rows, f"{c}, ") for c, rows in source.clients.items()}
        rows = [row for of_client in usable.values() for row in of_client]
        owners, everybody = [client for client, of_client in usable.items() for _ in of_client], set(usable)
    checker.refuse()
    return rows, owners, everybody


def _test_sets(
    config: RunConfig, source: Source, labels: Sequence[str], everybody: set[str], run: Round
) -> tuple[TestRows, dict[str, TestRows]]:
    """The test set, and more ones by name. ``everybody``: the clients of the training rows."""
    if source.more_tests and not source.test and not source.test_clients:
        message = "they stand beside a test set, by which rounds are chosen: name one by data.test_source or test_split"
        raise ConfigError.at("data.more_tests", message)
    if strangers := [name for name in source.test_clients or () if name not in everybody]:
        known = f"; clients: {', '.join(sorted(everybody)[:10])}" if everybody else ": training rows name no clients"
        raise ConfigError.at(source.test_key, f"test rows of {strangers[0]!r}, which is no client{known}")
    tests = source.test_clients if source.test_clients is not None else source.test or []
    own_tests = _own_tests(config, source)
    if config.partition.deal_tests and (own_tests or not source.test):
        why = "clients have test rows of their own" if own_tests else "there is no test set to deal"
        raise ConfigError.at("partition.deal_tests", f"{why}: remove it")
    by_column = config.partition.column if own_tests else None
    test = _test_rows(config, labels, tests, "test ", run.generator("rows", "test"), by_column)
    return test, {
        name: _test_rows(config, labels, of_name, f"{name} ", run.generator("rows", "test", name))
        for name, of_name in source.more_tests.items()
    }


def _test_rows(
    config: RunConfig,
    labels: Sequence[str],
    rows: Rows | Mapping[str, Rows],
    where: str,
    generator: torch.Generator,
    column: str | None = None,
) -> TestRows:
    """The usable rows of a test set, or a sample of them drawn from ``generator``. ``rows``: all, or each client's.
    ``where``: its name, for messages. ``column``: the one that names each row's client, if clients have their own."""
    limit = config.data.max_test_rows
    checker = _Checker(config, labels, None, sampled=limit is not None)
    if isinstance(rows, Mapping):
        parts = {client: checker.usable(of_client, f"{client}, {where}") for client, of_client in rows.items()}
        usable = [row for part in parts.values() for row in part]
        owners: list[str] | None = [client for client, part in parts.items() for _ in part]
    else:
        usable = checker.usable(rows, where)
        owners = _names(usable, column)
    checker.refuse()
    drawn = sample(limit, len(usable), RowLabels.of(config.task).strata(usable), owners, generator)
    chosen = checker.opened(usable, drawn)
    checker.refuse()
    unsampled = len(usable) - len(drawn)
    return TestRows([usable[i] for i in chosen], checker.loaded, checker.dropped, unsampled, _at(owners, chosen))


def _drawn(clients: Mapping[str, Rows], count: int, config: RunConfig, run: Round) -> dict[str, Rows]:
    """``count`` of ``clients``, drawn from the seed, in their order; none of none. Raises :class:`ConfigError` if there
    are fewer."""
    if not clients:
        return {}
    if count > len(clients):
        message = f"{count}, but only {len(clients)} clients have data.min_examples = {config.data.min_examples} rows: "
        raise ConfigError.at("partition.clients", message + "lower it")
    import torch

    order = torch.randperm(len(clients), generator=run.generator("partition", "clients")).tolist()
    names = list(clients)
    return {names[i]: clients[names[i]] for i in sorted(order[:count])}


def _names(rows: Rows, column: str | None) -> list[str] | None:
    """The class or client in ``column`` of each row; None without a column."""
    return [value_name(row[column]) for row in rows] if column is not None else None


def _at(values: Sequence[str] | None, places: Sequence[int]) -> list[str] | None:
    return [values[i] for i in places] if values is not None else None


def other_rows(
    config: RunConfig, data: str | os.PathLike[str] | Table, labels: Sequence[str], *, key: str, answers: bool = True
) -> Rows:
    """The rows of the file or table ``data``, in place of those of the run. The task can use all of them.

    ``labels``: the known classes.
    ``key``: the option or key that names them.
    ``answers``: False looks at the input only, and not at labels, responses and answers.

    Raises :class:`ConfigError` with the first five rows that the task cannot use.
    """
    kind = tasks.TABLE.get(config.task.kind)
    if isinstance(data, str | os.PathLike):
        pictures = not answers and kind is not None and kind.inputs == "image"
        rows = (read_pictures if pictures else read_rows)(data, key, Room.of(config.data))
    else:
        rows = rows_of(data, key)
    if not answers:
        config = config.model_copy(update={"task": tasks.without_answers(config.task)})
    whole = answers or (kind is not None and kind.inputs != "text")
    place = places_of(rows)
    places = ((place, number) for number in range(len(rows)))
    kept, problems = _Checker(config, labels, None).sorted_out(rows, places, whole=whole)
    refuse(problems, key)
    return PlacedRows(kept.values(), place)


def refuse(problems: Sequence[object], key: str) -> None:
    """Raise :class:`ConfigError` with the first five problems of the rows that ``key`` names, if there are any."""
    if problems:
        raise ConfigError([*_first_five(problems, key), Problem(key, "mend the rows, or name another file")])


def _first_five(problems: Sequence[object], key: str) -> list[Problem]:
    shown = [Problem(key, str(problem)) for problem in problems[:5]]
    if len(problems) > 5:
        shown.append(Problem(key, f"and {len(problems) - 5} more rows like these"))
    return shown


class _Checker:
    """Sorts out unusable rows.

    ``owner``: the column that names each row's client, if rows are dealt by it.
    ``sampled``: whether a sample of the rows is taken. Where rows are opened (pictures), which takes long, only the
    sample is, by :meth:`opened`; before it, rows are checked for their columns and labels.
    """

    def __init__(self, config: RunConfig, labels: Sequence[str], owner: str | None, *, sampled: bool = False) -> None:
        self.config, self.owner = config, owner
        self.columns = row_check(config.task, labels, owner)
        self.kind = task_class(config.task.kind)
        self.task = config.task.model_copy(update={"labels": list(labels)}) if labels else config.task
        self.late = sampled and self.kind.opened.__func__ is not Task.opened.__func__  # type: ignore[attr-defined]
        self.room, self.split = Room.of(config.data), "" if config.task.several_labels else joined(labels)
        self.loaded = self.dropped = 0
        self._used = 0
        self._problems: list[str] = []
        self._places: list[tuple[Places, int]] = []
        """The number and the places of its source, for every usable row that is opened later."""

    def usable(self, rows: Sequence[Row], where: str) -> Rows:
        """The usable rows. All are counted in ``loaded``, the others in ``dropped``. ``where``: begins the place of
        rows that do not know it. Raises :class:`ConfigError` if a
        column does not exist."""
        self.loaded += len(rows)
        place = places_of(rows, where)
        kept = self._sorted_out(rows, ((place, n) for n in range(len(rows))), opening=not self.late)
        if self.late:
            self._places += [(place, number) for number in kept]
        return list(kept.values())

    def opened(self, rows: Rows, chosen: Sequence[int]) -> Sequence[int]:
        """``chosen``, places in the usable ``rows``, without the rows that prove unusable when they are opened. The
        others are put into ``rows``."""
        if not self.late:
            return chosen
        kept = self._sorted_out([rows[i] for i in chosen], [self._places[i] for i in chosen], opening=True)
        for place, row in kept.items():
            rows[chosen[place]] = row
        return [chosen[place] for place in kept]

    def named(self, rows: Sequence[Row]) -> set[str]:
        """The clients that ``rows`` name, usable or not; none if rows are not dealt by a column."""
        if self.owner is None:
            return set()
        return {value_name(row[self.owner]) for row in rows if value_problem(row, 0, self.owner) is None}

    def refuse(self) -> None:
        """Raise :class:`ConfigError` with the first five problems and the number of the rest, if bad rows are errors or
        no row is usable."""
        if self._problems and (self.config.data.bad_rows == "error" or not self._used):
            shown = _first_five(self._problems, "data")
            if self._used:
                shown.append(Problem("data.bad_rows", "mend the rows, or leave them out with data.bad_rows = 'drop'"))
            else:
                shown.append(Problem("data", "that is every row: mend them, or name other columns in [task]"))
            if self.split:  # whose rows may have no label
                shown.append(Problem("task.label", f"labels look like several in one: to split them, set {self.split}"))
            raise ConfigError(shown)

    def _sorted_out(
        self, rows: Sequence[Row], places: Iterable[tuple[Places, int]], *, opening: bool
    ) -> dict[int, Any]:
        kept, problems = self.sorted_out(rows, places, opening=opening)
        self._problems += problems
        self._used = len(kept) if self.late and opening else self._used + len(kept)
        self.dropped += len(problems)
        return kept

    def sorted_out(
        self, rows: Sequence[Row], places: Iterable[tuple[Places, int]], *, whole: bool = True, opening: bool = True
    ) -> tuple[dict[int, Any], list[str]]:
        """The usable rows by their index in ``rows``, and the problems of the others. Raises :class:`ConfigError` if a
        column does not exist.

        ``places``: each row's number in its source, and the places of that, for messages.
        ``whole``: False checks columns only, and not what the task alone knows of a row.
        ``opening``: False leaves the rows as they are, and checks columns only.
        """
        if problems := lacking(self.config.task, self.owner, {"": rows}):
            raise ConfigError(problems)
        kept: dict[int, Any] = {}
        bad = []
        for index, (given, (place, number)) in enumerate(zip(rows, places, strict=True)):
            row = self.kind.opened(self.config.task, given) if opening else given
            self._take_room(given, row)
            problem = self.columns(row, number)
            if problem is None and whole and opening:
                problem = self.kind.problem(self.task, row, number)
            if problem is None:
                kept[index] = row
            else:
                bad.append(problem.at(place(number)))
        return kept, bad

    def _take_room(self, given: Row, row: Row) -> None:
        """Count the memory of values that opening a row made. A file of a few kilobytes can hold a large picture."""
        for column, value in row.items():
            if value is not given.get(column):
                self.room.take(getattr(value, "nbytes", 0), f"column {column}")
