"""A run opened again: its model, and its state after the last committed round."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.algorithm import Client
from rondo.engine.scoring import Scorer
from rondo.errors import ConfigError
from rondo.models.network import Base
from rondo.params import Params
from rondo.runs.assemble import Assembly, assemble
from rondo.runs.storage import checkpoint
from rondo.runs.storage.directory import RunDirectory


@dataclass(frozen=True)
class Reopened:
    """A run opened again. ``state``: the server's state after ``aggregated`` rounds."""

    assembly: Assembly
    directory: RunDirectory
    state: Any
    aggregated: int
    scorer: Scorer

    def model(self, client: str | None) -> tuple[Params, Base]:
        """The tensors that the network sees, and the base's change, for a client by id, or for a newcomer. Raises
        :class:`ConfigError`."""
        round = self.assembly.round(self.aggregated)
        if client is None:
            return self.scorer.newcomer(self.state, round)
        known = self.directory.read("partition.json")["clients"]
        if client not in known:
            near = difflib.get_close_matches(client, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(list(known)[:10])}"
            raise ConfigError.at("--client", f"no client {client!r}; {hint}")
        try:
            entry = known[client]
            return self.scorer.model(self.state, Client(client, entry["train"], entry.get("rank")), round)
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
    return Reopened(assembly, directory, point.state, point.aggregated, assembly.scorer(point.locals))
