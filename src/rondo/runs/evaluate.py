"""Scores of a finished run, or of an adapter from one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.config.load import load
from rondo.errors import ConfigError, headed
from rondo.models.network import Base
from rondo.params import Params
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.reopen import RECORD, check_code, reopen
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.manifest import OPEN_ANYWAY, must_equal
from rondo.tasks import table as tasks
from rondo.tasks.task import Example


@headed("rondo evaluate")
def evaluate(
    path: str | Path,
    *,
    client: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> dict[str, Any]:
    """Scores of a run directory, or of a PEFT adapter inside or exported from one, on the run's test set.

    For a run, the newcomer's model is scored. With ``client``, that client's model is, also on its own validation rows.

    ``allow_code``: import code of one's own that the run names; a directory may be anybody's.
    ``allow_changed``: score even if the base model, the rows, the settings or that code are not those of the run.

    Raises :class:`ConfigError`.
    """
    path = Path(path)
    if (path / "adapter_config.json").is_file():
        if client is not None:
            raise ConfigError.at("--client", "an adapter folder has one model; name the run directory instead")
        return _evaluate_adapter(path, device, allow_code=allow_code, allow_changed=allow_changed)
    rows = ["test_examples_sha256", *(() if client is None else ("examples_sha256", "clients_sha256"))]
    opened = reopen(path, device, source=_SOURCE, rows=rows, allow_code=allow_code, allow_changed=allow_changed)
    seen, base = opened.model(client)
    population = opened.assembly.population
    result = {"test": _scored(opened.assembly, seen, base, population.test)}
    if client is not None:
        result["validation"] = _scored(opened.assembly, seen, base, population.members[client].validation)
    return result


_SOURCE = "rondo evaluate"


def _evaluate_adapter(path: Path, device: str, *, allow_code: bool, allow_changed: bool) -> dict[str, Any]:
    """Scores of the adapter in ``path``. The configuration in it, or in the run around it, names the data."""
    config_files = [f for f in (path / "rondo.toml", path.parent / "config.toml") if f.is_file()]
    if not config_files:
        message = f"{str(path)!r} does not say what to score it on: it has no rondo.toml (rondo export writes one)"
        raise ConfigError.at("ADAPTER_DIR", message)
    config = load(config_files[0])
    check_code(config, allow_code, _SOURCE)
    labels: tuple[str, ...] = ()
    if tasks.load(config.task.kind).classes:
        labels = tuple(map(str, RunDirectory(path).read("labels.json")))
    adapter = config.adapter.model_copy(update={"start_from": str(path)})
    clients = config.clients.model_copy(update={"ranks": None, "bytes_budget": None})  # the adapter's rank is its own
    assembly = assemble(config.model_copy(update={"adapter": adapter, "clients": clients}), device, labels=labels)
    for file in (path / RECORD, path.parent / "manifest.json"):
        if file.is_file():
            then = RunDirectory(file.parent).read(file.name)
            must_equal(then, assembly.model.identity, whatever=allow_changed, remedy=OPEN_ANYWAY, source=_SOURCE)
            break
    return {"test": _scored(assembly, assembly.model.network.initial, {}, assembly.population.test)}


def _scored(assembly: Assembly, seen: Params, base: Base, examples: Sequence[Example]) -> dict[str, float | None]:
    return assembly.scorer({}).scores(seen, base, examples)
