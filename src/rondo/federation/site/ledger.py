"""A site's ledger of privacy: the private steps on its rows, over all runs, whatever a server says. A masked sum with
noise of the sites is a step on all rows.

A training is written down before its first step, so a program that dies then has spent it. Accounts are of rows, not of
runs or files: the epsilon spent on a file counts for every file that shares a row's inputs with it, or a person where
the contract names the column of persons. What was spent while it named other columns counts too, since nobody knows for
whom. Both are known by keyed digests. The key, ``privacy.key``, is the site's own:
without it nobody can try out texts on the ledger. Noise and draws need no key, since they come from the operating
system, anew for every step.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rondo.data.files.tables import Rows
from rondo.errors import ConfigError
from rondo.privacy.accounts.account import Account, Entry, Steps, read
from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.records import durable
from rondo.tasks.row_checks import value_name

FILE, KEY, MARKS = "privacy.jsonl", "privacy.key", "privacy-rows"
_FORMER = "privacy.json"
_KEY_BYTES = 32
_MARK = 8
"""Bytes of a digest."""


@dataclass
class SiteLedger:
    """The ledger in a site's ``folder``.

    ``rows``: the rows of each client, by its id.
    ``inputs``: the columns that runs may read as inputs.
    ``persons``: the column that says whose a row is; None: each row is a unit.

    Raises :class:`ConfigError` where a file of it is damaged or a row is nobody's, and OSError where the folder cannot
    be written. Nothing is read or written before the first call.
    """

    folder: Path
    rows: Mapping[str, Rows]
    inputs: Sequence[str] = ()
    persons: str | None = None
    _files: dict[str, str] = field(default_factory=dict)
    """The digest of each client's rows."""
    _known: dict[str, set[bytes]] = field(default_factory=dict)
    """The digests of each client's inputs, or persons."""
    _pairs: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether two clients share one."""
    _journal: durable.Journal = field(init=False)
    _runs: dict[str, Account] = field(init=False, default_factory=dict)
    """The account of each run, as far as the journal was read."""

    def __post_init__(self) -> None:
        self._journal = durable.Journal(self.folder / FILE)

    def epsilon(self, client: str, delta: float, more: Steps | None = None, *, apart_from: str = "") -> float:
        """Epsilon at ``delta`` of all steps so far on rows of ``client``, and of ``more`` steps. ``apart_from``: a run
        that does not count."""
        return epsilon_of_steps(added(*self._spent_on(self._file(client), apart_from), more or {}), delta)

    def spend(self, client: str, entry: Entry) -> None:
        """Write ``entry`` down, on the rows of ``client``. It is on the disk when this returns."""
        file, runs = self._file(client), self._read()
        marks = self.folder / MARKS / file
        if not marks.is_file():
            durable.make_folder(marks.parent)
            durable.write(marks, b"".join(sorted(self._marks(client))))
        runs.setdefault(entry.run, Account(self._write)).spend(replace(entry, who=file))

    def sharing(self, client: str, others: Iterable[str]) -> list[str]:
        """Those of ``others`` that share an input or a person with ``client``, itself among them."""
        return [other for other in others if self._share(client, other)]

    def _share(self, client: str, other: str) -> bool:
        pair = (min(client, other), max(client, other))
        if pair not in self._pairs:
            self._pairs[pair] = not self._marks(client).isdisjoint(self._marks(other))
        return self._pairs[pair]

    def accounts(self, delta: float) -> Iterator[tuple[str, int, float]]:
        """The digest of every file of rows that was trained on, with the number of runs, and epsilon."""
        runs = Counter(file for account in self._read().values() for file in account.steps)
        for file, count in runs.items():
            yield file, count, epsilon_of_steps(added(*self._spent_on(file)), delta)

    def _spent_on(self, file: str, apart_from: str = "") -> Iterator[Steps]:
        """The steps on every file that shares an input or a person with ``file``."""
        counted = [account.steps for run, account in self._read().items() if run != apart_from]
        for other in dict.fromkeys(name for steps in counted for name in steps):
            if other == file or _kind(other) != _kind(file) or self._overlap(file, other):
                yield from (steps[other] for steps in counted if other in steps)

    def _overlap(self, file: str, other: str) -> bool:
        """Whether two files share an input, or a person."""
        clients = [client for client in self.rows if self._file(client) == file]
        own = self._marks(clients[0]) if clients else _marks_in(self.folder / MARKS / file)
        return not own.isdisjoint(_marks_in(self.folder / MARKS / other))

    def _file(self, client: str) -> str:
        if client not in self._files:
            digest = hashlib.sha256(b"".join(sorted(self._marks(client)))).hexdigest()[:16]
            named = sorted(self.inputs) if self.persons is None else self.persons
            kind = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:8]
            self._files[client] = f"{kind}-{digest}"
        return self._files[client]

    def _marks(self, client: str) -> set[bytes]:
        if client not in self._known:
            key = self._key()
            self._known[client] = {hmac.digest(key, unit, "sha256")[:_MARK] for unit in self._units(client)}
        return self._known[client]

    def _units(self, client: str) -> Iterator[bytes]:
        for number, row in enumerate(self.rows[client]):
            if self.persons is None:
                inputs = [(name, repr(row[name])) for name in sorted(self.inputs) if name in row]
                yield repr(inputs).encode("utf-8", "surrogatepass")
            elif row.get(self.persons) is None:
                message = f"row {number + 1} of {client} has no {self.persons!r}, so it is nobody's: mend the row"
                raise ConfigError.at("privacy.persons", message)
            else:
                yield value_name(row[self.persons]).encode("utf-8", "surrogatepass")

    def _read(self) -> dict[str, Account]:
        """The account of each run."""
        path = self.folder / FILE
        if (former := self.folder / _FORMER).exists():
            message = f"{str(former)!r} is a ledger of a former version, which this one does not read"
            raise ConfigError.at("--state", f"{message}: name another folder, and count what was spent by yourself")
        if (path.stat().st_size if path.is_file() else 0) == self._journal.position.bytes:
            return self._runs
        self._runs.clear()
        try:
            for entry in read(self._journal.whole()):
                self._runs.setdefault(entry.run, Account(self._write)).count(entry)
        except ValueError as error:
            message = (
                f"{str(path)!r} is damaged ({error}), and without it nobody knows what was spent: take a copy of it"
            )
            raise ConfigError.at("--state", message) from None
        return self._runs

    def _write(self, lines: bytes) -> None:
        self._journal.append(lines.removesuffix(b"\n"))

    def _key(self) -> bytes:
        """The site's own key, made once."""
        path = self.folder / KEY
        key = path.read_bytes() if path.is_file() else b""
        if len(key) != _KEY_BYTES:
            if (self.folder / FILE).is_file():
                message = f"{str(path)!r} is missing or damaged, and without it no row is known in {FILE}"
                raise ConfigError.at("--state", f"{message}: take a copy of it")
            key = os.urandom(_KEY_BYTES)
            durable.make_folder(self.folder)
            durable.write_private(path, key)
        return key


def _kind(file: str) -> str:
    """The columns that a file's rows, or persons, are known by."""
    return file.partition("-")[0]


def _marks_in(path: Path) -> set[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError.at(
            "--state", f"{str(path)!r} is missing, and rows in it have spent: take a copy of it"
        ) from None
    return {data[start : start + _MARK] for start in range(0, len(data), _MARK)}


def added(*parts: Steps) -> Steps:
    """The steps of all ``parts`` together."""
    return sum(map(Counter, parts), Counter())
