"""The checkpoint of a run: the server's state, what each client keeps, and the number of rounds done.

``state.safetensors`` (see :mod:`rondo.state`), ``clients/<id>.safetensors`` (ids percent-encoded) and
``progress.json``, which is written last. Every file is replaced in one step, so a reader never sees half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, MutableMapping
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
    locals: MutableMapping[str, Params]


class Kept(MutableMapping[str, Params]):
    """What clients keep, by id, in the ``clients`` folder of a checkpoint: read when it is asked for. What is set stays
    in memory until :func:`save` has written it, so memory does not grow with the number of clients."""

    def __init__(self, folder: Path) -> None:
        self._clients = folder / "clients"
        self._unsaved: dict[str, Params] = {}

    def __getitem__(self, client: str) -> Params:
        if client in self._unsaved:
            return self._unsaved[client]
        try:
            content = (self._clients / _file_name(client)).read_bytes()
        except FileNotFoundError:
            raise KeyError(client) from None
        params: Params = states.unpack(content, {})["params"]
        return params

    def __setitem__(self, client: str, params: Params) -> None:
        self._unsaved[client] = params

    def __delitem__(self, client: str) -> None:
        raise TypeError("what a client keeps is replaced, never deleted")

    def __iter__(self) -> Iterator[str]:
        saved = (states.unpack(f.read_bytes(), {})["id"] for f in sorted(self._clients.glob("*.safetensors")))
        yield from dict.fromkeys([*saved, *self._unsaved])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def saved(self, client: str) -> None:
        """Note that the client's file is written."""
        self._unsaved.pop(client, None)


def save(folder: Path, checkpoint: Checkpoint, changed: Iterable[str]) -> None:
    """Write ``checkpoint``; of the clients only those ``changed`` since the last call."""
    clients = folder / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    for client in changed:
        if checkpoint.locals.get(client):
            clients.mkdir(exist_ok=True)
            content = {"id": client, "params": dict(checkpoint.locals[client])}
            replace(clients / _file_name(client), states.pack(content))
            if isinstance(checkpoint.locals, Kept):
                checkpoint.locals.saved(client)
    replace(folder / "state.safetensors", states.pack(checkpoint.state))
    replace(folder / "progress.json", (json.dumps({"rounds": checkpoint.rounds}) + "\n").encode())


def load(folder: Path, like: Any) -> Checkpoint:
    """Read a checkpoint; ``like`` is a state of the same algorithm. Raises FileNotFoundError or ValueError."""
    rounds = json.loads((folder / "progress.json").read_text())["rounds"]
    state = states.unpack((folder / "state.safetensors").read_bytes(), like)
    return Checkpoint(rounds, state, Kept(folder))


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
