"""TODO"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rondo.config.load import load
from rondo.data.client_rows import deal_rows
from rondo.data.population import build
from rondo.data.sources import load as load_source
from rondo.engine.scoring import scores
from rondo.errors import ConfigError, Problem
from rondo.models.outline import look
from rondo.params import Params
from rondo.runs.assemble import Prepared, find_device, prepare, reopen
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.wrapping import make_algorithm


def evaluate(path: str | Path, *, client: str | None = None, device: str = "auto") -> dict[str, Any]:
    """Scores of a run directory, or of a PEFT adapter inside or exported from one, on the run's test set.

    A run: the newcomer's model, or with ``client`` that client's, which is also scored on its own validation rows.
    Raises :class:`ConfigError`.
    """
    path = Path(path)
    if (path / "adapter_config.json").is_file():
        if client is not None:
            raise ConfigError([Problem("--client", "an adapter folder has one model; name the run directory instead")])
        return _evaluate_adapter(path, device)
    opened = reopen(path, device=device)
    config = opened.prepared.config
    seen, base = opened.model(client)
    population = build(config, deal_rows(config, load_source(config), opened.labels), opened.prepared.task)
    opened.prepared.shorten(population)  # computed as in the run, so that the same bits come out
    result = {"test": _scored(opened.prepared, seen, base, population.test)}
    if client is not None:
        result["validation"] = _scored(opened.prepared, seen, base, population.members[client].validation)
    return result


def _evaluate_adapter(path: Path, device: str) -> dict[str, Any]:
    """The adapter in ``path``, on the data that the configuration in it, or in the run around it, names."""
    beside = [f for f in (path / "rondo.toml", path.parent / "config.toml") if f.is_file()]
    if not beside:
        words = f"{str(path)!r} does not say what to score it on: it has no rondo.toml (rondo export writes one)"
        raise ConfigError([Problem("ADAPTER_DIR", words)])
    config = load(beside[0])
    labels: tuple[str, ...] = ()
    if config.task.kind == "sequence-classification":
        labels = tuple(RunDirectory(path).read("labels.json"))
    adapter = config.adapter.model_copy(update={"start_from": str(path)})
    config = config.model_copy(update={"adapter": adapter})
    algorithm, target = make_algorithm(config), find_device(device)
    dealt = deal_rows(config, load_source(config), labels)
    structure = look(config, labels, algorithm)
    population = build(config, dealt, structure.task)
    prepared = prepare(config, algorithm, target, structure)
    prepared.shorten(population)
    seen: Params = {**prepared.network.initial_head, **prepared.initial}
    return {"test": _scored(prepared, seen, {}, population.test)}


def _scored(prepared: Prepared, seen: Params, base: Any, examples: Any) -> dict[str, Any]:
    device = prepared.network.device
    there = {n: t.to(device) for n, t in seen.items()}
    size = prepared.config.evaluation.batch_size
    return scores(prepared.network, prepared.task, there, base, examples, batch_size=size)
