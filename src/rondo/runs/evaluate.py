"""Scores of a finished run, or of an adapter from one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.data.client_rows import usable_rows
from rondo.data.sources import read_rows
from rondo.errors import ConfigError, headed
from rondo.models.network import Base
from rondo.params import Params
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.reopen import handed_over, is_adapter, reopen
from rondo.tasks.task import Example


@headed("rondo evaluate")
def evaluate(
    path: str | Path, *, data: str | Path | None = None, client: str | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Scores of a run directory, or of a PEFT adapter from one, on the run's test set.

    For a run, the newcomer's model is scored. With ``client``, that client's model is, also on its own validation rows.
    With ``data``, a file with the run's columns takes the place of all its rows, which are then not read.
    Raises :class:`ConfigError`.
    """
    path = Path(path)
    with_rows = data is None
    seen: Params
    base: Base
    if is_adapter(path):
        if client is not None:
            raise ConfigError.at("--client", "an adapter folder has one model; name the run directory instead")
        config, labels = handed_over(path, check_paths=with_rows)
        assembly = assemble(config, device, labels=labels, with_rows=with_rows)
        seen, base = assembly.model.network.initial, {}
    else:
        opened = reopen(path, device, with_rows=with_rows)
        assembly = opened.assembly
        seen, base = opened.model(client)
    population = assembly.population
    result = {"test": _scored(assembly, seen, base, population.test if data is None else _examples(assembly, data))}
    if client is not None and with_rows:
        result["validation"] = _scored(assembly, seen, base, population.members[client].validation)
    return result


def _examples(assembly: Assembly, data: str | Path) -> Sequence[Example]:
    """The examples of the file ``data``. Raises :class:`ConfigError`."""
    rows = usable_rows(assembly.config, read_rows(data, "--data"), assembly.labels, "--data")
    examples = assembly.task.encode(rows)
    if not examples:
        raise ConfigError.at("--data", f"{str(data)!r} has nothing to score within task.max_length: name another file")
    return examples


def _scored(assembly: Assembly, seen: Params, base: Base, examples: Sequence[Example]) -> dict[str, float | None]:
    return assembly.scorer({}).scores(seen, base, examples)
