"""The class of a task kind, and the task of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo import own_code
from rondo.config.schema import RunConfig
from rondo.config.task_kinds import CLASS_KEYS, TABLE, metrics_of
from rondo.errors import ConfigError, Problem
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.language.tagging.token_classification import TokenClassification
from rondo.tasks.task import Task


def task_class(kind: str) -> type[Task]:
    """The class of a kind: of the table, or ``package.module:Class``. Raises :class:`ConfigError` if it cannot be
    loaded or is not a task."""
    try:
        cls = own_code.load(TABLE[kind].cls if kind in TABLE else kind)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigError.at("task.kind", f"cannot load {kind!r}: {own_code.reason(error)}") from None
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ConfigError.at("task.kind", f"{kind!r} is not a class derived from rondo.tasks.task.Task")
    return cls


def make(config: RunConfig, tokenizer: Any, labels: Sequence[str]) -> Task:
    """The task of a run (:meth:`rondo.tasks.task.Task.of`), with the metric and the class that ``config`` names for
    its scores. Raises :class:`rondo.errors.ConfigError` if its class cannot be loaded, and for an unknown class."""
    kind, known, asked = config.task.kind, metrics_of(config.task), config.evaluation
    task, metric = task_class(kind).of(config.task, tokenizer, labels), config.task.metric or next(iter(known), None)
    if metric is not None and metric not in known:
        labels_of = "may have several labels" if config.task.several_labels else "has a single label"
        raise ConfigError.at("task.metric", f"a row {labels_of}, so take {', '.join(known)}, not {metric!r}")
    if metric is not None:
        task = task.judged_by(metric, higher_is_better=known[metric])
    if isinstance(task, TokenClassification):
        return task.scored_by(per_class=asked.per_class)
    keys = [key for key in CLASS_KEYS if getattr(asked, key)]
    if keys and not isinstance(task, ClassTask):
        message = f"{kind!r} scores no classes as Rondo's tasks do: remove it"
        raise ConfigError([Problem(f"evaluation.{key}", message) for key in keys])
    if isinstance(task, ClassTask) and keys:
        return task.scored_by(asked.positive, asked.f1, per_class=asked.per_class, threshold=asked.threshold)
    return task
