"""Checks rows and deals them to clients. All faults of the data are found here, before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rondo.algorithm import Round
from rondo.config.checks import list_lengths, partition_kind
from rondo.config.schema import RunConfig
from rondo.data.partition import deal
from rondo.data.sources import Rows, Source, label_names
from rondo.errors import ConfigError, Problem
from rondo.tasks import table as tasks
from rondo.tasks.row_checks import Row, columns, row_check


@dataclass(frozen=True)
class Dealt:
    """Usable rows, dealt to clients, and counts of everything left out."""

    rows: Mapping[str, Rows]
    """Usable rows of each client that has enough, sorted by client id."""
    test: Rows
    """Usable rows of the test set."""
    loaded: int
    """Number of training rows loaded."""
    bad: int
    """Number of training rows that cannot be used."""
    test_bad: int
    """Number of test rows that cannot be used."""
    undealt: int
    """Number of usable training rows that no client got."""
    too_small: Mapping[str, int]
    """Number of usable rows of each client that has too few."""


def resolved(config: RunConfig, source: Source) -> RunConfig:
    """Fill in settings that the user left open and the data know: the kind of partition, and columns."""
    kind = partition_kind(config)
    owner = config.partition.column or (source.natural if kind == "natural" else None)
    partition = config.partition.model_copy(update={"kind": kind, "column": owner})
    config = config.model_copy(update={"partition": partition})
    if not tasks.load(config.task.kind).classes:
        return config
    known = {"text": config.task.text or source.text, "label": config.task.label or source.label}
    return config.model_copy(update={"task": config.task.model_copy(update=known)})


def find_labels(config: RunConfig, source: Source) -> tuple[str, ...]:
    """Label names from all training rows. A label that only the test set has is reported as a bad row.

    Raises :class:`ConfigError` if no row has the label column, or it has fewer than 2 or more than 1000 labels.
    """
    if not tasks.load(config.task.kind).classes:
        return ()
    rows = source.train if source.train is not None else [r for rs in (source.clients or {}).values() for r in rs]
    column = config.task.label or ""
    if rows and all(column not in r for r in rows):
        existing = ", ".join(map(str, rows[0]))
        raise ConfigError.at("task.label", f"no column {column!r}; there are: {existing}")
    names = label_names(rows, column)
    if len(names) < 2:
        only_label = f", {names[0]!r}" if names else ""
        message = (
            f"column {column!r} has {len(names)} distinct labels{only_label}; classification needs two: name another"
        )
        raise ConfigError.at("task.label", message)
    if len(names) > 1000:
        message = f"column {column!r} has {len(names)} distinct values; is it the label? Name another"
        raise ConfigError.at("task.label", message)
    return names


def deal_rows(config: RunConfig, source: Source, labels: Sequence[str]) -> Dealt:
    """Check all rows and deal them.

    ``config``: the :func:`resolved` configuration.
    ``labels``: the known classes.

    Raises :class:`ConfigError` if rows are bad (or all of them are dropped), these rows do not allow the kind of
    partition, or fewer clients than the configuration needs have enough rows.
    """
    owner = config.partition.column if config.partition.kind == "natural" and source.clients is None else None
    checker = _Checker(config, labels, owner)
    if source.clients is not None:
        kept = {c: checker.usable(rows, f"{c}, ") for c, rows in source.clients.items()}
        loaded, undealt = sum(map(len, source.clients.values())), 0
    else:
        assert source.train is not None
        loaded = len(source.train)
        rows = checker.usable(source.train, "")
        row_labels = [str(r[config.task.label]) for r in rows] if config.task.label is not None else None
        owners = [str(r[owner]) for r in rows] if owner is not None else None
        run = Round(0, config.rounds, config.seed, 0)
        dealt = deal(config.partition, row_labels, owners, len(rows), run.generator("partition"))
        kept, undealt = {c: [rows[i] for i in numbers] for c, numbers in dealt.rows.items()}, dealt.dropped
    test_checker = _Checker(config, labels, None)
    test = test_checker.usable(source.test or [], "test ")
    too_small = {c: len(r) for c, r in kept.items() if len(r) < config.data.min_examples}
    large_enough = {c: kept[c] for c in sorted(kept.keys() - too_small.keys())}
    if not large_enough:
        message = (
            f"no client has data.min_examples = {config.data.min_examples} usable rows; lower it, or deal the rows "
        )
        raise ConfigError.at("partition", message + "to fewer clients")
    if problems := _too_few(config, len(large_enough)):
        raise ConfigError(problems)
    return Dealt(large_enough, test, loaded, checker.dropped, test_checker.dropped, undealt, too_small)


def _too_few(config: RunConfig, count: int) -> list[Problem]:
    """Problems with settings that ``count`` clients are too few for, or that list values for another number."""
    problems, clients = [], config.clients
    if clients.per_round is not None and clients.per_round > count:
        message = f"{clients.per_round}, but there are only {count} clients: lower it"
        problems.append(Problem("clients.per_round", message))
    if clients.min_clients > count:
        message = f"{clients.min_clients}, but there are {count} clients: lower it"
        problems.append(Problem("clients.min_clients", message))
    return [*problems, *list_lengths(clients, count)]


def usable_rows(config: RunConfig, rows: Sequence[Row], labels: Sequence[str], key: str) -> Rows:
    """``rows``, all of which the task can use.

    ``labels``: the known classes; none where the label column is not read.

    Raises :class:`ConfigError` under ``key`` with the first five rows that the task cannot use.
    """
    kept, problems = _Checker(config, labels, None).sorted_out(rows, "")
    if problems:
        raise ConfigError([*_first_five(problems, key), Problem(key, "mend the rows, or name another file")])
    return kept


def _first_five(problems: Sequence[str], key: str) -> list[Problem]:
    shown = [Problem(key, text) for text in problems[:5]]
    if len(problems) > 5:
        shown.append(Problem(key, f"and {len(problems) - 5} more rows like these"))
    return shown


class _Checker:
    """Sorts out unusable rows. ``owner``: the column that names each row's client, if rows are dealt by it."""

    def __init__(self, config: RunConfig, labels: Sequence[str], owner: str | None) -> None:
        self.config, self.owner = config, owner
        self.columns = row_check(config.task, labels, owner)
        self.kind = tasks.load(config.task.kind)
        self.dropped = 0

    def usable(self, rows: Sequence[Row], where: str) -> Rows:
        """The usable rows. The others are counted in ``dropped``.

        Raises :class:`ConfigError` with the first five and the number of the rest, if bad rows are errors or no row is
        usable.
        """
        kept, problems = self.sorted_out(rows, where)
        if problems and (self.config.data.bad_rows == "error" or not kept):
            shown = _first_five(problems, "data")
            if kept:
                shown.append(Problem("data.bad_rows", "mend the rows, or leave them out with data.bad_rows = 'drop'"))
            else:
                shown.append(Problem("data", "that is every row: mend them, or name other columns in [task]"))
            raise ConfigError(shown)
        self.dropped += len(problems)
        return kept

    def sorted_out(self, rows: Sequence[Row], where: str) -> tuple[Rows, list[str]]:
        """The usable rows, and the problems of the others. Raises :class:`ConfigError` if a column does not exist."""
        if rows:
            self._has_columns(rows[0])
        kept, problems = [], []
        for number, row in enumerate(rows):
            problem = self.columns(row, number) or self.kind.problem(self.config.task, row, number)
            if problem is None:
                kept.append(dict(row))
            else:
                problems.append(f"{where}{problem}")
        return kept, problems

    def _has_columns(self, first: Row) -> None:
        """Raise :class:`ConfigError` if a named column does not exist. It is one fault, not one per row."""
        task = self.config.task
        named = [("task.label", task.label), ("partition.column", self.owner)]
        named += [(key, name) for key, name, _ in columns(task)]
        existing = ", ".join(map(str, first))
        missing = [
            Problem(k, f"no column {c!r}; there are: {existing}") for k, c in named if c is not None and c not in first
        ]
        if missing:
            raise ConfigError(missing)
