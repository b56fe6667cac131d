"""The checkpoint of a run: the server's state, what each client keeps, and the number of rounds done.

``state.safetensors`` (see :mod:`rondo.state`), ``clients/<id>.safetensors`` (ids percent-encoded) and
``progress.json``, which is written last. Every file is replaced in one step, so a reader never sees half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rondo import state as states
from rondo.params import Params


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to be used again: rounds done, server state, and tensors kept by client id."""

    rounds: int
    state: Any
    locals: Mapping[str, Params]


def save(folder: Path, checkpoint: Checkpoint, changed: Iterable[str]) -> None:
    """Write ``checkpoint``; of the clients only those ``changed`` since the last call."""
    clients = folder / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    for client in changed:
        if checkpoint.locals.get(client):
            clients.mkdir(exist_ok=True)
            content = {"id": client, "params": dict(checkpoint.locals[client])}
            replace(clients / _file_name(client), states.pack(content))
    replace(folder / "state.safetensors", states.pack(checkpoint.state))
    replace(folder / "progress.json", (json.dumps({"rounds": checkpoint.rounds}) + "\n").encode())


def load(folder: Path, like: Any) -> Checkpoint:
    """Read a checkpoint; ``like`` is a state of the same algorithm. Raises FileNotFoundError or ValueError."""
    rounds = json.loads((folder / "progress.json").read_text())["rounds"]
    state = states.unpack((folder / "state.safetensors").read_bytes(), like)
    files = sorted((folder / "clients").glob("*.safetensors"))
    each = [states.unpack(f.read_bytes(), {}) for f in files]
    kept = {c["id"]: c["params"] for c in each}
    return Checkpoint(rounds, state, kept)


def _file_name(client: str) -> str:
    """The id percent-encoded; with a digest where that alone is no good file name: too long, empty, or with capitals,
    which not every file system tells from small letters."""
    name = quote(client, safe="")
    if not 0 < len(name) <= 120 or client != client.lower():
        name = f"{name[:80]}-{hashlib.blake2b(client.encode(), digest_size=16).hexdigest()}"
    return f"{name}.safetensors"


def replace(path: Path, content: bytes) -> None:
    """Write a file beside ``path`` and put it in its place in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
