"""Checkpoints of a run: everything needed to continue after any round as if the run had never stopped.

::

    round-000012/          a generation; the last two are kept
      state.safetensors    the server's state (see :mod:`rondo.engine.wire.serialization`)
      ledger.json          the versions of the tensors that each client has
      manifest.json        rounds, scores, lengths and SHA-256 of everything in the generation; written last
    round-000011/
    clients/               tensors that clients keep; one file per client and round in which they changed

A generation counts once its manifest is in place. Anything else (an unfinished generation, client files of uncommitted
rounds) was left by a process that stopped, and is removed when the run continues.

Digests cover every byte: the digest in a client file's name covers the file, one in the manifest covers all those
names, and the manifest ends with its own. Random streams are functions of seed, round and client, so no generator
state is stored.
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

from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.params import Params
from rondo.records import durable
from rondo.records.durable import Damaged, Journal, Position

GENERATIONS = 2
FORMAT = 2
"""Format of the manifest. A manifest of another format, as a later version of Rondo may write it, is refused."""

_MANIFEST, _STATE, _LEDGER = "manifest.json", "state.safetensors", "ledger.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``rounds`` rounds, skipped ones included.

    ``aggregated``: the number of rounds that were aggregated.
    ``state``: the server's state.
    ``locals``: the tensors that clients keep.
    ``ledger``: the versions of the tensors that clients have.
    ``journal``: the end of the journal.
    ``scores``: the scores and generated answers before the first round, and the best round so far, as JSON.
    """

    rounds: int
    aggregated: int
    state: Any
    locals: Kept
    ledger: Ledger
    journal: Position
    scores: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Commit ``checkpoint``, which must be later than all in ``folder``. The parent of ``folder`` must exist.

    Writes only the clients' tensors that were set since the last call. Raises OSError; earlier checkpoints stay.
    """
    durable.make_folder(folder)
    checkpoint.locals.write(checkpoint.rounds)
    place = folder / f"round-{checkpoint.rounds:06}"
    durable.make_folder(place)
    contents = {_STATE: serialization.pack(checkpoint.state), _LEDGER: checkpoint.ledger.to_json()}
    durable.write_all(place, contents)
    content = {
        "format": FORMAT,
        "rounds": checkpoint.rounds,
        "aggregated": checkpoint.aggregated,
        "files": {n: asdict(Position(len(c), hashlib.sha256(c).hexdigest())) for n, c in contents.items()},
        "clients": {"count": len(checkpoint.locals), "digest": checkpoint.locals.digest},
        "journal": asdict(checkpoint.journal),
        "scores": checkpoint.scores,
    }
    durable.write(place / _MANIFEST, _sealed(content))
    for old in _generations(folder)[GENERATIONS:]:
        (old / _MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted generation does not count
        shutil.rmtree(old)
    checkpoint.locals.forget(checkpoint.rounds - GENERATIONS + 1)


def load(folder: Path, like: Any, journal: Journal | None = None) -> tuple[Checkpoint, list[str]]:
    """The newest intact checkpoint, and what is wrong with newer ones. ``like``: a state of the same algorithm. With
    ``journal``, the journal and every client's file must be intact too.

    Raises FileNotFoundError without a checkpoint, :class:`~rondo.records.durable.Damaged` without an intact one.
    """
    reasons: list[str] = []
    for generation in _generations(folder):
        try:
            return _load(generation, like, journal), reasons
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"{generation.name}: {error}")
    if not reasons:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    raise Damaged("; ".join(reasons))


def clean(folder: Path, checkpoint: Checkpoint) -> None:
    """Remove everything but ``checkpoint`` and the generation before it: leftovers of a stopped process, and damaged
    generations."""
    for path in folder.iterdir():
        generation = re.fullmatch(r"round-(\d+)", path.name)
        if generation is not None and not checkpoint.rounds - GENERATIONS < int(generation[1]) <= checkpoint.rounds:
            with contextlib.suppress(FileNotFoundError):
                (path / _MANIFEST).unlink()
            shutil.rmtree(path)
        elif generation is not None:
            for temporary in path.glob(f"*{durable.TEMPORARY}"):
                temporary.unlink()
    checkpoint.locals.clean(checkpoint.rounds - GENERATIONS + 1)


def _generations(folder: Path) -> list[Path]:
    """Folders of the committed generations, newest first."""
    folders = [p for p in folder.glob("round-*") if re.fullmatch(r"round-\d+", p.name) and (p / _MANIFEST).is_file()]
    return sorted(folders, key=lambda p: int(p.name.removeprefix("round-")), reverse=True)


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
    state = serialization.unpack(parts[_STATE], like)
    ledger = Ledger.from_json(parts[_LEDGER])
    return Checkpoint(content["rounds"], content["aggregated"], state, kept, ledger, position, content["scores"])


def _sealed(content: Mapping[str, Any]) -> bytes:
    """``content`` as JSON, followed by the SHA-256 of that JSON text. Equal contents give equal bytes."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return f'{{"content": {body},\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def _unsealed(text: bytes) -> dict[str, Any]:
    """The content that :func:`_sealed` was given. Raises :class:`~rondo.records.durable.Damaged`."""
    try:
        content: dict[str, Any] = json.loads(text)["content"]
        intact = _sealed(content) == text
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise Damaged(f"{_MANIFEST} is not as it was written (SHA-256)")
    return content


