"""The task of a run, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.config.inputs import TaskConfig
from rondo.tasks import table
from rondo.tasks.task import Task


def make(config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Task:
    """The task of a run (:meth:`rondo.tasks.task.Task.of`), with the metric that ``config`` names. Raises
    :class:`rondo.errors.ConfigError` if its class cannot be loaded."""
    task = table.load(config.kind).of(config, tokenizer, labels)
    if config.metric is not None:
        task.primary, task.higher_is_better = config.metric, table.TABLE[config.kind].metrics[config.metric]
    return task
