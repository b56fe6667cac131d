"""The folder of a comparison: where each run lies, and what it holds already. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.config.checks import BUILTINS, data_source
from rondo.config.load import located
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.records import durable
from rondo.records.directory import RunDirectory, to_toml
from rondo.runs.assembling.given import NOTHING, Given
from rondo.study.compare.variants import Variant

if TYPE_CHECKING:
    from rondo.data.sources import Source


def folder_of(out: str | Path | None) -> Path:
    """The folder ``out``, made if there is none; by default ``runs/compare-<time>``. Raises :class:`ConfigError`."""
    folder = Path(out) if out is not None else Path("runs", f"compare-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        durable.make_folder(folder)
    except OSError as error:
        message = f"{str(folder)!r} cannot be made: {error.strerror}; name another folder"
        raise ConfigError.at("--out", message, "rondo compare") from None
    return folder


class Settled:
    """Configurations with the keys that the data settle (columns, shapes, the kind of partition). The data are loaded
    once where they are the same."""

    def __init__(self, given: Given = NOTHING) -> None:
        self._given = given
        self._known: dict[str, Mapping[str, Any]] = {}

    def has_tests(self, variant: Variant) -> bool:
        """Whether there are test rows; built-in data have them, or measures in their place."""
        if variant.config.data.test_source is not None or data_source(variant.config) in BUILTINS:
            return True
        source = self._source(variant)
        return bool(source.test or source.test_clients)

    def _source(self, variant: Variant) -> Source:
        from rondo.data.sources import load

        return load(variant.config, self._given.train, self._given.test, self._given.clients)

    def __call__(self, variant: Variant) -> RunConfig:
        from rondo.data.client_rows import resolved

        if variant.data_keys not in self._known:
            settled = resolved(variant.config, self._source(variant))
            self._known[variant.data_keys] = {
                "task": settled.task,
                "partition": settled.partition,
                "data": settled.data,
            }
        return variant.config.model_copy(update=dict(self._known[variant.data_keys]))


def place(folder: Path, variant: Variant, settled: Settled, taken: Set[Path] = frozenset()) -> Path:
    """The folder of a run: the one that holds it already, with an equal configuration, or a new one. Nothing is ever
    deleted: if another configuration has the name, or a run that is to be made takes it (``taken``), the run takes the
    next free one."""
    stem = folder / variant.folder
    path, count = stem, 1
    while path in taken or (path.exists() and not _holds(path, variant, settled)):
        path, count = stem.with_name(f"{stem.name}-{count}"), count + 1
    return path


def _holds(path: Path, variant: Variant, settled: Settled) -> bool:
    """Whether ``path`` holds a run of ``variant``. Options that the user left open are in ``config.toml`` as the data
    and the day settled them, so its configuration is also compared after the data settled it, and to a run of any
    day. A run that scored its clients more often than is asked holds all that is asked."""
    try:
        there = RunDirectory.open(path).config()
    except ConfigError:
        return False
    if variant.config.task.today is None:
        there = there.model_copy(update={"task": there.task.model_copy(update={"today": None})})
    if not variant.config.evaluation.clients_every:
        evaluation = there.evaluation.model_copy(update={"clients_every": 0})
        there = there.model_copy(update={"evaluation": evaluation})
    ran = to_toml(there)
    return ran == to_toml(located(variant.config)) or ran == to_toml(located(settled(variant)))


def check_dealt(partitions: dict[str, tuple[str, Any]], variant: Variant, name: str, partition: Any) -> None:
    """Raise :class:`ConfigError` unless all runs of the same data keys dealt the same clients the same rows, as the
    same model reads them. ``name``: the run's folder."""
    key = variant.data_keys + variant.config.model.model_dump_json()
    first, first_partition = partitions.setdefault(key, (name, partition))
    if partition != first_partition:
        message = f"{name} has another partition than {first}: the data changed between; name a new folder"
        raise ConfigError.at("--out", message, "rondo compare")
