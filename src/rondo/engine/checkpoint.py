"""The checkpoints of a run: all that it takes to go on after any round as if nothing had happened.

::

    round-000012/          a generation; there are the last two
      state.safetensors    the server's state (see :mod:`rondo.state`)
      ledger.json          which versions of which tensors each client has
      manifest.json        rounds, scores, lengths and SHA-256 of all that belongs to the generation; written last
    round-000011/
    clients/               what each client keeps; a file a client and round in which that changed

A generation counts from the moment its manifest is in place. Whatever else is found later (an unfinished generation,
clients' files of rounds that were never committed) is of a process that stopped, and is removed when the run goes on.
Every byte is covered by a digest: a client's file by the one in its name, all their names by one in the manifest. The
manifest has its own. Random streams are functions of seed, round and client, so no generator needs to be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rondo import durable
from rondo import state as states
from rondo.durable import Damaged, Journal, Position
from rondo.engine.ledger import Ledger
from rondo.params import Params

GENERATIONS = 2
FORMAT = 1
"""Of the manifest. One that a later version of Rondo has written is refused, not guessed at."""

_MANIFEST, _STATE, _LEDGER = "manifest.json", "state.safetensors", "ledger.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``rounds`` rounds: the server's state, what clients keep, what they hold, and the end of the journal.

    ``scores``: what was scored before the first round, and the best round so far, as JSON.
    """

    rounds: int
    state: Any
    locals: Kept
    ledger: Ledger
    journal: Position
    scores: Mapping[str, Any]


class _File(NamedTuple):
    """A client's file: a stem that stands for the client, the round after which it was written, and its SHA-256."""

    stem: str
    rounds: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.stem}.{self.rounds}.{self.sha256}.safetensors"

    @staticmethod
    def of(name: str) -> _File | None:
        found = re.fullmatch(r"(.*)\.(\d+)\.([0-9a-f]{64})\.safetensors", name)
        return None if found is None else _File(found[1], int(found[2]), found[3])


class Kept(MutableMapping[str, Params]):
    """What clients keep, by id, in the ``clients`` folder: read when it is asked for. What is set stays in memory until
    it has been written, so memory does not grow with the number of clients. ``rounds``: what they kept after so many;
    None: the newest.

    Reading raises :class:`~rondo.durable.Damaged` where a file is not as it was written.
    """

    def __init__(self, folder: Path, rounds: int | None = None) -> None:
        self._clients = folder / "clients"
        self._unsaved: dict[str, Params] = {}
        self._files: dict[str, list[_File]] = {}
        found = [_File.of(p.name) for p in self._clients.iterdir()] if self._clients.is_dir() else []
        for file in sorted((f for f in found if f is not None), key=lambda f: f.rounds):
            if rounds is None or file.rounds <= rounds:
                self._files.setdefault(file.stem, []).append(file)
        self._several = {stem for stem, files in self._files.items() if len(files) > 1}
        self._digest = 0
        for files in self._files.values():
            self._digest ^= _number(files[-1])

    @property
    def digest(self) -> str:
        """One digest over the names, and with them the contents, of all clients' files; in any order."""
        return f"{self._digest:064x}"

    def __getitem__(self, client: str) -> Params:
        if client in self._unsaved:
            return self._unsaved[client]
        files = self._files.get(_stem(client))
        if not files:
            raise KeyError(client)
        params: Params = self._read(files[-1])["params"]
        return params

    def _read(self, file: _File) -> dict[str, Any]:
        try:
            content = (self._clients / file.name).read_bytes()
        except FileNotFoundError:
            raise Damaged(f"clients/{file.name} is missing") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise Damaged(f"clients/{file.name} is not as it was written (SHA-256)")
        found: dict[str, Any] = states.unpack(content, {})
        return found

    def __setitem__(self, client: str, params: Params) -> None:
        self._unsaved[client] = params

    def __delitem__(self, client: str) -> None:
        raise TypeError("what a client keeps is replaced, never deleted")

    def __iter__(self) -> Iterator[str]:
        saved = [self._read(files[-1])["id"] for _, files in sorted(self._files.items())]
        yield from dict.fromkeys([*saved, *self._unsaved])

    def __len__(self) -> int:
        return len(self._files.keys() | {_stem(c) for c in self._unsaved})

    def check(self) -> None:
        """Read every file. Raises :class:`~rondo.durable.Damaged`."""
        for files in self._files.values():
            self._read(files[-1])

    def write(self, rounds: int) -> None:
        """Write all that was set since the last call, as after ``rounds`` rounds; it leaves memory."""
        contents: dict[_File, bytes] = {}
        for client, params in self._unsaved.items():
            content = states.pack({"id": client, "params": dict(params)})
            contents[_File(_stem(client), rounds, hashlib.sha256(content).hexdigest())] = content
        if contents:
            durable.make_folder(self._clients)
            durable.write_all(self._clients, {file.name: content for file, content in contents.items()})
        for file in contents:
            files = self._files.setdefault(file.stem, [])
            if files:
                self._digest ^= _number(files[-1])
                self._several.add(file.stem)
            files.append(file)
            self._digest ^= _number(file)
        self._unsaved.clear()

    def forget(self, rounds: int) -> None:
        """Remove the files that nobody needs who goes back to after ``rounds`` rounds or later."""
        for stem in sorted(self._several):
            files = self._files[stem]
            unneeded = files[: max(0, sum(f.rounds <= rounds for f in files) - 1)]
            for file in unneeded:
                (self._clients / file.name).unlink(missing_ok=True)
            del files[: len(unneeded)]
        self._several = {stem for stem in self._several if len(self._files[stem]) > 1}

    def clean(self, rounds: int) -> None:
        """Remove all files that are not in this mapping, and what :meth:`forget` would remove."""
        self.forget(rounds)
        mine = {f.name for files in self._files.values() for f in files}
        for path in self._clients.iterdir() if self._clients.is_dir() else ():
            if path.name not in mine:
                path.unlink(missing_ok=True)


