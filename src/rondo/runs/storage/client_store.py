"""Tensors that clients keep from round to round, on the disk: one file per client and round in which they changed.

A file's name has the SHA-256 of its content, so a digest over the names covers the contents too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rondo.engine.wire import serialization
from rondo.params import Params
from rondo.records import durable
from rondo.records.durable import Damaged


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
    newest.

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
