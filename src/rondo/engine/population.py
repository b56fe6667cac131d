"""The clients of a run: their rows tokenised, split into training and validation, and a report of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rondo.algorithm import Client, Round
from rondo.config import ConfigError, Problem, RunConfig
from rondo.data.loading import Rows, Source
from rondo.data.partition import deal
from rondo.tasks import Example, Row, Task


@dataclass(frozen=True)
class Member:
    """A client and its examples. ``validation`` is never trained on."""

    client: Client
    train: tuple[Example, ...]
    validation: tuple[Example, ...]


@dataclass(frozen=True)
class Population:
    """All clients, sorted by id, the common test set, and what was done to the rows (for ``partition.json``)."""

    members: dict[str, Member]
    test: tuple[Example, ...]
    report: dict[str, Any]

    @property
    def clients(self) -> list[Client]:
        return [m.client for m in self.members.values()]


def build(config: RunConfig, source: Source, task: Task, label: str | None, classes: Sequence[str] = ()) -> Population:
    """Check, deal, tokenise and split the rows. ``label``: the label column, if the task has one.

    Raises :class:`ConfigError` where rows are bad (or all of them are dropped) or no client has enough examples.
    """
    whole = Round(0, config.rounds, config.seed, 0)
    bad: list[str] = []
    if source.clients is not None:
        kept = {c: _usable(rows, task, config, f"{c}, ", bad) for c, rows in source.clients.items()}
        loaded, dealt_dropped = sum(map(len, source.clients.values())), 0
    else:
        assert source.train is not None
        loaded = len(source.train)
        rows = _usable(source.train, task, config, "", bad)
        column = config.partition.column or source.natural
        natural = config.partition.kind == "natural" or (
            config.partition.clients is None and source.natural is not None
        )
        ids = None
        if natural and column is not None:
            if rows and column not in rows[0]:
                there = ", ".join(rows[0])
                raise ConfigError([Problem("partition.column", f"no column {column!r}; there are: {there}")])
            ids = [str(r[column]) for r in rows]
        partition = config.partition
        if natural and partition.kind != "natural":
            partition = partition.model_copy(update={"kind": "natural", "clients": None})
        labels = [str(r[label]) for r in rows] if label is not None else None
        dealt = deal(partition, labels, ids, len(rows), whole.generator("partition"))
        kept = {c: [rows[i] for i in numbers] for c, numbers in dealt.rows.items()}
        dealt_dropped = dealt.dropped
    test = _usable(source.test or [], task, config, "test ", bad)
    small = {c: len(r) for c, r in kept.items() if len(r) < config.data.min_examples}
    members = {}
    for name in sorted(kept.keys() - small.keys()):
        members[name] = _member(name, task.encode(kept[name]), config, whole)
    without = sorted(m.client.id for m in members.values() if not m.train)
    members = {n: m for n, m in members.items() if m.train}
    if not members:
        words = f"no client has data.min_examples = {config.data.min_examples} usable examples"
        raise ConfigError([Problem("partition", words)])
    report = {
        "rows": loaded,
        "rows_bad": len(bad),
        "rows_without_client": dealt_dropped,
        "test_rows": len(test),
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
    return Population(members, tuple(task.encode(test)), report)


def _usable(rows: Sequence[Row], task: Task, config: RunConfig, where: str, bad: list[str]) -> Rows:
    """The rows that pass the task's check; the others are noted in ``bad``, or all reported as an error."""
    kept, problems = [], []
    for number, row in enumerate(rows):
        problem = task.check(row, number)
        if problem is None:
            kept.append(dict(row))
        else:
            problems.append(f"{where}{problem}")
    if problems and (config.data.bad_rows == "error" or not kept):
        shown = [Problem("data", text) for text in problems[:5]]
        if len(problems) > 5:
            shown.append(Problem("data", f"and {len(problems) - 5} more rows like these"))
        if kept:
            shown.append(Problem("data.bad_rows", "mend the rows, or leave them out with data.bad_rows = 'drop'"))
        raise ConfigError(shown)
    bad += problems
    return kept


def _member(name: str, examples: list[Example], config: RunConfig, whole: Round) -> Member:
    """Split one client's examples at random; at least one is left to train on."""
    import torch

    order = torch.randperm(len(examples), generator=whole.generator("split", name)).tolist()
    held = min(round(len(examples) * config.data.validation_fraction), len(examples) - 1)
    validation = tuple(examples[i] for i in sorted(order[: max(0, held)]))
    train = tuple(examples[i] for i in sorted(order[max(0, held) :]))
    return Member(Client(name, len(train)), train, validation)