def _number(file: _File) -> int:
    return int.from_bytes(hashlib.sha256(file.name.encode()).digest())


def _stem(client: str) -> str:
    """The id percent-encoded; with a digest where that alone is no good file name: too long, empty, or with capitals,
    which not every file system tells from small letters."""
    name = quote(client, safe="")
    if not 0 < len(name) <= 120 or client != client.lower():
        name = f"{name[:80]}-{hashlib.blake2b(client.encode(), digest_size=16).hexdigest()}"
    return name


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Commit ``checkpoint``, which must be later than all in ``folder``, its parent being there. Of what clients keep
    only what was set since the last call is written. Raises OSError; what was committed before that stays.
    """
    durable.make_folder(folder)
    checkpoint.locals.write(checkpoint.rounds)
    place = folder / f"round-{checkpoint.rounds:06}"
    durable.make_folder(place)
    contents = {_STATE: states.pack(checkpoint.state), _LEDGER: checkpoint.ledger.to_json()}
    durable.write_all(place, contents)
    content = {
        "format": FORMAT,
        "rounds": checkpoint.rounds,
        "files": {n: asdict(Position(len(c), hashlib.sha256(c).hexdigest())) for n, c in contents.items()},
        "clients": {"count": len(checkpoint.locals), "digest": checkpoint.locals.digest},
        "journal": asdict(checkpoint.journal),
        "scores": checkpoint.scores,
    }
    durable.write(place / _MANIFEST, _sealed(content))
    for old in _generations(folder)[GENERATIONS:]:
        (old / _MANIFEST).unlink(missing_ok=True)  # first, so that half of a generation is not taken for one
        shutil.rmtree(old)
    checkpoint.locals.forget(checkpoint.rounds - GENERATIONS + 1)


def load(folder: Path, like: Any, journal: Journal | None = None) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that is as it was written, and what is wrong with newer ones. ``like`` is a state of the
    same algorithm. With ``journal`` that and every client's file must be whole, too.

    Raises FileNotFoundError where there is none, and :class:`~rondo.durable.Damaged` where none is whole.
    """
    reasons: list[str] = []
    for place in _generations(folder):
        try:
            return _load(place, like, journal), reasons
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"{place.name}: {error}")
    if not reasons:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    raise Damaged("; ".join(reasons))


def clean(folder: Path, checkpoint: Checkpoint) -> None:
    """Remove what is no part of ``checkpoint`` or of the generation before it: left by a process that stopped, or
    damaged."""
    for path in folder.iterdir():
        found = re.fullmatch(r"round-(\d+)", path.name)
        if found is not None and not checkpoint.rounds - GENERATIONS < int(found[1]) <= checkpoint.rounds:
            with contextlib.suppress(FileNotFoundError):
                (path / _MANIFEST).unlink()
            shutil.rmtree(path)
        elif found is not None:
            for temporary in path.glob(f"*{durable.TEMPORARY}"):
                temporary.unlink()
    checkpoint.locals.clean(checkpoint.rounds - GENERATIONS + 1)


def _generations(folder: Path) -> list[Path]:
    """Those that were committed, the newest first."""
    found = [p for p in folder.glob("round-*") if re.fullmatch(r"round-\d+", p.name) and (p / _MANIFEST).is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("round-")), reverse=True)


def _load(place: Path, like: Any, journal: Journal | None) -> Checkpoint:
    content = _unsealed((place / _MANIFEST).read_bytes())
    if content["format"] != FORMAT:
        raise Damaged(f"{_MANIFEST} has format {content['format']}, this version of Rondo knows {FORMAT}")
    parts = {}
    for name in (_STATE, _LEDGER):
        parts[name] = (place / name).read_bytes()
        if asdict(Position(len(parts[name]), hashlib.sha256(parts[name]).hexdigest())) != content["files"][name]:
            raise Damaged(f"{name} is not as it was written (length or SHA-256)")
    kept = Kept(place.parent, content["rounds"])
    if {"count": len(kept), "digest": kept.digest} != content["clients"]:
        raise Damaged("clients/ has other files than were written")
    position = Position(**content["journal"])
    if journal is not None:
        journal.lines(position)
        kept.check()
    state = states.unpack(parts[_STATE], like)
    ledger = Ledger.from_json(parts[_LEDGER])
    return Checkpoint(content["rounds"], state, kept, ledger, position, content["scores"])


def _sealed(content: Mapping[str, Any]) -> bytes:
    """JSON with the digest of its own text at the end, written in one way only."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return f'{{"content": {body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def _unsealed(text: bytes) -> dict[str, Any]:
    """What :func:`_sealed` was given. Raises :class:`~rondo.durable.Damaged`."""
    try:
        content: dict[str, Any] = json.loads(text)["content"]
        whole = _sealed(content) == text
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise Damaged(f"{_MANIFEST} is not as it was written (SHA-256)")
    return content
