"""Results opened again: a run at its last committed round, or an adapter from one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from rondo.algorithm import Client
from rondo.config.load import load
from rondo.config.schema import RunConfig
from rondo.engine.scoring import Scorer
from rondo.errors import ConfigError
from rondo.models.network import Base
from rondo.params import Params
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.card import CONFIG
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.runs.storage.directory import RunDirectory
from rondo.tasks import table as tasks


@dataclass(frozen=True)
class Reopened:
    """A run opened again at its newest checkpoint."""

    assembly: Assembly
    directory: RunDirectory
    point: Checkpoint
    scorer: Scorer

    def model(self, client: str | None) -> tuple[Params, Base]:
        """The tensors that the network sees, and the base's change, for a client by id, or for a newcomer. Raises
        :class:`ConfigError`."""
        round = self.assembly.round(self.point.aggregated)
        if client is None:
            return self.scorer.newcomer(self.point.state, round)
        known = self.directory.read("partition.json")["clients"]
        if client not in known:
            near = difflib.get_close_matches(client, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(list(known)[:10])}"
            raise ConfigError.at("--client", f"no client {client!r}; {hint}")
        try:
            entry = known[client]
            return self.scorer.model(self.point.state, Client(client, entry["train"], entry.get("rank")), round)
        except (OSError, ValueError) as error:
            raise ConfigError.at("RUN_DIR", f"what client {client!r} keeps cannot be read: {error}") from None


def reopen(run_dir: str | Path, device: str = "auto", *, exact: bool = False, with_rows: bool = False) -> Reopened:
    """Load a run's model and state from its directory. Raises :class:`ConfigError`.

    ``exact``: compute in float32 even if the run trained otherwise.
    ``with_rows``: load the data too.
    """
    directory = RunDirectory.open(run_dir)
    config = directory.config()
    if exact:
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": "exact"})})
    labels = directory.read("manifest.json").get("labels")
    if not isinstance(labels, list):
        raise ConfigError.at("RUN_DIR", "manifest.json has no labels: it is not one that a run has written")
    assembly = assemble(config, device, labels=tuple(map(str, labels)), with_rows=with_rows)
    try:
        point, _ = checkpoint.load(directory.checkpoint, assembly.first_state())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError.at("RUN_DIR", f"its checkpoint cannot be read: {error}") from None
    return Reopened(assembly, directory, point, assembly.scorer(point.locals))


def is_adapter(folder: Path) -> bool:
    """Whether ``folder`` has an adapter as PEFT writes it."""
    return (folder / "adapter_config.json").is_file()


def handed_over(folder: Path, *, check_paths: bool) -> tuple[RunConfig, tuple[str, ...]]:
    """The configuration and the labels of the adapter in ``folder``. The configuration starts from the adapter.

    ``check_paths``: False does not check that the data exist.

    Raises :class:`ConfigError`.
    """
    if not (folder / CONFIG).is_file():
        message = (
            f"{str(folder)!r} does not say which columns to read: it has no {CONFIG}, as every adapter of a run has"
        )
        raise ConfigError.at("ADAPTER_DIR", f"{message}; name such a folder")
    config = load(folder / CONFIG, ["adapter.start_from="], check_paths=check_paths)
    if config.task.kind not in tasks.TABLE:
        message = f"{config.task.kind!r} is a task of one's own, and no model of transformers' is made for it"
        raise ConfigError.at("task.kind", message, str(folder / CONFIG))
    labels = tuple(RunDirectory(folder).read("labels.json")) if tasks.load(config.task.kind).classes else ()
    adapter = config.adapter.model_copy(update={"start_from": str(folder)})
    clients = config.clients.model_copy(update={"ranks": None, "bytes_budget": None})  # the adapter's rank is its own
    return config.model_copy(update={"adapter": adapter, "clients": clients}), labels
