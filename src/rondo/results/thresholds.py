"""Thresholds of a model's labels, where a row may have several: chosen on rows that no client trained on."""

from __future__ import annotations

from pathlib import Path

from rondo.config.schema import RunConfig
from rondo.data.client_rows import other_rows
from rondo.data.files.listing import client_listing
from rondo.data.files.tables import Table
from rondo.engine.scoring import scores
from rondo.errors import ConfigError
from rondo.models.networks.network import Base
from rondo.params import Params
from rondo.runs.assembling.assembly import Assembly
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.label_scores import Thresholds

_OPTION = "--thresholds"


def with_thresholds(
    config: RunConfig, assembly: Assembly, seen: Params, base: Base, rows: str | Path | Table
) -> RunConfig:
    """``config`` with the threshold of each label that has the highest F1 on ``rows``, by the model ``seen`` (no client
    axis). Raises :class:`ConfigError` for labels without thresholds, and for rows whose scores the run hides."""
    task = assembly.task
    if not (isinstance(task, ClassTask) and task.label.several):
        raise ConfigError.at(_OPTION, "a label has a threshold only if a row may have several labels: leave it out")
    if config.guarantee.hides_scores and isinstance(rows, str | Path) and _are_of_clients(config, Path(rows)):
        message = "thresholds tell of the rows that they are chosen on, and the run protects these: name public rows"
        raise ConfigError.at(_OPTION, message)
    examples = task.encode(other_rows(config, rows, assembly.labels, key=_OPTION))
    size, tally = config.evaluation.batch_size, Thresholds(task.thresholds)
    chosen = scores(assembly.model.network, task, seen, base, examples, batch_size=size, tally=tally)
    evaluation = config.evaluation.model_copy(update={"threshold": chosen})
    return config.model_copy(update={"evaluation": evaluation})


def _are_of_clients(config: RunConfig, file: Path) -> bool:
    """Whether ``file`` has the run's training rows."""
    clients, source = config.data.clients_from, config.data.source
    files = client_listing(clients).rows if clients is not None else [Path(source)] if source is not None else []
    return file.resolve() in [place.resolve() for place in files]