class _File(NamedTuple):
    """The name of a client's file.

    ``stem``: stands for the client (:func:`_stem`).
    ``rounds``: the number of rounds after which it was written.
    ``sha256``: the digest of its content.
    """

    stem: str
    rounds: int
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.stem}.{self.rounds}.{self.sha256}.safetensors"

    @staticmethod
    def of(name: str) -> _File | None:
        matched = re.fullmatch(r"(.*)\.(\d+)\.([0-9a-f]{64})\.safetensors", name)
        return None if matched is None else _File(matched[1], int(matched[2]), matched[3])


class Kept(MutableMapping[str, Params]):
    """Tensors that clients keep, by client id, in the folder ``clients``. ``rounds``: as of so many rounds; None: the
    newest. There is one file per client and round in which they changed. Its name has the SHA-256 of its content, so a
    digest over the names covers the contents too.

    Files are read on demand, and tensors that are set stay in memory only until they are written, so memory does not
    grow with the number of clients. Reading raises :class:`~rondo.records.durable.Damaged` if a file is not as it
    was written, or another client's.
    """

    def __init__(self, folder: Path, rounds: int | None = None) -> None:
        self._clients = folder / "clients"
        self._unsaved: dict[str, Params] = {}
        self._files: dict[str, list[_File]] = {}
        parsed = [_File.of(p.name) for p in self._clients.iterdir()] if self._clients.is_dir() else []
        for file in sorted((f for f in parsed if f is not None), key=lambda f: f.rounds):
            if rounds is None or file.rounds <= rounds:
                self._files.setdefault(file.stem, []).append(file)
        self._several = {stem for stem, files in self._files.items() if len(files) > 1}
        self._digest = 0
        for files in self._files.values():
            self._digest ^= _number(files[-1])

    @property
    def digest(self) -> str:
        """One digest over the names, and so the contents, of every client's newest file, in any order."""
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
        record: dict[str, Any] = serialization.unpack(content, {})
        if _stem(record["id"]) != file.stem:
            raise Damaged(f"clients/{file.name} has the tensors of another client, {record['id']!r}")
        return record

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
        """Read every client's newest file. Raises :class:`~rondo.records.durable.Damaged`."""
        for files in self._files.values():
            self._read(files[-1])

    def write(self, rounds: int) -> None:
        """Write everything set since the last call, as of ``rounds`` rounds, and drop it from memory."""
        contents: dict[_File, bytes] = {}
        for client, params in self._unsaved.items():
            content = serialization.pack({"id": client, "params": dict(params)})
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
        """Remove files that are not needed to go back to the state after ``rounds`` rounds or more."""
        for stem in sorted(self._several):
            files = self._files[stem]
            unneeded = files[: max(0, sum(f.rounds <= rounds for f in files) - 1)]
            for file in unneeded:
                (self._clients / file.name).unlink(missing_ok=True)
            del files[: len(unneeded)]
        self._several = {stem for stem in self._several if len(self._files[stem]) > 1}

    def clean(self, rounds: int) -> None:
        """Remove all files that are not in this mapping, and those that :meth:`forget` would remove."""
        self.forget(rounds)
        needed = {f.name for files in self._files.values() for f in files}
        for path in self._clients.iterdir() if self._clients.is_dir() else ():
            if path.name not in needed:
                path.unlink(missing_ok=True)


def _number(file: _File) -> int:
    return int.from_bytes(hashlib.sha256(file.name.encode()).digest())


_SHORTENED = re.compile(r".*-[0-9a-f]{32}", re.DOTALL)


def _stem(client: str) -> str:
    """A name for the client that no other client has: the percent-encoded id. An id that is empty, too long or has
    capitals is cut and gets a digest, since some file systems do not tell capitals from small letters; so does an id
    that looks as if it had one."""
    name = quote(client, safe="", errors="surrogatepass")
    if not 0 < len(name) <= 120 or client != client.lower() or _SHORTENED.fullmatch(client):
        digest = hashlib.blake2b(client.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        name = f"{name[:80]}-{digest}"
    return name
